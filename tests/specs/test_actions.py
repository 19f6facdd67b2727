"""Actions with more elements than one block of random words, real and integer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from harness import Place, assert_same_bits, numpy_of, to_place
from nvrtc import nvrtc_missing, programs, ptx_of
from small_envs import walk

from gpu_envs import EnvSpec, VectorEnv

RULES = {
    "reset": "s.x = random.uniform(real(-1), real(1));",
    "step": """real sum = 0;
    for (int j = 0; j < 6; ++j) sum = sum + action[j] * real(j + 1);
    s.x = s.x * real(0.5) + sum;
    return {-s.x, s.x > real(9)};""",
    "observe": "observation[0] = float(s.x);",
}
LOW, HIGH = np.array([-1, -1, 0, 2, -5, -1], np.float32), np.array([1, 2, 1, 3, 5, 1], np.float32)
SIZES, STARTS = np.array([4, 3, 300, 2, 11, 5]), np.array([-1, 0, 250, 2, -5, 7])
REPLICAS, STEPS = 70, 200
SPACES = {"real": Box(LOW, HIGH, dtype=np.float32), "whole": MultiDiscrete(SIZES, start=STARTS)}


@pytest.fixture(params=SPACES)
def spec(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Six action elements drive one state field."""
    seen = Box(-np.inf, np.inf, (1,), np.float32)
    more = {"state": ("x",), "observation": seen, "action": SPACES[request.param], "max_episode_steps": 7}
    return walk(tmp_path, "Arm-v0", more=more, **RULES)


def drawn_by_numpy(spec: EnvSpec, rng: np.random.Generator) -> np.ndarray:
    """Random actions for a step."""
    if isinstance(spec.action, Box):
        return rng.uniform(LOW, HIGH, (REPLICAS, 6)).astype(np.float32)
    return rng.integers(STARTS, STARTS + SIZES, (REPLICAS, 6))


def test_steps_agree_with_numpy(spec: EnvSpec, place: Place, mode: str) -> None:
    env = VectorEnv(spec, REPLICAS, device=place.device, output=place.output, autoreset_mode=mode)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    over = np.zeros(REPLICAS, bool)
    for _ in range(20):
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": to_place(over, place)})
            over[:] = False
        before = np.array(numpy_of(env.state["x"]))
        actions = drawn_by_numpy(spec, rng)
        sums = np.zeros(REPLICAS, np.float32)
        for j in range(6):
            sums = sums + actions[:, j].astype(np.float32) * np.float32(j + 1)
        expected = before * np.float32(0.5) + sums
        observations, rewards, terminations, truncations = map(numpy_of, env.step(to_place(actions, place))[:4])
        goes, ended = ~over, terminations | truncations
        kept = goes & ~ended if mode == "SameStep" else goes
        assert_same_bits(rewards[goes], -expected[goes])
        assert_same_bits(observations[kept, 0], expected[kept])
        assert_same_bits(terminations[goes], expected[goes] > 9)
        over = ended if mode != "SameStep" else over


def test_random_actions_are_uniform_and_reproducible(spec: EnvSpec, place: Place) -> None:
    """With one launch and with four; recorded actions can be replayed."""
    env, parts, again = (VectorEnv(spec, REPLICAS, **place._asdict(), autoreset_mode="SameStep") for _ in range(3))
    for each in (env, parts, again):
        each.reset(seed=11)
    drawn = env.rollout(STEPS, per_step=True)
    replayed = again.rollout(STEPS, drawn.actions, per_step=True)
    assert_same_bits(numpy_of(replayed.observations), numpy_of(drawn.observations))
    actions = numpy_of(drawn.actions)
    assert actions.shape == (STEPS, REPLICAS, 6)
    four = [numpy_of(parts.rollout(STEPS // 4, per_step=True).actions) for _ in range(4)]
    assert_same_bits(np.concatenate(four), actions)
    flat = actions.reshape(-1, 6)
    count = len(flat)
    if isinstance(spec.action, Box):
        units = (flat.astype(np.float64) - LOW) / (HIGH.astype(np.float64) - LOW)
        assert units.min() >= 0
        assert units.max() <= 1
        for j in range(6):
            ranks = np.sort(units[:, j]) - (np.arange(count) + 0.5) / count  # Kolmogorov-Smirnov distance
            assert abs(ranks).max() < 1.95 / np.sqrt(count)
            assert len(np.unique(units[:, j])) > count * 0.99
    else:
        assert actions.dtype == np.int64
        for j, size in enumerate(SIZES):
            counts = np.bincount(flat[:, j] - STARTS[j], minlength=size)
            assert len(counts) == size
            assert (abs(counts - count / size) < 5 * np.sqrt(count / size)).all()
    correlations = np.corrcoef(flat.T.astype(np.float64)) - np.eye(6)
    assert abs(correlations).max() < 5 / np.sqrt(count)


@pytest.mark.skipif(bool(nvrtc_missing()), reason="NVRTC cannot compile here")
def test_nvrtc_compiles(spec: EnvSpec) -> None:
    for program in programs(spec, "SameStep", "float32"):
        ptx_of(program.source)
