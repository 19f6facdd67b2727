"""Snapshots: copies of everything that the trajectories of replicas depend on, and their restoration."""

import dataclasses
import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, NumpyArrays, dtype_name, library_of, ndim_of, to_numpy
from gpu_envs.engine.replica_selection import ReplicaSelection, current_device
from gpu_envs.engine.row_copies import RowCopies, Rows, array_rows
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Distribution

Key: TypeAlias = tuple[str, str]
"""The name of a snapshot's part, and a name in this part."""

_LAYOUT_SEED: Key = ("episode", "layout_seed")
"""The seed that all replicas of a team share; a snapshot has one."""

_ALIGNMENT = 64
"""Alignment of arrays within a block, in bytes."""

_STATISTICS = {True: "with statistics", False: "with statistics=False"}


class BlockArray(NamedTuple):
    """An array within a block."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    """Shape of one replica's row."""
    replicas_last: bool
    """Whether a snapshot's array is ``[metrics, replicas]`` instead of ``[replicas, ...]``."""

    @property
    def row_bytes(self) -> int:
        """The size of one replica's row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def swap_axes(self, array: Array) -> Array:
        """Convert between the order of axes in the block, replicas first, and in a snapshot's array."""
        return array.swapaxes(0, 1) if self.replicas_last else array


@final
@dataclasses.dataclass(frozen=True, eq=False)
class BlockLayout:
    """The arrays of a block, one after another."""

    arrays: tuple[BlockArray, ...]
    keys: tuple[Key, ...]
    """The keys of all values of a snapshot, in order; values that replicas share are not in the block."""


block_layout = functools.cache(BlockLayout)
"""Creates layouts such that equal arguments return the same object, so that ``is`` compares them."""


@functools.lru_cache(maxsize=256)
def _offsets(layout: BlockLayout, replicas: int) -> list[int]:
    """The offset of each array in a block of ``replicas`` replicas, and the block's size, in bytes."""
    sizes = (-(-array.row_bytes * replicas // _ALIGNMENT) * _ALIGNMENT for array in layout.arrays)
    return list(itertools.accumulate(sizes, initial=0))


@final
@dataclasses.dataclass(eq=False)
class Snapshot(MutableMapping[str, Any]):
    """The state of replicas at one moment, a mapping of five parts: state, episode, params, randomness and drawn.

    All arrays are parts of one block of memory, as views created on the first access to a part. Before any access no
    code can have changed them, so that restoring copies the block without checking the arrays.
    """

    arrays: Arrays
    """Library of the block."""
    layout: BlockLayout
    block: Array
    """Memory of all arrays, uint8."""
    replicas: int
    shared_params: Mapping[str, Any]
    """Parameters with one value for all replicas."""
    drawn: Mapping[str, Distribution]
    layout_seed: Array | None
    randomness: dict[str, int]
    """The simulation's seed of fresh random numbers, and the number of calls that drew some."""
    may_have_ended: bool
    """Whether episodes of some replicas may be over."""

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        """The five parts of the mapping, whose arrays are views of the block."""
        offsets, replicas = _offsets(self.layout, self.replicas), self.replicas
        values: dict[Key, Any] = {("params", name): value for name, value in self.shared_params.items()}
        values[_LAYOUT_SEED] = self.layout_seed
        for item, offset in zip(self.layout.arrays, offsets, strict=False):
            array = self.arrays.view(self.block[offset : offset + item.row_bytes * replicas], item.dtype)
            values[item.key] = item.swap_axes(array.reshape((replicas, *item.shape)))
        parts: dict[str, Any] = {"state": {}, "episode": {}, "params": {}}
        for part, name in self.layout.keys:
            parts[part][name] = values[part, name]
        drawn = {name: str(distribution) for name, distribution in self.drawn.items()}
        return {**parts, "randomness": self.randomness, "drawn": drawn}

    def on_host(self) -> "Snapshot":
        """The same snapshot with NumPy arrays."""
        shared = {name: to_numpy(value) if library_of(value) else value for name, value in self.shared_params.items()}
        seed = None if self.layout_seed is None else to_numpy(self.layout_seed)
        block = to_numpy(self.block)
        return dataclasses.replace(self, arrays=NumpyArrays(), block=block, shared_params=shared, layout_seed=seed)

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
        """Pickle as an OrderedDict, which ``torch.load(weights_only=True)`` accepts; cloned tensors share no memory."""
        parts = {
            part: {name: value.clone() if library_of(value) == "torch" else value for name, value in values.items()}
            for part, values in self._parts.items()
        }
        return OrderedDict, (parts,)


@final
class ReplicaArrays:
    """The arrays of a simulation with a row for each replica, and copies between them and a block.

    Valid until a parameter changes between one value for all replicas and values per replica.

    Attributes:
        rows: Memory of the rows of each array.
        copy_out: Copies the rows into a block.
        copy_in: Copies the rows of a block into the arrays.
    """

    def __init__(self, sim: Simulation) -> None:
        self.param_arrays = sim.param_arrays  # replaced by each such change
        buffers = {name: sim.buffers[buffer] for name, buffer in sim.layout.snapshot_buffers.items()}
        parts: dict[str, Mapping[str, Any]] = {"state": sim.state, "episode": buffers, "params": sim.params}
        keys = tuple((part, name) for part, values in parts.items() for name in values)
        self.layout_seed = buffers.get(_LAYOUT_SEED[1])
        self.shared_params = {name: value for name, value in sim.params.items() if name not in sim.layout.per_replica}
        excluded = {_LAYOUT_SEED, *(("params", name) for name in self.shared_params)}
        items, self.rows, block_rows = [], [], []
        for part, name in (key for key in keys if key not in excluded):
            array = parts[part][name]
            replicas_last = (part, name) == ("episode", "totals") and not sim.config.spec.has_team
            replicas_first = array.swapaxes(0, 1) if replicas_last else array
            rows = array_rows(sim.arrays.address(array), replicas_first)
            items.append(BlockArray((part, name), dtype_name(array), tuple(replicas_first.shape[1:]), replicas_last))
            self.rows.append(rows)
            block_rows.append(Rows(0, items[-1].row_bytes, rows.element_bytes, rows.elements, rows.element_bytes))
        self.layout = block_layout(tuple(items), keys)
        self.shared_arrays = [name for name in self.shared_params if name in sim.param_arrays]
        self.copy_out, self.copy_in = RowCopies(sim, self.rows, block_rows), self.copies_in(sim, block_rows)

    def copies_in(self, sim: Simulation, sources: list[Rows]) -> RowCopies:
        """Prepare copies of ``sources`` into the replicas, which also update counters that depend on all replicas."""
        updated = [name for name in ("offset", "staggered", "counted") if name in sim.buffers]
        return RowCopies(sim, sources, self.rows, **{name: sim.arrays.address(sim.buffers[name]) for name in updated})

    def can_copy_block(self, sim: Simulation, state: "Snapshot") -> bool:
        """Whether a snapshot's block can be copied into the replicas without checks."""
        accessed = "_parts" in vars(state)  # by code that may have replaced arrays
        fits = not accessed and state.layout is self.layout and not self.shared_arrays
        return fits and state.shared_params == self.shared_params and state.drawn == sim.drawn


def _replica_arrays(sim: Simulation) -> ReplicaArrays:
    """The simulation's ``ReplicaArrays``; cached until a parameter changes to or from values per replica."""
    if "arrays" not in sim.copy_cache or sim.copy_cache["arrays"].param_arrays is not sim.param_arrays:
        sim.copy_cache["arrays"] = ReplicaArrays(sim)
    replica_arrays: ReplicaArrays = sim.copy_cache["arrays"]
    return replica_arrays


def _copy_on_device(sim: Simulation, array: Array) -> Array:
    """Return a contiguous copy of an array, of the simulation's library and on its device, on that device."""
    twin = sim.arrays.empty(tuple(array.shape), dtype_name(array))
    with current_device(sim):
        twin[...] = array
    return twin


def _is_in_sim_memory(sim: Simulation, array: Array) -> bool:
    return library_of(array) == sim.arrays.name and getattr(array, "device", "cpu") == sim.arrays.device


def _to_sim_memory(sim: Simulation, array: Array) -> Array:
    """The array itself if it is in the simulation's memory, otherwise a copy that is."""
    return array if _is_in_sim_memory(sim, array) else sim.arrays.from_numpy(to_numpy(array))


def snapshot_of(sim: Simulation, replicas: Any = None) -> Snapshot:
    """Return a snapshot of some replicas, or of all.

    Args:
        sim: The simulation.
        replicas: A mask or indices, in the order of the snapshot; None for all.
    """
    selection = ReplicaSelection(sim, replicas, unique=False)
    if sim.param_arrays and (selection.indices is None or sim.backend.device == "cpu"):
        sim.host_params()
    table = _replica_arrays(sim)
    offsets = _offsets(table.layout, selection.count)
    allocate = sim.arrays.empty if selection.invalid is None else sim.arrays.zeros  # rows of invalid indices stay 0
    block = allocate((offsets[-1],), "uint8")
    table.copy_out.set_block("target", sim.arrays.address(block), offsets)
    table.copy_out.run(selection.count, sources=selection.indices, wrong=selection.invalid)
    copied = {name: _copy_on_device(sim, table.shared_params[name]) for name in table.shared_arrays}
    shared = {**table.shared_params, **copied}
    seed = None if table.layout_seed is None else _copy_on_device(sim, table.layout_seed)
    may_have_ended = sim.config.autoreset_mode != "SameStep"
    return Snapshot(
        sim.arrays, table.layout, block, selection.count, shared, sim.drawn, seed, dict(sim.randomness), may_have_ended
    )


def restore(
    sim: Simulation, state: Mapping[str, Any], replicas: Any = None, randomness: str = "kept", copies: int = 1
) -> None:
    """Copy a snapshot into replicas, or raise an error and change nothing if it does not fit.

    If all replicas are written, the layout seed that a team's replicas share is restored too. If moreover the snapshot
    has as many replicas, so is the seed of fresh random numbers.

    Args:
        sim: The simulation.
        state: A snapshot of one replica, or of the number of written replicas divided by ``copies``.
        replicas: A mask or indices; None for all.
        randomness: ``kept``: the random numbers of the snapshot; ``fresh``: new ones for each replica.
        copies: Number of consecutive replicas that get the same row of the snapshot.
    """
    if randomness not in ("kept", "fresh"):
        raise ValueError(f"randomness is {randomness!r}; give 'kept' or 'fresh'")
    table = _replica_arrays(sim)
    unmodified = state if isinstance(state, Snapshot) and table.can_copy_block(sim, state) else None
    state = state if unmodified is not None else _with_fixed_params(sim, state)
    rows = _check_parts(sim, state) if unmodified is None else unmodified.replicas
    selection = ReplicaSelection(sim, replicas, unique=True)
    write_all, count, fresh = selection.indices is None, selection.count, randomness == "fresh"
    if not write_all and not sim.ready:
        raise ValueError("some replicas were never reset: reset() all of them first, or leave out replicas")
    row_for_each = write_all and rows * copies == count
    if rows == 1:
        copies = count
    elif rows * copies != count:
        raise ValueError(
            f"the state has {rows} replicas, but {count // copies} are written: give a state of {count // copies}, or "
            "of 1, which is copied to all"
        )
    if unmodified is None:
        row_copies, layout_seed, sources = _read(sim, state, rows, write_all=write_all, row_for_each=row_for_each)
    else:
        row_copies, layout_seed, sources = table.copy_in, unmodified.layout_seed, _to_sim_memory(sim, unmodified.block)
        row_copies.set_block("source", sim.arrays.address(sources), _offsets(table.layout, rows))
    seeds, first_seed = None, 0
    if fresh:
        sim.randomness = {**sim.randomness, "calls": sim.randomness["calls"] + 1}
        first_seed = derived_seed(sim.randomness["seed"], "fresh", sim.randomness["calls"]) + sim.config.first_replica
        seeds = sim.arrays.address(sim.buffers["seeds"])
    elif row_for_each:
        sim.randomness = dict(state["randomness"] if unmodified is None else unmodified.randomness)
    row_copies.run(
        count,
        each=copies,
        targets=selection.indices,
        wrong=selection.invalid,
        seeds=seeds,
        first_seed=first_seed % 2**64,
        counts_up=int(fresh and write_all),
    )
    del sources  # freed for later work of the same stream
    with current_device(sim):
        if row_for_each and not fresh and "counted" in sim.buffers:
            restored = sim.buffers["seeds"]
            sim.buffers["counted"][...] = (restored[1:] == restored[:-1] + 1).all()
        if layout_seed is not None and write_all:
            sim.buffers[sim.layout.snapshot_buffers[_LAYOUT_SEED[1]]][...] = _to_sim_memory(sim, layout_seed)
    sim.ready = True
    if unmodified is None or unmodified.may_have_ended:
        _start_next_episodes(sim)
    if sim.config.spec.masked:
        sim.observe()  # for the action masks of the restored state


def _start_next_episodes(sim: Simulation) -> None:
    """In SameStep mode, reset replicas whose episode is over, because its step kernel assumes running episodes.

    Snapshots of the other modes may contain ended episodes. On a GPU the reset is always launched: looking for ended
    episodes first would make the host wait.
    """
    ended = sim.buffers["ended"]
    if sim.config.autoreset_mode != "SameStep" or (sim.backend.device == "cpu" and not to_numpy(ended).any()):
        return
    sim.reset(None, ended, {})
    sim.arrays.fill(ended, 0)


def _with_fixed_params(sim: Simulation, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a snapshot with defaults of fixed parameters that it lacks, as it may be older than they are."""
    params = state.get("params") if isinstance(state, Mapping) else None
    fixed = {name: param.default for name, param in sim.config.spec.params.items() if param.fixed}
    if not isinstance(params, Mapping) or fixed.keys() <= params.keys():
        return state
    return {**state, "params": {**fixed, **params}}


def _check_parts(sim: Simulation, state: Mapping[str, Any]) -> int:
    """Return the number of a snapshot's replicas, or raise an error if it lacks parts or names, or has others."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is {type(state).__name__}; pass the result of get_state()")
    expected = {
        "state": sim.state,
        "episode": sim.layout.snapshot_buffers,
        "params": sim.params,
        "randomness": sim.randomness,
    }
    for part, names in expected.items():
        values = state.get(part)
        has_statistics = isinstance(values, Mapping) and "running_return" in values
        if part == "episode" and isinstance(values, Mapping) and has_statistics != ("running_return" in names):
            raise ValueError(
                f"the state comes from an environment {_STATISTICS[has_statistics]}, and this environment was made "
                f"{_STATISTICS[not has_statistics]}: make both with the same value of statistics"
            )
        if not isinstance(values, Mapping) or set(values) != set(names):
            keys = sorted(map(str, values)) if isinstance(values, Mapping) else values
            raise ValueError(f"the state's part {part!r} must have {sorted(names)}; got {keys}")
    for name, number in state["randomness"].items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"the state's {name!r} is {number!r}; it must be an integer of 0 or more")
    seeds = state["episode"]["seeds"]
    shape = tuple(seeds.shape if library_of(seeds) else np.shape(seeds))
    if len(shape) != 1:
        raise ValueError(f"the state's 'seeds' has shape {shape}; it must have one dimension, a seed for each replica")
    return int(shape[0])


def _read(
    sim: Simulation, state: Mapping[str, Any], rows: int, *, write_all: bool, row_for_each: bool
) -> tuple[RowCopies, Array | None, list[Array]]:
    """Check a snapshot's arrays and set the parameters that all replicas share; only prepare the other copies.

    Returns:
        Copies of the arrays into the replicas, the shared layout seed, and the arrays, which must outlive the copies.
    """
    spec, now, drawn = sim.config.spec, sim.drawn, state.get("drawn")
    if not isinstance(drawn, Mapping) or not set(drawn) <= set(sim.params):
        raise ValueError(
            f"the state's part 'drawn' must map names of {sorted(sim.params)} to distributions; got {drawn}"
        )
    drawn = spec.drawn(drawn, sim.config.precision)
    if not write_all and drawn != now:
        theirs, ours = (", ".join(f"{name}={d}" for name, d in draws.items()) or "nothing" for draws in (drawn, now))
        raise ValueError(
            f"the state draws {theirs} in each episode, and this environment {ours}, but all replicas must draw the "
            "same parameters: leave out replicas to write all of them, or assign to params[...] first"
        )
    params = _read_params(sim, state["params"], rows, drawn, wait=row_for_each)
    table = _replica_arrays(sim)
    items = [item for item in table.layout.arrays if item.key[0] != "params"]
    arrays = [_read_array(sim, item, state[item.key[0]][item.key[1]], rows) for item in items]
    layout_seed = None
    if table.layout_seed is not None and write_all:
        seed = BlockArray(_LAYOUT_SEED, dtype_name(table.layout_seed), (), replicas_last=False)
        layout_seed = _read_array(sim, seed, state["episode"]["layout_seed"], len(table.layout_seed))
    _set_shared_params(sim, params, drawn, write_all=write_all)  # nothing raises an error from here on
    table = _replica_arrays(sim)
    for item in table.layout.arrays[len(items) :]:  # parameters, which may have become values per replica
        param, value = spec.settings[item.key[1]], params[item.key[1]]
        if ndim_of(value) == param.rank:
            value = np.broadcast_to(param.index(value) if param.choices else value, (rows, *item.shape))
        arrays.append(_read_array(sim, item, value, rows))
    swapped = (item.swap_axes(array) for item, array in zip(table.layout.arrays, arrays, strict=True))
    sources = [array_rows(sim.arrays.address(array), array) for array in swapped]
    return table.copies_in(sim, sources), layout_seed, arrays


def _read_array(sim: Simulation, item: BlockArray, value: Any, rows: int) -> Array:
    """A snapshot's array of ``rows`` replicas, contiguous in the simulation's memory; an error if it does not fit."""
    shape = (*item.shape, rows) if item.replicas_last else (rows, *item.shape)
    what = f"the state's {item.key[1]!r}"
    array = value if library_of(value) else np.asarray(value)
    if tuple(array.shape) != shape:
        raise ValueError(f"{what} has shape {tuple(array.shape)}; this environment needs {shape}")
    if dtype_name(array) == item.dtype and _is_in_sim_memory(sim, array):
        return array if sim.arrays.contiguous(array) else _copy_on_device(sim, array)
    target = sim.arrays.empty(shape, item.dtype)
    sim.arrays.write(target, as_field(target, array, what))
    return target


def _read_params(
    sim: Simulation, params: Mapping[str, Any], rows: int, drawn: Mapping[str, Distribution], *, wait: bool
) -> dict[str, Any]:
    """Return a snapshot's parameters after checks, with the derived ones; sets nothing.

    Values per replica that are on a GPU are checked only if the host may ``wait``; otherwise only their shapes are.
    """
    spec, precision = sim.config.spec, sim.config.precision
    checked: dict[str, Any] = {}
    on_gpu: dict[str, Any] = {}
    for name, value in params.items():
        param, what, sizes = spec.settings[name], f"the state's parameter {name!r}", sim.sizes_of(name)
        per_replica = library_of(value) in ("torch", "cupy") and ndim_of(value) > param.rank
        if per_replica and not wait and sim.backend.device != "cpu":
            if tuple(value.shape) != (rows, *sizes):
                raise ValueError(
                    f"{what} has shape {tuple(value.shape)}; expected {(rows, *sizes)} for {rows} replicas"
                )
            on_gpu[name] = value
            continue
        array = param.to_array(what, value)
        if array.ndim:
            checked[name] = param.check_array(name, array, rows, precision, sizes)
        else:
            checked[name] = value if isinstance(param, Derived) else param.check_scalar(what, value, precision)
        if param.fixed and checked[name] != sim.params[name]:
            raise ValueError(
                f"{what} is {value!r}, and this environment's is {sim.params[name]!r}: shapes depend on it, so make an "
                f"environment with {name}={value!r}"
            )
    if not on_gpu:
        checked = spec.with_derived(checked, rows, precision, drawn)
    spec.check_order(checked, precision, drawn=drawn)
    return {**checked, **on_gpu}


def _set_shared_params(
    sim: Simulation, params: Mapping[str, Any], drawn: Mapping[str, Distribution], *, write_all: bool
) -> None:
    """Set parameters that replicas share to a snapshot's values, if they differ, and the distributions.

    If only some replicas are written, or the snapshot has values per replica, the parameter gets values per replica.
    """
    spec, n = sim.config.spec, sim.config.num_envs
    changed: dict[str, Any] = {}
    for name, value in params.items():
        param, now = spec.settings[name], sim.params[name]
        if isinstance(param, Derived) or name in sim.layout.per_replica:
            continue
        shared = ndim_of(value) == param.rank
        if shared and np.array_equal(to_numpy(value), to_numpy(now)):
            continue
        if shared and write_all:
            changed[name] = value
        else:
            repeated = [now] * n if param.choices else np.broadcast_to(to_numpy(now), (n, *np.shape(to_numpy(now))))
            changed[name] = param.check(name, repeated, n, sim.config.precision, sim.sizes_of(name))
    if changed or drawn != sim.drawn:
        values = {name: v for name, v in sim.host_params().items() if not isinstance(spec.settings[name], Derived)}
        sim.set_params(spec.with_derived({**values, **changed}, n, sim.config.precision, drawn), drawn)
