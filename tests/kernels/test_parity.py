"""One step from injected states against Gymnasium's environments, and from 100,000 against tested oracles."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from harness import IDS, Make, is_discrete, numpy_of, random_actions
from oracles import OPTIONS, ORACLES, Outcome, Reals, Variant

import gpu_envs

IN_GYMNASIUM = [name for name in IDS if name in gymnasium.registry]
VARIANTS = [*(Variant(name) for name in IN_GYMNASIUM), *OPTIONS]

REPLICAS, STEPS = 500, 200
STATES = REPLICAS * STEPS
LOOPED = 2_000
"""Number of states; Gymnasium's environment takes a step from each, one at a time."""

MIXED = {"MountainCarContinuous-v0", "Pendulum-v1"}
"""Environments whose step, in Gymnasium, mixes float32 into float64."""

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
where = pytest.mark.parametrize("where", ["rollout", "box"])


class Stepped(NamedTuple):
    """The results of a step."""

    states: Reals
    observations: npt.NDArray[np.float32]
    rewards: Reals
    terminations: npt.NDArray[np.bool_]


def draw_states(variant: Variant, where: str) -> Reals:
    """States of random rollouts, or uniform in the observation space: ``[STATES, fields]``."""
    oracle = ORACLES[variant.env_id]
    if where == "box":
        # Acrobot's bounds over the box depend on this draw: of 12 others, 6 went beyond 2e-3 in float32 (worst 1.5e-2),
        # 1 beyond 1e-11 in float64 (1.3e-11), by a few states each. At the worst of them one unit in the last place of
        # the input moves the exact result by more than that: 1.7e-2 and 3.1e-11.
        return np.random.default_rng(1).uniform(oracle.low, oracle.high, (STATES, len(oracle.low)))
    env = gpu_envs.make(variant.env_id, REPLICAS, device="cpu", precision="float64", **variant.params)
    env.reset(seed=2)
    states = []
    for actions in random_actions(variant.env_id, STEPS, REPLICAS, seed=3):
        states.append(np.stack([numpy_of(field) for field in env.state.values()], 1))
        env.step(actions)
    return np.concatenate(states)


def draw_actions(variant: Variant, precision: str) -> np.ndarray:
    """Random actions; reals are float64, but representable in float32 if the environment is float32."""
    actions = random_actions(variant.env_id, STATES, seed=4)
    if is_discrete(variant.env_id):
        return actions
    widened = actions.astype(np.float64)
    return widened if precision == "float32" else widened + 1e-10


def step_ours(make: Make, variant: Variant, device: str, precision: str, states: Reals, actions: np.ndarray) -> Stepped:
    """One step of this package from many states at once."""
    env = make(variant.env_id, len(states), device=device, precision=precision, max_episode_steps=-1, **variant.params)
    env.reset(seed=0)
    for name, values in zip(env.state, states.T, strict=True):
        env.state[name] = values
    observations, rewards, terminations, truncations, _ = env.step(actions)
    assert not truncations.any()
    after = np.stack([numpy_of(field) for field in env.state.values()], 1).astype(np.float64)
    return Stepped(after, observations, rewards.astype(np.float64), terminations)


def step_gymnasium(env: Any, states: Reals, actions: np.ndarray) -> Stepped:
    """One step of Gymnasium's environment from each of the states."""
    results = []
    for state, action in zip(states, actions, strict=True):
        env.state = state.copy()
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None
        observation, reward, terminated, _, _ = env.step(action if np.ndim(action) else int(action))
        results.append((np.array(env.state, np.float64), observation, float(reward), terminated))
    return Stepped(*(np.array(column) for column in zip(*results, strict=True)))


def step_oracle(variant: Variant, states: Reals, actions: np.ndarray) -> Outcome:
    """One step of the oracle."""
    return ORACLES[variant.env_id].step(variant.gymnasium(), states, actions.reshape(len(states)).astype(np.float64))


def assert_close(variant: Variant, given: Reals, expected: Reals, bound: float) -> None:
    """Fails if states or rewards differ by more than ``bound * max(1, abs(expected))``."""
    error = np.abs(given - expected)
    if error.ndim == 2:
        for angle in ORACLES[variant.env_id].angles:
            error[:, angle] = np.minimum(error[:, angle], np.abs(error[:, angle] - 2 * np.pi))
    relative = error / np.maximum(1.0, np.abs(expected))
    assert relative.max() <= bound, (
        f"worst {relative.max():.3g} at {np.unravel_index(relative.argmax(), relative.shape)}"
    )


def bound_float64(variant: Variant, where: str) -> float:
    """Acrobot amplifies one unit in its input's last place by a factor of ten over the full box."""
    return 1e-11 if variant.env_id == "Acrobot-v1" and where == "box" else 1e-12


@where
@each_variant
def test_float64_is_gymnasium(make: Make, device: str, variant: Variant, where: str) -> None:
    """In float64 a step equals Gymnasium's, except numbers that Gymnasium rounds to float32."""
    states, actions = draw_states(variant, where)[:: STATES // LOOPED], random_actions(variant.env_id, LOOPED, seed=4)
    ours = step_ours(make, variant, device, "float64", states, actions)
    theirs = step_gymnasium(variant.gymnasium(), states, actions)
    bound = 1e-6 if variant.env_id in MIXED else bound_float64(variant, where)
    assert_close(variant, ours.states, theirs.states, bound)
    assert np.array_equal(ours.terminations, theirs.terminations)
    if is_discrete(variant.env_id):
        assert np.array_equal(ours.rewards, theirs.rewards)
    else:
        assert_close(variant, ours.rewards, theirs.rewards, bound)
    np.testing.assert_allclose(ours.observations, theirs.observations, rtol=1e-6, atol=1e-6)


@pytest.mark.fast_cases(32)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@where
@each_variant
def test_a_step_matches_the_formula(make: Make, device: str, variant: Variant, where: str, precision: str) -> None:
    """From 100,000 states: 12 digits in float64, nearly in float32; terminations agree except at the threshold."""
    exact = precision == "float64"
    states, actions = draw_states(variant, where), draw_actions(variant, precision)
    states = states if exact else states.astype(np.float32).astype(np.float64)
    ours, oracle = step_ours(make, variant, device, precision, states, actions), step_oracle(variant, states, actions)
    near = 2e-3 if variant.env_id == "Acrobot-v1" and where == "box" else 2e-5
    assert_close(variant, ours.states, oracle.states, bound_float64(variant, where) if exact else near)
    clear = oracle.margins > (-np.inf if exact else 1e-5)
    assert np.array_equal(ours.terminations[clear], oracle.terminations[clear])
    if is_discrete(variant.env_id):
        assert np.array_equal(ours.rewards[clear], oracle.rewards[clear])
    else:
        assert_close(variant, ours.rewards[clear], oracle.rewards[clear], 1e-12 if exact else near)
    if where == "box" and variant.env_id != "Pendulum-v1":
        assert 0 < oracle.terminations.sum() < STATES  # so that the comparison covers both cases


@pytest.mark.slow
def test_acrobot_noise_is_uniform(make: Make, device: str) -> None:
    """Torque noise is uniform between its bounds, and drawn in each step."""
    count, noise, variant = 10_000, 0.5, Variant("Acrobot-v1")
    env = make(variant.env_id, count, device=device, precision="float64", torque_noise_max=noise, low=0.0, high=0.0)
    env.reset(seed=0)
    env.step(np.full(count, 2))
    states = np.zeros((3, 4))
    least, middle, greatest = step_oracle(variant, states, np.array([2 - noise, 2.0, 2 + noise])).states[:, 3]
    speeds = numpy_of(env.state["theta2_dot"])
    share = np.sort((speeds - least) / (greatest - least))  # speed grows with torque, nearly in proportion
    assert least <= speeds.min() < speeds.max() <= greatest
    assert abs(speeds.mean() - middle) < 0.01 * (greatest - least)
    assert np.abs(share - (np.arange(count) + 0.5) / count).max() < 0.02  # Kolmogorov-Smirnov: 1.63 / sqrt(n) at 1 %
    fields = {name: numpy_of(values) for name, values in env.state.items()}
    for name in fields:
        env.state[name] = 0.0
    env.step(np.full(count, 2))
    assert np.abs(np.corrcoef(fields["theta2_dot"], numpy_of(env.state["theta2_dot"]))[0, 1]) < 0.05
