"""Finding a compiler, and the cache of what it made."""

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
from harness import run_python, with_package

import gpu_envs
from gpu_envs.backend import ahead, toolchain
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
    for name in ("clang++", "g++", "c++"):  # each is preferred to those before
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


# --- in a thread of its own ---


def test_what_was_begun_is_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (31, 32, 31):
        toolchain.begin(SOURCE.replace("ANSWER", str(number)), "answer")
    assert len(ahead.UNDER_WAY.threads) == 2
    threads = list(ahead.UNDER_WAY.threads.values())
    answers = [answer_of(number) for number in (31, 32)]
    assert not any(thread.is_alive() for thread in threads)
    assert (answers, ahead.UNDER_WAY.threads, len(list(cache.iterdir()))) == ([31, 32], {}, 2)
    monkeypatch.setattr(subprocess, "run", refuse_to_compile)
    toolchain.begin(SOURCE.replace("ANSWER", "31"), "answer")
    assert answer_of(31) == 31  # it was there


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_threads_begin_and_build_the_same_at_once() -> None:
    def run(_: int) -> list[int]:
        answers = []
        for number in range(36, 56):
            toolchain.begin(SOURCE.replace("ANSWER", str(number)), "answer")
            answers.append(answer_of(number))
        return answers

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4), timeout=60)) == [list(range(36, 56))] * 4


@pytest.mark.usefixtures("cache")
def test_what_goes_wrong_there_is_told_here(capfd: pytest.CaptureFixture[str]) -> None:
    toolchain.begin(SOURCE, "answer")
    with pytest.raises(CompileError, match="ANSWER"):
        toolchain.build(SOURCE, "answer")
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_will_not_do_is_told_once(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    toolchain.begin(SOURCE.replace("ANSWER", "33"), "answer")
    with pytest.warns(UserWarning, match="others can write to it") as told:
        assert answer_of(33) == 33
    assert len(told) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_a_process_that_ends_begins_nothing_more(cache: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow-c++"
    slow.write_text('#!/bin/sh\nsleep 0.5\nexec c++ "$@"\n')
    slow.chmod(0o755)
    script = f"""
        import os
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        from gpu_envs.backend import ahead, toolchain
        for number in range(8):
            toolchain.begin({SOURCE!r}.replace("ANSWER", str(number)), "answer")
    """
    run_python(script, CXX=str(slow))
    assert len([path for path in cache.iterdir() if path.suffix == ".so"]) <= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that threads are at work
def test_a_forked_process_waits_for_no_thread_of_its_parent(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.UNDER_WAY, "compilers", threading.Semaphore(1))
    with ahead.UNDER_WAY.compilers:  # so that the thread does not get further
        toolchain.begin(SOURCE.replace("ANSWER", "34"), "answer")
        worker = multiprocessing.get_context("fork").Process(target=_begin_and_build)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    assert answer_of(34) == 34
    assert len(list(cache.iterdir())) == 2


def _begin_and_build() -> None:
    toolchain.begin(SOURCE.replace("ANSWER", "35"), "answer")
    assert [answer_of(number) for number in (34, 35)] == [34, 35]


# --- errors ---


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("compiler", "kind", "reason"),
    [
        ("/bin/true", NoCompilerError, "/bin/true is no C.. compiler: it made nothing. Correct CXX"),
        ("/bin/false", CompileError, "ended with code 1 and said nothing"),
    ],
)
def test_programs_that_are_no_compiler_are_named(
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


def test_another_text_flag_compiler_or_processor_builds_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (answer_of(1), answer_of(2)) == (1, 2)
    toolchain.build(SOURCE.replace("ANSWER", "1"), "answer", ("-DOTHER",))
    for name in ("compiler_version", "cpu_features"):
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, name, lambda *_: "another")
            answer_of(1)
    assert len(list(cache.glob("answer-*.so"))) == 5


@pytest.mark.slow
def test_no_damaged_file_is_loaded(cache: Path, tmp_path: Path) -> None:
    """A compiler that copies lets hundreds of damaged files be made again; the process must outlive all of them."""
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
        library.write_bytes(b"not whole")
    with pytest.raises(AssertionError, match="pip install ziglang"):
        run_python(without + single, PATH=str(tmp_path), CXX="")


def test_nothing_but_the_library_is_left_in_a_folder_of_the_user_s_own(cache: Path) -> None:
    """Whoever may write there may run code as the user."""
    answer_of(1)
    with pytest.raises(CompileError):
        toolchain.build("nonsense", "broken")
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert toolchain.cache_folder() == Path.cwd()  # the loader looks elsewhere for a name without a folder


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(cache: Path, mode: int) -> None:
    """What lies there may be anybody's, so it is not even read."""
    assert answer_of(7) == 7
    if mode & 0o020 and os.geteuid() == 0:
        os.chown(cache, -1, 12345)
    elif mode & 0o020 and cache.stat().st_gid == os.geteuid():
        pytest.skip("the only group here is the user's own")
    cache.chmod(mode)
    (kept,) = cache.iterdir()
    kept.unlink()  # this process runs it
    kept.write_bytes(b"what somebody put there")
    with pytest.warns(UserWarning, match="others can write to it.*chmod 700"):
        assert answer_of(7) == 7
    assert kept.read_bytes() == b"what somebody put there"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(cache: Path) -> None:
    cache.mkdir(mode=0o755)
    os.chown(cache, 12345, 12345)
    with pytest.warns(UserWarning, match="others can write to it"):
        assert answer_of(7) == 7
    assert list(cache.iterdir()) == []


# --- disks that are full, or not to be run from ---


def run_mounted(folder: Path, options: str, script: str, first: str = "", **settings: str) -> str:
    """Runs Python where a new file system lies on a folder, seen by that process alone; what it writes.

    Shell commands may come ``first``, in that file system, which is then mounted once more with these options.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    mount = f"mount -t tmpfs -o mode=700 tmpfs {folder}; cd {folder}; {first}:; mount -o remount,{options} {folder}"
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if shutil.which("unshare") is None or subprocess.run([*words, mount], capture_output=True, check=False).returncode:
        pytest.skip("no file systems can be mounted here")
    done = subprocess.run(
        [*words, f'{mount}; exec "$0" "$@"', sys.executable, "-c", textwrap.dedent(script)],
        env=with_package(**settings),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "padding", "reason"),
    [
        ("size=8k", 10**5, "No space left on device"),  # for the source
        ("size=8k", 0, "No space left on device"),  # for what the compiler makes of it
        ("noexec", 0, "failed to map"),
        ("ro", 0, "Read-only file system"),
    ],
)
def test_a_disk_that_will_not_do_is_done_without_and_named(
    tmp_path: Path, options: str, padding: int, reason: str
) -> None:
    folder = tmp_path / "disk"
    script = answer_script(5).replace(', "answer"', f" + ' ' * {padding}, \"answer\"")
    said = run_mounted(folder, options, script, GPU_ENVS_CACHE_DIR=str(folder))
    assert "5\n" in said, said
    assert "Traceback" not in said
    assert f"cannot be kept in {folder}: " in said
    assert reason in said
    assert "set GPU_ENVS_CACHE_DIR" in said


def test_where_no_disk_will_do_both_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    settings = {"GPU_ENVS_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
    said = run_mounted(folder, "size=8k", answer_script(5), **settings)
    last = said.strip().splitlines()[-1]
    assert re.match(rf"OSError: .*{folder}/cache: No space left on device; nor in {folder}: No space left", last), said
    assert "Free some space, or set GPU_ENVS_CACHE_DIR" in last
    said = run_mounted(folder, "size=8k", "from gpu_envs.cli import main; main(['bench', 'CartPole-v1'])", **settings)
    assert "Traceback" not in said
    assert "gpu-envs: error: " in said


def test_a_warm_cache_is_read_where_it_cannot_be_written(cache: Path, tmp_path: Path) -> None:
    run_python(answer_script(5), CXX="c++")
    folder = tmp_path / "disk"
    said = run_mounted(
        folder, "ro", answer_script(5), first=f"cp -p {cache}/*.so .;", GPU_ENVS_CACHE_DIR=str(folder), CXX="c++"
    )
    assert said == "5\n"


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize(("options", "inside"), [("size=8k", ""), ("ro", ""), ("ro", "not/there")])
def test_cupy_does_without_a_disk_that_will_not_do(tmp_path: Path, options: str, inside: str) -> None:
    folder = tmp_path / "disk"
    script = """
        import os
        from gpu_envs.backend.cupy import import_cupy
        print(import_cupy().__name__, os.environ["CUPY_CACHE_IN_MEMORY"])
    """
    said = run_mounted(folder, options, script, CUPY_CACHE_DIR=str(folder / inside))
    assert said == "cupy 1\n"


@pytest.mark.slow
def test_several_processes_compile_the_same_at_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(6, context.Barrier(6).wait) as pool:
        assert pool.map_async(answer_of, [8] * 6, chunksize=1).get(60) == [8] * 6
    assert len(list(cache.iterdir())) == 1


def test_a_library_outlives_its_file(cache: Path) -> None:
    library = toolchain.build(SOURCE.replace("ANSWER", "9"), "answer")
    shutil.rmtree(cache)
    assert isinstance(library, ctypes.CDLL)
    assert library.answer() == 9
