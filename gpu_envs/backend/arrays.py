"""One interface to arrays of NumPy, torch and CuPy: the simulation's memory, and arrays that users pass in."""

import itertools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from gpu_envs.backend.several import SeveralRuns, copies_of

Array = Any
"""An array of NumPy, torch or CuPy."""


def library_of(array: Any) -> str:
    """``numpy``, ``torch``, ``cupy``, ``dlpack`` for other arrays, or ``""`` for no array; imports no library."""
    if isinstance(array, np.ndarray):
        return "numpy"
    module = type(array).__module__.partition(".")[0]
    if module == "torch" and isinstance(array, sys.modules["torch"].Tensor):
        return "torch"
    if module == "cupy" and isinstance(array, sys.modules["cupy"].ndarray):
        return "cupy"
    return "dlpack" if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__") else ""


def ndim_of(value: Any) -> int:
    """The number of dimensions of a scalar, a sequence or an array of any library."""
    ndim = getattr(value, "ndim", None)
    return int(ndim) if ndim is not None else np.ndim(value)


def dtype_name(array: Array) -> str:
    """The name of an array's dtype, such as ``float32``."""
    return str(array.dtype).rpartition(".")[2]


def to_numpy(array: Any) -> np.ndarray:
    """Converts a sequence, or an array of any library and device, to NumPy; copies only if necessary."""
    library = library_of(array)
    if library == "torch":
        return np.asarray(array.detach().cpu().numpy())
    if library == "cupy":
        return np.asarray(array.get())
    return np.asarray(array)


class Arrays(ABC):
    """Allocates, reads and writes the simulation's arrays in one library."""

    name: str
    of_several_runs: bool = False
    """Whether launches are for several runs, and each run has its own copies of the arrays."""
    device: Any
    """The device, as the ``device`` attribute of these arrays reports it."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An uninitialised array."""

    @abstractmethod
    def fill(self, array: Array, value: float) -> None:
        """Sets every element to ``value``."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """The device address of the first element."""

    @abstractmethod
    def write(self, array: Array, values: np.ndarray) -> None:
        """Copies host values into ``array``, in stream order."""

    @abstractmethod
    def read(self, array: Array) -> np.ndarray:
        """A copy on the host, made after all earlier work on the stream."""

    @abstractmethod
    def stream(self) -> int:
        """The handle of the stream to launch on."""

    @abstractmethod
    def dtype(self, name: str) -> Any:
        """The library's dtype object."""

    @abstractmethod
    def contiguous(self, array: Array) -> bool:
        """Whether the array is C-contiguous."""

    @abstractmethod
    def view(self, array: Array, dtype: str) -> Array:
        """The same memory as an array of another dtype; the last dimension changes with the element size."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array of zeros."""
        array = self.empty(shape, dtype)
        self.fill(array, 0)
        return array

    def zeros_by_name(self, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
        """Arrays of zeros that are read together, by name; takes shape and dtype by name."""
        return {name: self.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def checked_address(self, name: str, array: Array, shape: tuple[int, ...], dtypes: Sequence[Any]) -> int:
        """The address of an array, or a ValueError if its shape, dtype, device or layout is not the expected one.

        Shapes ``[1]`` and ``[]`` count as equal.
        """
        if (
            array is not None
            and array.dtype in dtypes
            and array.device == self.device
            and self.contiguous(array)
            and (array.shape == shape or math.prod(array.shape) == math.prod(shape) == 1)
        ):
            return self.address(array)
        dtype_names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        actual = "None"
        if array is not None:
            layout = "" if self.contiguous(array) else ", not contiguous"
            actual = f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)} on {array.device}{layout}"
        raise ValueError(f"{name} is {actual}; give contiguous {dtype_names} {list(shape)} on {self.device}")

    def from_numpy(self, values: np.ndarray) -> Array:
        """A new array with these values."""
        array = self.empty(values.shape, values.dtype.name)
        self.write(array, values)
        return array


class _NumpyLike(Arrays):
    """The methods that are the same for NumPy and CuPy."""

    def dtype(self, name: str) -> Any:
        return np.dtype(name)

    def contiguous(self, array: Array) -> bool:
        return bool(array.flags.c_contiguous)

    def view(self, array: Array, dtype: str) -> Array:
        return array.view(dtype)


@final
class NumpyArrays(_NumpyLike):
    """NumPy arrays in host memory."""

    name = "numpy"
    device = "cpu"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An uninitialised array, aligned to a cache line so that no SIMD vector straddles two lines."""
        size = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        raw = np.empty(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size].view(dtype).reshape(shape)

    def fill(self, array: Array, value: float) -> None:
        array.fill(value)

    def address(self, array: Array) -> int:
        return int(array.__array_interface__["data"][0])

    def write(self, array: Array, values: np.ndarray) -> None:
        np.copyto(array, values)

    def read(self, array: Array) -> np.ndarray:
        return np.array(array)

    def stream(self) -> int:
        return 0


_PINNED = 2**22
"""Maximum bytes that are copied to a GPU through pinned memory, which torch keeps for the next copy."""


class TorchArrays(Arrays):
    """Tensors on the CPU or on a CUDA device; kernels run on torch's current stream."""

    name = "torch"

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self.device = torch.device(device)
        self._on_host = self.device.type == "cpu"
        # A private function, ten times faster than creating a Stream object; stream() works without it.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return self._torch.empty(shape, dtype=self.dtype(dtype), device=self.device)

    def dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def contiguous(self, array: Array) -> bool:
        return bool(array.is_contiguous())

    def checked_address(self, name: str, array: Array, shape: tuple[int, ...], dtypes: Sequence[Any]) -> int:
        if (  # runs at every launch, so it calls no helper methods
            array is not None
            and array.dtype in dtypes
            and array.shape == shape
            and array.device == self.device
            and array.is_contiguous()
        ):
            address: int = array.data_ptr()
            return address
        return super().checked_address(name, array, shape, dtypes)

    def view(self, array: Array, dtype: str) -> Array:
        return array.view(self.dtype(dtype))

    def fill(self, array: Array, value: float) -> None:
        array.fill_(value)

    def address(self, array: Array) -> int:
        return int(array.data_ptr())

    def write(self, array: Array, values: np.ndarray) -> None:
        source = self._torch.from_numpy(np.require(values, requirements=["C", "W"]))
        pinned = not self._on_host and source.nbytes <= _PINNED  # the host need not wait for the device
        array.copy_(source.pin_memory() if pinned else source, non_blocking=pinned)

    def read(self, array: Array) -> np.ndarray:
        return np.array(array.detach().cpu().numpy())

    def stream(self) -> int:
        """Torch's current stream, looked up at each call: a cached one would be wrong while a graph is captured."""
        if self._on_host:
            return 0
        if self._raw_stream is not None:
            return int(self._raw_stream(self.device.index))
        return int(self._torch.cuda.current_stream(self.device).cuda_stream)


@final
class TorchArraysOfRuns(TorchArrays):
    """Tensors of the first of several runs, or batched tensors of ``torch.vmap``, with an element for each run."""

    of_several_runs = True

    def __init__(self, device: str, runs: SeveralRuns) -> None:
        super().__init__(device)
        self._runs = runs

    def checked_address(self, name: str, array: Array, shape: tuple[int, ...], dtypes: Sequence[Any]) -> int:
        """The address of the first run's array, or the ValueError of arrays of one run."""
        with self._torch._C.DisableTorchFunction():
            copies = copies_of(array)
            super().checked_address(name, array if copies is None else copies[0], shape, dtypes)
            return self._runs.first_address(array)


@final
class CupyArrays(_NumpyLike):
    """CuPy arrays on a CUDA device; kernels run on CuPy's current stream."""

    name = "cupy"

    def __init__(self, device: int, *, read_at_once: bool = False) -> None:
        """Imports CuPy; with ``read_at_once``, one transfer reads all arrays of a ``zeros_by_name`` call."""
        import cupy

        self._cupy = cupy
        self.device = cupy.cuda.Device(device)
        self._read_at_once = read_at_once
        self._blocks: list[_MirroredBlock] = []
        self._version = 0  # counts writes and launches, so that a mirror knows when it is stale

    def zeros_by_name(self, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
        """Arrays of zeros; with ``read_at_once``, views of one block of memory."""
        if not self._read_at_once:
            return super().zeros_by_name(shapes)
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()]
        offsets = [0, *itertools.accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
        block = self.zeros((offsets.pop(),), "uint8")
        self._blocks.append(_MirroredBlock(block))
        return {
            name: block[offset : offset + size].view(dtype).reshape(shape)
            for (name, (shape, dtype)), size, offset in zip(shapes.items(), sizes, offsets, strict=True)
        }

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        with self.device:
            return self._cupy.empty(shape, dtype)

    def fill(self, array: Array, value: float) -> None:
        self._version += 1
        with self.device:
            array.fill(value)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def write(self, array: Array, values: np.ndarray) -> None:
        self._version += 1
        with self.device:
            array[...] = self._cupy.asarray(np.ascontiguousarray(values, array.dtype))

    def read(self, array: Array) -> np.ndarray:
        with self.device:
            for block in self._blocks:
                offset = self.address(array) - self.address(block.device)
                if array.size and 0 <= offset < block.device.nbytes:
                    block.update_host(self._version)
                    return np.array(np.ndarray(array.shape, array.dtype, block.host, offset, array.strides))
            return np.asarray(array.get())

    def stream(self) -> int:
        self._version += 1  # callers need the stream to launch a kernel, which may write
        return int(self._cupy.cuda.get_current_stream().ptr)


@final
class _MirroredBlock:
    """Device memory and its mirror in page-locked host memory, to which one transfer copies all of it."""

    def __init__(self, device: Array) -> None:
        import cupy

        self.device = device
        size = max(1, device.nbytes)  # not from CuPy's pinned pool, which rounds sizes up to powers of two
        memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(size), 0)
        self.host = np.frombuffer(memory, np.uint8, device.nbytes)
        self._version = -1

    def update_host(self, version: int) -> None:
        """Copies the device memory to the host if ``version`` has changed since the last copy."""
        if version != self._version:
            self.device.get(out=self.host)
            self._version = version


_ALIGNMENT = 256
"""Alignment of each array within its block, in bytes."""
