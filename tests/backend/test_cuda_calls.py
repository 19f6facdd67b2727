"""The calls of the CUDA backend, recorded by a stand-in for CuPy and the driver, and launches on a real device."""

# ruff: noqa: N802  # functions have the driver's names

import concurrent.futures
import ctypes
import functools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpu_envs
from gpu_envs.backend import cuda, cupy, driver
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

CALLS = {
    "one": Struct.of("OneCall", "float", ("Index", "count")),
    "two": Struct.of("TwoCall", "float", ("Index", "count")),
}


def referenced(reference: Any) -> Any:
    """The object that a ``ctypes.byref`` points to."""
    return reference._obj  # noqa: SLF001 - ctypes has no public name for it


class FakeKernel:
    """A stand-in for ``cupy.RawKernel``."""

    def __init__(self, fake: "FakeCuda", name: str) -> None:
        self._fake, self._name = fake, name
        self.kernel = SimpleNamespace(ptr=700 + len(name))
        self.max_threads_per_block = 96 if name == "kernel_one" else 128

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "max_dynamic_shared_size_bytes":
            self._fake.record("shared", self._name, value)


class FakeCuda:
    """The driver's library and CuPy, with two devices; they record the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current, self.major, self.version, self.status = 0, 9, 12030, 0
        self.runtime = SimpleNamespace(
            cudaDevAttrMultiProcessorCount=16,
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97,
            getDevice=lambda: self.current,
            setDevice=self.choose,
            driverGetVersion=lambda: self.version,
            deviceGetAttribute=lambda number, _: {16: 132, 97: 232448, 75: self.major, 76: 0}[number],
            memGetInfo=lambda: (5, 10 + self.current),
        )
        self.cuda = SimpleNamespace(runtime=self.runtime, driver=SimpleNamespace(check_status=self.check))

    def RawModule(self, path: str) -> Any:
        self.record("load", path, self.current)
        return SimpleNamespace(get_function=functools.partial(FakeKernel, self))

    def cuInit(self, flags: int) -> int:
        return flags

    def cuDeviceGetCount(self, count: Any) -> int:
        referenced(count).value = 2
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        referenced(device).value = 100 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, _: Any, device: ctypes.c_int) -> int:
        self.record("start", device.value)
        return 0

    def cuLaunchKernelEx(self, config_pointer: Any, function: ctypes.c_void_p, arguments: Any, extra: Any) -> int:
        config = referenced(config_pointer)
        attributes = [(config.attributes[i].id, config.attributes[i].value) for i in range(config.count)]
        assert (config.stream, len(arguments), extra) == (5, 1, None)
        sizes = (config.grid_x, config.grid_y, config.grid_z, config.block_x, config.block_y, config.block_z)
        self.record("launch", self.current, function.value, *sizes, config.shared_bytes, *attributes)
        return self.status

    def check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"status {status}")

    def record(self, *call: Any) -> None:
        self.calls.append(call)

    def choose(self, index: int) -> None:
        self.current = index


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for module in (cuda, cupy, driver):
        monkeypatch.setattr(module, "import_cupy", lambda: fake)
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(cuda, "machine_code", lambda _, name, architecture: Path(f"{name} for {architecture}"))
    for cached in (driver.device_count, cuda.supports_early_launch, cuda.loaded_module):
        monkeypatch.setattr(sys.modules[cached.__module__], cached.__name__, functools.cache(cached.__wrapped__))
    return fake


def program(**settings: Any) -> Program:
    return program_of((("mine.cuh", "// nothing"),), CALLS, KernelSettings(**settings))


def launched(fake: FakeCuda, index: int, program: Program, count: int) -> list[tuple[Any, ...]]:
    backend = cuda.CudaBackend(index)
    call = program.calls["one"]()
    launch = backend.load(program).bind("one", call, count)
    fake.calls.clear()
    launch(5)
    assert fake.current == 0
    return fake.calls


def test_a_device_is_described(fake: FakeCuda) -> None:
    backend = cuda.CudaBackend(1)
    assert (backend.traits.processors, backend.traits.shared_bytes) == (132, 232448)
    assert backend.memory() == 11
    assert fake.current == 0


EARLY, COOPERATIVE = (6, 1), (2, 1)


def test_structs_have_the_driver_s_sizes() -> None:
    assert (ctypes.sizeof(driver.Config), ctypes.sizeof(driver.Attribute)) == (56, 72)


@pytest.mark.parametrize(
    ("grid", "attributes"),
    [
        (Grid(threads=64, replicas=2), [EARLY]),
        (Grid(threads=64, replicas=2, early=False), []),
        (Grid(threads=64, replicas=2, cooperative=True), [COOPERATIVE]),
    ],
)
def test_a_grid_sets_launch_attributes(fake: FakeCuda, grid: Grid, attributes: list[tuple[int, int]]) -> None:
    assert launched(fake, 1, program(grid=grid), 5) == [("launch", 1, 710, 3, 1, 1, 64, 1, 1, 0, *attributes)]


@pytest.mark.parametrize(
    ("version", "major", "attributes"), [(12030, 9, [EARLY]), (13000, 9, [EARLY]), (12020, 9, []), (13000, 8, [])]
)
def test_launches_start_early_on_hopper(
    fake: FakeCuda, version: int, major: int, attributes: list[tuple[int, int]]
) -> None:
    fake.version, fake.major = version, major
    assert launched(fake, 0, program(), 1000) == [("launch", 0, 710, 11, 1, 1, 96, 1, 1, 0, *attributes)]


def test_a_failed_launch_raises_cupy_s_error(fake: FakeCuda) -> None:
    fake.status = 700
    with pytest.raises(RuntimeError, match="status 700"):
        launched(fake, 0, program(), 1000)


def test_a_program_is_loaded_once_for_each_device(fake: FakeCuda) -> None:
    for index in (0, 1, 0):
        cuda.CudaBackend(index).load(program())
    assert [words for words in fake.calls if words[0] == "load"] == [
        ("load", "mine for sm_90a", 0),
        ("load", "mine for sm_90a", 1),
    ]


def test_kernels_opt_in_to_large_shared_memory(fake: FakeCuda) -> None:
    cuda.CudaBackend(0).load(program(grid=Grid(threads=256, replicas=2, shared_bytes=50_000)))
    assert fake.calls[1:] == [("shared", "kernel_one", 50_000), ("shared", "kernel_two", 50_000)]
    grid = Grid(threads=256, replicas=2, blocks=3, shared_bytes=100)
    assert launched(fake, 0, program(grid=grid), 5) == [("launch", 0, 710, 9, 1, 1, 256, 1, 1, 100, EARLY)]


def test_only_bind_waits_for_the_compiler(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        cuda, "start_compiling", lambda _, name, architecture: started.append(f"{name} for {architecture}")
    )
    one, two = load_kernels(cuda.CudaBackend(1), program())
    one.fill(count=3)
    assert (started, fake.calls) == (["mine for sm_90a"], [])
    for kernel in (one, two):
        kernel.bind(5)
    assert [words for words in fake.calls if words[0] == "load"] == [("load", "mine for sm_90a", 1)]


@pytest.mark.skipif(driver.device_count() == 0, reason="needs a CUDA device")
@pytest.mark.parametrize("device", range(max(1, driver.device_count())))
def test_a_thread_that_has_not_called_cuda_yet_can_step(device: int) -> None:
    torch = pytest.importorskip("torch")
    env = gpu_envs.make("CartPole-v1", 4, device=f"cuda:{device}", output="torch")
    env.reset(seed=0)
    actions = torch.zeros(4, dtype=torch.int32, device=f"cuda:{device}")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(env.step, actions).result()) == 5


# --- starting a device's context early ---


@pytest.mark.parametrize(
    ("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cpu", None), ("gpu", None), ("cuda:x", None)]
)
def test_a_thread_starts_the_context(monkeypatch: pytest.MonkeyPatch, device: str, index: int | None) -> None:
    started: list[int] = []
    monkeypatch.setattr(cuda, "start_context", started.append)
    cuda.start_context_in_thread(device)
    for thread in threading.enumerate():
        if thread.name == "start CUDA context":
            thread.join()
    assert started == ([] if index is None else [index])


def test_the_primary_context_is_retained(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cuda, cupy, driver):  # CuPy is not imported for it
        monkeypatch.setattr(module, "import_cupy", None)
    cuda.start_context(1)
    assert fake.calls == [("start", 101)]
    cuda.start_context(2)  # the call that uses this device reports that it is missing
    monkeypatch.setattr(driver, "library", lambda: None)
    cuda.start_context(1)
    assert len(fake.calls) == 1
