"""The CUDA backend: NVRTC compiles and the driver launches; neither nvcc nor a CUDA toolkit is needed."""

import contextlib
import ctypes
import functools
import re
import threading
from typing import final

from gpu_envs.backend import driver
from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.cupy import import_cupy, import_runtime, on_device
from gpu_envs.backend.messages import check_library, compile_error
from gpu_envs.backend.nvrtc import architecture_of, begin, machine_code
from gpu_envs.backend.program import Device, Grid, Program
from gpu_envs.errors import CompileError

THREADS_PER_BLOCK = 128

PLAIN_SHARED_BYTES = 46 * 1024
"""Shared memory that a block may have without asking for more, less what the dialect has for itself."""


def wake(device: str) -> None:
    """Lets the driver start a device, which takes a while, in a thread; it does nothing where that is not asked for.

    Whoever asks the driver for something meanwhile waits for it, as if he had been the first to ask.

    Args:
        device: As a user names it; ``auto`` and ``cuda`` are the first one.
    """
    found = re.fullmatch(r"(?:auto|cuda(?::(\d+))?)", device)
    if found is not None:
        threading.Thread(target=start_context, args=(int(found[1] or 0),), name="wake").start()


def start_context(index: int) -> None:
    """Makes the context that all share who call CUDA's runtime; without CuPy there will be nobody."""
    with contextlib.suppress(ImportError):
        import_runtime()
        driver.start(index)


@functools.cache
def may_begin_early(index: int) -> bool:
    """Whether a launch may begin while the one before it ends: on Hopper, by CUDA 12.3."""
    return driver.version() >= 12030 and _capability(index)[0] == _HOPPER


@final
class CudaKernels(Kernels):
    """Functions of a module on one device."""

    def __init__(self, functions: dict[str, int], device: int, program: Program, block: int) -> None:
        """Keeps the functions' handles, and how many threads each lets a block have."""
        self._functions = functions
        self._most_threads = {name: driver.attribute_of(each, driver.MOST_THREADS) for name, each in functions.items()}
        self._device = device
        self._program = program
        self._block = block

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares a launch whose threads cover all replicas.

        The struct is passed by value, straight to the driver: a launch through CuPy's RawKernel looks at every
        argument anew, which costs more than the launch.
        """
        if self._program.grid is not None:
            return self._bind_grid(kernel, call, count, self._program.grid)
        fitting = PLAIN_SHARED_BYTES // max(1, self._program.staging_bytes)
        block = max(32, min(self._block, self._most_threads[kernel], fitting) // 32 * 32)
        run = self._prepared(kernel, call, -(-count // block), block, self._program.staging_bytes * block)
        return self._on_device(run)

    def _prepared(
        self, kernel: str, call: ctypes.Structure, blocks: int, threads: int, shared: int, *, early: bool = True,
        together: bool = False,
    ) -> Launch:  # fmt: skip
        """Prepares a launch on the current device; where that can be, it begins while the one before it ends."""
        attribute = (
            driver.TOGETHER if together
            else driver.EARLY if early and may_begin_early(self._device)
            else None
        )  # fmt: skip
        return driver.launcher(
            self._functions[kernel], call, blocks=blocks, threads=threads, shared_bytes=shared, attribute=attribute
        )

    def _bind_grid(self, kernel: str, call: ctypes.Structure, count: int, grid: Grid) -> Launch:
        """Prepares launches whose blocks have replicas with teams; a launch for each phase, where the grid says so."""
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
            with on_device(self._device):
                found = cupy.zeros(1, cupy.int32)
                call.phases, phases = found.data.ptr, range(-1, 0)
                import_runtime().deviceSynchronize()
                launch_all(0)
                phases = range(int(found.get()[0]))
                call.phases = None
        return self._on_device(launch_all)

    def _on_device(self, run: Launch) -> Launch:
        """The same, whichever device is the current one, and in any thread."""
        current, index = import_runtime().getDevice, self._device

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
        runtime, there = import_runtime(), driver.device_count()
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
            functions = {kernel: driver.function_of(module, f"kernel_{kernel}") for kernel in program.calls}
            if program.grid is not None and program.grid.shared_bytes > PLAIN_SHARED_BYTES:
                for function in functions.values():
                    driver.set_attribute(function, driver.SHARED_BYTES, program.grid.shared_bytes)
            return CudaKernels(functions, self.index, program, self._block)

    def begin(self, program: Program) -> None:
        begin(program.source, program.name, _architecture(self.index))

    def memory(self) -> int:
        with on_device(self.index):
            return int(import_runtime().memGetInfo()[1])


def _architecture(index: int) -> str:
    return architecture_of(_capability(index))


def _capability(index: int) -> tuple[int, int]:
    runtime = import_runtime()
    major, minor = (int(runtime.deviceGetAttribute(number, index)) for number in _CAPABILITY)
    return major, minor


_CAPABILITY = (75, 76)
"""CUDA's numbers of the two attributes of a device that are its compute capability."""

_HOPPER = 9


@functools.cache
def loaded_module(source: str, name: str, index: int) -> int:
    """The handle of a program on a device, the current one; it stays there, as graphs may hold its kernels.

    Raises:
        CompileError: The compiler refuses it.
    """
    code = machine_code(source, name, _architecture(index))
    import_runtime().free(0)  # there is a context from now on
    return driver.load_module(code)
