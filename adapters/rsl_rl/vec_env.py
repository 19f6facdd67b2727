"""An rsl_rl ``VecEnv`` for environments with a single agent and continuous actions."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.adapters.opening import open_env
from gpu_envs.engine.results import Step
from gpu_envs.extras import extra
from gpu_envs.seeds import Seed
from gpu_envs.specs.base import Spec
from gpu_envs.vector_env import VectorEnv

with extra("rsl-rl", "rsl_rl", "tensordict", "torch"):
    import torch
    from rsl_rl.env import VecEnv as RslRlVecEnv
    from tensordict import TensorDict

GROUP = "policy"
"""Default observation group of rsl_rl, used unless the space is a Dict."""

NEVER = 2**31 - 1
"""``max_episode_length`` without a time limit."""


@final
class EpisodeLog(Mapping[str, torch.Tensor]):
    """Means of return, length and metrics over the last episode of each replica, computed on first access.

    Each step returns it in ``extras["log"]`` without any computation; rsl_rl's logger reads it once per iteration.
    It is empty until an episode has ended. The first access waits for the device.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Store the environment, whose ``episode_length`` is 0 for replicas without a finished episode."""
        self._env = env
        self._means: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        """Discard the means, because more episodes may have ended."""
        self._means = {}

    def _read(self) -> dict[str, torch.Tensor]:
        """Return the means by name, computed in the first call after a step; empty until an episode has ended."""
        if not self._means:
            values_by_name = {"/episode/return": self._env.episode_return, "/episode/length": self._env.episode_length}
            values_by_name |= {f"/metrics/{name}": values for name, values in self._env.episode_metrics.items()}
            ended = values_by_name["/episode/length"].count_nonzero()
            if ended.item():
                self._means = {name: (values.sum() / ended).reshape(1) for name, values in values_by_name.items()}
        return self._means

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@final
class VecEnv(RslRlVecEnv):
    """An rsl_rl environment for replicas with a single agent and continuous actions.

    A step writes to new tensors, and does not wait for the device. Observations are a ``TensorDict`` with the group
    ``policy`` or, for a Dict space, a group per key, to be listed in ``obs_groups`` of the runner's settings. They must
    be float32, because rsl_rl does not convert them. ``extras`` contain ``time_outs``, set for episodes that were
    truncated and not terminated, and ``log``, the mean return, length and metrics of each replica's last episode. With
    ``init_at_random_ep_len`` the length of a first episode includes its random offset.

    rsl_rl's policies start with actions around 0 with a standard deviation of 1. Actions are therefore rescaled from
    [-1, 1] to the bounds of the action space. Actions beyond are out of bounds, which most environments clip. With
    ``rescale_actions=False``, or without bounds, actions are passed on unchanged.

    Attributes:
        env: The environment, with its state, its parameters and ``check``.
        num_envs: Number of replicas.
        num_actions: Size of an action.
        max_episode_length: Time limit in steps; 2**31 - 1 without a limit.
        device: Device of all tensors.
        cfg: Settings of the environment, for logs.
    """

    def __init__(
        self,
        env: str | Spec | VectorEnv,
        num_envs: int | None = None,
        *,
        seed: Seed | None = None,
        rescale_actions: bool = True,
        **options: Any,
    ) -> None:
        """Create the environment, or wrap an existing one, and reset it.

        Args:
            env: An id such as ``Pendulum-v1``, a path such as ``my_env.py:MY_ENV``, a spec, or an environment with
                torch output in SameStep mode.
            num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
            seed: Seed of the reset; replica *i* uses ``seed + i``. None: a random seed.
            rescale_actions: Whether to rescale actions from [-1, 1] to the bounds of the action space.
            **options: Arguments of ``gpu_envs.make``, such as ``device``, and parameters of the environment.
        """
        wrapped = open_env(env, num_envs, "SameStep", options, output="torch", statistics=True)
        self.env = wrapped = _check_supported(wrapped)
        self.num_envs = count = wrapped.num_envs
        self.device = torch.device(wrapped.device)
        space = wrapped.single_action_space
        action = space.shape or ()
        self.num_actions = math.prod(action)
        self.max_episode_length = NEVER if wrapped.max_episode_steps is None else wrapped.max_episode_steps
        self.cfg: dict[str, Any] = {"env": repr(wrapped), "max_episode_length": self.max_episode_length}
        self._by_key = isinstance(wrapped.single_observation_space, gymnasium.spaces.Dict)
        self._shapes = {name: (count, *(part.shape or ())) for name, part in _groups(wrapped).items()}
        self._action_shape = (count, *action)
        self._size = torch.Size([count])
        self._reward_dtype = getattr(torch, wrapped.precision)
        self._middle, self._half = to_bounds(space, self.device) if rescale_actions else (None, None)
        self._log = EpisodeLog(wrapped)
        wrapped.reset(seed=seed)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """A copy of the steps of each replica that count towards the time limit, int32 ``[num_envs]``.

        Assigning it only changes when episodes are truncated, not the state or the time that rules read.
        """
        steps: torch.Tensor = self.env.elapsed + self.env.offset
        return steps

    @episode_length_buf.setter
    def episode_length_buf(self, steps: torch.Tensor) -> None:
        """Set the steps that count towards the time limit; raise a ValueError if they are out of range."""
        limit = self.env.max_episode_steps
        if limit is None:
            raise ValueError("episode_length_buf cannot be set without a time limit: leave init_at_random_ep_len out")
        if tuple(steps.shape) != (self.num_envs,):
            raise ValueError(f"episode_length_buf got shape {tuple(steps.shape)}: use ({self.num_envs},)")
        low, high = (int(bound) for bound in torch.aminmax(steps))
        if low < 0 or high >= limit:
            raise ValueError(f"episode_length_buf got steps from {low} to {high}: use 0 to {limit - 1}")
        offsets = steps - self.env.elapsed
        if bool((offsets < 0).any()):
            first = int((offsets < 0).nonzero()[0])
            raise ValueError(
                f"episode_length_buf got {int(steps[first])} for replica {first}, whose episode has already run "
                f"{int(self.env.elapsed[first])} steps: use {int(self.env.elapsed[first])} to {limit - 1}"
            )
        self.env.stagger(offsets=offsets)

    def get_observations(self) -> TensorDict:
        """Return copies of the observations of the current state."""
        observations = self.env.observe()
        groups = observations if self._by_key else {GROUP: observations}
        return self._grouped({name: array.clone() for name, array in groups.items()})

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all replicas with actions ``[num_envs, num_actions]``.

        Returns:
            Observations, float32 rewards, dones (``[num_envs]``, bool) and extras.
        """
        groups = {name: torch.empty(s, dtype=torch.float32, device=self.device) for name, s in self._shapes.items()}
        rewards = torch.empty(self.num_envs, dtype=self._reward_dtype, device=self.device)
        if self._half is not None:
            actions = actions * self._half if self._middle is None else torch.addcmul(self._middle, actions, self._half)
        out = Step(observations=groups if self._by_key else groups[GROUP], rewards=rewards)
        _, _, terminations, truncations, _ = self.env.step(actions.reshape(self._action_shape), out=out)
        self._log.step()
        # rsl_rl bootstraps wherever time_outs is set, which is wrong for terminated episodes
        extras = {"time_outs": torch.gt(truncations, terminations), "log": self._log}
        return self._grouped(groups), rewards.float(), torch.logical_or(terminations, truncations), extras

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _grouped(self, groups: dict[str, Any]) -> TensorDict:
        # without the checks of the constructor, which cost 5 us
        return TensorDict._new_unsafe(groups, batch_size=self._size, device=self.device)


def _check_supported(env: Any) -> VectorEnv:
    """Return the environment, or raise a ValueError if rsl_rl does not support its spaces."""
    if not isinstance(env, VectorEnv):
        raise ValueError(f"{env!r} has a team of agents, but rsl_rl trains a single agent: use another environment")
    if not isinstance(env.single_action_space, gymnasium.spaces.Box):
        raise ValueError(
            f"the actions of {env!r} are {env.single_action_space}, but rsl_rl's policies are continuous: use an "
            "environment with a Box action space, such as 'Pendulum-v1', or another library"
        )
    for name, part in _groups(env).items():
        if not (isinstance(part, gymnasium.spaces.Box) and part.dtype == np.float32):
            raise ValueError(
                f"the observations of {env!r}, group {name!r}, are {part}, but rsl_rl's models require float32: use an "
                "environment with a float32 Box as observation space, or a Dict of these"
            )
    return env


def _groups(env: VectorEnv) -> dict[str, gymnasium.Space[Any]]:
    """Return the observation spaces by group."""
    space = env.single_observation_space
    return dict(space.items()) if isinstance(space, gymnasium.spaces.Dict) else {GROUP: space}


def to_bounds(space: Any, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the offset (None: 0) and scale (None: both have no effect) that map [-1, 1] to the space's bounds."""
    bounded = (np.isfinite(space.low) & np.isfinite(space.high)).ravel()
    low = np.where(bounded, space.low.ravel(), -1).astype(np.float64)
    high = np.where(bounded, space.high.ravel(), 1).astype(np.float64)
    middle, half = (low + high) / 2, (high - low) / 2

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(device)

    shifted = middle.any()
    return tensor(middle) if shifted else None, tensor(half) if shifted or (half != 1).any() else None
