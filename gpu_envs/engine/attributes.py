"""Parameters and attributes by name, as users give and get them: for all replicas, or one for each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.simulation import Simulation
from gpu_envs.errors import did_you_mean


def param_as_given(sim: Simulation, name: str) -> Any:
    """A parameter as a user would give it: of each replica's own an array, or a list with choices by their words."""
    param, value = sim.config.spec.settings[name], sim.params[name]
    if not library_of(value):
        return value
    values = sim.arrays.read(value)
    if param.kind == "real":
        return values
    kinds: dict[str, Callable[[int], Any]] = {"choice": param.choices.__getitem__, "bool": bool, "int": int}
    return [kinds[param.kind](i) for i in values.tolist()]


def set_param(sim: Simulation, name: str, values: Any) -> None:
    """Sets a parameter, or raises what is wrong with its values or with what stands in the others' live arrays."""
    config, spec = sim.config, sim.config.spec
    if name not in spec.settings:
        known = [*spec.settings, *sim.state]
        raise ValueError(
            f"{spec.id} has no attribute {name!r} to set{did_you_mean(str(name), known)} There are: {', '.join(known)}."
        )
    param = spec.settings[name]
    if param.fixed:
        raise ValueError(f"shapes depend on {name!r}: it stays as it was when {spec.id} was made; make another")
    value = param.check(name, values, config.num_envs, config.precision)
    with sim.turn:
        before = sim.host_params(without=name)
        spec.check_order({**before, name: value}, config.precision)
        spec.check_shapes(before, {**before, name: value})
        sim.set_params({name: value})


def per_replica(value: Any, num_envs: int) -> tuple[Any, ...]:
    """A tuple of one for each replica: its rows where it has one for each, otherwise the same for all."""
    if library_of(value) and tuple(value.shape[:1]) == (num_envs,):
        rows = np.array(to_numpy(value))
        return tuple(rows.tolist() if rows.ndim == 1 else rows)
    divided = type(value) is tuple and len(value) == num_envs  # such as seeds; not what a reset gives
    if divided and (all(map(library_of, value)) or all(isinstance(one, int | None) for one in value)):
        return tuple(value)
    return (value,) * num_envs
