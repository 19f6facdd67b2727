"""Finding a compiler, and the cache of compiled libraries."""

import concurrent.futures
import ctypes
import importlib.util
import multiprocessing
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from harness import run_python, subprocess_env

import gpu_envs
from gpu_envs.backend import background, toolchain
from gpu_envs.errors import CompileError, NoCompilerError

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }'


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no CXX."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def add_program(folder: Path, name: str) -> str:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


def refuse_to_compile(*command: object, **_: object) -> NoReturn:
    raise AssertionError(f"started {command}")


def answer_of(number: int, name: str = "answer") -> int:
    return int(toolchain.build(SOURCE.replace("ANSWER", str(number)), name).answer())


# --- the compiler ---


def test_compilers_are_tried_in_order(bare_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert toolchain.find_compiler() == (sys.executable, "-P", "-m", "ziglang", *toolchain.ZIG_OPTIONS)
    for name in ("clang++", "g++", "c++"):  # each is preferred to the earlier names
        program = add_program(bare_path, name)
        assert toolchain.find_compiler() == (program,)


def test_cxx_comes_first_and_may_have_arguments(bare_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_program(bare_path, "c++")
    mine = add_program(bare_path, "mine")
    monkeypatch.setenv("CXX", "mine --option 'of two words'")
    assert toolchain.find_compiler() == (mine, "--option", "of two words")
    monkeypatch.setenv("CXX", mine)
    assert toolchain.find_compiler() == (mine,)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(NoCompilerError, match=r"'/nowhere/c\+\+'.*correct it or unset it"):
        toolchain.find_compiler()


@pytest.mark.usefixtures("bare_path", "cache")
def test_without_a_compiler_the_error_names_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoCompilerError) as caught:
        gpu_envs.make("CartPole-v1", device="cpu")
    for way in ("pip install ziglang", "apt install g++", "xcode-select --install", "CXX="):
        assert way in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_ziglang_gives_the_same_bits(tmp_path: Path) -> None:
    script = """
        import gpu_envs
        env = gpu_envs.make("CartPole-v1", 100, device="cpu", autoreset_mode="SameStep")
        env.reset(seed=3)
        env.action_space.seed(4)
        print([env.step(env.action_space.sample())[0].tobytes().hex() for _ in range(100)])
    """
    outputs = []
    zig = shlex.join((sys.executable, "-m", "ziglang", *toolchain.ZIG_OPTIONS))
    for name, compiler in (("zig", zig), ("default", "")):
        outputs.append(run_python(script, CXX=compiler, GPU_ENVS_CACHE_DIR=str(tmp_path / name)))
    assert outputs[0] == outputs[1]


# --- in a background thread ---


def test_a_background_build_is_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (31, 32, 31):
        toolchain.start_build(SOURCE.replace("ANSWER", str(number)), "answer")
    assert len(background.COMPILATIONS.threads) == 2
    threads = list(background.COMPILATIONS.threads.values())
    answers = [answer_of(number) for number in (31, 32)]
    assert not any(thread.is_alive() for thread in threads)
    assert (answers, background.COMPILATIONS.threads, len(list(cache.iterdir()))) == ([31, 32], {}, 2)
    monkeypatch.setattr(subprocess, "run", refuse_to_compile)
    toolchain.start_build(SOURCE.replace("ANSWER", "31"), "answer")
    assert answer_of(31) == 31  # from the cache


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_threads_build_the_same_library_at_once() -> None:
    def run(_: int) -> list[int]:
        answers = []
        for number in range(36, 56):
            toolchain.start_build(SOURCE.replace("ANSWER", str(number)), "answer")
            answers.append(answer_of(number))
        return answers

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4), timeout=60)) == [list(range(36, 56))] * 4


@pytest.mark.usefixtures("cache")
def test_build_raises_the_error_of_a_background_build(capfd: pytest.CaptureFixture[str]) -> None:
    toolchain.start_build(SOURCE, "answer")
    with pytest.raises(CompileError, match="ANSWER"):
        toolchain.build(SOURCE, "answer")
    assert capfd.readouterr() == ("", "")


def test_an_unsafe_folder_is_reported_once(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    toolchain.start_build(SOURCE.replace("ANSWER", "33"), "answer")
    with pytest.warns(UserWarning, match="other users can write to it") as warned:
        assert answer_of(33) == 33
    assert len(warned) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_a_process_that_ends_starts_no_further_builds(cache: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow-c++"
    slow.write_text('#!/bin/sh\nsleep 0.5\nexec c++ "$@"\n')
    slow.chmod(0o755)
    script = f"""
        import os
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        from gpu_envs.backend import background, toolchain
        for number in range(8):
            toolchain.start_build({SOURCE!r}.replace("ANSWER", str(number)), "answer")
    """
    run_python(script, CXX=str(slow))
    assert len([path for path in cache.iterdir() if path.suffix == ".so"]) <= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork while threads run
def test_a_forked_process_waits_for_no_thread_of_its_parent(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.COMPILATIONS, "compilers", threading.Semaphore(1))
    with background.COMPILATIONS.compilers:  # blocks the thread
        toolchain.start_build(SOURCE.replace("ANSWER", "34"), "answer")
        worker = multiprocessing.get_context("fork").Process(target=_start_and_build)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    assert answer_of(34) == 34
    assert len(list(cache.iterdir())) == 2


def _start_and_build() -> None:
    toolchain.start_build(SOURCE.replace("ANSWER", "35"), "answer")
    assert [answer_of(number) for number in (34, 35)] == [34, 35]


# --- errors ---


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("compiler", "kind", "reason"),
    [
        ("/bin/true", NoCompilerError, "/bin/true is no C.. compiler: it wrote nothing. Set CXX to another"),
        ("/bin/false", CompileError, "exit code 1, no output"),
    ],
)
def test_programs_that_are_no_compilers_are_named(
    monkeypatch: pytest.MonkeyPatch, compiler: str, kind: type[Exception], reason: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(kind, match=reason):
        gpu_envs.make("CartPole-v1", device="cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_comments_in_any_language_compile_in_any_locale(tmp_path: Path, encoding: str) -> None:
    text = (Path(gpu_envs.__file__).parent / "kernels" / "environments" / "cartpole.cuh").read_text()
    header = tmp_path / "h\u00e9ader.cuh"
    header.write_text("// \u00e9 \u00fc\n" + text, encoding)
    script = f"""
        import dataclasses, pathlib, gpu_envs
        header = pathlib.Path({str(tmp_path)!r}) / next(p for p in pathlib.Path({str(tmp_path)!r}).glob("h*.cuh"))
        spec = dataclasses.replace(gpu_envs.spec("CartPole-v1"), id="Mine-v0", header=header)
        print(gpu_envs.make(spec, device="cpu").reset(seed=0)[0].shape)
    """
    assert run_python(script, LC_ALL="C", PYTHONUTF8="0") == "(1, 4)\n"


# --- the cache ---


def test_another_source_flag_compiler_or_processor_builds_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (answer_of(1), answer_of(2)) == (1, 2)
    toolchain.build(SOURCE.replace("ANSWER", "1"), "answer", ("-DOTHER",))
    for name in ("compiler_version", "cpu_features"):
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, name, lambda *_: "another")
            answer_of(1)
    assert len(list(cache.glob("answer-*.so"))) == 5


@pytest.mark.slow
def test_no_damaged_file_is_loaded(cache: Path, tmp_path: Path) -> None:
    """The process survives hundreds of damaged files; a compiler that copies a library makes this fast."""
    run_python(answer_script(5))
    (made,) = cache.iterdir()
    find = 'while [ "$1" != -o ]; do [ $# -gt 0 ] || exit 0; shift; done'
    (tmp_path / "copier").write_text(f'#!/bin/sh\n{find}\nexec cp {tmp_path}/made "$2"\n')
    (tmp_path / "copier").chmod(0o755)
    made.rename(tmp_path / "made")
    seed = int.from_bytes(os.urandom(4), "little")
    script = f"""
        import pathlib, random
        from gpu_envs.backend.toolchain import build
        chance = random.Random({seed})
        source = {SOURCE.replace("ANSWER", "5")!r}
        assert build(source, "answer").answer() == 5
        (library,) = pathlib.Path({str(cache)!r}).iterdir()
        whole = library.read_bytes()
        places = [*range(0, len(whole), 50), *(chance.randrange(len(whole)) for _ in range(50))]
        damages = [b"", b"not a library", whole[:100], whole[:5000]]
        for place in places:
            flipped = bytearray(whole)
            flipped[place] ^= 1 << chance.randrange(8)
            damages.append(flipped)
        for number, damaged in enumerate(damages):
            library.unlink()
            library.write_bytes(damaged)
            assert build(source, "answer").answer() == 5, (number, {seed})
            assert library.read_bytes() == whole, (number, {seed})
        print(len(places))
    """
    assert int(run_python(script, CXX=str(tmp_path / "copier"))) > 200


def answer_script(number: int) -> str:
    return f"""
        from gpu_envs.backend.toolchain import build
        print(build({SOURCE.replace("ANSWER", str(number))!r}, "answer").answer())
    """


@pytest.mark.slow
def test_a_warm_cache_needs_no_compiler(cache: Path, tmp_path: Path) -> None:
    made = "gymnasium.make('gpu_envs/CartPole-v1', device='cpu')"
    single = f"import gymnasium, gpu_envs; print({made}.reset(seed=0)[0].shape)"
    run_python(single)
    without = "import sys; sys.modules['ziglang'] = None\n"
    assert run_python(without + single, PATH=str(tmp_path), CXX="") == "(4,)\n"
    for library in cache.glob("*-*.so"):
        library.write_bytes(b"damaged")
    with pytest.raises(AssertionError, match="pip install ziglang"):
        run_python(without + single, PATH=str(tmp_path), CXX="")


def test_the_cache_folder_is_private_and_has_only_libraries(cache: Path) -> None:
    """Another user who could write there could run code as this user."""
    answer_of(1)
    with pytest.raises(CompileError):
        toolchain.build("nonsense", "broken")
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_created_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match=r"file/cache: Not a directory.*set GPU_ENVS_CACHE_DIR"):
        assert answer_of(6) == 6


def test_the_user_s_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPU_ENVS_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / "gpu_envs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / ".cache" / "gpu_envs"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", "~/mine")
    assert toolchain.cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", ".")
    assert toolchain.cache_folder() == Path.cwd()  # absolute: the loader searches its own path for a bare file name


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_writable_by_other_users_is_not_used(cache: Path, mode: int) -> None:
    """Its files may come from another user, so they are not even read."""
    assert answer_of(7) == 7
    if mode & 0o020 and os.geteuid() == 0:
        os.chown(cache, -1, 12345)
    elif mode & 0o020 and cache.stat().st_gid == os.geteuid():
        pytest.skip("the only group here is the user's own")
    cache.chmod(mode)
    (path,) = cache.iterdir()
    path.unlink()  # this process has loaded it, so it must not be overwritten
    path.write_bytes(b"another user's file")
    with pytest.warns(UserWarning, match="other users can write to it.*chmod 700"):
        assert answer_of(7) == 7
    assert path.read_bytes() == b"another user's file"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(cache: Path) -> None:
    cache.mkdir(mode=0o755)
    os.chown(cache, 12345, 12345)
    with pytest.warns(UserWarning, match="other users can write to it"):
        assert answer_of(7) == 7
    assert list(cache.iterdir()) == []


# --- disks that are full, read-only or not executable ---


def run_mounted(folder: Path, options: str, script: str, first: str = "", **settings: str) -> str:
    """Runs Python with a new file system mounted on a folder, in that process only, and returns its output.

    Shell commands of ``first`` run in that file system before it is remounted with the options.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    mount = f"mount -t tmpfs -o mode=700 tmpfs {folder}; cd {folder}; {first}:; mount -o remount,{options} {folder}"
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if shutil.which("unshare") is None or subprocess.run([*words, mount], capture_output=True, check=False).returncode:
        pytest.skip("no file systems can be mounted here")
    run = subprocess.run(
        [*words, f'{mount}; exec "$0" "$@"', sys.executable, "-c", textwrap.dedent(script)],
        env=subprocess_env(**settings),
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


@pytest.mark.parametrize(
    ("options", "padding", "reason"),
    [
        ("size=8k", 10**5, "No space left on device"),  # for the source
        ("size=8k", 0, "No space left on device"),  # for the compiler's output
        ("noexec", 0, "failed to map"),
        ("ro", 0, "Read-only file system"),
    ],
)
def test_an_unusable_disk_is_named_and_replaced(tmp_path: Path, options: str, padding: int, reason: str) -> None:
    folder = tmp_path / "disk"
    script = answer_script(5).replace(', "answer"', f" + ' ' * {padding}, \"answer\"")
    output = run_mounted(folder, options, script, GPU_ENVS_CACHE_DIR=str(folder))
    assert "5\n" in output, output
    assert "Traceback" not in output
    assert f"cannot cache compiled kernels in {folder}: " in output
    assert reason in output
    assert "set GPU_ENVS_CACHE_DIR" in output


def test_if_both_folders_are_unusable_both_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    settings = {"GPU_ENVS_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
    output = run_mounted(folder, "size=8k", answer_script(5), **settings)
    last = output.strip().splitlines()[-1]
    reason = "No space left on device"
    assert re.match(rf"OSError: .*{folder}/cache: {reason}; or in {folder}: {reason}", last), output
    assert "Free some space, or set GPU_ENVS_CACHE_DIR" in last
    output = run_mounted(folder, "size=8k", "from gpu_envs.cli import main; main(['bench', 'CartPole-v1'])", **settings)
    assert "Traceback" not in output
    assert "gpu-envs: error: " in output


def test_a_warm_cache_may_be_read_only(cache: Path, tmp_path: Path) -> None:
    run_python(answer_script(5), CXX="c++")
    folder = tmp_path / "disk"
    output = run_mounted(
        folder, "ro", answer_script(5), first=f"cp -p {cache}/*.so .;", GPU_ENVS_CACHE_DIR=str(folder), CXX="c++"
    )
    assert output == "5\n"


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize(("options", "inside"), [("size=8k", ""), ("ro", ""), ("ro", "not/there")])
def test_cupy_caches_in_memory_if_its_disk_is_unusable(tmp_path: Path, options: str, inside: str) -> None:
    folder = tmp_path / "disk"
    script = """
        import os
        from gpu_envs.backend.cupy import import_cupy
        print(import_cupy().__name__, os.environ["CUPY_CACHE_IN_MEMORY"])
    """
    output = run_mounted(folder, options, script, CUPY_CACHE_DIR=str(folder / inside))
    assert output == "cupy 1\n"


@pytest.mark.slow
def test_several_processes_build_the_same_library_at_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(6, context.Barrier(6).wait) as pool:
        assert pool.map_async(answer_of, [8] * 6, chunksize=1).get(60) == [8] * 6
    assert len(list(cache.iterdir())) == 1


def test_a_library_outlives_its_file(cache: Path) -> None:
    library = toolchain.build(SOURCE.replace("ANSWER", "9"), "answer")
    shutil.rmtree(cache)
    assert isinstance(library, ctypes.CDLL)
    assert library.answer() == 9
