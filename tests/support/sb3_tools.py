"""What the tests of Stable-Baselines3 share: records of what went by, an environment to do sums on, single ones."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

import gpu_envs
from gpu_envs import EnvSpec, Param, VectorEnv
from gpu_envs.adapters import sb3

Info: TypeAlias = dict[str, Any]


def vec(*args: Any, **kwargs: Any) -> Any:
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
        self.infos: list[list[Info]] = []
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
        self.infos.append(copied(infos))
        return observations, rewards, dones, infos


def copied(infos: Sequence[Info]) -> list[Info]:
    """The same dicts with copies of the arrays in them."""
    return [{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in info.items()} for info in infos]


@final
class Keeper(BaseCallback):  # type: ignore[misc]  # as above
    """Copies what the roll-out buffer has at the end of each roll-out, before the training turns it over.

    Attributes:
        kept: For each roll-out, its arrays ``[steps, environments, ...]`` by name.
        names: The local variables that callbacks saw at the first step.
        modes: Whether the policy was in its training mode, at each step.
        at_end: Called at the end of each roll-out, while the policy is still the one that acted.
    """

    NAMES = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.kept: list[dict[str, np.ndarray]] = []
        self.names: set[str] = set()
        self.modes: list[bool] = []
        self.at_end = at_end

    def _on_step(self) -> bool:
        self.names = self.names or set(self.locals)
        self.modes.append(bool(self.model.policy.training))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.kept.append({name: getattr(buffer, name).copy() for name in self.NAMES})
        self.at_end()


def single_envs(env_id: str, count: int, **kwargs: Any) -> Any:
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


# --- an environment to do sums on ---

CLOCK_HEADER = """// A clock: it counts, pays what it shows, and breaks where it is told to.

FN void reset(State& s, const Params& p, Random&) {
    s.count = p.first;
}

FN Outcome step(State& s, const Params& p, const Action&, Random&) {
    s.count += p.tick;
    return {s.count, s.count >= p.broken};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = s.count;
}
"""

CLOCK = EnvSpec(
    id="Clock-v0",
    header="",
    description="Counts, and pays the count.",
    state=("count",),
    params={
        "first": Param(0.0, "shown at the start"),
        "tick": Param(1.0, "added in a step"),
        "broken": Param(1000.0, "ends the episode"),
    },
    observation=Box(-1e6, 1e6, (1,), np.float32),
    action=Discrete(2),
    max_episode_steps=3,
)


def clock(folder: Path, num_envs: int, **kwargs: Any) -> VectorEnv:
    """Replicas of it. It is not registered, as all tests run over what is."""
    header = folder / "clock.cuh"
    header.write_text(CLOCK_HEADER, encoding="utf-8")
    spec = dataclasses.replace(CLOCK, header=str(header))
    return gpu_envs.VectorEnv(spec, num_envs, autoreset_mode="SameStep", **kwargs)
