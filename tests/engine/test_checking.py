"""Checking mode: the error names the first number that is not finite."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from harness import PLACES, Make, Place, assert_all_same, numpy_of, to_place
from registered import Variant, draw_actions, make_variant, place_actions
from small_envs import CHASE, chase, walk

import gpu_envs
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.vector_env import VectorEnv

AFTER_FIVE = """s.pace += real(1);
    if (s.pace > real(4.5) && s.x > real(0)) s.x = square_root(-s.x);
    return {real(1), false};"""
"""The state becomes NaN in the fifth step of episodes that start at a positive x."""


def take_steps(env: Any, steps: int, action: int = 0) -> None:
    for _ in range(steps):
        env.step(np.full(env.num_envs, action))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_error_names_the_state_field(tmp_path: Path, place: Place) -> None:
    env = VectorEnv(
        walk(tmp_path, step=AFTER_FIVE), 7, device=place.device, output=place.output, threads=1, checking=True
    )
    env.reset(seed=3)
    replica = int(np.argmax(numpy_of(env.state["x"]) > 0))
    actions = to_place(np.zeros(7, np.int64), place)
    for _ in range(4):
        env.step(actions)
    with pytest.raises(gpu_envs.NotFiniteError) as caught:
        env.step(actions)
    error = caught.value
    assert (error.replica, error.agent, error.step) == (replica, None, 5)
    assert (error.source, error.field, error.element) == ("state", "x", ())
    assert np.isnan(error.value)
    assert str(error) == (
        f"Walk-v0: replica {replica}, step 5 of its episode: 'x' of the state is nan; the rules' step wrote it"
    )
    env.reset(seed=3)  # the environment is still usable
    env.step(actions)


def test_no_error_without_checking(tmp_path: Path) -> None:
    env = VectorEnv(walk(tmp_path, step=AFTER_FIVE), 7, device="cpu")
    env.reset(seed=3)
    for _ in range(8):
        env.step(np.zeros(7, np.int64))
    assert np.isnan(env.state["x"]).any()


SPEEDS = {"x": gpu_envs.Field(), "pace": gpu_envs.Field(), "speeds": gpu_envs.Field("real", 3)}
PARTS = spaces.Dict({"far": spaces.Box(-8, 8, (1, 2), np.float32), "image": spaces.Box(0, 9, (1,), np.uint8)})


@pytest.mark.parametrize(
    ("more", "bodies", "message", "where"),
    [
        (
            {},
            {"reset": "s.x = real(1) / real(0);\n    s.pace = 0;"},
            "step 0 .* 'x' of the state is inf; .* reset wrote",
            ("state", "x", ()),
        ),
        ({}, {"step": "return {log(real(0)), false};"}, "step 1 .*the reward is -inf", ("reward", None, ())),
        (
            {"observation": PARTS},
            {"observe": "observation.far[0] = 0;\n observation.far[1] = log(0.0f);\n observation.image[0] = 1;"},
            r"step 0 .*the observation 'far'\[0\]\[1\] is -inf",
            ("observation", "far", (0, 1)),
        ),
        (
            {"state": SPEEDS},
            {"step": "s.speeds[0] = s.speeds[1] = 0;\n s.speeds[2] = real(1) / real(0);\n return {0, false};"},
            r"step 1 .*'speeds' of the state\[2\] is inf",
            ("state", "speeds", (2,)),
        ),
    ],
    ids=["a reset", "a reward", "a part of an observation", "an element of an array"],
)
def test_error_names_source_field_and_element(
    tmp_path: Path, more: Any, bodies: dict[str, str], message: str, where: Any
) -> None:
    env = VectorEnv(walk(tmp_path, more=more, **bodies), 2, device="cpu", checking=True)

    def play() -> None:
        env.reset(seed=3)
        take_steps(env, 1)

    with pytest.raises(gpu_envs.NotFiniteError, match=f"replica 0, {message}") as caught:
        play()
    assert (caught.value.source, caught.value.field, caught.value.element) == where


def test_observations_are_checked_in_buffers_and_user_arrays(tmp_path: Path) -> None:
    spec = walk(tmp_path, observe="observation[0] = 0;\n    observation[1] = 1.0f / float(s.x < real(5));")
    env = VectorEnv(spec, 5, device="cpu", checking=True)
    env.reset(seed=3)
    env.state["x"] = [0, 0, 6, 0, 0]
    with pytest.raises(gpu_envs.NotFiniteError, match=r"replica 2, step 0 .*the observation\[1\] is inf") as caught:
        env.observe()
    assert (caught.value.source, caught.value.element) == ("observation", (1,))
    out = gpu_envs.Step(observations=np.zeros((5, 2), np.float32))
    with pytest.raises(gpu_envs.NotFiniteError, match=r"replica 2, step 1 "):
        env.step(np.ones(5, np.int64), out=out)


def test_final_observations_belong_to_the_ended_episode(tmp_path: Path) -> None:
    """In SameStep the state already is the next episode's, but the final observation is the ended episode's."""
    observe = "observation[0] = float(s.x);\n    observation[1] = 1.0f / float(!(s.pace > real(2)));"
    spec = walk(
        tmp_path,
        reset="s.x = 0;\n    s.pace = 0;",
        step="s.pace += real(1);\n    return {0, s.pace > real(2)};",
        observe=observe,
    )
    env = VectorEnv(spec, 2, device="cpu", autoreset_mode="SameStep", checking=True)
    env.reset(seed=0)
    take_steps(env, 2)
    with pytest.raises(gpu_envs.NotFiniteError, match=r"step 3 .*the final observation\[1\] is inf"):
        take_steps(env, 1)


@pytest.mark.parametrize("per_step", [False, True])
def test_rollouts_are_checked(tmp_path: Path, per_step: bool) -> None:
    env = VectorEnv(walk(tmp_path, step=AFTER_FIVE), 7, device="cpu", autoreset_mode="SameStep", checking=True)
    env.reset(seed=3)
    env.rollout(2, per_step=per_step)
    with pytest.raises(gpu_envs.NotFiniteError) as caught:
        env.rollout(6, per_step=per_step)
    assert caught.value.step == (5 if per_step else 8)


@pytest.mark.parametrize(
    ("agent", "statement", "message"),
    [
        (2, "w.x[i] = log(real(0));", "replica 0, prey_1, step 1 .* 'x' of the state is -inf"),
        (3, "w.reward[i] = log(real(0));", "replica 0, prey_2, step 1 .*the reward is -inf"),
    ],
)
def test_error_names_the_agent(tmp_path: Path, agent: int, statement: str, message: str) -> None:
    step = f"{CHASE['step']}\n    FOR_EACH_AGENT(i, AGENTS) {{ if (i == {agent}) {statement} }}"
    env = MultiAgentEnv(chase(tmp_path, step=step), 2, device="cpu", checking=True)
    env.reset(seed=0)
    with pytest.raises(gpu_envs.NotFiniteError, match=message) as caught:
        env.step({"hunter": np.ones((2, 1), np.int64), "prey": np.ones((2, 3), np.int64)})
    assert (caught.value.agent, caught.value.field) == (f"prey_{agent - 1}", "x" if agent == 2 else None)


def test_error_names_the_agent_of_an_observation(tmp_path: Path) -> None:
    row = CHASE["observe"] + "\n    if (i == 1) row[1] = log(0.0f);"
    env = MultiAgentEnv(chase(tmp_path, observe=row), 2, device="cpu", checking=True)
    with pytest.raises(gpu_envs.NotFiniteError, match=r"replica 0, prey_0, step 0 .*the observation\[1\] is -inf"):
        env.reset(seed=0)


def test_pickles_keep_checking() -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", checking=True)
    env.reset(seed=0)
    twin = pickle.loads(pickle.dumps(env))
    twin.state["x"] = np.nan
    with pytest.raises(gpu_envs.NotFiniteError):
        twin.observe()


def test_gymnasium_env_has_checking() -> None:
    env = gymnasium.make("gpu_envs/CartPole-v1", checking=True)
    env.reset(seed=0)
    env.unwrapped.state = [np.inf, 0, 0, 0]  # type: ignore[attr-defined]
    with pytest.raises(gpu_envs.NotFiniteError):
        env.step(0)


def test_checking_changes_no_result(make: Make, variant: Variant, mode: str, device: str) -> None:
    results = []
    for checking in (False, True):
        options: dict[str, Any] = {"autoreset_mode": mode, "checking": checking, "max_episode_steps": 6}
        env = make_variant(make, variant, 5, Place(device, "numpy"), **options)
        env.reset(seed=1)
        env.allow_frozen_steps()
        results.append([env.step(place_actions(env, actions))[:4] for actions in draw_actions(env, 20)])
        if mode != "Disabled" and not variant.has_team:
            env.rollout(20, per_step=True)
            env.rollout(20)
    assert_all_same(results)
