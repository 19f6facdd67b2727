"""Everything a trajectory depends on: copied out of a simulation, and back in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import Array, dtype_of, library_of, to_numpy
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.state import as_field
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.following import Derived
from gpu_envs.specs.params import ParamValue

_WITH = {True: "with statistics", False: "with statistics=False"}


def snapshot(sim: Simulation) -> dict[str, Any]:
    """Copies out everything a trajectory depends on."""
    sim.host_params()
    return {
        "state": {name: copied(sim, array) for name, array in sim.state.items()},
        "episode": {name: copied(sim, sim.buffers[buffer]) for name, buffer in sim.layout.episode.items()},
        "params": {n: copied(sim, v) if n in sim.param_arrays else v for n, v in sim.params.items()},
        "randomness": dict(sim.randomness),
        "drawn": {name: str(distribution) for name, distribution in sim.drawn.items()},
    }


def copied(sim: Simulation, array: Array) -> Array:
    """A contiguous copy in the simulation's memory, whatever the array was."""
    twin = sim.arrays.empty(tuple(array.shape), dtype_of(array))
    twin[...] = array
    return twin


def on_host(kept: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A snapshot whose arrays are NumPy's."""
    return {
        part: {n: v if library_of(v) == "" else to_numpy(v) for n, v in values.items()} for part, values in kept.items()
    }


def is_by_metric(sim: Simulation, key: tuple[str, str]) -> bool:
    """Whether an array of a snapshot has replicas last: the totals of one agent lie metric by metric."""
    return key == ("episode", "totals") and not sim.config.spec.has_team


def shape_for(sim: Simulation, key: tuple[str, str], array: Array, replicas: int) -> tuple[int, ...]:
    """The shape of an array of a snapshot of so many replicas, by its part and name."""
    return (array.shape[0], replicas) if is_by_metric(sim, key) else (replicas, *array.shape[1:])


def rows_of(kept: Mapping[str, Any]) -> int:
    """Of how many replicas a snapshot is; 0: it is none."""
    seeds = kept["episode"]["seeds"]
    shape = np.shape(seeds) if library_of(seeds) == "" else seeds.shape
    return int(shape[0]) if len(shape) else 0


def check_parts(sim: Simulation, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a snapshot that has what this simulation needs by name, or raises an error."""
    buffers = {"state": {f: f"state.{f}" for f in sim.state}, "episode": sim.layout.episode}
    if not isinstance(kept, Mapping):
        raise TypeError(f"the state is {type(kept).__name__}; give what get_state() returned")
    for part, names in {**buffers, "params": sim.params, "randomness": sim.randomness}.items():
        given = kept.get(part)
        kept_returns = isinstance(given, Mapping) and "running_return" in given
        if part == "episode" and isinstance(given, Mapping) and kept_returns != ("running_return" in names):
            raise ValueError(
                f"the state is of an environment {_WITH[kept_returns]}, and this one was made "
                f"{_WITH[not kept_returns]}; make both alike"
            )
        if not isinstance(given, Mapping) or set(given) != set(names):
            found = sorted(map(str, given)) if isinstance(given, Mapping) else given
            raise ValueError(f"the state's part {part!r} must have {sorted(names)}; got {found}")
    return dict(kept)


def distributions_in(sim: Simulation, kept: Mapping[str, Any]) -> dict[str, Distribution]:
    """The distributions of a snapshot."""
    given = kept.get("drawn")
    if not isinstance(given, Mapping) or not set(given) <= set(sim.params):
        raise ValueError(
            f"the state's part 'drawn' must map names of {sorted(sim.params)} to distributions; got {given}"
        )
    return sim.config.spec.drawn(given, sim.config.precision)


def restore(sim: Simulation, kept: Mapping[str, Any]) -> None:
    """Copies a snapshot back in, or raises an error that says what does not fit, with nothing changed."""
    config, spec = sim.config, sim.config.spec
    kept = check_parts(sim, kept)
    buffers = {"state": {f: f"state.{f}" for f in sim.state}, "episode": sim.layout.episode}
    values: dict[str, np.ndarray] = {}
    for part, places in buffers.items():
        for name, buffer in places.items():
            array, shape = to_numpy(kept[part][name]), tuple(sim.buffers[buffer].shape)
            if array.shape != shape:
                raise ValueError(f"the state's {name!r} has shape {array.shape}; this environment needs {shape}")
            values[buffer] = as_field(sim.buffers[buffer], array, f"the state's {name!r}")
    randomness = dict(kept["randomness"])
    for name, number in randomness.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"the state's {name!r} is {number!r}; a whole number from 0 up")
    drawn = distributions_in(sim, kept)
    params: dict[str, ParamValue] = {}
    for name, value in kept["params"].items():
        param, what = spec.settings[name], f"the state's parameter {name!r}"
        array = param.read(what, value)
        if array.ndim:
            params[name] = param.check_kept(name, array, config.num_envs, config.precision, sim.sizes_of(name))
        elif not isinstance(param, Derived):
            params[name] = param.check_one(what, value, config.precision)
        if param.fixed and params[name] != sim.params[name]:
            raise ValueError(
                f"{what} is {value!r}, and this environment's is {sim.params[name]!r}: "
                "shapes depend on it, so make an environment with the same"
            )
    params = spec.with_derived(params, config.num_envs, config.precision, drawn)
    spec.check_order(params, config.precision, drawn=drawn)
    sim.set_params(params, drawn)
    for name, array in values.items():
        sim.arrays.write(sim.buffers[name], array)
    if "counted" in sim.buffers:
        counted = values["seeds"] == values["seeds"][0] + np.arange(config.num_envs)
        sim.arrays.write(sim.buffers["counted"], np.array([counted.all()], np.int32))
    sim.stagger(values["offset"])
    sim.randomness = randomness
    sim.ready = True
    start_next_episodes(sim)
    if spec.masked:
        sim.observe()  # what is possible follows from the state


def start_next_episodes(sim: Simulation) -> None:
    """Resets the replicas whose episode is over, in SameStep mode: its step kernel takes every episode as under way.

    Snapshots of the other two modes have such replicas. On a GPU nobody waits to see whether there are any.
    """
    ended = sim.buffers["ended"]
    if sim.config.autoreset_mode != "SameStep" or (sim.backend.device == "cpu" and not to_numpy(ended).any()):
        return
    sim.reset(None, ended, {})
    ended[...] = 0
