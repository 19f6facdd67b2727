"""Staggered episodes are truncated earlier, and nothing else about them changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import assert_same_bits, numpy_of
from registered import draw_actions, place_actions
from small_envs import chase, walk

import gpu_envs
from gpu_envs import Field, Role, Table
from gpu_envs.codegen import AUTORESET_MODES

LIMIT = 12
COUNT = 70  # more than one tile of replicas

SINGLE = {
    "reset": "s.clock = 0;\n    s.x = random.uniform(real(0), real(1));",
    "step": """s.x += p.tide(s.clock) * real(action) + random.uniform(real(0), real(1));
    s.clock += 1;
    return {s.x, false};""",
    "observe": "observation[0] = float(s.clock);\n    observation[1] = float(s.x);",
}
TEAM = {
    "reset": "FOR_EACH_AGENT(i, AGENTS) w.x[i] = team.random(RESET, i).uniform(0, 1);",
    "step": """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] += p.tide(w.elapsed - 1) * real(actions[i]) + team.random(STEP, i, w.elapsed).uniform(0, 1);
        w.reward[i] = team.last_step ? real(100) : w.x[i];
    }""",
    "observe": "row[0] = float(w.elapsed);\n    row[1] = float(w.x[i]);",
}


@pytest.fixture(params=["one", "team", "spread"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An environment whose rules index a table by the step."""
    more = {"params": {}, "tables": {"tide": Table(np.linspace(-1, 1, LIMIT))}, "max_episode_steps": LIMIT}
    space = Box(-np.inf, np.inf, (2,), np.float32)
    if request.param == "one":
        state = {"clock": Field("int"), "x": Field()}
        return walk(tmp_path, more={**more, "state": state, "observation": space}, **SINGLE)
    count = 3 if request.param == "team" else 1100  # with 1100 agents each phase is a launch
    roles = (Role("boat", count, space, Discrete(2)), Role("buoy", 1, space, Discrete(2)))
    return chase(tmp_path, more={**more, "roles": roles, "shared": {}}, **TEAM)


def make_env(spec: Any, device: str, **options: Any) -> Any:
    env_class: Any = gpu_envs.MultiAgentEnv if spec.has_team else gpu_envs.VectorEnv
    is_large = spec.has_team and sum(role.count for role in spec.roles) > 1000
    return env_class(spec, 3 if is_large else COUNT, **{"device": device, "checking": False} | options)


def arrays_of(value: Any) -> list[np.ndarray]:
    return [numpy_of(v) for v in (value.values() if isinstance(value, dict) else [value])]


def offsets_of(env: Any) -> np.ndarray:
    return numpy_of(env.get_state()["episode"]["offset"])


def test_stagger_changes_nothing_before_the_truncation(spec: Any, device: str) -> None:
    """Observations, rewards and the step counter that rules read are the same."""
    plain, env = (make_env(spec, device, autoreset_mode="Disabled") for _ in range(2))
    for each in (plain, env):
        each.reset(seed=1)
        each.allow_frozen_steps()
    assert_same_bits(arrays_of(env.stagger(seed=3)), arrays_of(plain.observe()))
    assert not numpy_of(env.elapsed).any()
    offsets = offsets_of(env)
    assert offsets.min() >= 0
    assert offsets.max() < LIMIT
    assert len(set(offsets)) > min(3, env.num_envs) - 1
    for t, actions in enumerate(draw_actions(env, LIMIT), start=1):
        expected, results = (each.step(place_actions(env, actions)) for each in (plain, env))
        running = t <= LIMIT - offsets
        for part in range(2):
            for a, b in zip(arrays_of(expected[part]), arrays_of(results[part]), strict=True):
                assert_same_bits(a[running], b[running])
        for a in arrays_of(results[3]):
            assert (a.reshape(env.num_envs, -1) == (t >= LIMIT - offsets)[:, None]).all()
        assert numpy_of(env.elapsed).tolist() == np.minimum(t, LIMIT - offsets).tolist()
    for length in arrays_of(env.episode_length):
        assert (length.reshape(env.num_envs, -1) == (LIMIT - offsets)[:, None]).all()


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_later_episodes_have_full_length(spec: Any, device: str, mode: str) -> None:
    env = make_env(spec, device, autoreset_mode=mode)
    env.reset(seed=1)
    env.stagger(seed=3)
    lengths: list[list[int]] = [[] for _ in range(env.num_envs)]
    first = LIMIT - offsets_of(env)
    for actions in draw_actions(env, 3 * LIMIT + 3):
        results = env.step(place_actions(env, actions))
        over = arrays_of(results[3])[0].reshape(env.num_envs, -1)[:, 0]
        for i in np.flatnonzero(over):
            lengths[i].append(int(arrays_of(env.episode_length)[0].reshape(env.num_envs, -1)[i, 0]))
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
    for replica, replica_lengths in enumerate(lengths):
        assert replica_lengths[0] == first[replica]
        assert set(replica_lengths[1:]) == {LIMIT}
    assert not offsets_of(env).any()
    assert not numpy_of(env.simulation.buffers["staggered"]).any()


def test_a_reset_starts_episodes_of_full_length(spec: Any, device: str) -> None:
    env = make_env(spec, device)
    env.reset(seed=1)
    env.stagger(seed=3)
    before = offsets_of(env)
    mask = np.arange(env.num_envs) % 2 == 0
    env.reset(options={"reset_mask": mask})
    assert offsets_of(env).tolist() == np.where(mask, 0, before).tolist()
    assert numpy_of(env.simulation.buffers["staggered"]).tolist() == [np.count_nonzero(before[~mask])]
    env.reset(seed=2)
    assert not offsets_of(env).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "stagger needs a seed: give an integer"),
        ({"offsets": [0, 1]}, ValueError, r"got offsets int64 \(2,\); give 3 integers"),
        ({"offsets": [0.0, 1.0, 2.0]}, ValueError, r"got offsets float64 \(3,\); give 3 integers"),
        ({"offsets": [0, -1, 2]}, ValueError, "from -1 to 2; give 0 to 11"),
        ({"offsets": [0, 1, LIMIT]}, ValueError, "from 0 to 12; give 0 to 11"),
    ],
)
def test_wrong_offsets_are_refused(device: str, arguments: Any, error: type[Exception], message: str) -> None:
    env: Any = gpu_envs.make("CartPole-v1", 3, device=device, max_episode_steps=LIMIT)
    env.reset(seed=1)
    with pytest.raises(error, match=message):
        env.stagger(**arguments)
    env.stagger(offsets=[0, LIMIT - 1, 2])
    assert offsets_of(env).tolist() == [0, LIMIT - 1, 2]


def test_without_a_time_limit_stagger_is_refused(device: str, tmp_path: Path) -> None:
    env: Any = gpu_envs.VectorEnv(walk(tmp_path, more={"max_episode_steps": None}), 3, device=device)
    env.reset(seed=1)
    with pytest.raises(ValueError, match="has no limit: leave it out"):
        env.stagger(seed=1)
