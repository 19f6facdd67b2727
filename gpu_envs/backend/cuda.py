"""The CUDA backend: NVRTC compiles and CuPy launches; neither nvcc nor a CUDA toolkit is needed."""

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Callable
from typing import Any, final

from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.cupy import import_cuda, import_cupy, on_device
from gpu_envs.backend.messages import check_library, compile_error
from gpu_envs.backend.nvrtc import architecture_of, begin, machine_code
from gpu_envs.backend.program import Device, Grid, Program
from gpu_envs.errors import CompileError

THREADS_PER_BLOCK = 128

PLAIN_SHARED_BYTES = 46 * 1024
"""Shared memory that a block may have without asking for more, less what the dialect has for itself."""


@functools.cache
def device_count() -> int:
    """How many CUDA devices the driver sees, asked of the driver itself so that nothing heavy is imported."""
    driver = _driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def wake(device: str) -> None:
    """Lets the driver start a device, which takes a while, in a thread; it does nothing where that is not asked for.

    Whoever asks the driver for something meanwhile waits for it, as if he had been the first to ask.

    Args:
        device: As a user names it; ``auto`` and ``cuda`` are the first one.
    """
    found = re.fullmatch(r"(?:auto|cuda(?::(\d+))?)", device)
    if found is not None:
        threading.Thread(target=_start, args=(int(found[1] or 0),), name="wake").start()


def _start(index: int) -> None:
    """Makes the context that all share who call CUDA's runtime; without CuPy there will be nobody."""
    with contextlib.suppress(ImportError):
        import_cuda()
        driver, device, context = _driver(), ctypes.c_int(0), ctypes.c_void_p()
        if driver is not None and driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _driver() -> ctypes.CDLL | None:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: that a launch may begin while the one before it ends."""

    _fields_ = (("id", ctypes.c_int), ("_gap", ctypes.c_int), ("allowed", ctypes.c_int), ("_rest", ctypes.c_char * 60))


_EARLY = _Attribute(6, 0, 1)
"""``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``; kernels wait at their begin, in ``gpu.cuh``."""


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def _launch_early(index: int) -> Callable[..., int] | None:
    """The driver's function that launches with attributes, where launches may begin early: on Hopper, by CUDA 12.3."""
    driver, version = _driver(), ctypes.c_int(0)
    major = import_cuda().runtime.deviceGetAttribute(_CAPABILITY[0], index)
    known = driver is not None and driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    return getattr(driver, "cuLaunchKernelEx", None) if known and version.value >= 12030 and major == _HOPPER else None


@final
class CudaKernels(Kernels):
    """Functions of a module on one device."""

    def __init__(self, functions: dict[str, int], device: int, program: Program, block: int) -> None:
        """Keeps the functions' handles, and how many threads each lets a block have."""
        driver = import_cuda().driver
        most = driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        self._functions = functions
        self._most_threads = {name: int(driver.funcGetAttribute(most, each)) for name, each in functions.items()}
        self._device = device
        self._program = program
        self._block = block

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares a launch whose threads cover all replicas.

        The struct is passed by value, straight through the driver: a launch through CuPy's RawKernel looks at every
        argument anew, which costs more than the launch.
        """
        if self._program.grid is not None:
            return self._bind_grid(kernel, call, count, self._program.grid)
        current, index = import_cuda().runtime.getDevice, self._device
        fitting = PLAIN_SHARED_BYTES // max(1, self._program.staging_bytes)
        block = max(32, min(self._block, self._most_threads[kernel], fitting) // 32 * 32)
        run = self._prepared(kernel, call, -(-count // block), block, self._program.staging_bytes * block)

        def launch(stream: int) -> None:
            if current() == index:
                run(stream)
            else:
                with on_device(index):
                    run(stream)

        return launch

    def _prepared(
        self, kernel: str, call: ctypes.Structure, blocks: int, threads: int, shared: int, *, early: bool = True,
        together: bool = False,
    ) -> Launch:  # fmt: skip
        """Prepares a launch on the current device; where that can be, it begins while the one before it ends."""
        driver, handle = import_cuda().driver, self._functions[kernel]
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        address = ctypes.addressof(arguments)
        if together:
            launch_together = driver.launchCooperativeKernel

            def run_together(stream: int, _keep: tuple[Any, ...] = (call, arguments)) -> None:
                launch_together(handle, blocks, 1, 1, threads, 1, 1, shared, stream, address)

            return run_together
        launch_early = _launch_early(self._device) if early else None
        if launch_early is None:
            launch_kernel = driver.launchKernel

            def run(stream: int, _keep: tuple[Any, ...] = (call, arguments)) -> None:
                launch_kernel(handle, blocks, 1, 1, threads, 1, 1, shared, stream, address, 0)

            return run
        function = ctypes.c_void_p(handle)
        configs: dict[int, Any] = {}  # by stream: Python lets another thread go on while the driver reads one

        def run_early(stream: int, _keep: ctypes.Structure = call) -> None:
            config = configs.get(stream)
            if config is None:
                early = _Config(blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.pointer(_EARLY), 1)
                configs[stream] = config = ctypes.byref(early)
            status = launch_early(config, function, arguments, None)
            if status:
                driver.check_status(status)

        return run_early

    def _bind_grid(self, kernel: str, call: ctypes.Structure, count: int, grid: Grid) -> Launch:
        """Prepares launches whose blocks have replicas with teams; a launch for each phase, where the grid says so."""
        cuda = import_cuda()
        current, index = cuda.runtime.getDevice, self._device
        blocks = -(-count // grid.replicas) * grid.blocks
        run = self._prepared(
            kernel, call, blocks, grid.threads, grid.shared_bytes, early=grid.early, together=grid.together
        )
        phases = range(1)

        def launch_all(stream: int) -> None:
            for phase in phases:
                call.phase = phase
                run(stream)

        if grid.phased:
            cupy = import_cupy()
            with on_device(index):
                found = cupy.zeros(1, cupy.int32)
                call.phases, phases = found.data.ptr, range(-1, 0)
                cuda.runtime.deviceSynchronize()
                launch_all(0)
                phases = range(int(found.get()[0]))
                call.phases = None

        def launch(stream: int) -> None:
            if current() == index:
                launch_all(stream)
            else:
                with on_device(index):
                    launch_all(stream)

        return launch


@final
class CudaBackend(Backend):
    """One CUDA device."""

    def __init__(self, index: int, block_size: int | None = None) -> None:
        """Chooses a device by its number."""
        runtime = import_cuda().runtime
        if index >= device_count():
            raise ValueError(f"device 'cuda:{index}' is not there: this machine has {device_count()} CUDA devices")
        if block_size is not None and (block_size not in range(32, 1025, 32)):
            raise ValueError(f"block_size is {block_size!r}; give a multiple of 32 from 32 to 1024, or None")
        self.index = index
        self.device = f"cuda:{index}"
        self._block = block_size or THREADS_PER_BLOCK
        self.traits = Device(
            on_gpu=True,
            processors=int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, index)),
            shared_bytes=int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index)),
            block_size=block_size,
        )

    def arrays(self, library: str) -> Arrays:
        """Device memory as torch tensors or CuPy arrays; for NumPy the latter, read together."""
        return (
            TorchArrays(self.device) if library == "torch" else CupyArrays(self.index, read_together=library == "numpy")
        )

    def load(self, program: Program) -> Kernels:
        """Compiles with NVRTC, or finds on disk what it made of the same source, headers included."""
        check_library(program, "NVRTC")
        driver = import_cuda().driver
        with on_device(self.index):
            try:
                module = _loaded(program.source, program.name, self.index)
            except CompileError as error:
                raise compile_error(program, error.output, "NVRTC") from None
            functions = {kernel: driver.moduleGetFunction(module, f"kernel_{kernel}") for kernel in program.calls}
            if program.grid is not None and program.grid.shared_bytes > PLAIN_SHARED_BYTES:
                most = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                for function in functions.values():
                    driver.funcSetAttribute(function, most, program.grid.shared_bytes)
            return CudaKernels(functions, self.index, program, self._block)

    def begin(self, program: Program) -> None:
        begin(program.source, program.name, _architecture(self.index))

    def memory(self) -> int:
        with on_device(self.index):
            return int(import_cuda().runtime.memGetInfo()[1])


def _architecture(index: int) -> str:
    major, minor = (import_cuda().runtime.deviceGetAttribute(number, index) for number in _CAPABILITY)
    return architecture_of((major, minor))


_CAPABILITY = (75, 76)
"""CUDA's numbers of the two attributes of a device that are its compute capability."""

_HOPPER = 9


@functools.cache
def _loaded(source: str, name: str, index: int) -> int:
    """The handle of a program on a device, the current one; it stays there, as graphs may hold its kernels.

    Raises:
        CompileError: The compiler refuses it.
    """
    driver, runtime = import_cuda()
    code = machine_code(source, name, _architecture(index))
    runtime.free(0)  # there is a context from now on
    return int(driver.moduleLoadData(code))
