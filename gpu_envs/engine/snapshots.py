"""Snapshots: all that the trajectories of replicas depend on, copied out of a simulation and back in."""

import dataclasses
import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, NumpyArrays, dtype_name, library_of, ndim_of, to_numpy
from gpu_envs.engine.row_copies import RowCopies, Rows, rows_of_array
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.some_replicas import Chosen, current_device
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Distribution

Key: TypeAlias = tuple[str, str]
"""A part of a snapshot, and a name in it."""

_LAYOUT_SEED: Key = ("episode", "layout_seed")
"""What a snapshot of a team has once: the seed of what all replicas share."""

_ALIGNED = 64
"""Bytes at multiples of which arrays begin within a block."""

_WITH = {True: "with statistics", False: "with statistics=False"}


class Item(NamedTuple):
    """An array of a block."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    """Of one replica."""
    by_metric: bool
    """Whether a snapshot's array has replicas last."""

    @property
    def bytes(self) -> int:
        """Of one replica."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def turned(self, array: Array) -> Array:
        """A snapshot's array with replicas first, or the other way."""
        return array.swapaxes(0, 1) if self.by_metric else array


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The arrays of a block, one after another."""

    items: tuple[Item, ...]
    keys: tuple[Key, ...]
    """All that a snapshot has, in order; what replicas have in common lies outside of the block."""


form_of = functools.cache(Form)
"""The one form of some items, so that equal ones are the same."""


@functools.lru_cache(maxsize=256)
def _begins(form: Form, replicas: int) -> list[int]:
    """Where the arrays begin in a block of so many replicas, in bytes, and where the block ends."""
    sizes = (-(-item.bytes * replicas // _ALIGNED) * _ALIGNED for item in form.items)
    return list(itertools.accumulate(sizes, initial=0))


@final
@dataclasses.dataclass(eq=False)
class Snapshot(MutableMapping[str, Any]):
    """A moment of replicas, all of a simulation's or some: the parts state, episode, params, randomness and drawn.

    The arrays lie in one block of memory, and are made when a part is first read. A snapshot of which no part was read
    is as it was taken: its block is copied into replicas, and no array is checked.
    """

    arrays: Arrays
    """Memory of the block."""
    form: Form
    block: Array
    """uint8, in which the arrays lie one after another."""
    replicas: int
    common: Mapping[str, Any]
    """Parameters that all its replicas have in common."""
    drawn: Mapping[str, Distribution]
    layout_seed: Array | None
    randomness: dict[str, int]
    """Of the simulation: what its next fresh numbers follow from."""
    may_be_over: bool
    """Whether episodes of some may be over."""

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        begins, replicas = _begins(self.form, self.replicas), self.replicas
        values: dict[Key, Any] = {("params", name): value for name, value in self.common.items()}
        values[_LAYOUT_SEED] = self.layout_seed
        for item, begin in zip(self.form.items, begins, strict=False):
            array = self.arrays.view(self.block[begin : begin + item.bytes * replicas], item.dtype)
            values[item.key] = item.turned(array.reshape((replicas, *item.shape)))
        parts: dict[str, Any] = {"state": {}, "episode": {}, "params": {}}
        for part, name in self.form.keys:
            parts[part][name] = values[part, name]
        drawn = {name: str(distribution) for name, distribution in self.drawn.items()}
        return {**parts, "randomness": self.randomness, "drawn": drawn}

    def on_host(self) -> "Snapshot":
        """The same in NumPy's arrays."""
        common = {name: to_numpy(value) if library_of(value) else value for name, value in self.common.items()}
        seed = None if self.layout_seed is None else to_numpy(self.layout_seed)
        block = to_numpy(self.block)
        return dataclasses.replace(self, arrays=NumpyArrays(), block=block, common=common, layout_seed=seed)

    def __getitem__(self, part: str) -> Any:
        return self._parts[part]

    def __setitem__(self, part: str, value: Any) -> None:
        self._parts[part] = value

    def __delitem__(self, part: str) -> None:
        del self._parts[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"Snapshot({self._parts!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """As a dict of the kind that torch reads back without running code; its tensors share no memory."""
        parts = {
            part: {name: value.clone() if library_of(value) == "torch" else value for name, value in values.items()}
            for part, values in self._parts.items()
        }
        return OrderedDict, (parts,)


@final
class ReplicaArrays:
    """The arrays in which a simulation's replicas have rows, while its parameters stay as they are, and their copies.

    Attributes:
        rows: Where their rows lie.
        out: Copies the rows into a block.
        into: Copies the rows of a block into them.
    """

    def __init__(self, sim: Simulation) -> None:
        self.param_arrays = sim.param_arrays  # others with each change
        buffers = {name: sim.buffers[buffer] for name, buffer in sim.layout.episode.items()}
        parts: dict[str, Mapping[str, Any]] = {"state": sim.state, "episode": buffers, "params": sim.params}
        keys = tuple((part, name) for part, values in parts.items() for name in values)
        self.layout_seed = buffers.get(_LAYOUT_SEED[1])
        self.common = {name: value for name, value in sim.params.items() if name not in sim.layout.per_replica}
        apart = {_LAYOUT_SEED, *(("params", name) for name in self.common)}
        items, self.rows, within = [], [], []
        for part, name in (key for key in keys if key not in apart):
            array = parts[part][name]
            by_metric = (part, name) == ("episode", "totals") and not sim.config.spec.has_team
            first = array.swapaxes(0, 1) if by_metric else array
            rows = rows_of_array(sim.arrays.address(array), first)
            items.append(Item((part, name), dtype_name(array), tuple(first.shape[1:]), by_metric))
            self.rows.append(rows)
            within.append(Rows(0, items[-1].bytes, rows.bytes, rows.items, rows.bytes))
        self.form = form_of(tuple(items), keys)
        self.arrays_in_common = [name for name in self.common if name in sim.param_arrays]
        self.out, self.into = RowCopies(sim, self.rows, within), self.copies_in(sim, within)

    def copies_in(self, sim: Simulation, sources: list[Rows]) -> RowCopies:
        """Copies such rows into the replicas, and notes what follows for others."""
        noted = [name for name in ("offset", "staggered", "counted") if name in sim.buffers]
        return RowCopies(sim, sources, self.rows, **{name: sim.arrays.address(sim.buffers[name]) for name in noted})

    def takes(self, sim: Simulation, state: "Snapshot") -> bool:
        """Whether a snapshot's block can be copied in as it is."""
        was_read = "_parts" in vars(state)  # by code that may have put other arrays in
        fits = not was_read and state.form is self.form and not self.arrays_in_common
        return fits and state.common == self.common and state.drawn == sim.drawn


def _replica_arrays(sim: Simulation) -> ReplicaArrays:
    if "arrays" not in sim.copying or sim.copying["arrays"].param_arrays is not sim.param_arrays:
        sim.copying["arrays"] = ReplicaArrays(sim)
    known: ReplicaArrays = sim.copying["arrays"]
    return known


def _copied(sim: Simulation, array: Array) -> Array:
    """A contiguous copy in the simulation's memory, of an array that lies there."""
    twin = sim.arrays.empty(tuple(array.shape), dtype_name(array))
    with current_device(sim):
        twin[...] = array
    return twin


def _is_here(sim: Simulation, array: Array) -> bool:
    return library_of(array) == sim.arrays.name and getattr(array, "device", "cpu") == sim.arrays.device


def _in_memory_of(sim: Simulation, array: Array) -> Array:
    """The array, or a copy of one that lies elsewhere."""
    return array if _is_here(sim, array) else sim.arrays.from_numpy(to_numpy(array))


def snapshot_of(sim: Simulation, replicas: Any = None) -> Snapshot:
    """Copies out all that the trajectories of replicas depend on.

    Args:
        sim: The simulation.
        replicas: A mask or numbers; the snapshot has them in this order. None: all.
    """
    chosen = Chosen(sim, replicas, once=False)
    if sim.param_arrays and (chosen.numbers is None or sim.backend.device == "cpu"):
        sim.host_params()
    table = _replica_arrays(sim)
    begins = _begins(table.form, chosen.count)
    new = sim.arrays.empty if chosen.wrong is None else sim.arrays.zeros  # what wrong numbers stand for is left alone
    block = new((begins[-1],), "uint8")
    table.out.place("target", sim.arrays.address(block), begins)
    table.out.run(chosen.count, sources=chosen.numbers, wrong=chosen.wrong)
    common = {**table.common, **{name: _copied(sim, table.common[name]) for name in table.arrays_in_common}}
    seed = None if table.layout_seed is None else _copied(sim, table.layout_seed)
    may_be_over = sim.config.autoreset_mode != "SameStep"
    return Snapshot(
        sim.arrays, table.form, block, chosen.count, common, sim.drawn, seed, dict(sim.randomness), may_be_over
    )


def restore(
    sim: Simulation, state: Mapping[str, Any], replicas: Any = None, randomness: str = "kept", each: int = 1
) -> None:
    """Copies a snapshot into replicas, or raises what does not fit, with nothing changed.

    What all replicas of a team share, the places of ``start="fixed"``, comes along where all are written, and so does
    what fresh numbers follow from, with a snapshot of as many.

    Args:
        sim: The simulation.
        state: A snapshot of one replica, or of as many as are written, divided by ``each``.
        replicas: A mask or numbers; None: all.
        randomness: ``kept`` or ``fresh``: random numbers of the moment, or some that nobody else has.
        each: How many replicas in a row get the same.
    """
    if randomness not in ("kept", "fresh"):
        raise ValueError(f"randomness is {randomness!r}; give one of 'kept', 'fresh'")
    table = _replica_arrays(sim)
    unread = state if isinstance(state, Snapshot) and table.takes(sim, state) else None
    rows = _check_parts(sim, state) if unread is None else unread.replicas
    chosen = Chosen(sim, replicas, once=True)
    everywhere, count, fresh = chosen.numbers is None, chosen.count, randomness == "fresh"
    if not everywhere and not sim.ready:
        raise ValueError("some replicas were never reset: reset() all of them first, or leave out replicas")
    of_all = everywhere and rows * each == count
    if rows == 1:
        each = count
    elif rows * each != count:
        raise ValueError(f"the state is of {rows} replicas; give one of 1 or of {count // each}, which are written")
    if unread is None:
        copies, layout_seed, held = _read(sim, state, rows, everywhere=everywhere, of_all=of_all)
    else:
        copies, layout_seed, held = table.into, unread.layout_seed, _in_memory_of(sim, unread.block)
        copies.place("source", sim.arrays.address(held), _begins(table.form, rows))
    seeds, first_seed = None, 0
    if fresh:
        sim.randomness = {**sim.randomness, "calls": sim.randomness["calls"] + 1}
        first_seed = derived_seed(sim.randomness["seed"], "fresh", sim.randomness["calls"]) + sim.config.first_replica
        seeds = sim.arrays.address(sim.buffers["seeds"])
    elif of_all:
        sim.randomness = dict(state["randomness"] if unread is None else unread.randomness)
    copies.run(
        count,
        each=each,
        targets=chosen.numbers,
        wrong=chosen.wrong,
        seeds=seeds,
        first_seed=first_seed % 2**64,
        counts_up=int(fresh and everywhere),
    )
    del held  # later work of the same stream may have its memory
    with current_device(sim):
        if of_all and not fresh and "counted" in sim.buffers:
            written = sim.buffers["seeds"]
            sim.buffers["counted"][...] = (written[1:] == written[:-1] + 1).all()
        if layout_seed is not None and everywhere:
            sim.buffers[sim.layout.episode[_LAYOUT_SEED[1]]][...] = _in_memory_of(sim, layout_seed)
    sim.ready = True
    if unread is None or unread.may_be_over:
        _start_next_episodes(sim)
    if sim.config.spec.masked:
        sim.observe()  # what is possible follows from the state


def _start_next_episodes(sim: Simulation) -> None:
    """Resets the replicas whose episode is over, in SameStep mode: its step kernel takes every episode as under way.

    Snapshots of the other two modes have such replicas. On a GPU nobody waits to see whether there are any.
    """
    ended = sim.buffers["ended"]
    if sim.config.autoreset_mode != "SameStep" or (sim.backend.device == "cpu" and not to_numpy(ended).any()):
        return
    sim.reset(None, ended, {})
    sim.arrays.fill(ended, 0)


def _check_parts(sim: Simulation, state: Mapping[str, Any]) -> int:
    """Returns how many replicas a snapshot is of, or raises an error if it has not what is needed by name."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is {type(state).__name__}; give what get_state() returned")
    needed = {"state": sim.state, "episode": sim.layout.episode, "params": sim.params, "randomness": sim.randomness}
    for part, names in needed.items():
        values = state.get(part)
        has_statistics = isinstance(values, Mapping) and "running_return" in values
        if part == "episode" and isinstance(values, Mapping) and has_statistics != ("running_return" in names):
            raise ValueError(
                f"the state is of an environment {_WITH[has_statistics]}, and this one was made "
                f"{_WITH[not has_statistics]}; make both alike"
            )
        if not isinstance(values, Mapping) or set(values) != set(names):
            found = sorted(map(str, values)) if isinstance(values, Mapping) else values
            raise ValueError(f"the state's part {part!r} must have {sorted(names)}; got {found}")
    for name, number in state["randomness"].items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"the state's {name!r} is {number!r}; a whole number from 0 up")
    seeds = state["episode"]["seeds"]
    shape = tuple(seeds.shape if library_of(seeds) else np.shape(seeds))
    if len(shape) != 1:
        raise ValueError(f"the state's 'seeds' has shape {shape}; it has one for each replica")
    return int(shape[0])


def _read(
    sim: Simulation, state: Mapping[str, Any], rows: int, *, everywhere: bool, of_all: bool
) -> tuple[RowCopies, Array | None, list[Array]]:
    """Checks the arrays of a snapshot, or raises what does not fit; sets the parameters that all have in common.

    Returns:
        Copies of its arrays into the replicas, the seed of what all share, and the arrays, which the copies read.
    """
    spec, now, drawn = sim.config.spec, sim.drawn, state.get("drawn")
    if not isinstance(drawn, Mapping) or not set(drawn) <= set(sim.params):
        raise ValueError(
            f"the state's part 'drawn' must map names of {sorted(sim.params)} to distributions; got {drawn}"
        )
    drawn = spec.drawn(drawn, sim.config.precision)
    if not everywhere and drawn != now:
        there, here = (", ".join(f"{name}={of}" for name, of in each.items()) or "nothing" for each in (drawn, now))
        raise ValueError(
            f"the state draws {there} in each episode, and this environment {here}: replicas draw alike, so leave out "
            "replicas to write all of them, or assign to params[...] first"
        )
    params = _read_params(sim, state["params"], rows, drawn, wait=of_all)
    table = _replica_arrays(sim)
    items = [item for item in table.form.items if item.key[0] != "params"]
    arrays = [_read_array(sim, item, state[item.key[0]][item.key[1]], rows) for item in items]
    layout_seed = None
    if table.layout_seed is not None and everywhere:
        seed = Item(_LAYOUT_SEED, dtype_name(table.layout_seed), (), by_metric=False)
        layout_seed = _read_array(sim, seed, state["episode"]["layout_seed"], len(table.layout_seed))
    _set_common(sim, params, drawn, everywhere=everywhere)  # from here on nothing is refused
    table = _replica_arrays(sim)
    for item in table.form.items[len(items) :]:  # parameters, which may be each replica's own from now on
        param, value = spec.settings[item.key[1]], params[item.key[1]]
        if ndim_of(value) == param.rank:
            value = np.broadcast_to(param.index(value) if param.choices else value, (rows, *item.shape))
        arrays.append(_read_array(sim, item, value, rows))
    turned = (item.turned(array) for item, array in zip(table.form.items, arrays, strict=True))
    sources = [rows_of_array(sim.arrays.address(array), array) for array in turned]
    return table.copies_in(sim, sources), layout_seed, arrays


def _read_array(sim: Simulation, item: Item, value: Any, rows: int) -> Array:
    """An array of a snapshot, contiguous in the simulation's memory, with a row for each of its replicas."""
    shape = (*item.shape, rows) if item.by_metric else (rows, *item.shape)
    what = f"the state's {item.key[1]!r}"
    array = value if library_of(value) else np.asarray(value)
    if tuple(array.shape) != shape:
        raise ValueError(f"{what} has shape {tuple(array.shape)}; this environment needs {shape}")
    if dtype_name(array) == item.dtype and _is_here(sim, array):
        return array if sim.arrays.contiguous(array) else _copied(sim, array)
    target = sim.arrays.empty(shape, item.dtype)
    sim.arrays.write(target, as_field(target, array, what))
    return target


def _read_params(
    sim: Simulation, params: Mapping[str, Any], rows: int, drawn: Mapping[str, Distribution], *, wait: bool
) -> dict[str, Any]:
    """A snapshot's parameters, with those that follow from others, or raises what is wrong with them.

    Of arrays of replicas' own on a GPU only shapes are looked at, unless it may ``wait``.
    """
    spec, precision = sim.config.spec, sim.config.precision
    known: dict[str, Any] = {}
    on_gpu: dict[str, Any] = {}
    for name, value in params.items():
        param, what, sizes = spec.settings[name], f"the state's parameter {name!r}", sim.sizes_of(name)
        is_own = library_of(value) in ("torch", "cupy") and ndim_of(value) > param.rank
        if is_own and not wait and sim.backend.device != "cpu":
            if tuple(value.shape) != (rows, *sizes):
                raise ValueError(f"{what} has shape {tuple(value.shape)}; of {rows} replicas it has {(rows, *sizes)}")
            on_gpu[name] = value
            continue
        array = param.read(what, value)
        if array.ndim:
            known[name] = param.check_array(name, array, rows, precision, sizes)
        else:
            known[name] = value if isinstance(param, Derived) else param.check_one(what, value, precision)
        if param.fixed and known[name] != sim.params[name]:
            raise ValueError(
                f"{what} is {value!r}, and this environment's is {sim.params[name]!r}: shapes depend on it, so make an "
                "environment with the same"
            )
    if not on_gpu:
        known = spec.with_derived(known, rows, precision, drawn)
    spec.check_order(known, precision, drawn=drawn)
    return {**known, **on_gpu}


def _set_common(
    sim: Simulation, params: Mapping[str, Any], drawn: Mapping[str, Distribution], *, everywhere: bool
) -> None:
    """Sets what all replicas have in common and a snapshot has otherwise, and gives each its own where they differ."""
    spec, n = sim.config.spec, sim.config.num_envs
    changed: dict[str, Any] = {}
    for name, value in params.items():
        param, now = spec.settings[name], sim.params[name]
        if isinstance(param, Derived) or name in sim.layout.per_replica:
            continue
        common = ndim_of(value) == param.rank
        if common and np.array_equal(to_numpy(value), to_numpy(now)):
            continue
        if common and everywhere:
            changed[name] = value
        else:
            each = [now] * n if param.choices else np.broadcast_to(to_numpy(now), (n, *np.shape(to_numpy(now))))
            changed[name] = param.check(name, each, n, sim.config.precision, sim.sizes_of(name))
    if changed or drawn != sim.drawn:
        values = {name: v for name, v in sim.host_params().items() if not isinstance(spec.settings[name], Derived)}
        sim.set_params(spec.with_derived({**values, **changed}, n, sim.config.precision, drawn), drawn)
