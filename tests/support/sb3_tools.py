"""What the tests of Stable-Baselines3 share: records of what went by, an environment to do sums on, single ones."""

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
    """The adapter, with a seed unless another (or None) is given."""
    return sb3.VecEnv(*args, **{"seed": 0, **kwargs})


@final
class Recorder(VecEnvWrapper):  # type: ignore[misc]  # Stable-Baselines3's types are not looked at
    """Copies all that goes in and comes out, in the moment it passes.

    Attributes:
        observations: What each reset and step gave.
        actions: What each step was given.
        rewards: What each step gave.
        dones: What each step gave.
        infos: What each step gave: copies of the dicts, and of the arrays in them.
        resets: How many there were.
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
    """Copies what the roll-out buffer has at the end of each roll-out, before the training turns it over.

    Attributes:
        kept: For each roll-out, its arrays ``[steps, environments, ...]`` by name.
        names: The local variables that callbacks saw at the first step.
        modes: Whether the policy was in its training mode, at each step.
    """

    NAMES = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, np.ndarray]] = []
        self.names: set[str] = set()
        self.modes: list[bool] = []

    def _on_step(self) -> bool:
        self.names = self.names or set(self.locals)
        self.modes.append(bool(self.model.policy.training))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.kept.append({name: getattr(buffer, name).copy() for name in self.NAMES})


def make_single_envs(env_id: str, count: int, **kwargs: Any) -> Any:
    """Stable-Baselines3's own vector of single environments, which the adapter must match."""

    def make() -> Any:
        return Monitor(gymnasium.make(f"gpu_envs/{env_id}", device="cpu", **kwargs))

    return DummyVecEnv([make] * count)


def actions_for(venv: Any, steps: int, seed: int = 0) -> np.ndarray:
    """Random actions within the space, ``[steps, environments, ...]``."""
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
    """An environment to do sums on: it counts, pays what it shows, and breaks where it is told to. Not registered."""
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
