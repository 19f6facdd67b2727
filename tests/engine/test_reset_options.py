"""Options of a reset that set the initial state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import IDS, Make, Place, assert_same_bits, defaults, numpy_of, to_place
from harness import random_actions as draw_alone
from registered import (
    CONTINUOUS,
    Variant,
    assert_refused,
    first_real,
    make_variant,
    numpy_by_role,
    parametrize_variants,
    starts_of,
)

import gpu_envs
from gpu_envs import MultiAgentEnv

each_team = parametrize_variants({name: Variant(name, {}) for name in (CONTINUOUS, "TagGridWorld-v0")})

# --- a single agent ---

each_with_options = pytest.mark.parametrize("env_id", [name for name in IDS if gpu_envs.spec(name).options])


def options_of(env_id: str) -> dict[str, float]:
    """Reset options that allow a single initial state, which the defaults do not allow."""
    settings = gpu_envs.spec(env_id).options
    return {"low": 0.25, "high": 0.25} if "low" in settings else dict.fromkeys(settings, 0.0)


@each_with_options
def test_options_apply_to_one_reset(make: Make, env_id: str, device: str, mode: str) -> None:
    """Reset options apply to the reset they are given to, not to the restarts and resets after it."""
    count = 40
    env, plain = (make(env_id, count, device=device, autoreset_mode=mode, max_episode_steps=1) for _ in range(2))
    by_default = plain.reset(seed=3)[0]
    by_options = env.reset(seed=3, options=options_of(env_id))[0]
    assert (by_options == by_options[0]).all()
    assert (by_options != by_default).any(axis=1).all()
    for action in draw_alone(env_id, 2, count):
        observations = [each.step(action)[0] for each in (env, plain)]
        if mode == "Disabled":
            observations = [each.reset()[0] for each in (env, plain)]
    assert_same_bits(observations[0], observations[1])
    assert_same_bits(env.reset()[0], plain.reset()[0])
    assert all(env.params[name] == defaults(env_id)[name] for name in options_of(env_id))


@each_with_options
def test_options_apply_to_masked_replicas(make: Make, env_id: str, device: str) -> None:
    """With a mask, options only affect the replicas to reset; parameters with values per replica do not change."""
    name = first_real(Variant(env_id, {}))
    values = defaults(env_id)[name] * np.linspace(1, 1.1, 4)
    env = make(env_id, 4, device=device, **{name: values})
    first = env.reset(seed=3)[0]
    mask = np.array([False, True, False, True])
    after = env.reset(options={**options_of(env_id), "reset_mask": mask})[0]
    assert_same_bits(first[~mask], after[~mask])
    assert (after[1] == after[3]).all()
    assert np.allclose(numpy_of(env.params[name]), values.astype(np.float32))


@each_with_options
@pytest.mark.parametrize("bounds", [(-0.3, -0.2), (0.1, 0.3), (0.2, 0.2)])
def test_option_bounds(make: Make, env_id: str, device: str, bounds: tuple[float, float]) -> None:
    """Resets draw uniformly from ``low`` to ``high``, or within plus or minus ``x_init`` and ``y_init``."""
    env = make(env_id, 20_000, device=device, precision="float64")
    if "low" in gpu_envs.spec(env_id).options:
        env.reset(seed=3, options=dict(zip(("low", "high"), bounds, strict=True)))
        limits = [bounds] * len(env.state)
    else:
        low, high = (abs(bound) for bound in bounds)
        env.reset(seed=3, options={"x_init": low, "y_init": high})
        limits = [(-low, low), (-high, high)]
    for (name, field), (low, high) in zip(env.state.items(), limits, strict=True):
        values = numpy_of(field)
        if name == "velocity":  # a car starts at rest
            assert not values.any()
            continue
        assert low <= values.min() <= values.max() <= high
        assert abs(values.mean() - (low + high) / 2) <= 0.02 * (high - low) + 1e-12
        if high > low:
            assert np.abs(np.histogram(values, 10, (low, high))[0] / len(values) - 0.1).max() < 0.01


@each_team
@pytest.mark.parametrize("start", ["random", "fixed"])
@pytest.mark.parametrize("per_replica", [False, True])
def test_initial_state_fields(make: Make, variant: Variant, place: Place, per_replica: bool, start: str) -> None:
    """A reset can set all or some initial fields, in all replicas or the replicas of a mask, for this reset only."""
    count = 4
    env, plain, default = (make_variant(make, variant, count, place, start=start) for _ in range(3))
    mask = np.array([True, False, True, False])
    starts: dict[str, Any] = starts_of(env, count if per_replica else None)
    if variant.env_id == CONTINUOUS:
        starts["heading"] = np.linspace(0, 3, env.num_agents).astype(np.float32)
    options = dict(starts)
    observations = numpy_by_role(env, env.reset(seed=1, options=options)[0])
    assert options.keys() == starts.keys()  # the caller's dict is not modified
    for name, values in starts.items():
        state = numpy_of(env.state[name])
        assert_same_bits(state, np.broadcast_to(values, state.shape).astype(state.dtype), name)
    assert_same_bits(observations, env.observe())

    first = numpy_by_role(plain, plain.reset(seed=1)[0])
    before = {name: numpy_of(values) for name, values in plain.state.items()}
    after = plain.reset(seed=1, options={**starts, "reset_mask": to_place(mask, place)})[0]
    for role, values in numpy_by_role(env, after).items():
        assert_same_bits(values[mask], observations[role][mask])
        assert_same_bits(values[~mask], first[role][~mask])
    for name, values in before.items():
        assert_same_bits(numpy_of(plain.state[name])[mask], numpy_of(env.state[name])[mask], name)
        assert_same_bits(numpy_of(plain.state[name])[~mask], values[~mask], name)
    default.reset(seed=1)
    assert_same_bits(env.reset()[0], default.reset()[0])
    env.reset(seed=1, options={"x": starts["x"]})
    default.reset(seed=1)
    assert_same_bits(env.state["y"], default.state["y"])
    x = numpy_of(env.state["x"])
    assert_same_bits(x, np.broadcast_to(starts["x"], x.shape).astype(x.dtype))


@each_team
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda _: {"z": 0.0}, "z"),
        (lambda _: {"elapsed": np.zeros(3)}, "elapsed"),
        (lambda env: {"xs": np.zeros(env.num_agents)}, "'xs'.*Did you mean 'x'"),
        (lambda env: {"x": np.zeros(env.num_agents + 1)}, "x.*shape"),
        (lambda _: {"x": 0.0}, "x.*shape"),
        (lambda env: {"x": np.zeros((2, env.num_agents))}, "x.*shape"),
        (lambda env: {"x": np.full(env.num_agents, np.nan)}, "x.*expected"),
        (lambda env: {"x": ["a"] * env.num_agents}, "x.*dtype"),
        (lambda env: {"y": [*[1] * (env.num_agents - 1), 7]}, "y.*within 0|y.*from 0"),
        (lambda env: {"y": [*[1] * (env.num_agents - 1), -1]}, "y.*within 0|y.*from 0"),
        (lambda env: {"heading": [*[1] * (env.num_agents - 1), np.inf]}, "'heading'"),
        (lambda env: {"x": [*[1] * (env.num_agents - 1), np.nan if "heading" in env.state else 1.5]}, "'x'"),
    ],
)
def test_invalid_options(
    make: Make, variant: Variant, options: Callable[[MultiAgentEnv], dict[str, Any]], message: str
) -> None:
    """Unknown options and impossible initial states are refused and change nothing."""
    env = make_variant(make, variant, 3)
    env.reset(seed=0)
    assert_refused(env, lambda: env.reset(options=options(env)), (ValueError, TypeError), message)
