# pyright: strict
"""A typed program of a user, which is checked by mypy and pyright with an installed wheel, and run."""

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

import gpu_envs
from gpu_envs import EnvSpec, Evaluation, MultiAgentEnv, Param, Rollout, Rules, Step, VectorEnv, replays
from gpu_envs.adapters import sb3
from gpu_envs.adapters.pettingzoo import TeamEnv, TeamVectorEnv, parallel_env, vector_env
from gpu_envs.rules import Action, Observation, Params, Random, State, clip
from gpu_envs.testing import Report, check_environment
from gpu_envs.training import PPO, SAC, Network, Policy, Result, Run, Schedule, Trainer, evaluate, train
from gpu_envs.wrappers import NormalizeObservation, RecordEpisodeStatistics


def reset(s: State, p: Params, random: Random) -> None:
    s.x = random.uniform(-1.0, 1.0)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    s.x = clip(s.x + p.push * (action - 1), -3.0, 3.0)
    return 1.0 - abs(s.x), abs(s.x) > 2.0


def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.x


BOAT = EnvSpec(
    id="Boat-v0",
    header=Rules(reset=reset, step=step, observe=observe),
    state=("x",),
    params={"push": Param(0.1, "metres a step", positive=True)},
    observation=Box(-np.inf, np.inf, (1,), np.float32),
    action=Discrete(3),
    max_episode_steps=50,
)


def stepped() -> float:
    """NumPy in and out."""
    env = gpu_envs.make(BOAT, num_envs=8, push=np.linspace(0.1, 0.5, 8), autoreset_mode="SameStep")
    env.reset(seed=0)
    observations, rewards, *_ = env.step(env.action_space.sample())
    rollout: Rollout = env.rollout(100)
    env.params["push"] = 0.2
    snapshot = env.get_state()
    env.set_state(snapshot)
    env.close()
    return float(rollout.episodes.sum() + observations.sum() + rewards.sum())


def wrapped() -> torch.Tensor:
    """Tensors, into memory of the user's, through wrappers."""
    inner: VectorEnv = gpu_envs.make("Pendulum-v1", 8, output="torch", autoreset_mode="SameStep")
    env = NormalizeObservation(RecordEpisodeStatistics(inner))
    env.reset(seed=[*range(8)])
    rewards = torch.zeros(8)
    env.step(torch.zeros(8, 1), out=Step(rewards=rewards))
    return rewards


def in_teams() -> dict[str, tuple[int, ...]]:
    """By role, and agent by agent through PettingZoo."""
    env: MultiAgentEnv = gpu_envs.make("TagGridWorld-v0", 4)
    observations, _ = env.reset(seed=0)
    actions = {role: space.sample() for role, space in env.action_spaces.items()}
    observations, _, terminations, *_ = env.step(actions)
    one: TeamEnv = parallel_env("TagGridWorld-v0")
    many: TeamVectorEnv = vector_env("TagGridWorld-v0", 4)
    one.reset(seed=0)
    many.reset(seed=0)
    return {role: (*array.shape, *terminations[role].shape) for role, array in observations.items()}


def trained() -> float:
    """The bundled trainer and Stable-Baselines3's."""
    algorithm = PPO(learning_rate=Schedule.of(1e-3), target_kl=0.1)
    run = Run(env="CartPole-v1", num_envs=8, horizon=16, total_steps=256, device="cpu", algorithm=algorithm)
    result: Result = train(run)
    assert result.run_dir is not None
    found: Evaluation = evaluate(result.run_dir, episodes=4)["agent"]
    random = gpu_envs.evaluate(None, "CartPole-v1", episodes=4)["agent"]
    replays.record(result.run_dir, replicas=1, steps=5).save_html("replay.html")
    Trainer(run).run()
    tagger = Policy(SAC(learning_rate="0:0.001,1:0"), Network(hidden=(8, 8)))
    Run(env="TagContinuous-v0", policies={"tagger": tagger, "runner": "random"}).for_policy("tagger")
    model = sb3.PPO("MlpPolicy", sb3.VecEnv("CartPole-v1", 8), n_steps=8, batch_size=64, device="cpu")
    model.learn(64)  # pyright: ignore[reportUnknownMemberType]  # Stable-Baselines3's own
    return float((found.returns - random.returns).mean())


def checked() -> Report:
    """For the author's own tests."""
    return check_environment(BOAT)


if __name__ == "__main__":
    print(stepped(), wrapped(), in_teams(), trained())
