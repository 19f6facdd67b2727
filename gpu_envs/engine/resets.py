"""Checks of the arguments of ``reset`` (seeds, mask, parameters, state fields) and ``stagger``."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, dtype_name, library_of, to_numpy
from gpu_envs.engine.options import OUTPUTS
from gpu_envs.engine.simulation import NO_LIMIT, Simulation
from gpu_envs.engine.state import as_field
from gpu_envs.seeds import Seeds, check_seed, random_seed
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.params import ParamValue


class ResetRequest(NamedTuple):
    """The checked arguments of a reset."""

    seeds: int | list[int | None] | None
    """The first replica's seed, with the others counting up; or a seed for each replica; None keeps the seeds."""
    mask: Array | None
    """The replicas to reset, bools in the simulation's memory; None for all."""
    values: Mapping[str, ParamValue]
    """Parameters that apply to this reset only."""
    starts: Mapping[str, np.ndarray]
    """Initial values of fields of the state, for all replicas."""


def read_reset(sim: Simulation, seed: Seeds, options: Mapping[str, Any] | None) -> ResetRequest:
    """Check and return the arguments of ``reset``, without a reset; the first one has a random seed by default."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options are {options!r}; give a mapping from names to values, or None")
    spec, num_envs, remaining = sim.config.spec, sim.config.num_envs, dict(options or {})
    mask = None
    if "reset_mask" in remaining:
        mask = read_mask(remaining.pop("reset_mask"), num_envs, sim.arrays, on_cpu=sim.backend.device == "cpu")
    starts = {name: remaining.pop(name) for name in spec.start_fields if name in remaining}
    values = _read_options(sim, remaining) if remaining else {}
    seeds = read_seeds(seed, num_envs, ready=sim.ready)
    if not sim.ready and seeds is None:
        if mask is not None:
            raise gymnasium.error.ResetNeeded("the first reset must be of all replicas: leave out 'reset_mask'")
        seeds = random_seed()
    return ResetRequest(seeds, mask, values, _read_starts(sim, starts))


def _read_options(sim: Simulation, options: Mapping[str, Any]) -> dict[str, ParamValue]:
    """Return the parameters in a reset's ``options``, after checks, with the derived parameters that they change."""
    spec, precision = sim.config.spec, sim.config.precision
    values: dict[str, ParamValue] = {**spec.check_options(options, precision)}
    params = sim.params
    if derived := [name for name, param in spec.params.items() if isinstance(param, Derived)]:
        params = sim.host_params()  # waits for the device
        after = spec.with_derived({**params, **values}, sim.config.num_envs, precision)
        values |= {name: after[name] for name in derived if not np.array_equal(after[name], params[name])}
    spec.check_order({**params, **values}, precision, of=values, drawn=sim.drawn)
    return values


def _read_starts(sim: Simulation, starts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return initial values of fields of the state after checks, each broadcast to all replicas."""
    checked = {}
    params = sim.host_params() if starts else {}
    for name, values in starts.items():
        array, field = to_numpy(values), sim.state[name]
        shape, boolean = tuple(field.shape), str(field.dtype).endswith("bool")
        if array.shape not in (shape, shape[1:]):
            raise ValueError(
                f"options[{name!r}] has shape {array.shape}; expected {shape[1:]} for all replicas, or {shape}"
            )
        if array.dtype.kind not in ("biuf" if boolean else "iuf"):
            raise TypeError(f"options[{name!r}] has dtype {array.dtype}; expected numbers")
        if problem := sim.config.spec.check_layout(name, array, params):
            raise ValueError(f"options[{name!r}]: {problem}")
        checked[name] = as_field(field, array, f"options[{name!r}]")
    return checked


def read_seeds(seed: Seeds, num_envs: int, *, ready: bool) -> int | list[int | None] | None:
    """Check seeds and return them as Python integers.

    A None in a list becomes a random seed in the first reset; once replicas are ``ready`` it keeps the current seed.
    """
    if seed is None or isinstance(seed, int | np.integer | np.random.SeedSequence):
        return check_seed(seed)
    is_list = isinstance(seed, Sequence) and not isinstance(seed, str | bytes | bytearray)
    if not is_list and not (isinstance(seed, np.ndarray) and seed.ndim):
        raise TypeError(f"seed is {seed!r}; give an integer, a SeedSequence, a list of {num_envs} seeds, or None")
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} entries; expected {num_envs}, one for each replica")
    seeds = [check_seed(s) for s in seed]
    return seeds if ready else [random_seed() if s is None else s for s in seeds]


def read_mask(mask: Any, num_envs: int, arrays: Arrays, *, on_cpu: bool) -> Array:
    """Return a copy of ``options["reset_mask"]`` in the simulation's memory, after checks."""
    library = library_of(mask)
    if library not in OUTPUTS:
        what = "None" if mask is None else type(mask).__name__
        raise TypeError(
            f"options['reset_mask'] is {what}; give an array of bools (NumPy, torch or CuPy), or leave it out to "
            "reset all replicas"
        )
    if tuple(mask.shape) != (num_envs,):
        raise ValueError(f"options['reset_mask'] has shape {tuple(mask.shape)}; expected ({num_envs},)")
    if dtype_name(mask) != "bool":
        raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}; expected bool")
    on_host = library == "numpy" or (library == "torch" and mask.device.type == "cpu")
    if on_host and not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere: it must select at least one replica")
    if library == arrays.name and not on_cpu and not on_host:
        return mask.copy() if library == "cupy" else mask.clone()
    return arrays.from_numpy(to_numpy(mask))


def read_offsets(sim: Simulation, seed: object, offsets: Any) -> np.ndarray:
    """Check the arguments of ``stagger``; return the number of steps to take off each replica's episode."""
    limit, count, spec = sim.config.limit, sim.config.num_envs, sim.config.spec
    if limit == NO_LIMIT:
        raise ValueError(
            f"stagger shortens first episodes relative to the time limit, and this {spec.id} has no limit: leave it out"
        )
    if offsets is None:
        if (checked_seed := check_seed(seed)) is None:
            raise TypeError("stagger needs a seed: give an integer")
        generator = np.random.PCG64(checked_seed)
        generator.advance(sim.config.first_replica)  # skips the numbers of the replicas before these, one each
        return (np.random.Generator(generator).random(count) * limit).astype(np.int64)
    values = to_numpy(offsets)
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise ValueError(f"stagger got offsets {values.dtype} {values.shape}; give {count} integers")
    if values.min() < 0 or values.max() >= limit:
        raise ValueError(
            f"the offsets of stagger, steps to take off each episode, are from {values.min()} to {values.max()}; give "
            f"0 to {limit - 1}, less than the time limit"
        )
    return values


def reset_replicas(sim: Simulation, seed: Seeds, options: Mapping[str, Any] | None) -> ResetRequest:
    """Check the arguments of ``reset``, start new episodes, and return the checked arguments."""
    request = read_reset(sim, seed, options)
    sim.reset(request.seeds, request.mask, request.values)
    for name, values in request.starts.items():
        mask = True if request.mask is None else sim.arrays.read(request.mask).reshape(-1, *(1,) * (values.ndim - 1))
        sim.state[name] = np.where(mask, values, sim.arrays.read(sim.state[name]))
    if request.starts:
        sim.observe()
    return request
