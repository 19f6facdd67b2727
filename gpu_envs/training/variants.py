"""Runs that differ in their seeds, settings and environment parameters."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_envs.errors import did_you_mean
from gpu_envs.registry.catalog import spec
from gpu_envs.specs.distributions import Distribution, LogUniform, Uniform, parse
from gpu_envs.training.horizon import MAX_POINTS
from gpu_envs.training.run import Run
from gpu_envs.training.schedule import Schedule

SEARCHES = ("random", "grid", "sobol")
"""Ways to choose the values of varied settings."""

_SCHEDULES = ("learning_rate", "entropy_weight", "epsilon")
_NUMBERS = ("gamma", "gae_lambda", "clip", "value_clip", "value_weight", "max_grad_norm", "target_kl")
_OF_PARAMETER = "env."


def value_at(values: Any, share: float) -> Any:
    """Return the value at a share of a range, such as ``loguniform:1e-4:1e-2``, or of a list; ``share`` is below 1."""
    if isinstance(values, LogUniform | Uniform):
        low, high = values.range
        if isinstance(values, Uniform):
            return low + share * (high - low)
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return values[int(share * len(values))]


def _range_of(name: str, values: Any) -> Any:
    """Return a list of values, or a range as a distribution; ValueError for anything else."""
    if isinstance(values, str):
        text = values.removeprefix("log:")
        try:
            values = parse(f"loguniform:{text}" if text != values else values)
        except ValueError as error:
            raise ValueError(f"vary gives {name!r} {values!r}: {error}") from None
    if isinstance(values, LogUniform | Uniform):
        return values
    if isinstance(values, str | Distribution) or not isinstance(values, Sequence) or not values:
        raise ValueError(
            f"vary gives {name!r} {values!r}; give a range, such as 'uniform:0.9:1' or 'log:1e-4:1e-2', or a list of "
            "values"
        )
    return list(values)


def variants(
    run: Run,
    *,
    seeds: int | Sequence[int] = 1,
    vary: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    count: int | None = None,
    search: str = "random",
) -> list[Run]:
    """Return runs that differ in their seeds and in the settings and parameters of ``vary``.

    Args:
        run: The run.
        seeds: Seeds of each combination of values, or their number, from the run's seed on.
        vary: By name, a list of values or a range, such as ``uniform:0.9:1`` or ``log:1e-4:1e-2``. A name is a
            setting, such as ``learning_rate``, or ``env.`` and a parameter of the environment. Or a list of
            combinations, each with values by name.
        count: Number of combinations; None: all, if there are only lists of values, otherwise 16.
        search: ``random``, ``sobol`` (evenly spread) or ``grid`` (all combinations, with equal steps in ranges).
    """
    if search not in SEARCHES:
        raise ValueError(f"search is {search!r}{did_you_mean(search, SEARCHES)} Allowed: {', '.join(SEARCHES)}")
    given = vary if isinstance(vary, Sequence) else [vary or {}]
    if not given or not all(isinstance(each, Mapping) for each in given):
        raise ValueError(
            f"vary is {vary!r}; give ranges by name, or a list of combinations, such as [{{'gamma': 0.9}}]"
        )
    if any("seed" in each for each in given):
        raise ValueError("vary names 'seed'; give seeds instead")
    if given is vary and (count is not None or search != "random"):
        raise ValueError("vary lists all combinations; leave out runs and search")
    combinations = given if given is vary else _combinations(given[0], count, search, run.seed)
    numbers = range(run.seed, run.seed + seeds) if isinstance(seeds, int) else seeds
    if not numbers:
        raise ValueError(f"seeds is {seeds!r}; give a number from 1 up, or a list of seeds")
    return [_changed(run, {**values, "seed": seed}) for values in combinations for seed in numbers]


def _combinations(vary: Mapping[str, Any], count: int | None, search: str, seed: int) -> list[dict[str, Any]]:
    ranges = [_range_of(name, values) for name, values in vary.items()]
    rows = _rows(ranges, count, search, seed) if ranges else [()]
    return [dict(zip(vary, row, strict=True)) for row in rows]


def _rows(ranges: Sequence[Any], count: int | None, search: str, seed: int) -> list[tuple[Any, ...]]:
    lists = [values for values in ranges if isinstance(values, list)]
    if search == "grid" or (count is None and len(lists) == len(ranges)):
        product, free = math.prod(map(len, lists)), len(ranges) - len(lists)
        if free and count is None:
            raise ValueError("a grid over ranges needs the number of runs, which gives the number of steps")
        steps = 2
        while free and product * (steps + 1) ** free <= count:
            steps += 1
        grid = [
            values if isinstance(values, list) else [value_at(values, k / (steps - 1)) for k in range(steps)]
            for values in ranges
        ]
        needed = math.prod(map(len, grid))
        if count is not None and needed > count:
            raise ValueError(
                f"a grid of all combinations has {needed} runs; give runs={needed} or more, or fewer values"
            )
        return [*itertools.product(*grid)]
    count = 16 if count is None else count
    if count < 1:
        raise ValueError(f"runs is {count}; give a number from 1 up")
    if search == "sobol":
        import torch

        engine: Any = torch.quasirandom.SobolEngine  # untyped
        shares = engine(len(ranges), scramble=True, seed=seed).draw(count, dtype=torch.float64).numpy()
    else:
        shares = np.random.default_rng(seed).random((count, len(ranges)))
    return [tuple(value_at(v, float(u)) for v, u in zip(ranges, row, strict=True)) for row in shares]


def _changed(run: Run, values: Mapping[str, Any]) -> Run:
    """Return the run with other values of settings and, after ``env.``, of parameters."""
    flat = run.flat()
    params = {n.removeprefix(_OF_PARAMETER): v for n, v in values.items() if n.startswith(_OF_PARAMETER)}
    settings = {name: value for name, value in values.items() if not name.startswith(_OF_PARAMETER)}
    for name in settings:
        if name not in flat:
            raise ValueError(
                f"vary names {name!r}, which is no setting of this run{did_you_mean(name, flat)} Parameters of the "
                f"environment start with {_OF_PARAMETER!r}, as in {_OF_PARAMETER}pole_mass"
            )
    return Run.from_flat(flat | settings | {"params": {**flat["params"], **params}})


def varied_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the settings and parameters, after ``env.``, that differ between runs."""
    flats = list(map(_flat, runs))
    names = dict.fromkeys(itertools.chain(*flats))
    return [name for name in names if any(str(flat.get(name)) != str(flats[0].get(name)) for flat in flats)]


def values_of(run: Run, names: Sequence[str]) -> list[Any]:
    """Return a run's values of settings and parameters."""
    flat = _flat(run)
    return [flat.get(name) for name in names]


def _flat(run: Run) -> dict[str, Any]:
    flat = run.flat()
    return flat | {f"{_OF_PARAMETER}{name}": value for name, value in flat.pop("params").items()}


def _shape(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what must be equal in runs that train together."""
    shape: dict[str, Any] = {}
    params = spec(run.env).params
    for name, value in _flat(run).items():
        key = name.rpartition(".")[2]
        if name.startswith(_OF_PARAMETER):
            distribution = parse(value)
            param = params.get(name.removeprefix(_OF_PARAMETER))
            number = isinstance(value, int | float) and param is not None and not param.fixed
            shape[name] = distribution.kind if isinstance(distribution, Distribution) else "number" if number else value
        elif key in _NUMBERS:
            shape[name] = "number" if value is not None else None
        elif key in _SCHEDULES:
            shape[name] = None if value is None else max(MAX_POINTS, len(Schedule.of(value).points))
        elif name != "seed":
            shape[name] = value
    return tuple((name, str(value)) for name, value in sorted(shape.items()))


def groups_of(runs: Sequence[Run]) -> list[list[int]]:
    """Return the numbers of the runs that can train together: their networks, horizons and replicas are equal."""
    groups: dict[Any, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(_shape(run), []).append(number)
    return [*groups.values()]


def numbers_that_differ(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the values of each setting that is a number and differs between runs that train together."""
    flats = [run.flat() for run in runs]
    names = [name for name in flats[0] if name.rpartition(".")[2] in _NUMBERS]
    return {name: [flat[name] for flat in flats] for name in names if len({flat[name] for flat in flats}) > 1}


def parameters_that_differ(runs: Sequence[Run]) -> list[str]:
    """Return the environment's parameters that differ between runs that train together."""
    return [n.removeprefix(_OF_PARAMETER) for n in varied_names(runs) if n.startswith(_OF_PARAMETER)]
