"""The CUDA backend: NVRTC compiles, CuPy loads the kernels; no nvcc and no CUDA toolkit is needed."""

import ctypes
import functools
import re
import threading
from typing import Any, final

import numpy as np

from gpu_envs.backend import driver
from gpu_envs.backend.arrays import Arrays, CupyArrays, TorchArrays, TorchArraysOfRuns
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.cupy import import_cupy, on_device
from gpu_envs.backend.messages import check_device_functions, compile_error
from gpu_envs.backend.nvrtc import machine_code, start_compiling
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.several import SeveralRuns, current_runs
from gpu_envs.errors import CompileError

THREADS_PER_BLOCK = 128

DEFAULT_SHARED_BYTES = 46 * 1024
"""Dynamic shared memory of a block without opting in to more: 48 KiB less 2 KiB for the dialect's static arrays."""


def start_context_in_thread(device: str) -> None:
    """Starts a device's CUDA context in a background thread, as that takes a while; later CUDA calls wait for it.

    Args:
        device: A device's name; ``auto`` and ``cuda`` mean the first CUDA device. ``cpu`` does nothing.
    """
    match = re.fullmatch(r"(?:auto|cuda(?::(\d+))?)", device)
    if match is not None:
        threading.Thread(target=start_context, args=(int(match[1] or 0),), name="start CUDA context").start()


def start_context(index: int) -> None:
    """Starts the primary context of a device, which CuPy and torch use; ignores errors, which later calls report.

    CuPy would start it too, but its import and that of torch in the main thread would wait for each other.
    """
    library, device, context = driver.library(), ctypes.c_int(0), ctypes.c_void_p()
    if library is not None and index < driver.device_count():
        library.cuDeviceGet(ctypes.byref(device), index)
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@functools.cache
def supports_early_launch(index: int) -> bool:
    """Whether a launch may start while the previous one ends: on Hopper, with CUDA 12.3 or newer."""
    return import_cupy().cuda.runtime.driverGetVersion() >= 12030 and _capability(index)[0] == _HOPPER


@final
class CudaKernels(Kernels):
    """The kernels of a CUDA module on one device."""

    def __init__(
        self, functions: dict[str, Any], device: int, program: Program, block: int, runs: SeveralRuns | None = None
    ) -> None:
        """Stores the ``RawKernel`` objects; ``device`` must be the current device."""
        self._functions = functions
        self._handles = {name: function.kernel.ptr for name, function in functions.items()}
        self._max_threads = {name: function.max_threads_per_block for name, function in functions.items()}
        self._device, self._program, self._block, self._runs = device, program, block, runs

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares launches whose threads cover all replicas; one launch per phase if the grid is phased."""
        grid = self._program.grid
        attribute = None
        if grid is not None and grid.cooperative and self._runs is None:
            attribute = driver.COOPERATIVE
        elif (grid is None or grid.early) and supports_early_launch(self._device):
            attribute = driver.EARLY
        if self._runs is not None:
            return self._on_device(self._launch_several(self._runs, kernel, call, count, attribute))
        run = driver.launcher(self._handles[kernel], call, self._shape(kernel, count), attribute)
        return self._on_device(run if grid is None or not grid.phased else self._in_phases(run, call))

    def function(self, kernel: str) -> Any:
        return self._functions[kernel]

    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        blocks, threads, shared = self._shape(kernel, count)
        struct: np.ndarray = np.frombuffer(memoryview(call).cast("B"), np.dtype(type(call)))  # CuPy passes it by value
        return {"grid": (blocks,), "block": (threads,), "args": (struct,), "shared_mem": shared}

    def _shape(self, kernel: str, count: int) -> tuple[int, int, int]:
        """The number of blocks, threads per block, and bytes of dynamic shared memory per block."""
        grid, staging = self._program.grid, self._program.staging_bytes
        if grid is not None:
            return -(-count // grid.replicas) * grid.blocks, grid.threads, grid.shared_bytes
        shared_limit = DEFAULT_SHARED_BYTES // max(1, staging)
        threads = max(32, min(self._block, self._max_threads[kernel], shared_limit) // 32 * 32)
        return -(-count // threads), threads, staging * threads

    def _launch_several(
        self, runs: SeveralRuns, kernel: str, call: ctypes.Structure, count: int, attribute: int | None
    ) -> Launch:
        """Returns a launch of a grid with a row of blocks for each run."""
        if self._program.grid is not None and self._program.grid.phased:
            raise ValueError(f"kernel {kernel} of {self._program.name} runs in phases, which several runs cannot")
        calls, shape = _CallsOfRuns(), self._shape(kernel, count)
        launches = {
            number: driver.launcher(self._handles[kernel], calls, shape, attribute, number) for number in {1, runs.all}
        }
        memory = runs.launch_memory = runs.launch_memory or _CallsInMemory()

        def launch(stream: int) -> None:
            calls.calls = memory.address_of(runs.calls(call), stream)
            calls.active = runs.flags + (runs.count == 1) * runs.all
            launches[runs.count](stream)

        return launch

    def _in_phases(self, run: Launch, call: Any) -> Launch:
        """Returns a launch of ``run`` per phase; a first launch here, with phase -1, reads the number of phases."""
        phases = range(-1, 0)

        def launch_all_phases(stream: int) -> None:
            for phase in phases:
                call.phase = phase
                run(stream)

        cupy = import_cupy()
        with on_device(self._device):
            phase_count = cupy.zeros(1, cupy.int32)
            call.phases = phase_count.data.ptr
            cupy.cuda.runtime.deviceSynchronize()
            launch_all_phases(0)
            phases = range(int(phase_count.get()[0]))
            call.phases = None
        return launch_all_phases

    def _on_device(self, run: Launch) -> Launch:
        """A launch that works in any thread, whatever the current device is."""
        current, index = import_cupy().cuda.runtime.getDevice, self._device

        def launch_on_device(stream: int) -> None:
            if _thread_state.has_context and current() == index:
                run(stream)
            else:
                with on_device(index):
                    run(stream)
                _thread_state.has_context = True

        return launch_on_device


class _CallsOfRuns(ctypes.Structure):
    """``CallsOfRuns`` of ``gpu.cuh``."""

    _fields_ = (("calls", ctypes.c_void_p), ("active", ctypes.c_void_p))


@final
class _CallsInMemory:
    """The argument structs of several runs in the memory of the current device."""

    def __init__(self) -> None:
        self._cupy = import_cupy()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)  # may copy while a graph is captured
        self._pinned = self._cupy.cuda.alloc_pinned_memory(_MAX_STRUCTS)
        self._blocks: list[Any] = []
        self._free, self._captured = 0, False
        self._addresses: dict[bytes, int] = {}

    def address_of(self, structs: np.ndarray, stream: int) -> int:
        """Returns the address of equal structs in the GPU's memory; copies them there if there are none."""
        key, size, runtime = structs.tobytes(), structs.nbytes, self._cupy.cuda.runtime
        self._captured |= bool(runtime.streamIsCapturing(stream))
        if (address := self._addresses.get(key)) is not None:
            return address
        if size > _MAX_STRUCTS:
            raise ValueError(f"the arguments of a launch for {len(structs):,} runs take {size:,} bytes: train fewer")
        if self._free < size:
            with driver.relaxed_capture():
                self._make_room(size, stream)
        address = int(self._blocks[-1].data.ptr + self._blocks[-1].nbytes - self._free)
        self._free -= -(-size // _CALL_ALIGNMENT) * _CALL_ALIGNMENT
        np.frombuffer(self._pinned, np.uint8, size)[:] = structs.reshape(-1)
        with driver.relaxed_capture():
            runtime.memcpyAsync(address, self._pinned.ptr, size, runtime.memcpyHostToDevice, self._stream.ptr)
            self._stream.synchronize()
        self._addresses[key] = address
        return address

    def _make_room(self, size: int, stream: int) -> None:
        """Allocates a block, or uses the last one again, if no graph has its addresses and it is large enough."""
        enough = max(_CALL_BYTES, _LAUNCHES_OF_BLOCK * size)
        if self._captured or not self._blocks or self._blocks[-1].nbytes < enough:
            self._blocks.append(self._cupy.empty(enough, self._cupy.uint8))
        else:
            self._cupy.cuda.runtime.streamSynchronize(stream)  # earlier launches have read it
            self._addresses.clear()
        self._free = int(self._blocks[-1].nbytes)


_CALL_BYTES, _CALL_ALIGNMENT, _MAX_STRUCTS, _LAUNCHES_OF_BLOCK = 2**26, 256, 2**23, 1024
"""For the structs of launches, in bytes: minimum size of a block of memory, alignment, and maximum of a launch; and the
number of launches whose structs a block has room for."""


class _ThreadState(threading.local):
    """State of each thread: the driver launches only after CUDA's runtime has set a device in the same thread."""

    has_context = False


_thread_state = _ThreadState()


@final
class CudaBackend(Backend):
    """One CUDA device."""

    def __init__(self, index: int, block_size: int | None = None) -> None:
        """Opens the device with this index.

        Raises:
            ValueError: The device does not exist, or ``block_size`` is not allowed.
        """
        count = driver.device_count()
        if count == 0:
            raise ValueError(
                f"device 'cuda:{index}' does not exist: no CUDA device or driver was found; gpu-envs info shows what "
                "is missing, and device='cpu' or 'auto' needs neither"
            )
        if index >= count:
            raise ValueError(
                f"device 'cuda:{index}' does not exist: this machine has {count} CUDA device{'s' * (count > 1)}; use "
                "a smaller index, or device='cpu'"
            )
        if block_size is not None and block_size not in range(32, 1025, 32):
            raise ValueError(f"block_size is {block_size!r}; give a multiple of 32 from 32 to 1024, or None")
        runtime = import_cupy().cuda.runtime
        self.index, self.device, self._block = index, f"cuda:{index}", block_size or THREADS_PER_BLOCK
        self._runs = current_runs()
        self._launch_runs = self._runs if self._runs is not None and self._runs.all > 1 else None  # of one: as alone
        self.traits = Device(
            on_gpu=True,
            processors=int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, index)),
            shared_bytes=int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index)),
            block_size=block_size,
        )

    def arrays(self, library: str) -> Arrays:
        """Device memory as torch tensors or CuPy arrays; for ``numpy`` CuPy arrays that one transfer reads."""
        if library != "torch":
            return CupyArrays(self.index, read_at_once=library == "numpy")
        return TorchArrays(self.device) if self._runs is None else TorchArraysOfRuns(self.device, self._runs)

    def load(self, program: Program) -> Kernels:
        """Compiles with NVRTC, or loads machine code of the same source from the cache folder; returns the kernels."""
        check_device_functions(program, "NVRTC")
        with on_device(self.index):
            try:
                module = loaded_module(self._source(program), program.name, self.index)
            except CompileError as error:
                raise compile_error(program, error.output, "NVRTC") from None
            functions = {kernel: module.get_function(f"kernel_{kernel}") for kernel in program.calls}
            if program.grid is not None and program.grid.shared_bytes > DEFAULT_SHARED_BYTES:
                for function in functions.values():
                    function.max_dynamic_shared_size_bytes = program.grid.shared_bytes
            return CudaKernels(functions, self.index, program, self._block, self._launch_runs)

    def start_compiling(self, program: Program) -> None:
        start_compiling(self._source(program), program.name, architecture_of(_capability(self.index)))

    def _source(self, program: Program) -> str:
        return program.source if self._launch_runs is None else f"#define SEVERAL_RUNS\n{program.source}"

    def memory(self) -> int:
        with on_device(self.index):
            return int(import_cupy().cuda.runtime.memGetInfo()[1])


def architecture_of(capability: tuple[int, int]) -> str:
    """NVRTC's name of a compute capability; on Hopper ``sm_90a``, whose extra instructions no later GPU has."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' * (capability == (9, 0))}"


def _capability(index: int) -> tuple[int, int]:
    runtime = import_cupy().cuda.runtime
    major, minor = (int(runtime.deviceGetAttribute(number, index)) for number in _CAPABILITY)
    return major, minor


_CAPABILITY = (75, 76)
"""``cudaDevAttrComputeCapabilityMajor`` and ``cudaDevAttrComputeCapabilityMinor``."""

_HOPPER = 9


@functools.cache
def loaded_module(source: str, name: str, index: int) -> Any:
    """The ``RawModule`` of a program on the current device, ``index``; CuPy keeps it loaded, as graphs may need it.

    Raises:
        CompileError: NVRTC cannot compile the source.
    """
    return import_cupy().RawModule(path=str(machine_code(source, name, architecture_of(_capability(index)))))
