"""The CUDA backend: NVRTC compiles and CuPy launches; neither nvcc nor a CUDA toolkit is needed."""

import ctypes
import functools
import os
import tempfile
from pathlib import Path
from typing import Any, final

from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.messages import check_library, compile_error
from gpu_envs.backend.nvrtc import architecture_of, machine_code
from gpu_envs.backend.program import Device, Grid, Program
from gpu_envs.backend.toolchain import prepare, private_folder
from gpu_envs.errors import CompileError

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


@functools.cache
def _look_at_cache() -> None:
    """Where CuPy's folder for small kernels of its own will not do, it is to keep them in memory."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))  # noqa: PTH111  # as it does
    try:
        prepare(folder)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
    except OSError:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        if not folder.is_dir():
            os.environ["CUPY_CACHE_DIR"] = str(private_folder())  # to make it is what CuPy's import begins with


_ROOM = 2**20
"""Bytes that it must have room for: a few kernels."""


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
        driver = import_cupy().cuda.driver
        most = driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        self._functions = functions
        self._most_threads = {name: int(driver.funcGetAttribute(most, each.ptr)) for name, each in functions.items()}
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
        driver, device = cupy.cuda.driver, cupy.cuda.Device(self._device)
        launch_kernel, more = (driver.launchCooperativeKernel, ()) if grid.together else (driver.launchKernel, (0,))
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
                launch_kernel(handle, blocks, 1, 1, threads, 1, 1, shared, stream, address, *more)

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
        runtime = self._cupy.cuda.runtime
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
        with self._cupy.cuda.Device(self.index):
            try:
                module = load_module(program.source, program.name, self.index)
            except CompileError as error:
                raise compile_error(program, error.output, "NVRTC") from None
            functions = {kernel: module.get_function(f"kernel_{kernel}") for kernel in program.calls}
            if program.grid is not None and program.grid.shared_bytes > PLAIN_SHARED_BYTES:
                driver = self._cupy.cuda.driver
                most = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                for function in functions.values():
                    driver.funcSetAttribute(function.ptr, most, program.grid.shared_bytes)
            return CudaKernels(functions, self.index, program, self._block)

    def memory(self) -> int:
        with self._cupy.cuda.Device(self.index):
            return int(self._cupy.cuda.runtime.memGetInfo()[1])


@functools.cache
def load_module(source: str, name: str, index: int) -> Any:
    """A program on a device, which has to be the current one; it stays there, as graphs may hold its kernels.

    Raises:
        CompileError: The compiler refuses it.
    """
    cuda = import_cupy().cuda
    number = int(cuda.Device(index).compute_capability)
    module = cuda.function.Module()
    module.load(machine_code(source, name, architecture_of(divmod(number, 10))))
    return module
