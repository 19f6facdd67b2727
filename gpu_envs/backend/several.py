"""Launches of a kernel for several runs at once: each run has its own copy of the kernel's arrays and numbers."""

import ctypes
import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

import numpy as np


@final
class PerRun(float):
    """A number with a value for each run; as a ``float``, and after arithmetic other than products, the first run's."""

    values: np.ndarray

    def __new__(cls, values: Iterable[float]) -> "PerRun":
        array = np.array([*values], np.float64)
        number = super().__new__(cls, array[0])
        number.values = array
        return number

    def __mul__(self, other: float) -> "PerRun":
        return PerRun(self.values * (other.values if isinstance(other, PerRun) else other))

    __rmul__ = __mul__


@final
class SeveralRuns:
    """Where the copies of arrays are, for launches of all runs at once.

    Attributes:
        count: Number of runs of the next launches: 1 while a single run's memory is written, or all.
        active: For each run, whether launches include it.
        flags: On a GPU, the address of a byte for each run, which is 1 if launches include it, and of a last 1.
        launch_memory: On a GPU, the memory of the argument structs.
        distances: Bytes between the copies of an array outside of ``memory``, by the address of its first copy.
    """

    def __init__(self, count: int, address: int, distance: int) -> None:
        """Describe ``count`` copies of ``distance`` bytes each, from ``address`` on."""
        self.all, self.count = count, 1
        self.active, self.flags = np.ones(count, bool), 0
        self.launch_memory: Any = None
        self.distances: dict[int, int] = {}
        self._begin, self._distance = address, distance

    def first_address(self, tensor: Any) -> int:
        """Return a tensor's address, and of a batched tensor of ``torch.vmap`` that of the first run's part."""
        copies = copies_of(tensor)
        if copies is None:
            address = int(tensor.data_ptr())
            self.distances.pop(address, None)  # of an array that was there before
            return address
        address = int(copies.data_ptr())
        self.distances[address] = copies.stride(0) * copies.element_size()
        return address

    def calls(self, call: ctypes.Structure) -> np.ndarray:
        """Return the argument structs of all runs, ``[count, bytes]``: addresses and numbers are each run's own."""
        structs = np.frombuffer(bytes(call), np.uint8)[None].repeat(self.count, 0)
        if self.count == 1:
            return structs
        runs = np.arange(self.count, dtype=np.uint64)
        for offset in _pointers(type(call)):
            member = structs[:, offset : offset + 8].view(np.uint64)
            distance = self._distance_of(int(member[0, 0]))
            if distance:
                member[:, 0] += runs * np.uint64(distance)
        for name, number in getattr(call, "per_run", {}).items():
            field: Any = getattr(type(call), name)
            kind = np.float32 if field.size == 4 else np.float64
            structs[:, field.offset : field.offset + field.size] = number.values.astype(kind)[:, None].view(np.uint8)
        return structs

    def _distance_of(self, address: int) -> int:
        if 0 <= address - self._begin < self._distance:
            return self._distance
        if address and address not in self.distances:
            raise RuntimeError("a launch for several runs has an array that does not belong to them")
        return self.distances.get(address, 0)


def copies_of(tensor: Any) -> Any:
    """Return the tensor ``[runs, ...]`` of a batched tensor of ``torch.vmap``; None for other tensors."""
    import torch

    functorch: Any = torch._C._functorch
    if tensor is None or not functorch.is_batchedtensor(tensor):
        return None
    copies, dim = functorch.get_unwrapped(tensor), functorch.maybe_get_bdim(tensor)
    return copies.movedim(dim, 0) if dim else copies  # autograd knows leaves only as they are


@functools.cache
def _pointers(struct: Any) -> tuple[int, ...]:
    """Return the offsets of all pointers in a struct, and in the structs that it contains."""
    offsets: list[int] = []
    for name, kind in struct._fields_:
        start, count = getattr(struct, name).offset, 1
        if issubclass(kind, ctypes.Array):
            kind, count = kind._type_, kind._length_
        if kind is ctypes.c_void_p:
            offsets += [start + k * 8 for k in range(count)]
        elif issubclass(kind, ctypes.Structure):
            size = ctypes.sizeof(kind)
            offsets += [start + k * size + offset for k in range(count) for offset in _pointers(kind)]
    return tuple(offsets)


_CURRENT: ContextVar[SeveralRuns | None] = ContextVar("runs", default=None)


def current_runs() -> SeveralRuns | None:
    """Return the runs for which backends that are opened now launch kernels; None: kernels are launched once."""
    return _CURRENT.get()


@contextmanager
def launching_for(runs: SeveralRuns) -> Iterator[None]:
    """Let backends that are opened inside launch their kernels for several runs at once."""
    token = _CURRENT.set(runs)
    try:
        yield
    finally:
        _CURRENT.reset(token)
