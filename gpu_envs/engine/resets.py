"""Reads what a user hands to ``reset``: seeds, a mask, parameters and fields of the state; and to ``stagger``."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, library_of, to_numpy
from gpu_envs.engine.options import OUTPUTS
from gpu_envs.engine.simulation import NO_LIMIT, Simulation
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import Seeds, check_seed, random_seed
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.params import ParamValue


class Reset(NamedTuple):
    """A reset as the simulation takes it."""

    seeds: int | list[int | None] | None
    """The first replica's seed; one for each, None to keep its own; or None."""
    mask: Array | None
    """Which replicas, as bools in the simulation's memory; None: all."""
    values: Mapping[str, ParamValue]
    """Parameters of this reset alone."""
    starts: Mapping[str, np.ndarray]
    """Values of the state's fields to begin with, of all replicas."""


def read_reset(sim: Simulation, seed: Seeds, options: Mapping[str, Any] | None) -> Reset:
    """Returns what the simulation is to reset, or raises what is wrong with what was given to ``reset``.

    Where there must be a seed and none is given, it is a random one.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options are {options!r}; give a mapping from names to values, or None")
    spec, num_envs, given = sim.config.spec, sim.config.num_envs, dict(options or {})
    mask = None
    if "reset_mask" in given:
        mask = read_mask(given.pop("reset_mask"), num_envs, sim.arrays, on_cpu=sim.backend.device == "cpu")
    starts = {name: given.pop(name) for name in spec.start_fields if name in given}
    values = _read_options(sim, given) if given else {}
    seeds = read_seeds(seed, num_envs, ready=sim.ready)
    if not sim.ready and seeds is None:
        if mask is not None:
            raise gymnasium.error.ResetNeeded("the first reset must be of all replicas: leave out 'reset_mask'")
        seeds = random_seed()
    return Reset(seeds, mask, values, _read_starts(sim, starts))


def _read_options(sim: Simulation, given: Mapping[str, Any]) -> dict[str, ParamValue]:
    """Returns the options of one reset and the parameters that follow from them, or raises what is wrong with them."""
    spec, precision = sim.config.spec, sim.config.precision
    values: dict[str, ParamValue] = {**spec.check_options(given, precision)}
    params = sim.params
    if derived := [name for name, param in spec.params.items() if isinstance(param, Derived)]:
        params = sim.host_params()  # which waits for the device
        after = spec.with_derived({**params, **values}, sim.config.num_envs, precision)
        values |= {name: after[name] for name in derived if not np.array_equal(after[name], params[name])}
    spec.check_order({**params, **values}, precision, of=values, drawn=sim.drawn)
    return values


def _read_starts(sim: Simulation, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Explicit values of the state's fields, of all replicas, or raises what is wrong with them."""
    found = {}
    params = sim.host_params() if given else {}
    for name, values in given.items():
        array, field = to_numpy(values), sim.state[name]
        shape, boolean = tuple(field.shape), str(field.dtype).endswith("bool")
        if array.shape not in (shape, shape[1:]):
            raise ValueError(
                f"options[{name!r}] has shape {array.shape}; expected {shape[1:]} for all replicas, or {shape}"
            )
        if array.dtype.kind not in ("biuf" if boolean else "iuf"):
            raise TypeError(f"options[{name!r}] has dtype {array.dtype}; expected numbers")
        wrong = sim.config.spec.check_layout(name, array, params)
        if wrong:
            raise ValueError(f"options[{name!r}]: {wrong}")
        found[name] = as_field(field, array, f"options[{name!r}]")
    return found


def read_seeds(seed: Seeds, num_envs: int, *, ready: bool) -> int | list[int | None] | None:
    """Returns the seeds as Python numbers, or raises what is wrong with them.

    A None in a list becomes a random seed, unless the replicas are ``ready``: then they have seeds already.
    """
    if seed is None or isinstance(seed, int | np.integer | np.random.SeedSequence):
        return check_seed(seed)
    listed = isinstance(seed, Sequence) and not isinstance(seed, str | bytes | bytearray)
    if not listed and not (isinstance(seed, np.ndarray) and seed.ndim):
        raise TypeError(f"seed is {seed!r}; a whole number, a SeedSequence, or a list of {num_envs} (or None)")
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} entries; expected {num_envs}, one for each replica")
    seeds = [check_seed(s) for s in seed]
    return seeds if ready else [random_seed() if s is None else s for s in seeds]


def read_mask(mask: Any, num_envs: int, arrays: Arrays, *, on_cpu: bool) -> Array:
    """Returns a copy of ``options["reset_mask"]`` in the simulation's memory, or raises what is wrong with it."""
    library = library_of(mask)
    if library not in OUTPUTS:
        given = "None" if mask is None else type(mask).__name__
        raise TypeError(
            f"options['reset_mask'] is {given}; give an array of bools (NumPy, torch or CuPy), or leave it out to "
            "reset all replicas"
        )
    if tuple(mask.shape) != (num_envs,):
        raise ValueError(f"options['reset_mask'] has shape {tuple(mask.shape)}; expected ({num_envs},)")
    if str(mask.dtype).rpartition(".")[2] != "bool":
        raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}; expected bool")
    on_host = library == "numpy" or (library == "torch" and mask.device.type == "cpu")
    if on_host and not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere: it must name at least one replica")
    if library == arrays.name and not on_cpu and not on_host:
        return mask.copy() if library == "cupy" else mask.clone()
    return arrays.from_numpy(to_numpy(mask))


def read_offsets(sim: Simulation, seed: object, given: Any) -> np.ndarray:
    """By how many steps the replicas' time limits come nearer, or raises what is wrong with what was given."""
    limit, count, spec = sim.config.limit, sim.config.num_envs, sim.config.spec
    if limit == NO_LIMIT:
        raise ValueError(
            f"stagger cuts first episodes short of the time limit, and this {spec.id} has none; leave it out"
        )
    if given is None:
        known = check_seed(seed)
        if known is None:
            raise TypeError("stagger needs a seed: a whole number")
        generator = np.random.PCG64(known)
        generator.advance(sim.config.first_replica)  # past what the replicas before these have, a step each
        return (np.random.Generator(generator).random(count) * limit).astype(np.int64)
    offsets = to_numpy(given)
    if offsets.shape != (count,) or offsets.dtype.kind not in "iu":
        raise ValueError(f"stagger got offsets {offsets.dtype} {offsets.shape}; give {count} whole numbers")
    if offsets.min() < 0 or offsets.max() >= limit:
        raise ValueError(
            f"stagger got offsets from {offsets.min()} to {offsets.max()}; allowed are 0 to {limit - 1}, short of the "
            "time limit"
        )
    return offsets


def begin(sim: Simulation, seed: Seeds, options: Mapping[str, Any] | None) -> Reset:
    """Begins new episodes at the starts asked for, or raises what is wrong with what ``reset`` was given."""
    asked = read_reset(sim, seed, options)
    sim.reset(asked.seeds, asked.mask, asked.values)
    for name, values in asked.starts.items():
        mask = True if asked.mask is None else sim.arrays.read(asked.mask).reshape(-1, *(1,) * (values.ndim - 1))
        sim.state[name] = np.where(mask, values, sim.arrays.read(sim.state[name]))
    if asked.starts:
        sim.observe()
    return asked
