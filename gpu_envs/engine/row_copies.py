"""Rows of all arrays copied on the device in one launch, and snapshots whose rows lie in one block of memory."""

import functools
import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, library_of
from gpu_envs.backend.base import Launch
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.engine.simulation import Simulation
from gpu_envs.specs.distributions import Distribution

Key: TypeAlias = tuple[str, str]
"""A part of a snapshot, and a name in it."""

_ALIGNED = 8
"""Bytes at multiples of which arrays begin within a row of a block."""

_ROWS = Struct.of(
    "Rows", "float", ("const u8*", "source"), ("u8*", "target"), ("Index", "source_stride"), ("Index", "target_stride"),
    ("Index", "source_step"), ("Index", "target_step"), ("int", "items"), ("int", "bytes"),
)  # fmt: skip

_USUAL: Mapping[str, Any] = {
    "each": 1, "sources": None, "targets": None, "wrong": None, "seeds": None, "first_seed": 0, "offset": None,
    "staggered": None, "counted": None, "counts_up": 0,
}  # fmt: skip


def program(arrays: int) -> Program:
    """The source, for so many arrays."""
    call = Struct.of(
        "CopyCall",
        "float",
        ("Index", "count"),
        ("Index", "each"),
        ("Index", "limit"),
        ("const Index*", "sources"),
        ("const Index*", "targets"),
        ("u64*", "wrong"),
        ("u64*", "seeds"),
        ("u64", "first_seed"),
        ("const int*", "offset"),
        ("u32*", "staggered"),
        ("int*", "counted"),
        ("int", "counts_up"),
        (_ROWS, "rows", arrays),
    )
    prologue, weight = f"constexpr int ARRAYS = {arrays};", max(1, arrays // 4)
    settings = KernelSettings(prologue=prologue, structs=(_ROWS,), weight=weight)
    return program_of(("drivers/copy_replicas.cuh",), {"copy": call}, settings)


class Rows(NamedTuple):
    """Where an array's rows lie, one for each replica."""

    at: int
    stride: int
    """Bytes from one to the next."""
    step: int
    """Bytes from an element of one to the next."""


def rows_of_array(address: int, array: Array) -> Rows:
    """Of an array at an address, replicas first; a simulation's state has them inmost in memory."""
    size = _itemsize(array)
    strides = [size * each for each in array.stride()] if library_of(array) == "torch" else list(array.strides)
    inner = [(n, each) for n, each in zip(array.shape[1:], strides[1:], strict=True) if n > 1]
    for (_, outer), (n, each) in itertools.pairwise(inner):
        assert outer == n * each, "elements of a replica lie evenly"
    return Rows(address, strides[0], inner[-1][1] if inner else size)


def _itemsize(array: Array) -> int:
    return int(array.element_size() if library_of(array) == "torch" else array.itemsize)


class Item(NamedTuple):
    """An array of a form."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    """Of one replica."""
    by_metric: bool
    """Whether a snapshot's array has replicas last."""


@final
class Form:
    """What a row of a block holds, and where.

    Attributes:
        begins: Of each item, in bytes.
        bytes: Of a row.
    """

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = items
        self.sizes = [int(np.prod(item.shape, dtype=np.int64)) * np.dtype(item.dtype).itemsize for item in items]
        *self.begins, self.bytes = itertools.accumulate(
            (-(-size // _ALIGNED) * _ALIGNED for size in self.sizes), initial=0
        )

    @property
    def rows(self) -> list[Rows]:
        """Where the items' rows lie, from the beginning of a block."""
        return [
            Rows(begin, self.bytes, np.dtype(item.dtype).itemsize)
            for item, begin in zip(self.items, self.begins, strict=True)
        ]


form_of = functools.cache(Form)
"""The one form of some items, so that equal ones are the same."""


@final
class Snapshot(MutableMapping[str, Any]):
    """The moment of some replicas: parts of arrays, as ``get_state`` of all has them in a dict.

    The arrays lie in one block of memory, row by row, and are made when somebody looks. A snapshot that nobody looked
    into is what it was when it was taken, and is copied into replicas with no look at each array.
    """

    def __init__(
        self, arrays: Arrays, form: Form, block: Array, common: Mapping[str, Any], drawn: Mapping[str, Distribution],
        layout_seed: Array | None, randomness: Mapping[str, int], may_be_over: bool,
    ) -> None:  # fmt: skip
        """Of a block, uint8 [replicas, bytes], and what the replicas have in common; episodes of some may be over."""
        self.arrays, self.form, self.block, self.common = arrays, form, block, common
        self.drawn, self.may_be_over = drawn, may_be_over
        self.layout_seed, self._randomness = layout_seed, randomness
        self._opened: dict[str, Any] | None = None

    @property
    def replicas(self) -> int:
        """Of how many it is."""
        return int(self.block.shape[0])

    @property
    def opened(self) -> bool:
        """Whether somebody looked, who may have put other arrays in."""
        return self._opened is not None

    def _parts(self) -> dict[str, Any]:
        if self._opened is None:
            found: dict[str, Any] = {"state": {}, "episode": {}, "params": {}}
            for item, begin, size in zip(self.form.items, self.form.begins, self.form.sizes, strict=True):
                array = self.arrays.viewed(self.block[:, begin : begin + size], item.dtype)
                array = array.reshape((self.replicas, *item.shape))
                part, name = item.key
                found[part][name] = array.swapaxes(0, 1) if item.by_metric else array
            if self.layout_seed is not None:
                found["episode"]["layout_seed"] = self.layout_seed
            found["params"] |= self.common
            drawn = {name: str(distribution) for name, distribution in self.drawn.items()}
            self._opened = {**found, "randomness": self._randomness, "drawn": drawn}
        return self._opened

    def __getitem__(self, part: str) -> Any:
        return self._parts()[part]

    def __setitem__(self, part: str, value: Any) -> None:
        self._parts()[part] = value

    def __delitem__(self, part: str) -> None:
        del self._parts()[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())

    def __repr__(self) -> str:
        return f"Snapshot({self._parts()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._parts(),)


@final
class RowCopies:
    """Copies rows of some arrays to rows of others."""

    def __init__(
        self, sim: Simulation, sources: Sequence[Rows], targets: Sequence[Rows], arrays: Sequence[Array],
        held: object = None,
    ) -> None:  # fmt: skip
        """Compiles; ``arrays`` are as the targets, of which they tell what a row is, and ``held`` is kept in memory."""
        self._held = held
        made = program(len(targets))
        if len(targets) not in sim.copying:
            sim.copying[len(targets)] = sim.backend.load(made)
        # the simulation keeps these, so that they must not keep it: its memory would wait for the garbage collector
        self._arrays, self._kernels, self._call = sim.arrays, sim.copying[len(targets)], made.calls["copy"]()
        self._call.limit = sim.config.num_envs
        self._bound: tuple[int, Launch | None] = (0, None)
        for place, source, target, array in zip(self._call.rows, sources, targets, arrays, strict=True):
            (place.source, place.source_stride, place.source_step) = source
            (place.target, place.target_stride, place.target_step) = target
            items, size = int(np.prod(array.shape[1:], dtype=np.int64)), _itemsize(array)
            if source.step == target.step == size:  # in the largest words that lie evenly everywhere
                places = (source.at, target.at, source.stride, target.stride, items * size)
                word = next(n for n in (8, 4, 1) if not any(at % n for at in places))
                items, size = items * size // word, word
                place.source_step = place.target_step = word
            place.items, place.bytes = items, size

    def run(self, count: int, **values: Any) -> None:
        """Copies ``count`` rows; ``values`` are those of the kernel's struct that are not the usual ones."""
        call, (bound, launch) = self._call, self._bound
        for name, value in {"count": count, **_USUAL, **values}.items():
            setattr(call, name, value)
        if launch is None or bound != count:
            launch = self._kernels.bind("copy", call, count)
            self._bound = count, launch
        launch(self._arrays.stream())

    def place(self, form: Form, block: Array, side: str) -> None:
        """Moves the ``source`` or the ``target`` to another block of that form."""
        address = self._arrays.address(block)
        for rows, begin in zip(self._call.rows, form.begins, strict=True):
            setattr(rows, side, address + begin)
