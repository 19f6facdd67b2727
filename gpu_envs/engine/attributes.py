"""Parameters and attributes by name: one value for all replicas, or one for each."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.simulation import Simulation
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Choice, Distribution, stored
from gpu_envs.specs.params import ParamValue


def constructor_value(sim: Simulation, name: str) -> Any:
    """A parameter as the constructor takes it: one value, or for values per replica an array or a list."""
    param, value = sim.config.spec.settings[name], sim.params[name]
    if not library_of(value):
        return value
    values = sim.arrays.read(value)
    if param.kind == "real" or param.rank:
        return values
    decode: dict[str, Callable[[int], Any]] = {"choice": param.choices.__getitem__, "bool": bool, "int": int}
    return [decode[param.kind](i) for i in values.tolist()]


def constructor_values(sim: Simulation) -> dict[str, Any]:
    """All parameters but derived ones as the constructor takes them; distributions as text."""
    settings = sim.config.spec.settings
    return {
        name: str(sim.drawn[name]) if name in sim.drawn else constructor_value(sim, name)
        for name in sim.params
        if not isinstance(settings[name], Derived)
    }


def param_per_replica(sim: Simulation, name: str) -> tuple[Any, ...]:
    """The values of a parameter as the constructor takes them, one for each replica."""
    value = constructor_value(sim, name)
    if name not in sim.layout.per_replica:
        return (value,) * sim.config.num_envs
    return tuple(value) if isinstance(value, list) else tuple_per_replica(value, sim.config.num_envs)


def broadcast_params(sim: Simulation) -> dict[str, Any]:
    """The parameters; every array has a row for each replica, also if all replicas share its value."""
    params, per_replica, n = sim.params, sim.layout.per_replica, sim.config.num_envs
    shared = {name: to_numpy(v) for name, v in params.items() if name not in per_replica and np.ndim(v)}
    return {**params, **{name: np.broadcast_to(array, (n, *array.shape)) for name, array in shared.items()}}


def _check_name(sim: Simulation, name: str) -> None:
    """Raise a ValueError unless there is a parameter of this name."""
    spec = sim.config.spec
    if name not in spec.settings:
        allowed = [*spec.settings, *sim.state]
        raise ValueError(
            f"{spec.id} has no attribute {name!r} to set{did_you_mean(str(name), allowed)} You can set: "
            f"{', '.join(allowed)}."
        )


def set_param(sim: Simulation, name: str, values: Any) -> None:
    """Set a parameter; raise an error if its values, or values in live arrays of other parameters, are invalid."""
    config, spec = sim.config, sim.config.spec
    _check_name(sim, name)
    param = spec.settings[name]
    if param.fixed:
        raise ValueError(f"shapes depend on {name!r}, so it cannot change: make another {spec.id} with the new value")
    sizes = sim.sizes_of(name)
    distributions = spec.drawn({name: values}, config.precision)
    value = param.check(name, values, config.num_envs, config.precision, sizes)
    with sim.lock:
        drawn = {n: d for n, d in sim.drawn.items() if n != name} | distributions
        before = sim.host_params(unchecked=name)
        if distributions:  # replicas keep their current values until their next episode
            current = np.broadcast_to(before[name], (config.num_envs, *sizes))
            value = param.check_array(name, current, config.num_envs, config.precision, sizes)
        after = spec.with_derived({**before, name: value}, config.num_envs, config.precision, drawn)
        spec.check_order(after, config.precision, drawn=drawn)
        spec.check_shapes(before, after)
        sim.set_params({n: v for n, v in after.items() if n == name or isinstance(spec.settings[n], Derived)}, drawn)


def set_params_in_place(sim: Simulation, params: Mapping[str, Any]) -> None:
    """Set parameters, all or none, without compiling or waiting for the device; a ValueError if that is impossible.

    Values that were written into live arrays of other parameters are not read, and so not checked.
    """
    config, spec = sim.config, sim.config.spec
    with sim.lock:
        drawn, changed, starts = dict(sim.drawn), dict[str, ParamValue](), dict[str, float]()
        for name, values in params.items():
            _check_name(sim, name)
            distribution = spec.drawn({name: values}, config.precision).get(name)
            _check_in_place(sim, name, values, distribution)
            if distribution is not None:
                drawn[name], starts[name] = distribution, distribution.start
            else:
                param, sizes = spec.settings[name], sim.sizes_of(name)
                changed[name] = param.check(name, values, config.num_envs, config.precision, sizes)
        after = {**sim.known_params, **starts, **changed}
        if changed and any(isinstance(other, Derived) for other in spec.params.values()):
            after = spec.with_derived(after, config.num_envs, config.precision, drawn)
            changed |= {n: after[n] for n in sim.param_arrays if isinstance(spec.settings[n], Derived)}
        spec.check_order(after, config.precision, of=params, drawn=drawn)
        if starts:
            sim.write_distributions(drawn)
        sim.write_params(changed)
        sim.known_params = after


def _check_in_place(sim: Simulation, name: str, values: Any, distribution: Distribution | None) -> None:
    """Raise a ValueError unless a parameter's values, or its distribution's numbers, are in memory of the device."""
    settings = sim.config.spec.settings
    settable = {n for n in sim.layout.per_replica - sim.drawn.keys() if not isinstance(settings[n], Derived)}
    if name in sim.drawn:
        now = sim.drawn[name]
        if distribution is not None and distribution.kind == now.kind:
            return
        count = " of as many numbers" if isinstance(now, Choice) else ""
        problem = f"{name!r} is drawn from {now}, and can only change to another {type(now).__name__}{count}"
    elif name in settable and distribution is None:
        return
    elif name in settable:
        problem = f"{name!r} has a value per replica, and was not drawn from a distribution at the start"
    else:
        problem = f"{name!r} has no value per replica: it is compiled in, or one number for all"
    names = [f"{n} (to a number, or an array with one per replica)" for n in sorted(settable)]
    names += [f"{n} (to another {type(d).__name__})" for n, d in sim.drawn.items()]
    raise ValueError(
        f"{sim.config.spec.id}: got {name}={stored(values)!r}; {problem}. These parameters can change: "
        f"{', '.join(names) or 'none'}"
    )


def tuple_per_replica(value: Any, num_envs: int) -> tuple[Any, ...]:
    """A tuple with an entry for each replica: rows of an array ``[num_envs, ...]``; any other value is repeated."""
    if library_of(value) and tuple(value.shape[:1]) == (num_envs,):
        rows = np.array(to_numpy(value))
        return tuple(rows.tolist() if rows.ndim == 1 else rows)
    split = type(value) is tuple and len(value) == num_envs  # such as seeds; a reset's tuple is one value
    if split and (all(map(library_of, value)) or all(isinstance(entry, int | None) for entry in value)):
        return tuple(value)
    return (value,) * num_envs
