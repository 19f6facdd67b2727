"""Snapshots of some replicas, and one moment in many: rows are copied on the device, all arrays in one launch."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, dtype_of, library_of, to_numpy
from gpu_envs.engine.row_copies import Item, Key, RowCopies, Snapshot, form_of, rows_of_array
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.snapshots import (
    check_parts,
    copied,
    distributions_in,
    is_by_metric,
    rows_of,
    shape_for,
    start_next_episodes,
)
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.following import Derived

_OF_ALL = "layout_seed"
"""What a snapshot of a team has once: the seed of what all replicas share."""

RANDOMNESS = ("kept", "fresh")
"""Whether replicas go on with the random numbers of the moment, or with some that nobody else has."""


@final
class Chosen:
    """Some replicas, by number.

    Attributes:
        count: How many.
        numbers: In the simulation's memory, int64.
        checked: Whether each is known to be one.
    """

    def __init__(self, sim: Simulation, given: Any, *, once: bool) -> None:
        """Reads a mask or numbers, or raises what is wrong with them; of numbers on a GPU that is told by ``check``.

        Args:
            sim: Whose.
            given: Bools, one for each replica, or numbers.
            once: Whether each may be named once only.
        """
        total, arrays = sim.config.num_envs, sim.arrays
        shape = tuple(np.shape(given)) if library_of(given) == "" else tuple(given.shape)
        kind = str(np.asarray(given).dtype if library_of(given) == "" else given.dtype).rpartition(".")[2]
        mask = kind == "bool"
        if len(shape) != 1 or (mask and shape != (total,)) or not (mask or kind.startswith(("int", "uint"))):
            raise ValueError(
                f"replicas are {kind} {list(shape)}; give a mask, bool [{total}], or numbers of replicas from 0 to "
                f"{total - 1}, in one dimension"
            )
        here = library_of(given) == arrays.name and sim.backend.device != "cpu" and given.device == arrays.device
        self.checked = mask or not here
        if self.checked:
            numbers = np.flatnonzero(to_numpy(given)) if mask else to_numpy(given).astype(np.int64)
            self._check(numbers, total, once)
            self.count, self.numbers = len(numbers), arrays.full_of(numbers)
            return
        self.count = shape[0]
        if not self.count:
            self._check(np.zeros(0, np.int64), total, once)
        self.numbers = arrays.empty(shape, "int64")
        self.numbers[...] = given

    def _check(self, numbers: np.ndarray, total: int, once: bool) -> None:
        if not len(numbers):
            raise ValueError("replicas name none; give a mask with a True, or numbers")
        wrong = numbers[(numbers < 0) | (numbers >= total)]
        if len(wrong):
            raise ValueError(f"replicas name {wrong[0]}; there are 0 to {total - 1}")
        if once and len(np.unique(numbers)) < len(numbers):
            raise ValueError("replicas name one more than once; each can have one state only")


def _places(sim: Simulation, *, params: bool = True) -> dict[Key, Array]:
    """What each replica has of its own, by part of a snapshot and name; with parameters or without."""
    own = sim.layout.per_replica if params else frozenset()
    episode = {name: buffer for name, buffer in sim.layout.episode.items() if name != _OF_ALL}
    return {
        **{("state", name): array for name, array in sim.state.items()},
        **{("episode", name): sim.buffers[buffer] for name, buffer in episode.items()},
        **{("params", name): sim.param_arrays[name] for name in sim.config.spec.settings if name in own},
    }


@final
class Table:
    """What each replica of a simulation has of its own, while its parameters stay as they are, and copies of it."""

    def __init__(self, sim: Simulation) -> None:
        self.param_arrays = sim.param_arrays  # others with each change
        self.places = _places(sim)
        self.arrays = {key: _replicas_first(sim, key, array) for key, array in self.places.items()}
        self.own = [rows_of_array(sim.arrays.address(self.places[key]), each) for key, each in self.arrays.items()]
        self.form = form_of(
            tuple(
                Item(key, dtype_of(array), tuple(array.shape[1:]), is_by_metric(sim, key))
                for key, array in self.arrays.items()
            )
        )
        self.common = {name: value for name, value in sim.params.items() if ("params", name) not in self.places}
        self.layout_seed = sim.buffers[sim.layout.episode[_OF_ALL]] if _OF_ALL in sim.layout.episode else None
        self.plain = not self.common.keys() & sim.param_arrays.keys()
        within, arrays = self.form.rows, list(self.arrays.values())
        self.out, self.into = RowCopies(sim, self.own, within, arrays), RowCopies(sim, within, self.own, arrays)

    def takes(self, sim: Simulation, kept: Snapshot) -> bool:
        """Whether a snapshot's block can be copied in as it is, with nothing to look at."""
        return (
            not kept.opened
            and kept.form is self.form
            and (kept.arrays.name, kept.arrays.device) == (sim.arrays.name, sim.arrays.device)
            and self.plain
            and kept.common == self.common
            and kept.drawn == sim.drawn
        )


def _table(sim: Simulation) -> Table:
    if "table" not in sim.copying or sim.copying["table"].param_arrays is not sim.param_arrays:
        sim.copying["table"] = Table(sim)
    found: Table = sim.copying["table"]
    return found


def _replicas_first(sim: Simulation, key: Key, array: Array) -> Array:
    return array.swapaxes(0, 1) if is_by_metric(sim, key) else array


def _wrong(sim: Simulation, chosen: Chosen | None) -> int | None:
    """Where the kernel notes numbers that are no replica's; None: there are none."""
    if chosen is None or chosen.checked:
        return None
    if "wrong" not in sim.copying:
        sim.copying["wrong"] = sim.arrays.full_of(np.array([-1], np.int64))
    return sim.arrays.address(sim.copying["wrong"])


def check_replicas(sim: Simulation) -> None:
    """Raises a ValueError if numbers from the device named what is no replica; waits for the device."""
    if "wrong" not in sim.copying:
        return
    place = int(sim.arrays.read(sim.copying["wrong"])[0])
    sim.arrays.write(sim.copying["wrong"], np.array([-1], np.int64))
    if place >= 0:
        raise ValueError(
            f"replicas[{place}] is no replica, and what it stood for was left alone: there are 0 to "
            f"{sim.config.num_envs - 1}"
        )


def snapshot_of(sim: Simulation, replicas: Any) -> Snapshot:
    """Copies out everything that the trajectories of some replicas depend on, in the order in which they are named."""
    chosen = Chosen(sim, replicas, once=False)
    if chosen.checked and sim.backend.device == "cpu" and sim.param_arrays:
        sim.host_params()
    table = _table(sim)
    new = sim.arrays.empty if chosen.checked else sim.arrays.zeros  # what wrong numbers stand for is left alone
    block = new((chosen.count, table.form.bytes), "uint8")
    table.out.place(table.form, block, "target")
    table.out.run(chosen.count, sources=sim.arrays.address(chosen.numbers), wrong=_wrong(sim, chosen))
    common = {name: copied(sim, v) if name in sim.param_arrays else v for name, v in table.common.items()}
    seed = None if table.layout_seed is None else copied(sim, table.layout_seed)
    may_be_over = sim.config.autoreset_mode != "SameStep"
    return Snapshot(sim.arrays, table.form, block, common, sim.drawn, seed, dict(sim.randomness), may_be_over)


def restore_some(sim: Simulation, kept: Mapping[str, Any], replicas: Any, randomness: str, each: int = 1) -> None:
    """Copies a snapshot into some replicas, or raises what does not fit, with nothing changed.

    What all replicas of a team share, the places of ``start="fixed"``, comes along where all are written.

    Args:
        sim: The simulation.
        kept: A snapshot of one replica, or of as many as are written, divided by ``each``.
        replicas: A mask or numbers; None: all.
        randomness: One of ``RANDOMNESS``.
        each: How many replicas in a row get the same.
    """
    if randomness not in RANDOMNESS:
        raise ValueError(f"randomness is {randomness!r}; give one of {', '.join(map(repr, RANDOMNESS))}")
    table = _table(sim)
    as_it_is = kept if isinstance(kept, Snapshot) and table.takes(sim, kept) else None
    if as_it_is is None:
        kept = check_parts(sim, kept)
    chosen = None if replicas is None else Chosen(sim, replicas, once=True)
    count = sim.config.num_envs if chosen is None else chosen.count
    if chosen is not None and not sim.ready:
        raise ValueError("some replicas were never reset: reset() all of them first, or leave out replicas")
    rows = rows_of(kept) if as_it_is is None else as_it_is.replicas
    if rows == 1:
        each = count
    elif rows * each != count:
        raise ValueError(f"the state is of {rows} replicas; give one of 1 or of {count // each}, which are written")
    if as_it_is is not None:
        copies, shared = table.into, as_it_is.layout_seed
        copies.place(table.form, as_it_is.block, "source")
    else:
        copies, shared = _looked_through(sim, kept, rows, everywhere=chosen is None)
    fresh = {}
    if randomness == "fresh":
        sim.randomness = {**sim.randomness, "calls": sim.randomness["calls"] + 1}
        first_seed = derived_seed(sim.randomness["seed"], "fresh", sim.randomness["calls"]) + sim.config.first_replica
        fresh = {"seeds": sim.arrays.address(sim.buffers["seeds"]), "first_seed": first_seed % 2**64}
    copies.run(
        count,
        each=each,
        targets=None if chosen is None else sim.arrays.address(chosen.numbers),
        wrong=_wrong(sim, chosen),
        offset=sim.arrays.address(sim.buffers["offset"]),
        staggered=sim.arrays.address(sim.buffers["staggered"]),
        counted=sim.arrays.address(sim.buffers["counted"]) if "counted" in sim.buffers else None,
        counts_up=int(randomness == "fresh" and chosen is None),
        **fresh,
    )
    if shared is not None and chosen is None:
        sim.buffers[sim.layout.episode[_OF_ALL]][...] = shared
    sim.ready = True
    if as_it_is is None or as_it_is.may_be_over:
        start_next_episodes(sim)
    if sim.config.spec.masked:
        sim.observe()


def _looked_through(
    sim: Simulation, kept: Mapping[str, Any], rows: int, *, everywhere: bool
) -> tuple[RowCopies, Array | None]:
    """Copies of a snapshot's arrays, and the seed of what all share, or raises what does not fit; sets parameters."""
    drawn = distributions_in(sim, kept)
    if not everywhere and drawn != sim.drawn:
        raise ValueError(
            f"the state draws {_told(drawn)} in each episode, and this environment {_told(sim.drawn)}: replicas draw "
            "alike, so leave out replicas to write all of them, or assign to params[...] first"
        )
    _check_params(sim, kept["params"], rows, drawn)
    given = {key: _given(sim, key, kept, rows, array) for key, array in _places(sim, params=False).items()}
    shared, seed = None, _table(sim).layout_seed
    if seed is not None and everywhere:
        shared = _given(sim, ("episode", _OF_ALL), kept, int(seed.shape[0]), seed)
    _set_others(sim, kept["params"], drawn, everywhere=everywhere)  # from here on nothing is refused
    table = _table(sim)
    for key, array in table.places.items():
        if key[0] == "params":
            given[key] = _given(sim, key, kept, rows, array)
    sources = [
        rows_of_array(sim.arrays.address(given[key]), _replicas_first(sim, key, given[key])) for key in table.places
    ]
    return RowCopies(sim, sources, table.own, list(table.arrays.values()), given), shared


def _told(drawn: Mapping[str, Distribution]) -> str:
    return ", ".join(f"{name}={distribution}" for name, distribution in drawn.items()) or "nothing"


def _is_common(param: Any, value: Any) -> bool:
    """Whether all replicas of a snapshot have a parameter in common."""
    return bool((np.ndim(value) if library_of(value) == "" else len(value.shape)) == param.rank)


def _check_params(sim: Simulation, given: Mapping[str, Any], rows: int, drawn: Mapping[str, Distribution]) -> None:
    """Raises what is wrong with parameters of a snapshot: on the host all of it, on the device their shapes."""
    spec, precision = sim.config.spec, sim.config.precision
    known: dict[str, Any] = {}
    for name, value in given.items():
        param, what = spec.settings[name], f"the state's parameter {name!r}"
        if library_of(value) in ("torch", "cupy") and sim.backend.device != "cpu" and not _is_common(param, value):
            sizes = sim.sizes_of(name)
            if tuple(value.shape) != (rows, *sizes):
                raise ValueError(f"{what} has shape {tuple(value.shape)}; of {rows} replicas it has {(rows, *sizes)}")
            continue
        array = param.read(what, to_numpy(value) if library_of(value) else value)
        if array.ndim:
            known[name] = param.check_kept(name, array, rows, precision, sim.sizes_of(name))
        else:
            known[name] = value if isinstance(param, Derived) else param.check_one(what, value, precision)
        if param.fixed and known[name] != sim.params[name]:
            raise ValueError(
                f"{what} is {value!r}, and this environment's is {sim.params[name]!r}: shapes depend on it, so make an "
                "environment with the same"
            )
    spec.check_order(known, precision, drawn=drawn)


def _set_others(
    sim: Simulation, given: Mapping[str, Any], drawn: Mapping[str, Distribution], *, everywhere: bool
) -> None:
    """Sets what all replicas have in common and a snapshot has otherwise, and gives each its own where they differ."""
    spec, n = sim.config.spec, sim.config.num_envs
    changed: dict[str, Any] = {}
    for name, value in given.items():
        param, now = spec.settings[name], sim.params[name]
        if isinstance(param, Derived) or name in sim.layout.per_replica:
            continue
        common = _is_common(param, value)
        if common and np.array_equal(to_numpy(value), to_numpy(now)):
            continue
        if common and everywhere:
            changed[name] = to_numpy(value) if param.rank else value
        else:
            changed[name] = (
                [now] * n if param.choices else np.broadcast_to(to_numpy(now), (n, *np.shape(to_numpy(now))))
            )
    if changed or drawn != sim.drawn:
        values = {name: v for name, v in sim.host_params().items() if not isinstance(spec.settings[name], Derived)}
        for name, value in changed.items():
            values[name] = spec.settings[name].check(name, value, n, sim.config.precision, sim.sizes_of(name))
        sim.set_params(spec.with_derived(values, n, sim.config.precision, drawn), drawn)


def _given(sim: Simulation, key: Key, kept: Mapping[str, Any], rows: int, like: Array) -> Array:
    """What a snapshot has of an array, in the simulation's memory, one row for each of its replicas."""
    part, name = key
    value = kept[part][name]
    shape, what = shape_for(sim, key, like, rows), f"the state's {name!r}"
    if part == "params" and _is_common(param := sim.config.spec.settings[name], value):
        value = np.broadcast_to(param.index(value) if param.choices else to_numpy(value), shape)
    if library_of(value) == "":
        value = np.asarray(value)
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{what} has shape {tuple(value.shape)}; this environment needs {tuple(shape)}")
    on_device = library_of(value) == sim.arrays.name and getattr(value, "device", None) == like.device
    if on_device and dtype_of(value) == dtype_of(like):
        return value if sim.arrays.contiguous(value) else copied(sim, value)
    target = sim.arrays.empty(shape, dtype_of(like))
    sim.arrays.write(target, as_field(target, value, what))
    return target
