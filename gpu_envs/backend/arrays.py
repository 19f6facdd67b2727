"""The three array libraries behind one interface: memory for the simulation, and what users hand in."""

import itertools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

Array = Any
"""An array of NumPy, torch or CuPy."""


def library_of(array: Any) -> str:
    """Names the library of an array, ``""`` for what is none, without importing any."""
    if isinstance(array, np.ndarray):
        return "numpy"
    module = type(array).__module__.partition(".")[0]
    if module == "torch" and isinstance(array, sys.modules["torch"].Tensor):
        return "torch"
    if module == "cupy" and isinstance(array, sys.modules["cupy"].ndarray):
        return "cupy"
    return "dlpack" if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__") else ""


def dimensions(value: Any) -> int:
    """The number of dimensions of a scalar, a sequence or an array of any library."""
    ndim = getattr(value, "ndim", None)
    return int(ndim) if ndim is not None else np.ndim(value)


def dtype_of(array: Array) -> str:
    """The name of the type of an array's elements."""
    return str(array.dtype).rpartition(".")[2]


def to_numpy(array: Any) -> np.ndarray:
    """Copies or views an array of any library, on any device, or a sequence, as NumPy."""
    library = library_of(array)
    if library == "torch":
        return np.asarray(array.detach().cpu().numpy())
    if library == "cupy":
        return np.asarray(array.get())
    return np.asarray(array)


class Arrays(ABC):
    """Allocates the simulation's memory in one library, and reads addresses."""

    name: str
    device: Any
    """Where they are, as the arrays themselves say it."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An uninitialised array."""

    @abstractmethod
    def fill(self, array: Array, value: float) -> None:
        """Sets every element."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """Where the first element is, on the device."""

    @abstractmethod
    def write(self, array: Array, values: np.ndarray) -> None:
        """Copies from the host into ``array``, in the order of the device's work."""

    @abstractmethod
    def read(self, array: Array) -> np.ndarray:
        """Copies to the host, after all work before it."""

    @abstractmethod
    def stream(self) -> int:
        """The handle of the stream to launch on."""

    @abstractmethod
    def dtype(self, name: str) -> Any:
        """The library's type of elements."""

    @abstractmethod
    def contiguous(self, array: Array) -> bool:
        """Whether the elements follow one another in memory."""

    @abstractmethod
    def viewed(self, array: Array, dtype: str) -> Array:
        """The same memory, its rows read as elements of another type."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array of zeros."""
        array = self.empty(shape, dtype)
        self.fill(array, 0)
        return array

    def zeros_of(self, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
        """Arrays of zeros that are read together, by name."""
        return {name: self.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def checked_address(self, name: str, array: Array, shape: tuple[int, ...], dtypes: Sequence[Any]) -> int:
        """Where an array begins, once it fits shape and one of the dtypes; ``[1]`` and ``[]`` are the same shape."""
        if (
            array is not None
            and array.dtype in dtypes
            and array.device == self.device
            and self.contiguous(array)
            and (array.shape == shape or math.prod(array.shape) == math.prod(shape) == 1)
        ):
            return self.address(array)
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = "None"
        if array is not None:
            layout = "" if self.contiguous(array) else ", not contiguous"
            given = f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)} on {array.device}{layout}"
        raise ValueError(f"{name} is {given}; give contiguous {kinds} {list(shape)} on {self.device}")

    def full_of(self, values: np.ndarray) -> Array:
        """A new array with these values."""
        array = self.empty(values.shape, values.dtype.name)
        self.write(array, values)
        return array


class _NumpyLike(Arrays):
    """What NumPy and CuPy have in common."""

    def dtype(self, name: str) -> Any:
        return np.dtype(name)

    def contiguous(self, array: Array) -> bool:
        return bool(array.flags.c_contiguous)

    def viewed(self, array: Array, dtype: str) -> Array:
        return array.view(dtype)


@final
class NumpyArrays(_NumpyLike):
    """Memory of the host."""

    name = "numpy"
    device = "cpu"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array whose first element begins a cache line, so that vectors do not straddle two."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
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


@final
class TorchArrays(Arrays):
    """Tensors, on the CPU or on a CUDA device; kernels follow torch's current stream."""

    name = "torch"

    def __init__(self, device: str) -> None:
        """Imports torch, and resolves the device."""
        import torch

        self._torch = torch
        self.device = torch.device(device)
        self._on_host = self.device.type == "cpu"
        # Private, and ten times quicker than making a Stream to ask for its handle; without it the slow way does.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return self._torch.empty(shape, dtype=self.dtype(dtype), device=self.device)

    def dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def contiguous(self, array: Array) -> bool:
        return bool(array.is_contiguous())

    def checked_address(self, name: str, array: Array, shape: tuple[int, ...], dtypes: Sequence[Any]) -> int:
        if (  # at every launch, so without a call for each question
            array is not None
            and array.dtype in dtypes
            and array.shape == shape
            and array.device == self.device
            and array.is_contiguous()
        ):
            address: int = array.data_ptr()
            return address
        return super().checked_address(name, array, shape, dtypes)

    def viewed(self, array: Array, dtype: str) -> Array:
        return array.view(self.dtype(dtype))

    def fill(self, array: Array, value: float) -> None:
        array.fill_(value)

    def address(self, array: Array) -> int:
        return int(array.data_ptr())

    def write(self, array: Array, values: np.ndarray) -> None:
        array.copy_(self._torch.from_numpy(np.require(values, requirements=["C", "W"])))

    def read(self, array: Array) -> np.ndarray:
        return np.array(array.detach().cpu().numpy())

    def stream(self) -> int:
        """Torch's current stream, asked anew each time: a remembered one would miss a graph under capture."""
        if self._on_host:
            return 0
        if self._raw_stream is not None:
            return int(self._raw_stream(self.device.index))
        return int(self._torch.cuda.current_stream(self.device).cuda_stream)


@final
class CupyArrays(_NumpyLike):
    """CuPy arrays on a CUDA device; kernels follow CuPy's current stream."""

    name = "cupy"

    def __init__(self, device: int, *, read_together: bool = False) -> None:
        """Imports CuPy; with ``read_together`` what ``zeros_of`` makes is read with one transfer."""
        import cupy

        self._cupy = cupy
        self.device = cupy.cuda.Device(device)
        self._read_together = read_together
        self._together: list[_Together] = []
        self._changes = 0

    def zeros_of(self, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
        """Arrays of zeros; those that are read together stand side by side."""
        if not self._read_together:
            return super().zeros_of(shapes)
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()]
        begins = [0, *itertools.accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
        whole = self.zeros((begins.pop(),), "uint8")
        self._together.append(_Together(whole))
        return {
            name: whole[at : at + size].view(dtype).reshape(shape)
            for (name, (shape, dtype)), size, at in zip(shapes.items(), sizes, begins, strict=True)
        }

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        with self.device:
            return self._cupy.empty(shape, dtype)

    def fill(self, array: Array, value: float) -> None:
        self._changes += 1
        with self.device:
            array.fill(value)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def write(self, array: Array, values: np.ndarray) -> None:
        self._changes += 1
        with self.device:
            array[...] = self._cupy.asarray(np.ascontiguousarray(values, array.dtype))

    def read(self, array: Array) -> np.ndarray:
        with self.device:
            for together in self._together:
                at = self.address(array) - self.address(together.device)
                if array.size and 0 <= at < together.device.nbytes:
                    together.fetch(self._changes)
                    return np.array(np.ndarray(array.shape, array.dtype, together.host, at, array.strides))
            return np.asarray(array.get())

    def stream(self) -> int:
        self._changes += 1  # whoever asks is about to launch what may write
        return int(self._cupy.cuda.get_current_stream().ptr)


@final
class _Together:
    """Memory of a device, and a copy of it in page-locked memory of the host, which one transfer brings up to date."""

    def __init__(self, device: Array) -> None:
        import cupy

        self.device = device
        size = max(1, device.nbytes)  # (of its pool, memory comes in powers of two)
        memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(size), 0)
        self.host = np.frombuffer(memory, np.uint8, device.nbytes)
        self._read_at = -1

    def fetch(self, changes: int) -> None:
        """Brings the copy up to date, where there were changes since."""
        if changes != self._read_at:
            self.device.get(out=self.host)
            self._read_at = changes


_ALIGNED = 256
"""Bytes at multiples of which such arrays begin."""
