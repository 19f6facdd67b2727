"""The CUDA backend: NVRTC compiles, and kernels are CuPy's RawKernels; neither nvcc nor a CUDA toolkit is needed."""

import ctypes
import functools
import re
import threading
from typing import Any, final

import numpy as np

from gpu_envs.backend import driver
from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.cupy import import_cupy, on_device
from gpu_envs.backend.messages import check_library, compile_error
from gpu_envs.backend.nvrtc import begin, machine_code
from gpu_envs.backend.program import Device, Program
from gpu_envs.errors import CompileError

THREADS_PER_BLOCK = 128

PLAIN_SHARED_BYTES = 46 * 1024
"""Shared memory that a block may have without asking for more, less what the dialect has for itself."""


def wake(device: str) -> None:
    """Starts a device's CUDA context in a thread, as that takes a while; later calls to CUDA wait for it.

    Args:
        device: A device's name; ``auto`` and ``cuda`` mean the first CUDA device. ``cpu`` does nothing.
    """
    found = re.fullmatch(r"(?:auto|cuda(?::(\d+))?)", device)
    if found is not None:
        threading.Thread(target=start_context, args=(int(found[1] or 0),), name="wake").start()


def start_context(index: int) -> None:
    """Starts the context of a device that CuPy and torch use; leaves it to later calls to report what is wrong.

    CuPy would do this too, but importing it takes turns with the import of torch in the main thread.
    """
    library, device, context = driver.library(), ctypes.c_int(0), ctypes.c_void_p()
    if library is not None and index < driver.device_count():
        library.cuDeviceGet(ctypes.byref(device), index)
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@functools.cache
def may_begin_early(index: int) -> bool:
    """Whether a launch may begin while the previous one ends: on Hopper, with CUDA 12.3 or newer."""
    return import_cupy().cuda.runtime.driverGetVersion() >= 12030 and _capability(index)[0] == _HOPPER


@final
class CudaKernels(Kernels):
    """The kernels of a module on one device."""

    def __init__(self, functions: dict[str, Any], device: int, program: Program, block: int) -> None:
        """Keeps the ``RawKernel`` objects; the device is the current one."""
        self._functions = functions
        self._handles = {name: function.kernel.ptr for name, function in functions.items()}
        self._most_threads = {name: function.max_threads_per_block for name, function in functions.items()}
        self._device = device
        self._program = program
        self._block = block

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares a launch whose threads cover all replicas; a launch for each phase, if the grid has phases."""
        grid = self._program.grid
        attribute = None
        if grid is not None and grid.together:
            attribute = driver.COOPERATIVE
        elif (grid is None or grid.early) and may_begin_early(self._device):
            attribute = driver.EARLY
        run = driver.launcher(self._handles[kernel], call, self._shape(kernel, count), attribute)
        return self._on_device(run if grid is None or not grid.phased else self._in_phases(run, call))

    def function(self, kernel: str) -> Any:
        return self._functions[kernel]

    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        blocks, threads, shared = self._shape(kernel, count)
        struct: np.ndarray = np.frombuffer(memoryview(call).cast("B"), np.dtype(type(call)))  # CuPy passes it by value
        return {"grid": (blocks,), "block": (threads,), "args": (struct,), "shared_mem": shared}

    def _shape(self, kernel: str, count: int) -> tuple[int, int, int]:
        """Blocks, threads of a block, bytes of dynamic shared memory of a block."""
        grid, staging = self._program.grid, self._program.staging_bytes
        if grid is not None:
            return -(-count // grid.replicas) * grid.blocks, grid.threads, grid.shared_bytes
        fitting = PLAIN_SHARED_BYTES // max(1, staging)
        threads = max(32, min(self._block, self._most_threads[kernel], fitting) // 32 * 32)
        return -(-count // threads), threads, staging * threads

    def _in_phases(self, run: Launch, call: Any) -> Launch:
        """A launch for each phase. A first one, with phase -1, asks the kernel how many there are."""
        phases = range(-1, 0)

        def launch_all(stream: int) -> None:
            for phase in phases:
                call.phase = phase
                run(stream)

        cupy = import_cupy()
        with on_device(self._device):
            found = cupy.zeros(1, cupy.int32)
            call.phases = found.data.ptr
            cupy.cuda.runtime.deviceSynchronize()
            launch_all(0)
            phases = range(int(found.get()[0]))
            call.phases = None
        return launch_all

    def _on_device(self, run: Launch) -> Launch:
        """The same launch, whichever device is current, and in any thread."""
        current, index = import_cupy().cuda.runtime.getDevice, self._device

        def launch(stream: int) -> None:
            if _thread.has_context and current() == index:
                run(stream)
            else:
                with on_device(index):
                    run(stream)
                _thread.has_context = True

        return launch


class _Thread(threading.local):
    """What is known of each thread: the driver launches only where CUDA's runtime has chosen a device before."""

    has_context = False


_thread = _Thread()


@final
class CudaBackend(Backend):
    """One CUDA device."""

    def __init__(self, index: int, block_size: int | None = None) -> None:
        """Chooses a device by its number."""
        runtime, there = import_cupy().cuda.runtime, driver.device_count()
        if index >= there:
            raise ValueError(f"device 'cuda:{index}' is not there: this machine has {there} CUDA devices")
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
        with on_device(self.index):
            try:
                module = loaded_module(program.source, program.name, self.index)
            except CompileError as error:
                raise compile_error(program, error.output, "NVRTC") from None
            functions = {kernel: module.get_function(f"kernel_{kernel}") for kernel in program.calls}
            if program.grid is not None and program.grid.shared_bytes > PLAIN_SHARED_BYTES:
                for function in functions.values():
                    function.max_dynamic_shared_size_bytes = program.grid.shared_bytes
            return CudaKernels(functions, self.index, program, self._block)

    def begin(self, program: Program) -> None:
        begin(program.source, program.name, _architecture(self.index))

    def memory(self) -> int:
        with on_device(self.index):
            return int(import_cupy().cuda.runtime.memGetInfo()[1])


def architecture_of(capability: tuple[int, int]) -> str:
    """The architecture to compile for: on Hopper the one with the instructions that no later GPU has."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' * (capability == (9, 0))}"


def _architecture(index: int) -> str:
    return architecture_of(_capability(index))


def _capability(index: int) -> tuple[int, int]:
    runtime = import_cupy().cuda.runtime
    major, minor = (int(runtime.deviceGetAttribute(number, index)) for number in _CAPABILITY)
    return major, minor


_CAPABILITY = (75, 76)
"""CUDA's numbers of the two attributes of a device that are its compute capability."""

_HOPPER = 9


@functools.cache
def loaded_module(source: str, name: str, index: int) -> Any:
    """The ``RawModule`` of a program for a device, the current one; CuPy keeps it loaded, as graphs may need it.

    Raises:
        CompileError: NVRTC refuses the source.
    """
    return import_cupy().RawModule(path=str(machine_code(source, name, _architecture(index))))
