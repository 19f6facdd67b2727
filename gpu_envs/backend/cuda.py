"""The CUDA backend: CuPy compiles with NVRTC and launches; neither nvcc nor a CUDA toolkit is needed."""

import ctypes
import functools
import locale
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, final

from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.messages import check_library, compile_error
from gpu_envs.backend.program import Device, Grid, Program
from gpu_envs.backend.toolchain import prepare, private_folder

OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""CuPy adds ``-ftz=true``. Contraction (fmad) would give other bits than the CPU's."""

THREADS_PER_BLOCK = 128

PLAIN_SHARED_BYTES = 46 * 1024
"""Shared memory that a block may have without asking for more, less what the dialect has for itself."""


def import_cupy() -> Any:
    """Imports CuPy, or says which extra brings it."""
    _look_at_cache()
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "device='cuda' needs CuPy: pip install 'gpu_envs[cuda13]' for a driver of CUDA 13, "
            f"'gpu_envs[cuda12]' for CUDA 12, or use device='cpu' ({error})"
        ) from error
    return cupy


def cupy_cache_folder() -> Path:
    """Where CuPy keeps what it compiled."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))  # noqa: PTH111  # as it does


@functools.cache
def _look_at_cache() -> None:
    """Where CuPy's cache will not do, CuPy keeps what it compiles in memory."""
    folder = cupy_cache_folder()
    try:
        prepare(folder)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
    except OSError as error:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        if not folder.is_dir():
            os.environ["CUPY_CACHE_DIR"] = str(private_folder())  # to make it is what CuPy's import begins with
        warnings.warn(
            f"CuPy cannot keep what it compiles in {folder}: {error.strerror or error}. Every process compiles anew; "
            "set CUPY_CACHE_DIR to a folder of your own that can be written",
            stacklevel=3,
        )


_ROOM = 2**20
"""Bytes that CuPy's cache must have room for: a few programs."""


@functools.cache
def device_count() -> int:
    """How many CUDA devices the driver sees, asked of the driver itself so that nothing heavy is imported."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


@final
class CudaKernels(Kernels):
    """Functions of a module on one device."""

    def __init__(self, functions: dict[str, Any], device: int, program: Program, block: int) -> None:
        """Keeps the functions, and the shape of their launches: as many threads a block as registers allow."""
        self._functions = {name: kernel.kernel for name, kernel in functions.items()}
        self._most_threads = {name: int(kernel.max_threads_per_block) for name, kernel in functions.items()}
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
        cupy = import_cupy()
        launch_kernel, current = cupy.cuda.driver.launchKernel, cupy.cuda.runtime.getDevice
        function, device, index = self._functions[kernel], cupy.cuda.Device(self._device), self._device
        handle = function.ptr
        fitting = PLAIN_SHARED_BYTES // max(1, self._program.staging_bytes)
        block = max(32, min(self._block, self._most_threads[kernel], fitting) // 32 * 32)
        grid = -(-count // block)
        shared = self._program.staging_bytes * block
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        address = ctypes.addressof(arguments)

        def launch(stream: int, _keep: tuple[Any, ...] = (call, arguments, function)) -> None:
            if current() == index:
                launch_kernel(handle, grid, 1, 1, block, 1, 1, shared, stream, address, 0)
            else:
                with device:
                    launch_kernel(handle, grid, 1, 1, block, 1, 1, shared, stream, address, 0)

        return launch

    def _bind_grid(self, kernel: str, call: ctypes.Structure, count: int, grid: Grid) -> Launch:
        """Prepares launches whose blocks have replicas with teams; a launch for each phase, where the grid says so."""
        cupy = import_cupy()
        launch_kernel, device = cupy.cuda.driver.launchKernel, cupy.cuda.Device(self._device)
        current, index = cupy.cuda.runtime.getDevice, self._device
        function = self._functions[kernel]
        handle, shared, threads = function.ptr, grid.shared_bytes, grid.threads
        blocks = -(-count // grid.replicas) * grid.blocks
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        address = ctypes.addressof(arguments)
        phases = range(1)

        def launch_all(stream: int) -> None:
            for phase in phases:
                call.phase = phase
                launch_kernel(handle, blocks, 1, 1, threads, 1, 1, shared, stream, address, 0)

        if grid.phased:
            with device:
                found = cupy.zeros(1, cupy.int32)
                call.phases, phases = found.data.ptr, range(-1, 0)
                cupy.cuda.runtime.deviceSynchronize()
                launch_all(0)
                phases = range(int(found.get()[0]))
                call.phases = None

        def launch(stream: int, _keep: tuple[Any, ...] = (call, arguments, function)) -> None:
            if current() == index:
                launch_all(stream)
            else:
                with device:
                    launch_all(stream)

        return launch


@final
class CudaBackend(Backend):
    """One CUDA device."""

    def __init__(self, index: int, block_size: int | None = None) -> None:
        """Chooses a device by its number."""
        self._cupy = import_cupy()
        if index >= device_count():
            raise ValueError(f"device 'cuda:{index}' is not there: this machine has {device_count()} CUDA devices")
        if block_size is not None and (block_size not in range(32, 1025, 32)):
            raise ValueError(f"block_size is {block_size!r}; give a multiple of 32 from 32 to 1024, or None")
        self.index = index
        self.device = f"cuda:{index}"
        self._block = block_size or THREADS_PER_BLOCK
        attributes = self._cupy.cuda.Device(index).attributes
        self.traits = Device(
            on_gpu=True,
            processors=int(attributes["MultiProcessorCount"]),
            shared_bytes=int(attributes["MaxSharedMemoryPerBlockOptin"]),
            block_size=block_size,
        )

    def arrays(self, library: str) -> Arrays:
        """Device memory as torch tensors or CuPy arrays; for NumPy the latter, read together."""
        return (
            TorchArrays(self.device) if library == "torch" else CupyArrays(self.index, read_together=library == "numpy")
        )

    def load(self, program: Program) -> Kernels:
        """Compiles with NVRTC; CuPy keeps the result on disk by the whole source, headers included."""
        check_library(program, "NVRTC")
        if not program.source.isascii() and locale.getpreferredencoding(False).upper() != "UTF-8":
            os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # on disk it is written in the locale's encoding
        with self._cupy.cuda.Device(self.index):
            module = self._cupy.RawModule(code=program.source, options=OPTIONS, backend="nvrtc")
            try:
                functions = {k: module.get_function(f"kernel_{k}") for k in program.calls}
                if program.grid is not None and program.grid.shared_bytes > PLAIN_SHARED_BYTES:
                    for function in functions.values():
                        function.max_dynamic_shared_size_bytes = program.grid.shared_bytes
                return CudaKernels(functions, self.index, program, self._block)
            except self._cupy.cuda.compiler.CompileException as error:
                raise compile_error(program, str(error), "NVRTC") from error

    def memory(self) -> int:
        with self._cupy.cuda.Device(self.index):
            return int(self._cupy.cuda.runtime.memGetInfo()[1])
