"""Parameters and attributes by name, as users give and get them: for all replicas, or one for each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.simulation import Simulation
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.derived import Derived


def param_as_given(sim: Simulation, name: str) -> Any:
    """A parameter as a user would give it: of each replica's own an array, or a list with choices by their words."""
    param, value = sim.config.spec.settings[name], sim.params[name]
    if not library_of(value):
        return value
    values = sim.arrays.read(value)
    if param.kind == "real" or param.rank:
        return values
    kinds: dict[str, Callable[[int], Any]] = {"choice": param.choices.__getitem__, "bool": bool, "int": int}
    return [kinds[param.kind](i) for i in values.tolist()]


def given_params(sim: Simulation) -> dict[str, Any]:
    """All parameters as a user would give them, without those that follow from others; of those drawn the text."""
    settings = sim.config.spec.settings
    return {
        name: str(sim.drawn[name]) if name in sim.drawn else param_as_given(sim, name)
        for name in sim.params
        if not isinstance(settings[name], Derived)
    }


def param_of_each(sim: Simulation, name: str) -> tuple[Any, ...]:
    """A parameter as a user would give it, once for each replica."""
    value = param_as_given(sim, name)
    if name not in sim.layout.per_replica:
        return (value,) * sim.config.num_envs
    return tuple(value) if isinstance(value, list) else per_replica(value, sim.config.num_envs)


def params_by_replica(sim: Simulation) -> dict[str, Any]:
    """The parameters, of which all that are arrays have a row for each replica."""
    own, n = sim.layout.per_replica, sim.config.num_envs
    return {
        name: value if name in own or not np.ndim(value) else np.broadcast_to(to_numpy(value), (n, *value.shape))
        for name, value in sim.params.items()
    }


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
    sizes = sim.sizes_of(name)
    given = spec.drawn({name: values}, config.precision)
    value = param.check(name, values, config.num_envs, config.precision, sizes)
    with sim.turn:
        drawn = {n: d for n, d in sim.drawn.items() if n != name} | given
        before = sim.host_params(without=name)
        if given:  # until a replica's next episode it keeps what it has
            now = np.broadcast_to(before[name], (config.num_envs, *sizes))
            value = param.check_array(name, now, config.num_envs, config.precision, sizes)
        after = spec.with_derived({**before, name: value}, config.num_envs, config.precision, drawn)
        spec.check_order(after, config.precision, drawn=drawn)
        spec.check_shapes(before, after)
        sim.set_params({n: v for n, v in after.items() if n == name or isinstance(spec.settings[n], Derived)}, drawn)


def per_replica(value: Any, num_envs: int) -> tuple[Any, ...]:
    """A tuple of one for each replica: its rows where it has one for each, otherwise the same for all."""
    if library_of(value) and tuple(value.shape[:1]) == (num_envs,):
        rows = np.array(to_numpy(value))
        return tuple(rows.tolist() if rows.ndim == 1 else rows)
    divided = type(value) is tuple and len(value) == num_envs  # such as seeds; not what a reset gives
    if divided and (all(map(library_of, value)) or all(isinstance(one, int | None) for one in value)):
        return tuple(value)
    return (value,) * num_envs
