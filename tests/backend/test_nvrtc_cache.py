"""What NVRTC made is kept, and made anew where that is not to be had or not to be trusted."""

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest
from harness import run_python
from nvrtc import nvrtc_missing

from gpu_envs.backend import ahead, cuda, nvrtc, toolchain
from gpu_envs.backend.cupy import nvrtc_version
from gpu_envs.errors import CompileError

SOURCE = 'extern "C" __global__ void kernel_answer(int* out) { *out = ANSWER; }'

pytestmark = [
    pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing()),
    pytest.mark.usefixtures("cache"),
]


def made(number: int = 1, architecture: str = "sm_90a") -> bytes:
    """The machine code; ``toolchain.whole`` says whether its file is complete."""
    return toolchain.whole(nvrtc.machine_code(SOURCE.replace("ANSWER", str(number)), "answer", architecture)) or b""


def refuse_to_compile(*given: object) -> NoReturn:
    raise AssertionError(f"compiles {given}")


@pytest.mark.parametrize(
    ("capability", "architecture"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 3), "sm_103"), ((12, 0), "sm_120")]
)
def test_architectures(capability: tuple[int, int], architecture: str) -> None:
    assert cuda.architecture_of(capability) == architecture


def test_a_second_load_compiles_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made()
    assert first.startswith(b"\x7fELF")
    assert toolchain.cached() == list(cache.iterdir())
    monkeypatch.setattr(nvrtc, "compiled", refuse_to_compile)
    assert made() == first


def test_what_is_kept_is_found_without_loading_the_library() -> None:
    script = f"""
        from pathlib import Path
        from gpu_envs.backend.nvrtc import machine_code
        machine_code({SOURCE.replace("ANSWER", "1")!r}, "answer", "sm_90a")
        print("libnvrtc." in Path("/proc/self/maps").read_text())
    """
    if nvrtc_version().count(".") == 1:  # the library's own
        pytest.skip("NVRTC is not installed as a package of Python")
    assert [run_python(script) for _ in range(2)] == ["True\n", "False\n"]


def test_another_source_option_or_architecture_is_another_program(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({made(1), made(2), made(1, "sm_100")}) == 3
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-lineinfo"))
    made(1)
    assert len(list(cache.iterdir())) == 4


def test_another_version_of_nvrtc_compiles_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    made()
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    whole = made()
    (kept,) = cache.iterdir()
    sealed = kept.read_bytes()
    flipped = bytearray(sealed)
    flipped[len(sealed) // 2] ^= 1
    for damaged in (b"", b"not a program", sealed[:100], whole, bytes(flipped)):
        kept.write_bytes(damaged)
        assert made() == whole
        assert kept.read_bytes() == sealed


def test_a_folder_that_will_not_do_is_done_without(cache: Path) -> None:
    whole = made()
    (kept,) = cache.iterdir()
    kept.write_bytes(b"what somebody put there")
    cache.chmod(0o777)
    nvrtc.begin(SOURCE.replace("ANSWER", "1"), "answer", "sm_90a")
    said = r"cannot be kept in .*others can write to it.* set GPU_ENVS_CACHE_DIR"
    with pytest.warns(UserWarning, match=said) as told:
        assert made() == whole
    assert len(told) == 1
    assert kept.read_bytes() == b"what somebody put there"


def test_a_full_disk_is_done_without_and_nothing_compiled_twice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    compiled = nvrtc.compiled

    def counted(source: str, name: str, architecture: str) -> nvrtc.Compiled:
        names.append(name)
        return compiled(source, name, architecture)

    def keep(path: Path, content: bytes) -> None:
        if path.parent == cache:
            raise OSError(28, os.strerror(28), path)
        real_keep(path, content)

    real_keep = toolchain.keep
    monkeypatch.setattr(nvrtc, "compiled", counted)
    monkeypatch.setattr(toolchain, "keep", keep)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert made().startswith(b"\x7fELF")
    assert names.count("answer") == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_mistake_is_told_and_nothing_kept(cache: Path, capfd: pytest.CaptureFixture[str], begun: bool) -> None:
    if begun:
        nvrtc.begin(SOURCE, "answer", "sm_90a")
    with pytest.raises(CompileError, match=r'kernels\.cu\(1\): error: identifier "ANSWER" is undefined') as caught:
        nvrtc.machine_code(SOURCE, "answer", "sm_90a")
    assert caught.value.output.startswith("kernels.cu(1): error")
    assert capfd.readouterr() == ("", "")
    assert list(cache.iterdir()) == []


def test_a_device_that_nvrtc_does_not_know_is_named() -> None:
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        made(1, "sm_20")


def test_a_device_newer_than_nvrtc_gets_what_its_driver_can_translate() -> None:
    ptx = made(1, "sm_999").decode()
    assert ".entry kernel_answer" in ptx
    assert ".target sm_" in ptx


def test_paths_that_are_not_utf_8_compile() -> None:
    nvrtc.machine_code(f'#line 1 "h\udce9.cuh"\n{SOURCE.replace("ANSWER", "1")}', "answer", "sm_90a")


# --- in a thread of its own ---


def test_what_was_begun_is_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("ANSWER", "9")
    made_there: list[str] = []
    compiled = nvrtc.compiled

    def told(*given: str) -> nvrtc.Compiled:
        made_there.append(threading.current_thread().name)
        return compiled(*given)

    monkeypatch.setattr(nvrtc, "compiled", told)
    for _ in range(2):
        nvrtc.begin(source, "answer", "sm_90a")
    assert len(ahead.UNDER_WAY.threads) == 1
    assert made(9).startswith(b"\x7fELF")
    assert made_there == ["compile answer"]
    assert len(list(cache.iterdir())) == 1


def test_nothing_is_begun_that_is_there() -> None:
    made()
    nvrtc.begin(SOURCE.replace("ANSWER", "1"), "answer", "sm_90a")
    assert not ahead.UNDER_WAY.threads


@pytest.mark.slow
def test_python_goes_on_while_it_compiles() -> None:
    """NVRTC works without Python's lock."""
    source = SOURCE.replace("ANSWER", "12") + "".join(
        f'extern "C" __global__ void kernel_{i}(float* x) {{ for (int j = 0; j < 9; ++j) x[j] = sinf(x[j] + {i}); }}'
        for i in range(25)
    )
    nvrtc.begin(source, "answer", "sm_90a")
    (thread,) = ahead.UNDER_WAY.threads.values()
    longest, last = 0.0, time.perf_counter()
    began = last
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        time.sleep(0.001)
    assert longest < 0.3 * (last - began)
