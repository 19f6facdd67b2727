"""The rsl_rl adapter: results, bounds of actions, episode lengths, logs and training."""

import copy
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import IDS, Make, assert_same_bits, is_discrete, random_actions

pytest.importorskip("torch")
pytest.importorskip("rsl_rl")

import rsl_rl_ppo
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from rsl_rl.utils.log_writer import LogWriter
from tensordict import TensorDict

import gpu_envs
from gpu_envs.adapters import rsl_rl

pytestmark = pytest.mark.usefixtures("one_thread")

CONTINUOUS = [env_id for env_id in IDS if not is_discrete(env_id)]


def plain_of(env_id: str, venv: Any, **kwargs: Any) -> Any:
    place = {"device": venv.device.type, "output": "torch", "autoreset_mode": "SameStep"}
    return gpu_envs.make(env_id, venv.num_envs, **place, **kwargs)


def actions_for(env_id: str, venv: Any, steps: int) -> torch.Tensor:
    """Return random actions of the environment's space, some out of bounds."""
    return torch.from_numpy(random_actions(env_id, steps, venv.num_envs)).to(venv.device)


# --- results ---


def test_a_goal_at_the_time_limit_is_no_time_out(device: str) -> None:
    """rsl_rl bootstraps every marked time-out, even of terminated episodes."""
    venv = rsl_rl.VecEnv("MountainCarContinuous-v0", 3, device=device, max_episode_steps=1)
    venv.env.state["position"] = np.array([0.4, 0.44, -0.5], np.float32)
    venv.env.state["velocity"] = np.array([0.07, 0.07, 0.0], np.float32)
    plain = plain_of("MountainCarContinuous-v0", venv, max_episode_steps=1)
    plain.reset(seed=0)
    plain.set_state(venv.env.get_state())
    actions = torch.ones(3, 1, device=device)
    _, _, terminations, truncations, _ = plain.step(actions)
    assert (terminations.tolist(), truncations.tolist()) == ([True, True, False], [True, True, True])
    _, _, dones, extras = venv.step(actions)
    assert dones.tolist() == [True, True, True]
    assert extras["time_outs"].tolist() == [False, False, True]
    plain.close()


@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_contract(env_id: str, device: str) -> None:
    venv = rsl_rl.VecEnv(env_id, 3, device=device)
    assert isinstance(venv, VecEnv)
    plain = plain_of(env_id, venv)
    assert (venv.num_envs, venv.device.type) == (3, device)
    assert venv.num_actions == int(np.prod(plain.single_action_space.shape))
    assert venv.max_episode_length == plain.max_episode_steps
    assert isinstance(venv.cfg, dict)
    observations = venv.get_observations()
    shape = (3, *plain.single_observation_space.shape)
    for _ in range(3):
        assert isinstance(observations, TensorDict)
        assert (list(observations.keys()), tuple(observations.batch_size)) == (["policy"], (3,))
        assert observations.device == venv.device
        seen = observations["policy"]
        assert (tuple(seen.shape), seen.dtype) == (shape, torch.float32)
        observations, rewards, dones, extras = venv.step(torch.zeros(3, venv.num_actions, device=device))
        dtypes = [rewards.dtype, dones.dtype, extras["time_outs"].dtype]
        assert dtypes == [torch.float32, torch.bool, torch.bool]
        assert {tuple(part.shape) for part in (rewards, dones, extras["time_outs"])} == {(3,)}
        assert {part.device for part in (rewards, dones, extras["time_outs"])} == {venv.device}
    plain.close()


@pytest.mark.parametrize(
    ("low", "high", "at_ends"),
    [
        ([-2.0], [2.0], [[-2.0], [2.0]]),
        ([5.0], [7.0], [[5.0], [7.0]]),
        ([-1.0, 0.0], [1.0, 10.0], [[-1.0, 0.0], [1.0, 10.0]]),
        ([-np.inf, 0.0], [np.inf, 4.0], [[-1.0, 0.0], [1.0, 4.0]]),
        ([0.0], [np.inf], [[-1.0], [1.0]]),
    ],
)
def test_actions_are_rescaled_to_bounds(low: list[float], high: list[float], at_ends: list[list[float]]) -> None:
    """-1 and 1 are mapped to the bounds; elements without two bounds are unchanged."""
    space = gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    middle, half = rsl_rl.vec_env.to_bounds(space, torch.device("cpu"))
    ends = torch.tensor([[-1.0], [1.0]]).expand(2, len(low))
    half = torch.ones(len(low)) if half is None else half
    assert (ends * half + (0 if middle is None else middle)).tolist() == at_ends


def test_shifted_bounds(device: str, make: Make) -> None:
    """A space that is not symmetric."""
    for low, high in ((-2.0, 2.0), (0.0, 1.0)):
        env = make("Pendulum-v1", 4, device=device, output="torch", autoreset_mode="SameStep")
        env.single_action_space = gymnasium.spaces.Box(low, high, (1,))
        venv = rsl_rl.VecEnv(env, seed=0)
        other = make("Pendulum-v1", 4, device=device, output="torch", autoreset_mode="SameStep")
        other.reset(seed=0)
        actions = torch.tensor([[-1.0], [-0.5], [0.0], [1.0]], device=device)
        expected = other.step(low + (actions + 1) / 2 * (high - low))[0]
        assert_same_bits(venv.step(actions)[0]["policy"], expected)


# --- episode lengths ---


def test_episode_lengths_can_be_assigned(device: str) -> None:
    """Each replica is truncated according to its assigned length."""
    venv = rsl_rl.VecEnv("Pendulum-v1", 100, device=device, max_episode_steps=20)
    assert venv.episode_length_buf.tolist() == [0] * 100
    venv.step(torch.zeros(100, 1, device=device))
    assert venv.episode_length_buf.tolist() == [1] * 100
    observations = venv.get_observations()["policy"].clone()
    steps = torch.randint_like(venv.episode_length_buf, high=int(venv.max_episode_length))
    venv.episode_length_buf = steps = steps.clamp(min=1)  # lengths below elapsed raise
    assert_same_bits(venv.get_observations()["policy"], observations)
    assert venv.episode_length_buf.tolist() == steps.tolist()
    assert venv.env.elapsed.tolist() == [1] * 100  # the time that rules read
    ended_at = torch.zeros(100, dtype=torch.int64, device=device)
    for t in range(1, 21):
        _, _, dones, extras = venv.step(torch.zeros(100, 1, device=device))
        assert_same_bits(extras["time_outs"], dones)
        ended_at[dones] = t
    assert ended_at.tolist() == (20 - steps).tolist()
    assert len(set(ended_at.tolist())) >= 15


def test_episode_lengths_of_other_dtypes(device: str) -> None:
    venv = rsl_rl.VecEnv("Pendulum-v1", 3, device=device)
    venv.episode_length_buf = torch.tensor([1, 2, 199], device=device)  # int64
    assert venv.episode_length_buf.tolist() == [1, 2, 199]
    venv.episode_length_buf -= 1
    assert venv.episode_length_buf.tolist() == [0, 1, 198]
    with torch.inference_mode():
        venv.episode_length_buf = torch.tensor([3, 4, 5], device=device)
    assert venv.episode_length_buf.tolist() == [3, 4, 5]
    assert venv.env.elapsed.tolist() == [0, 0, 0]


def test_invalid_episode_lengths_raise() -> None:
    venv = rsl_rl.VecEnv("Pendulum-v1", 3, device="cpu")
    for steps in ([0, 1, 200], [-1, 0, 0]):
        with pytest.raises(ValueError, match="use 0 to 199"):
            venv.episode_length_buf = torch.tensor(steps)
    with pytest.raises(ValueError, match=r"shape \(2,\): use \(3,\)"):
        venv.episode_length_buf = torch.tensor([1, 2])
    assert venv.episode_length_buf.tolist() == [0, 0, 0]
    venv.step(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="got 0 for replica 2, whose episode has already run 1 steps"):
        venv.episode_length_buf = torch.tensor([1, 1, 0])
    endless = rsl_rl.VecEnv("Pendulum-v1", 3, device="cpu", max_episode_steps=-1)
    assert endless.max_episode_length == 2**31 - 1
    with pytest.raises(ValueError, match="without a time limit: leave init_at_random_ep_len out"):
        endless.episode_length_buf = torch.tensor([1, 2, 3])


# --- logs ---


def test_log_of_last_episodes(device: str) -> None:
    """The means over the last finished episode of each replica."""
    venv = rsl_rl.VecEnv("Pendulum-v1", 6, device=device, max_episode_steps=10, seed=0)
    venv.episode_length_buf = torch.tensor([0, 0, 3, 3, 6, 6], device=device)
    last: dict[int, tuple[float, int]] = {}
    sums, lengths = np.zeros(6), np.zeros(6, int)  # of truncated episodes too
    log = None
    for t, actions in enumerate(actions_for("Pendulum-v1", venv, 25)):
        _, rewards, dones, extras = venv.step(actions)
        sums += rewards.cpu().numpy()
        lengths += 1
        for i in np.flatnonzero(dones.cpu().numpy()):
            last[int(i)] = sums[i], lengths[i]
            sums[i] = lengths[i] = 0
        log = extras["log"]
        if t % 2:  # a logger does not read it every step
            continue
        if not last:
            assert dict(log) == {}
            continue
        assert sorted(log) == ["/episode/length", "/episode/return", "/metrics/angle"]
        angles = venv.env.episode_metrics["angle"][sorted(last)]
        assert log["/metrics/angle"].item() == pytest.approx(angles.mean().item(), rel=1e-5)
        returns, counts = zip(*last.values(), strict=True)
        assert log["/episode/return"].device == venv.device
        assert log["/episode/return"].item() == pytest.approx(np.mean(returns), rel=1e-5)
        assert log["/episode/length"].item() == pytest.approx(np.mean(counts))
    assert len(last) == 6


class Scalars(LogWriter):  # type: ignore[misc]  # rsl_rl's types are not checked
    """Stores what rsl_rl's logger writes."""

    values: dict[str, list[float]] = {}  # noqa: RUF012  # rsl_rl creates the object, and the test reads it

    def __init__(self, log_dir: str) -> None:
        del log_dir
        Scalars.values = {}

    def add_scalar(self, tag: str, value: Any, *_: Any, **__: Any) -> None:
        Scalars.values.setdefault(tag, []).append(float(value))

    def ignored(self, *_: Any) -> None:
        """Do nothing."""

    store_config = save_model = save_file = save_video = stop = ignored


SMALL = rsl_rl_ppo.Args(num_envs=16, num_steps=10, updates=5, epochs=1, minibatches=2, device="cpu")


def test_the_logger_writes_the_log(tmp_path: Path) -> None:
    """It agrees with rsl_rl's values, because all replicas end their episodes in the same step."""
    venv = rsl_rl.VecEnv("Pendulum-v1", 16, device="cpu", max_episode_steps=20, seed=0)
    cfg = {**rsl_rl_ppo.settings(SMALL), "logger": {"class_name": Scalars}}
    runner = OnPolicyRunner(venv, cfg, str(tmp_path), "cpu")
    runner.learn(5)
    values = Scalars.values
    assert values["/episode/length"] == [20.0] * 4  # no episode ends in the first iteration
    assert values["Train/mean_episode_length"] == [20.0] * 4
    # episodes end in the second and fourth iteration; rsl_rl averages the last 100
    assert values["/episode/return"][0] == pytest.approx(values["Train/mean_reward"][0], rel=1e-5)
    assert values["/episode/return"][1] == values["/episode/return"][0]
    both = (values["/episode/return"][0] + values["/episode/return"][2]) / 2
    assert both == pytest.approx(values["Train/mean_reward"][2], rel=1e-5)


# --- runners ---


@pytest.mark.parametrize("kind", ["MLPModel", "RNNModel"])
def test_runners_accept_the_environment(device: str, kind: str, tmp_path: Path) -> None:
    """With checks for NaN, recurrent networks, repeated calls of ``learn``, saving and loading."""
    torch.manual_seed(0)
    venv = rsl_rl.VecEnv("MountainCarContinuous-v0", 16, device=device, seed=0, max_episode_steps=15)
    cfg = {**rsl_rl_ppo.settings(SMALL), "check_for_nan": True}
    for network in ("actor", "critic"):
        cfg[network] = {**cfg[network], "class_name": kind}
        if kind == "RNNModel":
            cfg[network] |= {"rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    runner = OnPolicyRunner(venv, cfg, None, str(venv.device))
    before = [weights.clone() for weights in runner.alg.actor.parameters()]
    runner.learn(2, init_at_random_ep_len=True)
    runner.learn(2)
    after = list(runner.alg.actor.parameters())
    assert all(weights.isfinite().all() for weights in after)
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    assert len(set(venv.episode_length_buf.tolist())) > 5
    runner.save(str(tmp_path / "model.pt"))
    runner.load(str(tmp_path / "model.pt"))


# --- learning ---


@pytest.mark.slow
def test_ppo_learns_to_swing_up() -> None:
    """A short run of the example: return -1200 with random actions; -176, -187 and -222 for three seeds."""
    args = rsl_rl_ppo.Args(device="cpu", updates=30)
    assert rsl_rl_ppo.evaluate(rsl_rl_ppo.train(args), args).mean() > -500


def test_a_copy_logs_its_episodes(device: str) -> None:
    venv = rsl_rl.VecEnv("Pendulum-v1", 2, device=device, max_episode_steps=4)
    twins = [copy.deepcopy(venv), pickle.loads(pickle.dumps(venv))]
    for twin in twins:
        for _ in range(4):
            _, _, _, extras = twin.step(torch.zeros(2, 1, device=twin.device))
        assert extras["log"]["/episode/length"].tolist() == [4.0]
        assert_same_bits(extras["log"]["/episode/return"], twin.env.episode_return.mean().reshape(1))
    assert not dict(venv.step(torch.zeros(2, 1, device=venv.device))[3]["log"])
