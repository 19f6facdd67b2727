"""Helpers for tests of the Stable-Baselines3 adapter: recorders, and a deterministic environment."""

from pathlib import Path
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from harness import numpy_of, on_host
from small_envs import walk
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

import gpu_envs
from gpu_envs import Param
from gpu_envs.adapters import sb3


def make_vec(*args: Any, **kwargs: Any) -> Any:
    """Makes the adapter, with the default seed 0."""
    return sb3.VecEnv(*args, **{"seed": 0, **kwargs})


@final
class Recorder(VecEnvWrapper):  # type: ignore[misc]  # mypy does not follow Stable-Baselines3's types
    """Wrapper that copies all actions and results.

    Attributes:
        observations: Observations of each reset and step.
        actions: Actions of each step.
        rewards: Rewards of each step.
        dones: Dones of each step.
        infos: Infos of each step, with copies of their arrays.
        resets: Number of resets.
    """

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []
        self.infos: list[list[dict[str, Any]]] = []
        self.resets = 0

    def reset(self) -> Any:
        observations = self.venv.reset()
        self.observations.append(observations.copy())
        self.resets += 1
        return observations

    def step_async(self, actions: Any) -> None:
        self.actions.append(np.array(actions))
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        self.observations.append(observations.copy())
        self.rewards.append(rewards.copy())
        self.dones.append(dones.copy())
        self.infos.append(on_host(infos))
        return observations, rewards, dones, infos


@final
class RolloutKeeper(BaseCallback):  # type: ignore[misc]  # as above
    """Callback that copies the rollout buffer at the end of each rollout, before training flattens it.

    Attributes:
        rollouts: Arrays ``[steps, environments, ...]`` of each rollout, by name.
        names: Names of the local variables that callbacks get at the first step.
        modes: Whether the policy was in training mode, at each step.
    """

    NAMES = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[dict[str, np.ndarray]] = []
        self.names: set[str] = set()
        self.modes: list[bool] = []

    def _on_step(self) -> bool:
        self.names = self.names or set(self.locals)
        self.modes.append(bool(self.model.policy.training))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.rollouts.append({name: getattr(buffer, name).copy() for name in self.NAMES})


def make_single_envs(env_id: str, count: int, **kwargs: Any) -> Any:
    """Makes Stable-Baselines3's vector of single environments, which the adapter must match."""

    def make() -> Any:
        return Monitor(gymnasium.make(f"gpu_envs/{env_id}", device="cpu", **kwargs))

    return DummyVecEnv([make] * count)


def actions_for(venv: Any, steps: int, seed: int = 0) -> np.ndarray:
    """Returns random actions within the space, ``[steps, environments, ...]``."""
    rng = np.random.default_rng(seed)
    space, shape = venv.action_space, (steps, venv.num_envs)
    if isinstance(space, Discrete):
        return rng.integers(space.start, space.start + space.n, shape)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return rng.integers(space.start, space.start + space.nvec, (*shape, *space.shape))
    return rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)


def parameters_of(model: Any) -> list[np.ndarray]:
    return [numpy_of(parameter.detach()) for parameter in model.policy.parameters()]


def make_clock(folder: Path, num_envs: int, **kwargs: Any) -> gpu_envs.VectorEnv:
    """Makes an unregistered environment that counts steps, rewards the count, and terminates at ``broken``."""
    more = {
        "state": ("count",),
        "params": {"first": Param(0.0), "tick": Param(1.0), "broken": Param(1000.0)},
        "observation": Box(-1e6, 1e6, (1,), np.float32),
        "max_episode_steps": 3,
    }
    rules = {
        "reset": "s.count = p.first;",
        "step": "s.count += p.tick;\n    return {s.count, s.count >= p.broken};",
        "observe": "observation[0] = s.count;",
    }
    spec = walk(folder, "Clock-v0", more=more, **rules)
    return gpu_envs.VectorEnv(spec, num_envs, autoreset_mode="SameStep", **kwargs)
