"""What the CUDA backend asks of the driver, told by a driver that is none."""

# ruff: noqa: N802  # functions are called as the driver's are

import concurrent.futures
import ctypes
import functools
import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from harness import run_python

import gpu_envs
from gpu_envs.backend import cuda, cupy, driver
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

CALLS = {
    "one": Struct.of("OneCall", "float", ("Index", "count")),
    "two": Struct.of("TwoCall", "float", ("Index", "count")),
}


def target(reference: Any) -> Any:
    """What a ``ctypes.byref`` refers to."""
    return reference._obj  # noqa: SLF001 - ctypes has no public name for it


class Told:
    """The driver's library and CUDA's runtime of two devices, that remember what they were told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.current, self.major, self.version, self.status = 0, 9, 12030, 0
        self.runtime = SimpleNamespace(
            cudaDevAttrMultiProcessorCount=16,
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97,
            getDevice=lambda: self.current,
            setDevice=self.choose,
            free=lambda _: None,
            deviceGetAttribute=lambda number, _: {16: 132, 97: 232448, 75: self.major, 76: 0}[number],
            memGetInfo=lambda: (5, 10 + self.current),
        )

    def cuDeviceGetCount(self, count: Any) -> int:
        target(count).value = 2
        return 0

    def cuInit(self, flags: int) -> int:
        return flags

    def cuDriverGetVersion(self, version: Any) -> int:
        target(version).value = self.version
        return 0

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        target(module).value = 7
        return self.tell("load", code, self.current)

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:
        target(function).value = 100 * (module.value or 0) + len(name)
        return 0

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: ctypes.c_void_p) -> int:
        target(value).value = 96 if attribute == 0 and function.value == 710 else 0
        return 0

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        return self.tell("set", function.value, attribute, value)

    def cuLaunchKernelEx(self, config: Any, function: ctypes.c_void_p, arguments: Any, more: Any) -> int:
        given = target(config)
        attributes = [(given.attributes[i].id, given.attributes[i].value) for i in range(given.count)]
        assert (given.stream, len(arguments), more) == (5, 1, None)
        sizes = (given.grid_x, given.grid_y, given.grid_z, given.block_x, given.block_y, given.block_z)
        self.tell("launch", self.current, function.value, *sizes, given.shared_bytes, *attributes)
        return self.status

    def cuGetErrorName(self, status: int, text: Any) -> int:
        target(text).value = b"CUDA_ERROR_ILLEGAL_ADDRESS" if status == 700 else None
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        target(text).value = b"an illegal memory access was encountered" if status == 700 else None
        return 0

    def tell(self, *what: Any) -> int:
        self.said.append(what)
        return 0

    def choose(self, index: int) -> None:
        self.current = index


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    for module in (cuda, cupy):
        monkeypatch.setattr(module, "import_runtime", lambda: made.runtime)
    monkeypatch.setattr(driver, "library", lambda: made)
    monkeypatch.setattr(cuda, "machine_code", lambda _, name, architecture: f"{name} for {architecture}".encode())
    for asked_once in (driver.device_count, driver.version, cuda.may_begin_early, cuda.loaded_module):
        monkeypatch.setattr(
            sys.modules[asked_once.__module__], asked_once.__name__, functools.cache(asked_once.__wrapped__)
        )
    return made


def program(**given: Any) -> Program:
    return program_of((("mine.cuh", "// nothing"),), CALLS, KernelSettings(**given))


def launched(told: Told, index: int, made: Program, count: int) -> list[tuple[Any, ...]]:
    backend = cuda.CudaBackend(index)
    call = made.calls["one"]()
    launch = backend.load(made).bind("one", call, count)
    told.said.clear()
    launch(5)
    assert told.current == 0
    return told.said


def test_a_device_is_described(told: Told) -> None:
    backend = cuda.CudaBackend(1)
    assert (backend.traits.processors, backend.traits.shared_bytes) == (132, 232448)
    assert backend.memory() == 11
    assert told.current == 0


EARLY, TOGETHER = (6, 1), (2, 1)


def test_structs_are_as_the_driver_has_them() -> None:
    assert (ctypes.sizeof(driver.Config), ctypes.sizeof(driver.Attribute)) == (56, 72)


@pytest.mark.parametrize(
    ("grid", "attributes"),
    [
        (Grid(threads=64, replicas=2), [EARLY]),
        (Grid(threads=64, replicas=2, early=False), []),
        (Grid(threads=64, replicas=2, together=True), [TOGETHER]),
    ],
)
def test_a_grid_says_how_it_is_launched(told: Told, grid: Grid, attributes: list[tuple[int, int]]) -> None:
    assert launched(told, 1, program(grid=grid), 5) == [("launch", 1, 710, 3, 1, 1, 64, 1, 1, 0, *attributes)]


@pytest.mark.parametrize(
    ("version", "major", "attributes"), [(12030, 9, [EARLY]), (13000, 9, [EARLY]), (12020, 9, []), (13000, 8, [])]
)
def test_launches_begin_early_on_hopper(
    told: Told, version: int, major: int, attributes: list[tuple[int, int]]
) -> None:
    told.version, told.major = version, major
    assert launched(told, 0, program(), 1000) == [("launch", 0, 710, 11, 1, 1, 96, 1, 1, 0, *attributes)]


def test_what_the_driver_refuses_is_told_in_its_words(told: Told) -> None:
    said = r"CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered \(cuLaunchKernelEx, 700\)"
    told.status = 700
    with pytest.raises(RuntimeError, match=said):
        launched(told, 0, program(), 1000)
    told.status = 9999
    with pytest.raises(RuntimeError, match=r"unknown: unknown \(cuLaunchKernelEx, 9999\)"):
        launched(told, 0, program(), 1000)


def test_a_program_is_loaded_once_for_each_device(told: Told) -> None:
    for index in (0, 1, 0):
        cuda.CudaBackend(index).load(program())
    assert [words for words in told.said if words[0] == "load"] == [
        ("load", b"mine for sm_90a", 0), ("load", b"mine for sm_90a", 1),
    ]  # fmt: skip


def test_shared_memory_is_asked_for_where_it_is_much(told: Told) -> None:
    cuda.CudaBackend(0).load(program(grid=Grid(threads=256, replicas=2, shared_bytes=50_000)))
    assert [words for words in told.said if words[0] == "set"] == [("set", 710, 8, 50_000)] * 2
    grid = Grid(threads=256, replicas=2, blocks=3, shared_bytes=100)
    assert launched(told, 0, program(grid=grid), 5) == [("launch", 0, 710, 9, 1, 1, 256, 1, 1, 100, EARLY)]


def test_who_binds_waits_for_the_compiler_and_nobody_before(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(cuda, "begin", lambda _, name, architecture: begun.append(f"{name} for {architecture}"))
    one, two = load_kernels(cuda.CudaBackend(1), program())
    one.fill(count=3)
    assert (begun, told.said) == (["mine for sm_90a"], [])
    for kernel in (one, two):
        kernel.bind(5)
    assert [words for words in told.said if words[0] == "load"] == [("load", b"mine for sm_90a", 1)]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_what_a_launch_needs_is_not_all_of_cupy() -> None:
    run_python("""
        import sys
        from gpu_envs.backend.cupy import import_runtime
        runtime = import_runtime()
        runtime.runtimeGetVersion()
        for name in ("getDevice setDevice free deviceGetAttribute memGetInfo deviceSynchronize "
                "cudaDevAttrMultiProcessorCount cudaDevAttrMaxSharedMemoryPerBlockOptin").split():
            getattr(runtime, name)
        assert "cupy" not in sys.modules
        import cupy
        assert cupy.cuda.runtime is runtime
    """)


@pytest.mark.skipif(driver.device_count() == 0, reason="needs a CUDA device")
def test_training_imports_no_more_of_cupy_than_it_needs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_python(f"""
        import os, sys
        os.environ["GPU_ENVS_CACHE_DIR"] = {str(tmp_path)!r}  # so that NVRTC has to compile, too
        from gpu_envs.training import Config, Trainer
        Trainer(Config(env="CartPole-v1", device="cuda", num_envs=64, horizon=8, run_dir="")).iterate(1)
        assert "cupy" not in sys.modules
    """)


@pytest.mark.skipif(driver.device_count() == 0, reason="needs a CUDA device")
@pytest.mark.parametrize("device", range(max(1, driver.device_count())))
def test_a_thread_that_has_not_called_cuda_yet_can_step(device: int) -> None:
    torch = pytest.importorskip("torch")
    env = gpu_envs.make("CartPole-v1", 4, device=f"cuda:{device}", output="torch")
    env.reset(seed=0)
    actions = torch.zeros(4, dtype=torch.int32, device=f"cuda:{device}")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(env.step, actions).result()) == 5


# --- a device that is started ahead ---


@pytest.mark.parametrize(
    ("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cpu", None), ("gpu", None), ("cuda:x", None)]
)
def test_who_is_woken(monkeypatch: pytest.MonkeyPatch, device: str, index: int | None) -> None:
    started: list[int] = []
    monkeypatch.setattr(cuda, "start_context", started.append)
    cuda.wake(device)
    for thread in threading.enumerate():
        if thread.name == "wake":
            thread.join()
    assert started == ([] if index is None else [index])


def no_cupy() -> NoReturn:
    raise ImportError("there is no CuPy")


def test_a_device_is_started_by_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def init(flags: int) -> int:
        asked.append(("init", flags))
        return 0

    def get(device: Any, index: int) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = 40 + index
        return 0 if index < 2 else 101

    def retain(_: Any, device: ctypes.c_int) -> int:
        asked.append(("retain", device.value))
        return 0

    library = SimpleNamespace(cuInit=init, cuDeviceGet=get, cuDevicePrimaryCtxRetain=retain)
    monkeypatch.setattr(driver, "library", lambda: library)
    monkeypatch.setattr(cuda, "import_runtime", no_cupy)
    cuda.start_context(1)
    assert asked == []
    monkeypatch.setattr(cuda, "import_runtime", lambda: None)
    cuda.start_context(1)
    cuda.start_context(2)  # there is none: whoever asks for it later is told
    assert asked == [("init", 0), ("retain", 41), ("init", 0)]
    monkeypatch.setattr(driver, "library", lambda: None)
    cuda.start_context(0)
