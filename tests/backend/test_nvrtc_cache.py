"""The cache of NVRTC's machine code: files are reused, and compiled again if missing or damaged."""

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest
from harness import run_python
from nvrtc import nvrtc_missing

from gpu_envs.backend import background, cuda, nvrtc, toolchain
from gpu_envs.backend.cupy import nvrtc_version
from gpu_envs.errors import CompileError

SOURCE = 'extern "C" __global__ void kernel_answer(int* out) { *out = ANSWER; }'

pytestmark = [
    pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing()),
    pytest.mark.usefixtures("cache"),
]


def machine_code(number: int = 1, architecture: str = "sm_90a") -> bytes:
    """The machine code of SOURCE with this answer, read from the cache's file."""
    return (
        toolchain.read_sealed(nvrtc.machine_code(SOURCE.replace("ANSWER", str(number)), "answer", architecture)) or b""
    )


def refuse_to_compile(*arguments: object) -> NoReturn:
    raise AssertionError(f"compiles {arguments}")


@pytest.mark.parametrize(
    ("capability", "architecture"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 3), "sm_103"), ((12, 0), "sm_120")]
)
def test_architectures(capability: tuple[int, int], architecture: str) -> None:
    assert cuda.architecture_of(capability) == architecture


def test_a_second_load_compiles_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine_code()
    assert first.startswith(b"\x7fELF")
    assert toolchain.cache_files() == list(cache.iterdir())
    monkeypatch.setattr(nvrtc, "compile_source", refuse_to_compile)
    assert machine_code() == first


def test_cached_code_is_used_without_loading_nvrtc() -> None:
    script = f"""
        from pathlib import Path
        from gpu_envs.backend.nvrtc import machine_code
        machine_code({SOURCE.replace("ANSWER", "1")!r}, "answer", "sm_90a")
        print("libnvrtc." in Path("/proc/self/maps").read_text())
    """
    if nvrtc_version().count(".") == 1:  # the library's own
        pytest.skip("NVRTC is not installed as a Python package")
    assert [run_python(script) for _ in range(2)] == ["True\n", "False\n"]


def test_another_source_option_or_architecture_is_another_program(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({machine_code(1), machine_code(2), machine_code(1, "sm_100")}) == 3
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-lineinfo"))
    machine_code(1)
    assert len(list(cache.iterdir())) == 4


def test_another_version_of_nvrtc_compiles_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code()
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    machine_code()
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_file_is_compiled_again(cache: Path) -> None:
    code = machine_code()
    (path,) = cache.iterdir()
    sealed = path.read_bytes()
    flipped = bytearray(sealed)
    flipped[len(sealed) // 2] ^= 1
    for damaged in (b"", b"not a program", sealed[:100], code, bytes(flipped)):
        path.write_bytes(damaged)
        assert machine_code() == code
        assert path.read_bytes() == sealed


def test_an_unsafe_folder_is_not_used(cache: Path) -> None:
    code = machine_code()
    (path,) = cache.iterdir()
    path.write_bytes(b"another user's file")
    cache.chmod(0o777)
    nvrtc.start_compiling(SOURCE.replace("ANSWER", "1"), "answer", "sm_90a")
    message = r"cannot cache compiled kernels in .*other users can write to it.* set GPU_ENVS_CACHE_DIR"
    with pytest.warns(UserWarning, match=message) as warned:
        assert machine_code() == code
    assert len(warned) == 1
    assert path.read_bytes() == b"another user's file"


def test_with_a_full_disk_nothing_is_compiled_twice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    compile_source, write_sealed = nvrtc.compile_source, toolchain.write_sealed

    def counted(source: str, name: str, architecture: str) -> nvrtc.Compiled:
        names.append(name)
        return compile_source(source, name, architecture)

    def write_unless_full(path: Path, content: bytes) -> None:
        if path.parent == cache:
            raise OSError(28, os.strerror(28), path)
        write_sealed(path, content)

    monkeypatch.setattr(nvrtc, "compile_source", counted)
    monkeypatch.setattr(toolchain, "write_sealed", write_unless_full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert machine_code().startswith(b"\x7fELF")
    assert names.count("answer") == 1


@pytest.mark.parametrize("in_background", [False, True])
def test_a_compile_error_caches_nothing(cache: Path, capfd: pytest.CaptureFixture[str], in_background: bool) -> None:
    if in_background:
        nvrtc.start_compiling(SOURCE, "answer", "sm_90a")
    with pytest.raises(CompileError, match=r'kernels\.cu\(1\): error: identifier "ANSWER" is undefined') as caught:
        nvrtc.machine_code(SOURCE, "answer", "sm_90a")
    assert caught.value.output.startswith("kernels.cu(1): error")
    assert capfd.readouterr() == ("", "")
    assert list(cache.iterdir()) == []


def test_an_unsupported_old_architecture_is_an_error() -> None:
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        machine_code(1, "sm_20")


def test_a_device_newer_than_nvrtc_gets_ptx() -> None:
    ptx = machine_code(1, "sm_999").decode()
    assert ".entry kernel_answer" in ptx
    assert ".target sm_" in ptx


def test_paths_that_are_not_utf_8_compile() -> None:
    nvrtc.machine_code(f'#line 1 "h\udce9.cuh"\n{SOURCE.replace("ANSWER", "1")}', "answer", "sm_90a")


# --- in a background thread ---


def test_a_background_compilation_is_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("ANSWER", "9")
    thread_names: list[str] = []
    compile_source = nvrtc.compile_source

    def recorded(*arguments: str) -> nvrtc.Compiled:
        thread_names.append(threading.current_thread().name)
        return compile_source(*arguments)

    monkeypatch.setattr(nvrtc, "compile_source", recorded)
    for _ in range(2):
        nvrtc.start_compiling(source, "answer", "sm_90a")
    assert len(background.COMPILATIONS.threads) == 1
    assert machine_code(9).startswith(b"\x7fELF")
    assert thread_names == ["compile answer"]
    assert len(list(cache.iterdir())) == 1


def test_cached_code_starts_no_compilation() -> None:
    machine_code()
    nvrtc.start_compiling(SOURCE.replace("ANSWER", "1"), "answer", "sm_90a")
    assert not background.COMPILATIONS.threads


@pytest.mark.slow
def test_python_runs_while_nvrtc_compiles() -> None:
    """NVRTC releases the GIL."""
    source = SOURCE.replace("ANSWER", "12") + "".join(
        f'extern "C" __global__ void kernel_{i}(float* x) {{ for (int j = 0; j < 9; ++j) x[j] = sinf(x[j] + {i}); }}'
        for i in range(25)
    )
    nvrtc.start_compiling(source, "answer", "sm_90a")
    (thread,) = background.COMPILATIONS.threads.values()
    longest, last = 0.0, time.perf_counter()
    start = last
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        time.sleep(0.001)
    assert longest < 0.3 * (last - start)
