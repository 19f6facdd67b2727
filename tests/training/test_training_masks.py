"""Action masks in training (forbidden actions are never taken), and observations of all spaces."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from harness import assert_same_bits
from masked_envs import CHOICES, LENGTH, PICTURED
from trainers import small_run, without_times

torch = pytest.importorskip("torch")

import gpu_envs  # noqa: E402
from gpu_envs.engine.random_actions import sample_masked  # noqa: E402
from gpu_envs.replays import record  # noqa: E402
from gpu_envs.training import Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.engines.torch import TorchPolicy  # noqa: E402
from gpu_envs.training.record import checkpoint  # noqa: E402
from gpu_envs.training.rollout.plan import Flattening  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "masked_environments")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_random_actions_respect_masks(library: str) -> None:
    numbers = np.random.default_rng(0)

    def drawn_of(space: Any, mask: np.ndarray, elements: int) -> np.ndarray:
        made = np.array if library == "numpy" else torch.tensor
        return np.asarray(sample_masked(space, made(mask), made(numbers.random((*mask.shape[:-1], elements)))))

    space = gymnasium.spaces.MultiDiscrete([3, 2], start=[2, 0])
    mask = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]], np.int8)
    drawn = drawn_of(space, np.broadcast_to(mask, (6000, 2, 5)), 2)
    assert drawn.shape == (6000, 2, 2)
    assert drawn.dtype == np.int64
    assert np.isin(drawn[:, 0, 0], (2, 4)).all()
    assert (drawn[:, 1] == (3, 1)).all()
    for share in ((drawn[:, 0, 0] == 2).mean(), (drawn[:, 0, 1] == 1).mean()):  # the second element is not masked
        assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 6000)
    alone = drawn_of(gymnasium.spaces.Discrete(3, start=-1), np.array([[0, 0, 1], [0, 1, 0]]), 1)
    assert alone.tolist() == [1, 0]
    nothing = drawn_of(gymnasium.spaces.Discrete(3), np.zeros((6000, 3), np.int8), 1)
    for choice in range(3):
        assert abs((nothing == choice).mean() - 1 / 3) < 5 * math.sqrt(2 / 9 / 6000)


# --- training ---


def corridor(device: str, env: str = "MaskedCorridor-v0", **settings: Any) -> Any:
    return small_run(device, env, **({"num_envs": 16, "learning_rate": 0.01} | settings))


def forbidden_in(trainer: Trainer) -> int:
    """Return the number of forbidden actions in the last horizon, which have negative rewards."""
    return sum(int((storage.rewards < 0).sum()) for storage in trainer.horizon_env.storage.values())


RUNS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"normalise_observations": True, "normalise_rewards": True, "entropy_weight": 0.01, "stagger": True},
    "a2c": {"algorithm": "a2c", "entropy_weight": 0.01},
    "one trunk": {"shared_trunk": True, "precision": "bf16"},
    "stopped early": {"target_kl": 0.01, "value_clip": 0.2},
    "image": {"env": "PicturedCorridor-v0", "normalise_observations": True},
    "bytes": {"env": "BytesCorridor-v0"},
    "square": {"env": "SquareCorridor-v0", "horizon": 50},  # longer than the limit of episodes
    "team": {"env": "MaskedTeam-v0"},
    "one policy for some": {"env": "MaskedTeam-v0", "policies": {"walker_1": "hiker"}, "shared_trunk": True},
    "random others": {"env": "MaskedTeam-v0", "policies": {"walker_0": "random", "hiker": "random"}},
}


@pytest.mark.parametrize("name", RUNS)
def test_forbidden_actions_are_never_taken(name: str, tmp_path: Path, device: str) -> None:
    """Also after resuming, bit for bit as without the interruption."""
    config = corridor(device, **RUNS[name])
    trainer, other = Trainer(config), Trainer(config)
    for iteration in range(4):
        trainer.iterate(1)
        assert forbidden_in(trainer) == 0
        if iteration == 1:
            checkpoint.save(tmp_path / "middle.pt", trainer.state())
    for learner in trainer.learners.values():
        assert torch.isfinite(learner.metrics[:6]).all()
        assert learner.metrics[5] > 0
        if name == "a2c":  # with a single epoch the policy has not changed since it acted
            assert abs(learner.metrics[3]) < 1e-3
    other.load(checkpoint.load(tmp_path / "middle.pt", other.device))
    other.iterate(2)
    assert_same_bits(without_times(trainer.state()), without_times(other.state()), "state")
    for greedy in (True, False):
        results = trainer.evaluate(8, greedy=greedy)
        assert all(result.mean >= 0 for result in results.values())


def test_masks_speed_up_learning(device: str) -> None:
    """With masks two choices are left in place of six; the other four end the episode."""
    reached = {}
    for env in ("MaskedCorridor-v0", "BareCorridor-v0"):
        trainer = Trainer(corridor(device, env, horizon=32, epochs=4))
        trainer.iterate(12)
        assert (forbidden_in(trainer) > 0) == (env == "BareCorridor-v0")
        reached[env] = trainer.evaluate(64, greedy=False)["agent"].mean
    assert reached["MaskedCorridor-v0"] > 0.95
    assert reached["BareCorridor-v0"] < 0.5


def test_kernels_of_small_networks_have_no_masks(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CPU's kernels have masks")
    with pytest.raises(ValueError, match="fused is True, but the environment has action masks"):
        Trainer(corridor(device, fused=True))
    assert isinstance(Trainer(corridor(device, hidden=(64, 64))).learners["agent"].networks, TorchPolicy)


# --- observations of other spaces ---


def test_the_row_of_a_dict() -> None:
    """Keys in the space's order, bytes from 0 to 1, integers unchanged; a single number is a row of length 1."""
    single: dict[str, gymnasium.Space[Any]] = {
        "byte": Box(0, 255, (), np.uint8),
        "float": Box(-1, 1, (), np.float32),
        "whole": Box(-9, 9, (), np.int32),
    }
    space = gymnasium.spaces.Dict({**PICTURED.spaces, **single})
    way = Flattening.of(space)
    given = {
        "near": torch.tensor([[0.5], [0.25]]),
        "image": torch.arange(54, dtype=torch.uint8).view(2, 3, 3, 3),
        "counts": torch.tensor([[3, -70], [5, 2**20]], dtype=torch.int32),
        "byte": torch.tensor([51, 255], dtype=torch.uint8),
        "float": torch.tensor([-0.5, 0.25]),
        "whole": torch.tensor([-3, 9], dtype=torch.int32),
    }
    parts = {
        key: part.reshape(2, -1).float() * (1 / 255 if part.dtype == torch.uint8 else 1) for key, part in given.items()
    }
    expected = torch.cat([parts[key] for key in space.spaces], 1)
    assert way.features == 33
    assert torch.equal(way.rows(given, 1), expected)
    assert torch.equal(way.rows({key: part.unsqueeze(0) for key, part in given.items()}, 2).view(2, 33), expected)
    rows = torch.full((2, 33), math.nan)
    way.write(given, rows)
    assert torch.equal(rows, expected)
    for key, part in single.items():
        assert torch.equal(Flattening.of(part).rows(given[key], 1).view(2, 1), parts[key])


def test_flat_rows_cost_nothing(device: str) -> None:
    for env in ("CartPole-v1", "TagGridWorld-v0"):
        roles = Trainer(small_run(device, env)).horizon_env.roles
        assert not any((role.flattening and role.flattening.pieces) or role.masked for role in roles)
    square = Flattening.of(Box(0, 1, (3, 3), np.float32))
    assert (square.features, square.pieces) == (9, ())
    given = torch.arange(18.0).view(2, 3, 3)
    assert square.rows(given, 1).data_ptr() == given.data_ptr()


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.Dict({"a": gymnasium.spaces.MultiBinary(3)}),
        Box(0, 1, (2,), np.float64),
    ],
)
def test_what_cannot_be_flattened(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ValueError, match="is not supported; give a Box"):
        Flattening.of(space)


@pytest.mark.parametrize("env", ["PicturedCorridor-v0", "BytesCorridor-v0", "SquareCorridor-v0"])
def test_rows_of_a_horizon_match_the_environment(env: str, device: str) -> None:
    """Observations, final observations, rewards and ends against an environment with the same seed."""
    trainer = Trainer(corridor(device, env, seed=5))
    horizon_env = trainer.horizon_env
    storage: Any = horizon_env.storage["agent"]
    way = Flattening.of(horizon_env.env.single_observation_space)
    other = gpu_envs.make(env, 16, device=device, output="torch", autoreset_mode="SameStep")
    observations, _ = other.reset(seed=9)
    horizon_env.reset(9)
    storage.carry_over()
    ends = 0
    numbers = np.random.default_rng(0)
    for t in range(horizon_env.horizon):
        assert torch.equal(storage.observations[t, :, 0], way.rows(observations, 1))
        assert torch.equal(storage.action_mask[t, :, 0], other.action_mask)
        actions = torch.as_tensor(numbers.integers(0, CHOICES, 16), device=horizon_env.device)
        observations, rewards, terminations, truncations, infos = other.step(actions)
        horizon_env.step(t, {"agent": actions.view(16, 1, 1)})
        assert torch.equal(storage.rewards[t, :, 0], rewards)
        over = terminations | truncations
        ends += int(over.sum())
        assert torch.equal(storage.final_obs[t, :, 0][over], way.rows(infos["final_obs"], 1)[over])
    assert torch.equal(storage.observations[-1, :, 0], way.rows(observations, 1))
    assert ends > 20


# --- runs and replays ---


@pytest.mark.parametrize("env", ["MaskedCorridor-v0", "PicturedCorridor-v0", "MaskedTeam-v0"])
def test_runs_are_saved_evaluated_and_replayed(env: str, tmp_path: Path, device: str) -> None:
    run = tmp_path / "run"
    config = corridor(device, env, run_dir=str(run), total_steps=16 * 16 * 3, checkpoint_interval=1)
    train(config, progress=False)
    resume(run, total_steps=16 * 16 * 5, progress=False)
    roles = gpu_envs.make(env).roles if env == "MaskedTeam-v0" else ("agent",)
    for policies in ({}, dict.fromkeys(roles, "random"), dict.fromkeys(roles, f"frozen:{run}")):
        results = evaluate(run, episodes=20, greedy=False, device=device, policies=policies)
        assert all(result.mean >= 0 for result in results.values())
        replay = record(run, replicas=4, steps=30, greedy=False, device=device, policies=policies)
        assert replay.state["forbidden"].max() == 0
        assert (replay.state["place"] > 0).any()
    replay.save_html(tmp_path / "page.html")


@pytest.mark.parametrize("env", ["MaskedCorridor-v0", "BytesCorridor-v0", "PicturedCorridor-v0", "MaskedTeam-v0"])
def test_random_actions_in_replays(env: str, device: str) -> None:
    replay = record(env, replicas=6, steps=60, device=device)
    assert replay.state["forbidden"].max() == 0
    assert replay.ends.any()
    assert_same_bits(replay.state, record(env, replicas=6, steps=60, device=device).state)
    own = gpu_envs.make(env, 3, device=device, output="torch", autoreset_mode="SameStep")
    assert record(own, steps=40, seed=1).state["forbidden"].max() == 0


def test_user_functions_get_unmodified_observations(device: str) -> None:
    env = gpu_envs.make("PicturedCorridor-v0", 4, device=device)
    seen = []

    def onward(observations: Mapping[str, np.ndarray], masks: np.ndarray) -> np.ndarray:
        seen.append({key: value.shape for key, value in observations.items()} | {"masks": masks.shape})
        chosen: np.ndarray = (observations["counts"][:, 0] * 5 + 2) % CHOICES
        return chosen

    replay = record(env, policy=onward, episodes=1, seed=0)
    assert seen[0] == {"counts": (4, 2), "image": (4, 3, 3, 3), "near": (4, 1), "masks": (4, CHOICES)}
    assert (replay.returns()["agent"] == 1).all()
    assert set(replay.last) <= {LENGTH - 1, LENGTH}
