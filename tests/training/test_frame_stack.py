"""Stacks of frames: what policies see in training, in evaluation and in environments of users."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import FIELD, FIELD_PARAMS, GRID, last_checkpoint, small_run

torch = pytest.importorskip("torch")

import gpu_envs  # noqa: E402
from gpu_envs import replays  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.seeds import derived_seed  # noqa: E402
from gpu_envs.training import evaluate, load_policies, resume, train  # noqa: E402
from gpu_envs.training.rollout.horizon_env import HorizonEnv  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402
from gpu_envs.wrappers import FrameStackObservation  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("frames", [2, 5])
def test_stacks_equal_the_wrapper(device: str, frames: int) -> None:
    """Over the ends of episodes, terminated or truncated, with their final observations."""
    config = small_run(device, frame_stack=frames, params={"max_episode_steps": 15})
    plan = Plan(config, device, 8)
    horizon_env = HorizonEnv(plan, 60)
    env: Any = gpu_envs.make(
        "CartPole-v1", 8, device=device, output="torch", autoreset_mode="SameStep", **config.params
    )
    wrapped = FrameStackObservation(env, frames)
    horizon_env.reset(7)
    stacks, _ = wrapped.reset(seed=7)
    horizon_env.carry_over()
    storage: Any = horizon_env.storage["agent"]
    rng, ends = np.random.default_rng(0), 0
    for t in range(60):
        np.testing.assert_array_equal(numpy_of(storage.rows(t)[:, 0]), numpy_of(stacks.flatten(1)))
        actions = torch.as_tensor(rng.integers(0, 2, 8), device=device)
        horizon_env.step(t, {"agent": actions.view(8, 1, 1)})
        stacks, *_, infos = wrapped.step(actions)
        ended = numpy_of(infos["_final_obs"])
        ends += ended.sum()
        final = numpy_of(storage.final_rows[t, :, 0])
        np.testing.assert_array_equal(final[ended], numpy_of(infos["final_obs"].flatten(1))[ended])
    assert ends > 20


def test_stacks_of_a_team(device: str) -> None:
    """Each agent's row has its own last observations; they start anew with the replica's episode."""
    horizon_env = HorizonEnv(Plan(small_run(device, FIELD, params=FIELD_PARAMS, frame_stack=3), device, 4), 50)
    horizon_env.reset(1)
    horizon_env.carry_over()
    before: dict[str, Any] = {}
    for t in range(50):
        for role in horizon_env.roles:
            rows = numpy_of(horizon_env.observations(t)[role.name]).reshape(4, role.agents, 3, -1)
            started = np.ones(4, bool) if t == 0 else numpy_of(horizon_env.ended[t - 1])
            if t > 0:
                np.testing.assert_array_equal(rows[~started, :, :2], before[role.name][~started, :, 1:])
            np.testing.assert_array_equal(rows[started], np.repeat(rows[started, :, 2:], 3, 2))
            before[role.name] = rows
        actions = {
            r.name: torch.ones((4, r.agents, r.head.width), dtype=torch.int32, device=device) for r in horizon_env.roles
        }
        horizon_env.step(t, actions)
    assert horizon_env.ended.sum() > 0


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", GRID])
def test_acting_sees_what_an_evaluation_does(device: str, tmp_path: Path, env_id: str, mode: str) -> None:
    """The first episodes of an environment that a user steps have the returns of an evaluation."""
    config = small_run(device, env_id, frame_stack=2, run_dir=str(tmp_path / "run"), total_steps=512)
    train(config, progress=False)
    loaded = load_policies(tmp_path / "run", device=device)
    env = loaded.make(6, autoreset_mode=mode)
    act = loaded.acting_in(env)
    evaluations = evaluate(tmp_path / "run", episodes=6, device=device)
    observations, _ = env.reset(seed=derived_seed(loaded.seed, "evaluation"))
    name, expected = list(evaluations.items())[-1]
    returns, running = np.zeros(expected.returns.shape[1:]), np.ones(6, bool)
    while running.any():
        observations, rewards, terminations, truncations, _ = env.step(act(observations))
        results = [r[name] if isinstance(r, dict) else r for r in (rewards, terminations, truncations)]
        rewards, terminations, truncations = map(numpy_of, results)
        returns[running] += rewards[running]
        done = (terminations | truncations).reshape(6, -1).all(1)
        running &= ~done
        if mode == "Disabled" and done.any():
            observations, _ = env.reset(options={"reset_mask": torch.as_tensor(done, device=device)})
    np.testing.assert_allclose(returns, expected.returns[0], rtol=1e-5)


def test_it_learns_and_resumes_bit_for_bit(device: str, tmp_path: Path) -> None:
    config = small_run(device, frame_stack=3, total_steps=8 * 16 * 12, checkpoint_interval=5)
    for name, steps in (("full", 12), ("part", 7)):
        of_run: Any = {"run_dir": str(tmp_path / name), "total_steps": 8 * 16 * steps}
        train(dataclasses.replace(config, **of_run), progress=False)
    resume(tmp_path / "part", total_steps=8 * 16 * 12, progress=False)
    full, part = (last_checkpoint(tmp_path / name) for name in ("full", "part"))
    assert full["learners"]["agent"]["module"]["actor.0.weight"].shape == (16, 12)
    assert_same_bits(full["learners"], part["learners"])


def test_frozen_policies_see_their_stacks(tmp_path: Path) -> None:
    """In an environment that is given by its ID; in another run only if it stacks as many frames."""
    for name, frames in (("one", 1), ("three", 3)):
        train(small_run("cpu", frame_stack=frames, run_dir=str(tmp_path / name), total_steps=256), progress=False)
    for name in ("one", "three"):
        replay = replays.record("CartPole-v1", policies={"agent": f"frozen:{tmp_path / name}"}, replicas=2)
        assert (
            replay.returns()["agent"].tolist()
            == replays.record(tmp_path / name, replicas=2, seed=0).returns()["agent"].tolist()
        )
    with pytest.raises(
        CheckpointError, match="features were 12 and are 4 now; restore the former spaces and frame_stack"
    ):
        evaluate(tmp_path / "one", policies={"agent": f"frozen:{tmp_path / 'three'}"}, episodes=2)
    with pytest.raises(ValueError, match="params is given, but source is trained policies"):
        replays.record(load_policies(tmp_path / "one"), params={"gravity": 1.0})


def test_the_setting_is_checked() -> None:
    with pytest.raises(ValueError, match="frame_stack is 0; give an integer from 1 up"):
        small_run("cpu", frame_stack=0)
