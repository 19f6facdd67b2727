"""Snapshots of some replicas, and one moment in many: rows are copied on the device, all arrays in one launch."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, library_of, to_numpy
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.engine.simulation import Simulation, dtype_of
from gpu_envs.engine.snapshots import check_parts, copied, is_by_metric, rows_of, shape_for
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.following import Derived

_OF_ALL = "layout_seed"
"""What a snapshot of a team has once: the seed of what all replicas share."""

_Key: TypeAlias = tuple[str, str]
"""A part of a snapshot, and a name in it."""

RANDOMNESS = ("kept", "fresh")
"""Whether replicas go on with the random numbers of the moment, or with some that nobody else has."""

_ROWS = Struct.of(
    "Rows", "float", ("const u8*", "source"), ("u8*", "target"), ("Index", "source_stride"), ("Index", "target_stride"),
    ("Index", "source_step"), ("Index", "target_step"), ("int", "items"), ("int", "bytes"),
)  # fmt: skip


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
        (_ROWS, "rows", arrays),
    )
    prologue, weight = f"constexpr int ARRAYS = {arrays};", max(1, arrays // 4)
    settings = KernelSettings(prologue=prologue, structs=(_ROWS,), weight=weight)
    return program_of(("drivers/copy_replicas.cuh",), {"copy": call}, settings)


@final
class RowCopies:
    """Copies rows of so many arrays; sources and targets are replicas."""

    def __init__(self, sim: Simulation, arrays: int) -> None:
        """Compiles."""
        made = program(arrays)
        self._sim, self._kernels, self._call = sim, sim.backend.load(made), made.calls["copy"]()

    def run(self, count: int, pairs: Sequence[tuple[Array, Array]], **values: Any) -> None:
        """Copies ``count`` rows from the first of each pair to the second."""
        address, call = self._sim.arrays.address, self._call
        for place, (source, target) in zip(call.rows, pairs, strict=True):
            place.source, place.target = address(source), address(target)
            items, size = int(np.prod(target.shape[1:], dtype=np.int64)), _itemsize(target)
            place.source_stride, place.source_step = _strides(source)
            place.target_stride, place.target_step = _strides(target)
            if place.source_step == place.target_step == size:  # in the largest words that lie evenly everywhere
                places = (place.source, place.target, place.source_stride, place.target_stride, items * size)
                word = next(n for n in (8, 4, 1) if not any((at or 0) % n for at in places))
                items, size = items * size // word, word
                place.source_step = place.target_step = word
            place.items, place.bytes = items, size
        for name, value in {
            "count": count, "each": 1, "limit": self._sim.config.num_envs, "sources": None, "targets": None,
            "wrong": None, "seeds": None, "first_seed": 0, **values,
        }.items():  # fmt: skip
            setattr(call, name, value)
        self._kernels.bind("copy", call, count)(self._sim.arrays.stream())


def _itemsize(array: Array) -> int:
    return int(array.element_size() if library_of(array) == "torch" else array.itemsize)


def _strides(array: Array) -> tuple[int, int]:
    """Bytes from a replica to the next, and from an element of it to the next; state's arrays have replicas inmost."""
    size = _itemsize(array)
    strides = [size * each for each in array.stride()] if library_of(array) == "torch" else list(array.strides)
    inner = [(n, each) for n, each in zip(array.shape[1:], strides[1:], strict=True) if n > 1]
    for (_, outer), (n, each) in itertools.pairwise(inner):
        assert outer == n * each, "elements of a replica lie evenly"
    return strides[0], inner[-1][1] if inner else size


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


def _places(sim: Simulation, *, params: bool = True) -> dict[_Key, Array]:
    """What each replica has of its own, by part of a snapshot and name; with parameters or without."""
    own = sim.layout.per_replica if params else frozenset()
    episode = {name: buffer for name, buffer in sim.layout.episode.items() if name != _OF_ALL}
    return {
        **{("state", name): array for name, array in sim.state.items()},
        **{("episode", name): sim.buffers[buffer] for name, buffer in episode.items()},
        **{("params", name): sim.param_arrays[name] for name in sim.config.spec.settings if name in own},
    }


def _pairs(sim: Simulation, sources: Mapping[_Key, Array], targets: Mapping[_Key, Array]) -> list[tuple[Array, Array]]:
    """What is copied to where, replicas first."""

    def first(key: _Key, array: Array) -> Array:
        return array.swapaxes(0, 1) if is_by_metric(sim, key) else array

    return [(first(key, sources[key]), first(key, target)) for key, target in targets.items()]


def _copies(sim: Simulation, arrays: int) -> RowCopies:
    if str(arrays) not in sim.copying:
        sim.copying[str(arrays)] = RowCopies(sim, arrays)
    found: RowCopies = sim.copying[str(arrays)]
    return found


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


def snapshot_of(sim: Simulation, replicas: Any) -> dict[str, Any]:
    """Copies out everything that the trajectories of some replicas depend on, in the order in which they are named."""
    chosen = Chosen(sim, replicas, once=False)
    if chosen.checked and sim.backend.device == "cpu":
        sim.host_params()
    places = _places(sim)
    new = sim.arrays.empty if chosen.checked else sim.arrays.zeros  # what wrong numbers stand for is left alone
    made = {key: new(shape_for(sim, key, array, chosen.count), dtype_of(array)) for key, array in places.items()}
    pairs = _pairs(sim, places, made)
    _copies(sim, len(pairs)).run(
        chosen.count,
        pairs,
        sources=sim.arrays.address(chosen.numbers),
        wrong=_wrong(sim, chosen),
    )
    found: dict[str, Any] = {"state": {}, "episode": {}, "params": {}}
    for (part, name), array in made.items():
        found[part][name] = array
    if _OF_ALL in sim.layout.episode:
        found["episode"][_OF_ALL] = copied(sim, sim.buffers[sim.layout.episode[_OF_ALL]])
    for name, value in sim.params.items():
        if name not in found["params"]:
            found["params"][name] = copied(sim, value) if name in sim.param_arrays else value
    return {**found, "randomness": dict(sim.randomness)}


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
    kept = check_parts(sim, kept)
    chosen = None if replicas is None else Chosen(sim, replicas, once=True)
    count = sim.config.num_envs if chosen is None else chosen.count
    if chosen is not None and not sim.ready:
        raise ValueError("some replicas were never reset: reset() all of them first, or leave out replicas")
    rows = rows_of(kept)
    if rows == 1:
        each = count
    elif rows * each != count:
        raise ValueError(f"the state is of {rows} replicas; give one of 1 or of {count // each}, which are written")
    _check_params(sim, kept["params"], rows)
    given = {
        key: _given(sim, key, kept[key[0]][key[1]], rows, array) for key, array in _places(sim, params=False).items()
    }
    shared = None
    if _OF_ALL in sim.layout.episode and chosen is None:
        seed = sim.buffers[sim.layout.episode[_OF_ALL]]
        shared = seed, _given(sim, ("episode", _OF_ALL), kept["episode"][_OF_ALL], int(seed.shape[0]), seed)
    _set_others(sim, kept["params"], everywhere=chosen is None)  # from here on nothing is refused
    places = _places(sim)
    for key, array in places.items():
        if key[0] == "params":
            given[key] = _given(sim, key, kept["params"][key[1]], rows, array)
    pairs = _pairs(sim, given, places)
    fresh = {}
    if randomness == "fresh":
        sim.randomness = {**sim.randomness, "calls": sim.randomness["calls"] + 1}
        first = derived_seed(sim.randomness["seed"], "fresh", sim.randomness["calls"]) + sim.config.first_replica
        fresh = {"seeds": sim.arrays.address(sim.buffers["seeds"]), "first_seed": first % 2**64}
    _copies(sim, len(pairs)).run(
        count,
        pairs,
        each=each,
        targets=None if chosen is None else sim.arrays.address(chosen.numbers),
        wrong=_wrong(sim, chosen),
        **fresh,
    )
    if shared is not None:
        shared[0][...] = shared[1]
    if "counted" in sim.buffers:
        sim.arrays.fill(sim.buffers["counted"], int(randomness == "fresh" and chosen is None))
    sim.buffers["staggered"][...] = (sim.buffers["offset"] != 0).sum()
    sim.ready = True
    if sim.config.spec.masked:
        sim.observe()


def _is_common(param: Any, value: Any) -> bool:
    """Whether all replicas of a snapshot have a parameter in common."""
    return bool((np.ndim(value) if library_of(value) == "" else len(value.shape)) == param.rank)


def _check_params(sim: Simulation, given: Mapping[str, Any], rows: int) -> None:
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
    spec.check_order(known, precision)


def _set_others(sim: Simulation, given: Mapping[str, Any], *, everywhere: bool) -> None:
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
    if changed:
        values = {name: v for name, v in sim.host_params().items() if not isinstance(spec.settings[name], Derived)}
        for name, value in changed.items():
            values[name] = spec.settings[name].check(name, value, n, sim.config.precision, sim.sizes_of(name))
        sim.set_params(spec.with_derived(values, n, sim.config.precision))


def _given(sim: Simulation, key: _Key, value: Any, rows: int, like: Array) -> Array:
    """What a snapshot has of an array, in the simulation's memory, one row for each of its replicas."""
    part, name = key
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
