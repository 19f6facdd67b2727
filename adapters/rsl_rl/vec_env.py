"""rsl_rl's ``VecEnv`` over the replicas of an environment with continuous actions."""

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
"""The group of observations where there is one, which is what rsl_rl looks for."""

NEVER = 2**31 - 1
"""``max_episode_length`` where there is no time limit."""


@final
class EpisodeLog(Mapping[str, torch.Tensor]):
    """Means over each replica's last episode, worked out on the device when asked for: return, length and metrics.

    A step hands it out in ``extras["log"]`` at no cost: rsl_rl's logger reads it once an iteration. Until an episode
    has ended it is empty; asking for its names waits for the device.
    """

    def __init__(self, env: VectorEnv) -> None:
        """Keeps the environment, which knows each replica's last episode: of length 0 before there is one."""
        self._env = env
        self._means: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        """Forgets what was worked out: other episodes may have ended."""
        self._means = {}

    def _read(self) -> dict[str, torch.Tensor]:
        if not self._means:
            found = {"/episode/return": self._env.episode_return, "/episode/length": self._env.episode_length}
            found |= {f"/metrics/{name}": values for name, values in self._env.episode_metrics.items()}
            ended = found["/episode/length"].count_nonzero()
            if ended.item():
                self._means = {name: (values.sum() / ended).reshape(1) for name, values in found.items()}
        return self._means

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@final
class VecEnv(RslRlVecEnv):
    """Replicas of an environment with one agent and continuous actions, for the runners of rsl_rl.

    A step writes straight into fresh tensors, and waits for nothing. Observations are a ``TensorDict`` with one group,
    ``policy``; those of a Dict space have a group for each key, to be named in ``obs_groups`` of the runner's settings.
    All are float32: rsl_rl converts nothing. ``extras`` hold ``time_outs``, where the time limit alone ended an
    episode, and ``log``, with the mean return, length and metrics of each replica's last episode (after
    ``init_at_random_ep_len`` the length of a first episode counts the steps that it was moved on by, and nothing else
    does).

    A policy of rsl_rl's begins with actions around 0 with a standard deviation of 1, whatever the units. So -1 to 1 is
    the action space's low to high; beyond it the environment does as it does with any action out of bounds: most clip
    it. ``rescale_actions=False`` hands actions on as they are, and so are those of a space without bounds.

    Attributes:
        env: The environment: its live state, its parameters, and ``check``.
        num_envs: The number of replicas.
        num_actions: The numbers in an action.
        max_episode_length: The step at which an episode is truncated; 2**31 - 1 where there is no limit.
        device: Of all tensors.
        cfg: What the environment was made with, for logs.
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
        """Makes the environment, or takes one, and resets it.

        Args:
            env: An id, such as ``Pendulum-v1``; a place, ``my_env.py:MY_ENV``; or an environment with torch output in
                SameStep mode.
            num_envs: With an id: how many replicas; None: one.
            seed: Of the reset; replica *i* gets ``seed + i``. None: a random one.
            rescale_actions: Map -1 to 1 to the bounds of the action space, where there are any.
            **options: With an id: what ``gpu_envs.make`` takes, such as ``device``, and the environment's parameters.
        """
        made = open_env(env, num_envs, "SameStep", options, output="torch", statistics=True)
        self.env = made = _checked(made)
        self.num_envs = count = made.num_envs
        self.device = torch.device(made.device)
        space = made.single_action_space
        action = space.shape or ()
        self.num_actions = math.prod(action)
        self.max_episode_length = NEVER if made.max_episode_steps is None else made.max_episode_steps
        self.cfg: dict[str, Any] = {"env": repr(made), "max_episode_length": self.max_episode_length}
        self._by_key = isinstance(made.single_observation_space, gymnasium.spaces.Dict)
        self._shapes = {name: (count, *(part.shape or ())) for name, part in _groups(made).items()}
        self._action_shape = (count, *action)
        self._size = torch.Size([count])
        self._real = getattr(torch, made.precision)
        self._middle, self._half = to_bounds(space, self.device) if rescale_actions else (None, None)
        self._log = EpisodeLog(made)
        made.reset(seed=seed)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """How far each replica's episode is on its way to the time limit, int32 ``[num_envs]``: a copy.

        Assigning brings the limits nearer, or back to where they were; states, and what rules know of time, stay.
        """
        steps: torch.Tensor = self.env.elapsed + self.env.offset
        return steps

    @episode_length_buf.setter
    def episode_length_buf(self, steps: torch.Tensor) -> None:
        limit = self.env.max_episode_steps
        if limit is None:
            raise ValueError("these episodes have no time limit: leave out init_at_random_ep_len")
        if tuple(steps.shape) != (self.num_envs,):
            raise ValueError(f"episode_length_buf got shape {tuple(steps.shape)}; expected ({self.num_envs},)")
        low, high = (int(bound) for bound in torch.aminmax(steps))
        if low < 0 or high >= limit:
            raise ValueError(f"episode_length_buf got steps from {low} to {high}; allowed are 0 to {limit - 1}")
        offsets = steps - self.env.elapsed
        if bool((offsets < 0).any()):
            first = int((offsets < 0).nonzero()[0])
            raise ValueError(
                f"episode_length_buf got {int(steps[first])} for replica {first}, whose episode has had "
                f"{int(self.env.elapsed[first])} steps; give at least as many"
            )
        self.env.stagger(offsets=offsets)

    def get_observations(self) -> TensorDict:
        """The observations of the state as it stands."""
        seen = self.env.observe()
        return self._grouped({name: array.clone() for name, array in (seen if self._by_key else {GROUP: seen}).items()})

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: ``[num_envs, num_actions]``.

        Returns:
            Observations, float32 rewards, dones (``[num_envs]``, bool) and extras.
        """
        seen = {name: torch.empty(s, dtype=torch.float32, device=self.device) for name, s in self._shapes.items()}
        rewards = torch.empty(self.num_envs, dtype=self._real, device=self.device)
        if self._half is not None:
            actions = actions * self._half if self._middle is None else torch.addcmul(self._middle, actions, self._half)
        out = Step(observations=seen if self._by_key else seen[GROUP], rewards=rewards)
        _, _, terminations, truncations, _ = self.env.step(actions.reshape(self._action_shape), out=out)
        self._log.step()
        # rsl_rl adds a value wherever time_outs is set: not where the state was terminal too
        extras = {"time_outs": torch.gt(truncations, terminations), "log": self._log}
        return self._grouped(seen), rewards.float(), torch.logical_or(terminations, truncations), extras

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _grouped(self, groups: dict[str, Any]) -> TensorDict:
        # unchecked, as other environments of TensorDicts make them: what goes in is known, and a check costs 5 us
        return TensorDict._new_unsafe(groups, batch_size=self._size, device=self.device)


def _checked(env: Any) -> VectorEnv:
    """The environment, if rsl_rl can act in it."""
    if not isinstance(env, VectorEnv):
        raise ValueError(f"{env!r} has a team of agents; rsl_rl trains one: give an environment with one agent")
    if not isinstance(env.single_action_space, gymnasium.spaces.Box):
        raise ValueError(
            f"the actions of {env!r} are {env.single_action_space}; rsl_rl's policies give real numbers: give an "
            "environment whose actions are a Box, such as 'Pendulum-v1', or use another library"
        )
    for name, part in _groups(env).items():
        if not (isinstance(part, gymnasium.spaces.Box) and part.dtype == np.float32):
            raise ValueError(
                f"the observations of {env!r}, group {name!r}, are {part}; rsl_rl converts nothing and its models take "
                "float32: give an environment that observes a Box of float32, or a Dict of such"
            )
    return env


def _groups(env: VectorEnv) -> dict[str, gymnasium.Space[Any]]:
    """The spaces of observations by group."""
    space = env.single_observation_space
    return dict(space.items()) if isinstance(space, gymnasium.spaces.Dict) else {GROUP: space}


def to_bounds(space: Any, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What to add to, and multiply with, an action from -1 to 1; None each where there is nothing to do."""
    bounded = (np.isfinite(space.low) & np.isfinite(space.high)).ravel()
    low = np.where(bounded, space.low.ravel(), -1).astype(np.float64)
    high = np.where(bounded, space.high.ravel(), 1).astype(np.float64)
    middle, half = (low + high) / 2, (high - low) / 2

    def held(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(device)

    shifted = middle.any()
    return held(middle) if shifted else None, held(half) if shifted or (half != 1).any() else None
