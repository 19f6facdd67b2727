"""Libraries that work without an adapter: a PyTorch script, RLlib and SuperSuit; and SBX with the SB3 adapter."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import numpy_of, subprocess_env

import gpu_envs

SCRIPT = Path(__file__).parents[2] / "examples" / "cleanrl_ppo.py"


def run(*command: str, **settings: str) -> str:
    """Run Python, assert success and return its output."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=subprocess_env(**one_thread, **settings),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- a PyTorch script in the style of CleanRL ---


@pytest.mark.slow
def test_a_plain_pytorch_script_learns_cartpole(device: str) -> None:
    pytest.importorskip("torch")
    printed = run("-W", "ignore:A Box observation space", str(SCRIPT), "--device", device, "--total-steps", "40000")
    match = re.search(r"mean return ([\d.]+)", printed)
    assert match, printed
    assert float(match[1]) >= 80  # random policy: 22; three seeds: 148, 220 and 467


def test_advantages_of_the_pytorch_script() -> None:
    pytest.importorskip("torch")
    from cleanrl_ppo import Args, compute_advantages

    args = Args(gamma=0.5, gae_lambda=0.5)
    rewards, values = np.full((3, 2), 1.0), np.array([[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    # in the second step the first replica terminates, and the second is truncated with a final value of 6
    next_values = np.array([[4.0, 4.0], [0.0, 6.0], [2.0, 2.0]])
    dones = np.array([[False, False], [True, True], [False, False]])
    # TD errors 1 + 0.5 * 4 - 2 = 1; 1 - 4 = -3, and 1 + 0.5 * 6 - 4 = 0; 1 + 0.5 * 2 - 8 = -6
    # advantages 1 + 0.25 * -3 = 0.25, and 1 + 0.25 * 0 = 1; the second step excludes the next episode
    expected = np.array([[0.25, 1.0], [-3.0, 0.0], [-6.0, -6.0]])
    np.testing.assert_array_equal(compute_advantages(rewards, values, next_values, dones, args), expected)


# --- RLlib ---

RLLIB = """
import logging
import sys

import gymnasium
import numpy
import ray
from ray.rllib.algorithms.ppo import PPOConfig

device, folder = sys.argv[1:]
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder)
config = (
    PPOConfig()
    # with the module before the id, which remote workers import
    .environment("gpu_envs:gpu_envs/CartPole-v1", env_config={"device": device, "max_episode_steps": 30})
    .env_runners(
        num_env_runners=0,
        num_envs_per_env_runner=8,
        gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
    )
    .training(train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=6, lr=1e-3)
    .debugging(seed=0)
)
algorithm = config.build_algo()
print(type(algorithm.env_runner.env.unwrapped).__module__)
for _ in range(5):
    print("trained", algorithm.train()["env_runners"]["episode_return_mean"])
played = {}
for i, episode in enumerate(algorithm.env_runner.sample(num_episodes=40)):
    flags = numpy.array([episode.is_terminated, episode.is_truncated])
    parts = (episode.get_observations(), episode.get_actions(), episode.get_rewards(), flags)
    played |= {f"{name}_{i}": numpy.asarray(part) for name, part in zip(("seen", "done", "paid", "flags"), parts)}
numpy.savez(f"{folder}/played.npz", **played)
algorithm.stop()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def rllib_home() -> Iterator[Path]:
    """Return a folder for Ray's files; its path is short, because socket paths are limited to 107 characters."""
    if not all(importlib.util.find_spec(name) for name in ("ray", "torch", "tree", "lz4", "ormsgpack")):
        pytest.skip("RLlib is not installed")
    with tempfile.TemporaryDirectory(prefix="ray_", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_rllib_trains_on_replicas(rllib_home: Path, device: str) -> None:
    """In a separate process, because Ray leaves threads and processes behind."""
    quiet = {"HOME": str(rllib_home), "RAY_USAGE_STATS_ENABLED": "0"}
    printed = run("-c", RLLIB, device, str(rllib_home), **quiet).splitlines()
    assert printed[0] == "gpu_envs.vector_env"
    means = [float(line.split()[1]) for line in printed if line.startswith("trained")]
    # the time limit is 30; a random policy has about 20
    assert len(means) == 5
    assert means[0] < 24 < 27 < means[-1], means

    with np.load(rllib_home / "played.npz") as file:
        played = {name: file[name] for name in file.files}
    env = gpu_envs.make("CartPole-v1", device="cpu", autoreset_mode="Disabled", max_episode_steps=30)
    ends = [replayed_end(env, played, i) for i in range(len(played) // 4)]
    assert len(ends) >= 40
    assert (True, False) in ends
    assert (False, True) in ends


def replayed_end(env: gpu_envs.VectorEnv, played: Mapping[str, np.ndarray], i: int) -> tuple[bool, bool]:
    """Replay an episode of RLlib step by step, and return how it ended."""
    seen, actions, rewards, flags = (played[f"{name}_{i}"] for name in ("seen", "done", "paid", "flags"))
    assert len(seen) == len(actions) + 1
    env.reset(seed=0)
    for name, value in zip(("x", "x_dot", "theta", "theta_dot"), seen[0], strict=True):
        env.state[name] = value
    terminations = truncations = np.zeros(1, np.bool_)
    for step, action in enumerate(actions):
        assert not terminations.any()
        assert not truncations.any()
        observations, reward, terminations, truncations, _ = env.step(np.array([action]))
        np.testing.assert_array_equal(observations[0], seen[step + 1])
        assert reward[0] == rewards[step]
    end = (bool(terminations[0]), bool(truncations[0]))
    assert end == tuple(flags.tolist())
    return end


# --- SuperSuit ---


@pytest.fixture
def supersuit() -> Any:
    pytest.importorskip("pettingzoo", minversion="1.27")
    return pytest.importorskip("supersuit", minversion="3.11")


def tag(**kwargs: Any) -> Any:
    from gpu_envs.adapters import pettingzoo

    return pettingzoo.parallel_env("TagGridWorld-v0", grid_length=5, num_taggers=2, **kwargs)


def test_supersuit_wrappers(supersuit: Any, device: str) -> None:
    """Through all wrappers, the last frame is the observation of the plain environment."""
    plain = tag(device=device, episode_length=15, use_full_observation=False)
    env = tag(device=device, episode_length=15, use_full_observation=False)
    wrapped = supersuit.pad_observations_v0(env)
    wrapped = supersuit.pad_action_space_v0(wrapped)
    wrapped = supersuit.dtype_v0(wrapped, np.float64)
    wrapped = supersuit.flatten_v0(wrapped)
    wrapped = supersuit.frame_stack_v1(wrapped, 3)
    rng = np.random.default_rng(0)
    ends = set()
    for episode in range(12):
        expected, _ = plain.reset(seed=episode)
        seen, _ = wrapped.reset(seed=episode)
        before = expected
        while plain.agents:
            for agent, frames in seen.items():
                assert (frames.shape, frames.dtype) == ((18,), np.float64)
                np.testing.assert_array_equal(frames[12:], expected[agent])
                np.testing.assert_array_equal(frames[6:12], before[agent] if before is not expected else 0)
            before = expected
            actions = {agent: int(rng.integers(5)) for agent in plain.possible_agents}
            expected, rewards, terminations, truncations, _ = plain.step(actions)
            seen, *results, _ = wrapped.step(actions)
            assert results == [rewards, terminations, truncations]
            ends |= set(zip(terminations.values(), truncations.values(), strict=True))
    assert ends == {(False, False), (True, False), (False, True)}
    assert wrapped.agents == []


def test_supersuit_black_death(supersuit: Any, device: str) -> None:
    """Inactive runners remain with zero observations until the episode ends."""
    from gpu_envs.adapters import pettingzoo

    sizes: dict[str, Any] = {"num_taggers": 4, "num_runners": 3, "grid_length": 4.0, "tagging_distance": 0.3}
    plain: Any = pettingzoo.parallel_env("TagContinuous-v0", device=device, episode_length=60, **sizes)
    wrapped = supersuit.black_death_v3(
        pettingzoo.parallel_env("TagContinuous-v0", device=device, episode_length=60, **sizes)
    )
    expected, _ = plain.reset(seed=0)
    seen, _ = wrapped.reset(seed=0)
    rng = np.random.default_rng(0)
    waited = 0
    while plain.agents:
        actions = {agent: rng.integers(plain.action_space(agent).nvec) for agent in plain.possible_agents}
        expected, rewards, *_ = plain.step({agent: actions[agent] for agent in plain.agents})
        seen, paid, *_ = wrapped.step(actions)
        for agent in wrapped.possible_agents:
            inactive = agent not in expected
            waited += inactive
            np.testing.assert_array_equal(seen[agent], np.zeros_like(seen[agent]) if inactive else expected[agent])
            assert paid[agent] == (0 if inactive else rewards[agent])
    assert waited > 0
    # SuperSuit 3.11 reports the end only after one more step without actions
    _, _, terminations, truncations, _ = wrapped.step({})
    assert all(terminations.values())
    assert all(truncations.values())
    assert wrapped.agents == []


def test_supersuit_frame_skip(supersuit: Any, device: str) -> None:
    """Repeated actions return the sum of rewards."""
    from gpu_envs.adapters import pettingzoo

    plain, env = (tag(device=device, episode_length=12) for _ in range(2))
    wrapped = supersuit.frame_skip_v0(env, (3, 3))
    plain.reset(seed=0)
    wrapped.reset(seed=0)
    rng = np.random.default_rng(0)
    while plain.agents:
        actions = {agent: int(rng.integers(5)) for agent in plain.possible_agents}
        expected: dict[str, float] = {}
        for _ in range(3):
            rewards = plain.step({agent: actions[agent] for agent in plain.agents})[1]
            expected |= {agent: expected.get(agent, 0.0) + reward for agent, reward in rewards.items()}
            if not plain.agents:
                break
        _, paid, *_ = wrapped.step({agent: actions[agent] for agent in wrapped.agents})
        assert paid == pytest.approx(expected)
        assert wrapped.agents == plain.agents
    turns = supersuit.frame_skip_v0(pettingzoo.env("TagGridWorld-v0", device=device), 2)
    turns.reset(seed=0)
    for agent in turns.agent_iter(30):
        turns.step(None if turns.last()[2] or turns.last()[3] else turns.action_space(agent).sample())


@pytest.mark.usefixtures("one_thread")
def test_stable_baselines_on_supersuit_vectors(supersuit: Any, device: str) -> None:
    """Agents as SuperSuit's environments, without this package's SB3 adapter."""
    sb3 = pytest.importorskip("stable_baselines3")
    import torch

    torch.manual_seed(0)
    single = supersuit.frame_stack_v1(tag(device=device, episode_length=20), 2)
    vector = supersuit.concat_vec_envs_v1(
        supersuit.pettingzoo_env_to_vec_env_v1(single), 3, num_cpus=0, base_class="stable_baselines3"
    )
    assert vector.num_envs == 3 * len(single.possible_agents)
    # SuperSuit's vectors have no seed(), so the model has no seed and the inner environment is seeded
    vector.venv.reset(seed=0)
    model = sb3.PPO("MlpPolicy", vector, n_steps=32, batch_size=96, n_epochs=2, device="cpu")
    start = [numpy_of(parameter) for parameter in model.policy.parameters()]
    model.learn(2 * 32 * vector.num_envs)
    assert model.num_timesteps == 2 * 32 * vector.num_envs
    assert any((numpy_of(new) != old).any() for new, old in zip(model.policy.parameters(), start, strict=True))
    assert np.isfinite(model.rollout_buffer.rewards).all()
    assert len(np.unique(model.rollout_buffer.episode_starts.sum(0))) > 1  # episodes end at different steps


# --- SBX: Stable-Baselines3's algorithms in JAX ---


@pytest.fixture
def sbx() -> Any:
    pytest.importorskip("stable_baselines3")
    if not all(importlib.util.find_spec(name) for name in ("sbx", "jax")):
        pytest.skip("SBX is not installed")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX reads it once
    import sbx

    return sbx


# SBX imports TensorFlow Probability, which uses deprecated names of JAX.
@pytest.mark.slow  # XLA compiles for seconds
@pytest.mark.filterwarnings(r"ignore:jax\.:DeprecationWarning")
@pytest.mark.parametrize(("algorithm", "env_id"), [("PPO", "CartPole-v1"), ("SAC", "Pendulum-v1")])
def test_sbx_trains_on_replicas(sbx: Any, algorithm: str, env_id: str, device: str) -> None:
    from gpu_envs.adapters import sb3

    venv = sb3.VecEnv(env_id, 8, device=device, max_episode_steps=40)
    settings: dict[str, Any] = {"n_steps": 32, "batch_size": 64} if algorithm == "PPO" else {"learning_starts": 64}
    model = getattr(sbx, algorithm)("MlpPolicy", venv, seed=0, **settings)
    observations = np.stack([venv.observation_space.sample() for _ in range(5)]).clip(-1, 1)
    before, _ = model.predict(observations, deterministic=True)
    model.learn(512)
    assert model.num_timesteps == 512
    after, _ = model.predict(observations, deterministic=True)
    if isinstance(venv.action_space, gymnasium.spaces.Box):
        assert (before != after).any()
    assert all(venv.action_space.contains(action) for action in after)
    episodes = list(model.ep_info_buffer)
    assert len(episodes) >= 8
    assert all(1 <= episode["l"] <= 40 for episode in episodes)
    if env_id == "CartPole-v1":
        assert all(episode["r"] == episode["l"] for episode in episodes)
