"""What the CUDA backend asks of the driver, told by a driver that is none."""

import ctypes
import importlib.util
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from harness import with_package

from gpu_envs.backend import cuda, cupy
from gpu_envs.backend.cupy import Cuda
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

CALLS = {
    "one": Struct.of("OneCall", "float", ("Index", "count")),
    "two": Struct.of("TwoCall", "float", ("Index", "count")),
}


class Told:
    """A driver and a runtime of two devices, that remember what they were told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.current = 0
        self.driver = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            moduleLoadData=lambda code: self.tell("load", code, self.current) or 7,
            moduleGetFunction=lambda module, name: 100 * module + len(name),
            funcGetAttribute=lambda attribute, function: 96 if attribute == 0 and function == 710 else 0,
            funcSetAttribute=lambda function, attribute, value: self.tell("set", function, attribute, value),
            launchKernel=lambda *given: self.tell("launch", self.current, *given[:8]),
        )
        self.runtime = SimpleNamespace(
            cudaDevAttrMultiProcessorCount=16,
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97,
            getDevice=lambda: self.current,
            setDevice=self.choose,
            free=lambda _: None,
            deviceGetAttribute=lambda number, _: {16: 132, 97: 232448, 75: 9, 76: 0}[number],
            memGetInfo=lambda: (5, 10 + self.current),
        )

    def tell(self, *what: Any) -> int:
        self.said.append(what)
        return 0

    def choose(self, index: int) -> None:
        self.current = index


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    for module in (cuda, cupy):
        monkeypatch.setattr(module, "import_cuda", lambda: Cuda(made.driver, made.runtime))
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "_launch_early", lambda _: None)
    monkeypatch.setattr(cuda, "machine_code", lambda _, name, architecture: f"{name} for {architecture}".encode())
    cuda._loaded.cache_clear()
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


@pytest.mark.parametrize("index", [0, 1])
def test_threads_are_as_many_as_registers_allow(told: Told, index: int) -> None:
    assert launched(told, index, program(), 1000) == [("launch", index, 710, 11, 1, 1, 96, 1, 1, 0)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_launch_begins_while_the_one_before_it_ends(told: Told, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(config: Any, function: Any, arguments: Any, more: Any) -> int:
        given = config._obj
        attribute = given.attributes[0]
        sizes = (given.grid_x, given.grid_y, given.grid_z, given.block_x, given.block_y, given.block_z)
        assert (given.stream, given.count, attribute.id, attribute.allowed, more) == (5, 1, 6, 1, None)
        assert len(arguments) == 1
        return told.tell("early", told.current, function.value, *sizes, given.shared_bytes)

    monkeypatch.setattr(cuda, "_launch_early", lambda _: launch)
    assert (ctypes.sizeof(cuda._Config), ctypes.sizeof(cuda._Attribute)) == (56, 72)  # as cuda.h has them
    assert launched(told, index, program(), 1000) == [("early", index, 710, 11, 1, 1, 96, 1, 1, 0)]
    late = program(grid=Grid(threads=64, replicas=2, early=False))
    assert launched(told, index, late, 5) == [("launch", index, 710, 3, 1, 1, 64, 1, 1, 0)]


def test_what_the_driver_says_of_an_early_launch_is_raised(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_status(status: int) -> None:
        raise RuntimeError(f"the driver says {status}")

    told.driver.check_status = check_status
    monkeypatch.setattr(cuda, "_launch_early", lambda _: lambda *_: 700)
    with pytest.raises(RuntimeError, match="the driver says 700"):
        launched(told, 0, program(), 1000)


@pytest.mark.parametrize(
    ("version", "major", "early"), [(12030, 9, True), (13000, 9, True), (12020, 9, False), (13000, 8, False)]
)
def test_launches_begin_early_on_hopper(version: int, major: int, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        cuLaunchKernelEx = staticmethod(print)  # noqa: N815  # the driver's name

        @staticmethod
        def cuDriverGetVersion(at: Any) -> int:  # noqa: N802
            at._obj.value = version
            return 0

    monkeypatch.setattr(cuda, "_driver", Driver)
    runtime = SimpleNamespace(deviceGetAttribute=lambda *_: major)
    monkeypatch.setattr(cuda, "import_cuda", lambda: Cuda(None, runtime))
    assert (cuda._launch_early.__wrapped__(0) is not None) == early


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
    assert launched(told, 0, program(grid=grid), 5) == [("launch", 0, 710, 9, 1, 1, 256, 1, 1, 100)]


def test_what_is_begun_is_for_this_device(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(cuda, "begin", lambda *given: begun.append(given[1:]))
    cuda.CudaBackend(1).begin(program())
    assert begun == [("mine", "sm_90a")]
    assert told.said == []


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
    script = """
        import sys
        from gpu_envs.backend.cupy import import_cuda
        driver, runtime = import_cuda()
        for part, names in ((driver, "moduleLoadData moduleGetFunction launchKernel launchCooperativeKernel "
                "check_status funcGetAttribute funcSetAttribute CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK "
                "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"),
                (runtime, "getDevice setDevice free deviceGetAttribute memGetInfo deviceSynchronize "
                "cudaDevAttrMultiProcessorCount cudaDevAttrMaxSharedMemoryPerBlockOptin")):
            for name in names.split():
                getattr(part, name)
        assert "cupy" not in sys.modules
        import cupy
        assert (cupy.cuda.driver, cupy.cuda.runtime) == (driver, runtime)
    """
    lines = "\n".join(line[8:] for line in script.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", lines], env=with_package(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- a device that is started ahead ---


@pytest.mark.parametrize(
    ("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cpu", None), ("gpu", None), ("cuda:x", None)]
)
def test_who_is_woken(monkeypatch: pytest.MonkeyPatch, device: str, index: int | None) -> None:
    started: list[int] = []
    monkeypatch.setattr(cuda, "_start", started.append)
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

    driver = SimpleNamespace(cuInit=init, cuDeviceGet=get, cuDevicePrimaryCtxRetain=retain)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "import_cuda", no_cupy)
    cuda._start(1)
    assert asked == []
    monkeypatch.setattr(cuda, "import_cuda", lambda: None)
    cuda._start(1)
    cuda._start(2)  # there is none: whoever asks for it later is told
    assert asked == [("init", 0), ("retain", 41), ("init", 0)]
    monkeypatch.setattr(cuda, "_driver", lambda: None)
    cuda._start(0)
