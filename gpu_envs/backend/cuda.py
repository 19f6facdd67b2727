"""The CUDA backend: CuPy compiles with NVRTC and launches; neither nvcc nor a CUDA toolkit is needed."""

import ctypes
import functools
from typing import Any, final

import numpy as np

from gpu_envs.arrays import Arrays, CupyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.codegen import KERNELS, Program
from gpu_envs.errors import CompileError

OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""CuPy adds ``-ftz=true``. Contraction (fmad) would give other bits than the CPU's."""

THREADS_PER_BLOCK = 128


def import_cupy() -> Any:
    """Imports CuPy, or says which extra brings it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "device='cuda' needs CuPy: pip install 'gpu_envs[cuda13]' for a driver of CUDA 13, "
            f"'gpu_envs[cuda12]' for CUDA 12, or use device='cpu' ({error})"
        ) from error
    return cupy


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


class _Stream:
    """What CuPy reads of a stream when it launches: its handle."""

    __slots__ = ("ptr",)

    def __init__(self, handle: int) -> None:
        self.ptr = handle


@final
class CudaKernels(Kernels):
    """Functions of a module on one device."""

    def __init__(self, functions: dict[str, Any], device: int, staging_bytes: int, block: int) -> None:
        """Keeps the functions, and the shape of their launches."""
        self._functions = functions
        self._device = device
        self._staging_bytes = staging_bytes
        self._block = block

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares a launch of one thread a replica."""
        cupy = import_cupy()
        function = self._functions[kernel]
        # a view of the struct, of one element as large as all of it: CuPy passes such an array by value
        argument = (np.frombuffer(call, dtype=np.dtype((np.void, ctypes.sizeof(call))), count=1),)
        grid, block = (min((count + self._block - 1) // self._block, 2**31 - 1),), (self._block,)
        shared, index = self._staging_bytes * self._block, self._device
        current, device = cupy.cuda.runtime.getDevice, cupy.cuda.Device(index)
        streams: dict[int, _Stream] = {}

        def launch(handle: int) -> None:
            stream = streams.get(handle)
            if stream is None:
                stream = streams[handle] = _Stream(handle)
            if current() == index:
                function(grid, block, argument, shared, stream)
            else:
                with device:
                    function(grid, block, argument, shared, stream)

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

    def arrays(self, library: str) -> Arrays:
        """Device memory as torch tensors or CuPy arrays."""
        return TorchArrays(self.device) if library == "torch" else CupyArrays(self.index)

    def load(self, program: Program, name: str) -> Kernels:
        """Compiles with NVRTC; CuPy keeps the result on disk by the whole source, headers included."""
        with self._cupy.cuda.Device(self.index):
            module = self._cupy.RawModule(code=program.source, options=OPTIONS, backend="nvrtc")
            try:
                functions = {k: module.get_function(f"kernel_{k}").kernel for k in KERNELS}
            except self._cupy.cuda.compiler.CompileException as error:
                raise CompileError(f"{name} did not compile with NVRTC:\n{error}") from error
        return CudaKernels(functions, self.index, program.staging_bytes, self._block)

    def memory(self) -> int:
        """The device's memory."""
        with self._cupy.cuda.Device(self.index):
            return int(self._cupy.cuda.runtime.memGetInfo()[1])
