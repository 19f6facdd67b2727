"""Finding a compiler, and the cache of what it made."""

import ctypes
import importlib.util
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

import pytest

import gpu_envs
from gpu_envs.backend import toolchain
from gpu_envs.codegen import Config, Device, layout_of
from gpu_envs.errors import CompileError, NoCompilerError

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(folder))
    return folder


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


def test_compilers_are_tried_in_order(bare_path: Path) -> None:
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


def test_a_cxx_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(NoCompilerError, match=r"'/nowhere/c\+\+'.*correct it or unset it"):
        toolchain.find_compiler()


@pytest.mark.usefixtures("bare_path")
def test_without_a_compiler_the_error_names_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoCompilerError) as caught:
        gpu_envs.make("CartPole-v1", device="cpu")
    for way in ("pip install ziglang", "apt install g++", "xcode-select --install", "CXX="):
        assert way in str(caught.value)


@pytest.mark.usefixtures("bare_path")
def test_ziglang_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert toolchain.find_compiler() == (sys.executable, "-m", "ziglang", "c++")


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
    for name, compiler in (("zig", f"{sys.executable} -m ziglang c++"), ("default", "")):
        settings = {"CXX": compiler, "GPU_ENVS_CACHE_DIR": str(tmp_path / name)}
        outputs.append(run_python(script, **settings))
    assert outputs[0] == outputs[1]


def run_python(script: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- errors ---


@pytest.mark.usefixtures("cache")
def test_a_compile_error_names_the_header_and_its_line() -> None:
    spec = gpu_envs.spec("CartPole-v1")
    config = Config(spec, 1, "NextStep", "float32", 500, spec.check_params({}, 1))
    text = layout_of(config, Device(on_gpu=False)).generate("vector_env").source
    broken = text.replace("FN Outcome step(", "FN Outcome step(Nonsense, ", 1)
    assert broken != text
    header = (Path(gpu_envs.__file__).parent / "kernels" / "cartpole.cuh").read_text().splitlines()
    line = 1 + next(j for j, content in enumerate(header) if content.startswith("FN Outcome step("))
    message = rf"CartPole-v1 did not compile[\s\S]*cartpole\.cuh:{line}:[\s\S]*Nonsense"
    with pytest.raises(CompileError, match=message):
        toolchain.build(broken, "CartPole-v1")


# --- the cache ---


def test_a_second_load_does_not_start_the_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(1) == 1
    monkeypatch.setattr(subprocess, "run", refuse_to_compile)
    assert answer_of(1) == 1
    assert len(list(cache.iterdir())) == 1


def test_edited_text_and_other_flags_are_built_anew(cache: Path) -> None:
    assert (answer_of(1), answer_of(2)) == (1, 2)
    toolchain.build(SOURCE.replace("ANSWER", "1"), "answer", ("-DOTHER",))
    assert len(list(cache.glob("answer-*.so"))) == 3


def test_another_compiler_or_processor_builds_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_of(1)
    for name in ("compiler_version", "cpu_features"):
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, name, lambda *_: "another")
            answer_of(1)
    assert len(list(cache.glob("answer-*.so"))) == 3


def test_an_edited_header_is_noticed(cache: Path, tmp_path: Path) -> None:
    """The rules are part of the source, so that a new text is a new digest."""
    package = Path(gpu_envs.__file__).parent
    header = tmp_path / "cartpole.cuh"
    header.write_text((package / "kernels" / "cartpole.cuh").read_text())
    script = f"""
        import dataclasses, pathlib, gpu_envs
        spec = dataclasses.replace(gpu_envs.spec("CartPole-v1"), id="Mine-v0", header={str(header)!r})
        gpu_envs.register(spec)
        env = gpu_envs.make("Mine-v0", device="cpu")
        env.reset(seed=0)
        print(float(env.step([1])[0][0, 1]))
    """
    first = run_python(script)
    assert run_python(script) == first
    built = set(cache.glob("Mine-v0-*.so"))
    text = header.read_text()
    assert "action" in text
    header.write_text(text + "\n// another line\n")
    assert run_python(script) == first
    assert len(set(cache.glob("Mine-v0-*.so")) - built) == len(built) == 1


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    assert run_python(answer_script(5)) == "5\n"
    (library,) = cache.iterdir()
    for damage in (b"", b"not a library", *(library.read_bytes()[:n] for n in (100, 5000))):
        library.write_bytes(damage)
        assert run_python(answer_script(5)) == "5\n"
        assert len(library.read_bytes()) > 1000


def answer_script(number: int) -> str:
    return f"""
        from gpu_envs.backend.toolchain import build
        print(build({SOURCE.replace("ANSWER", str(number))!r}, "answer").answer())
    """


def test_nothing_but_the_library_is_left(cache: Path) -> None:
    answer_of(1)
    with pytest.raises(CompileError):
        toolchain.build("nonsense", "broken")
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_the_folder_is_the_user_s_own(cache: Path) -> None:
    """Whoever may write there may run code as the user."""
    answer_of(1)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert answer_of(6) == 6


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_done_without(cache: Path) -> None:
    cache.mkdir(mode=0o500)
    assert answer_of(7) == 7
    assert list(cache.iterdir()) == []


def test_the_user_s_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPU_ENVS_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / "gpu_envs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / ".cache" / "gpu_envs"


def _answer_when_all_are_ready(number: int, ready: "multiprocessing.synchronize.Barrier") -> None:
    ready.wait()
    sys.exit(0 if answer_of(number) == number else 1)


def test_several_processes_compile_the_same_at_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(6)
    workers = [context.Process(target=_answer_when_all_are_ready, args=(8, ready)) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 6
    assert len(list(cache.iterdir())) == 1


def test_a_library_outlives_its_file(cache: Path) -> None:
    library = toolchain.build(SOURCE.replace("ANSWER", "9"), "answer")
    shutil.rmtree(cache)
    assert isinstance(library, ctypes.CDLL)
    assert library.answer() == 9
