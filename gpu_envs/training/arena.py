"""The environment as the trainer meets it: roles of agents, single-agent environments having one of one agent."""

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import torch

import gpu_envs
from gpu_envs.results import Step
from gpu_envs.training.config import Config
from gpu_envs.training.features import Flattening
from gpu_envs.training.heads import Head

ALONE = "agent"
"""The role's name where there is but one agent."""


@final
@dataclasses.dataclass(frozen=True)
class RoleInfo:
    """The agents of one role."""

    name: str
    agents: int
    features: int
    """Of an agent's observation, flat."""
    head: Head
    members: tuple[str, ...]
    """The agents' names."""
    flattening: Flattening | None = None
    """How observations become rows of features; None: they are such rows."""
    masked: bool = False
    """Whether there are action masks."""


@final
class RoleStorage:
    """What a horizon leaves of one role: the environment writes straight into it."""

    def __init__(self, role: RoleInfo, horizon: int, num_envs: int, device: str, *, alone: bool, limited: bool) -> None:
        """Allocates.

        Args:
            role: Whose it is.
            horizon: Steps.
            num_envs: Replicas.
            device: Where.
            alone: The environment is a single-agent one: its arrays have no dimension of agents, and all take part.
            limited: Episodes may be truncated.
        """

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        n, a, f = num_envs, role.agents, role.features
        self.role = role
        self.alone = alone
        self.observations = made(horizon + 1, n, a, f)
        self.rewards = made(horizon, n, a)
        self.terminations = made(horizon, n, a, dtype=torch.bool)
        self.truncations = made(horizon, n, a, dtype=torch.bool)
        self.alive = None if alone else made(horizon + 1, n, a, dtype=torch.bool)
        self.final_obs = made(horizon, n, a, f) if limited else None
        self.action_mask = made(horizon + 1, n, a, role.head.parameters, dtype=torch.int8) if role.masked else None
        self.episode_return = made(horizon, n, a)
        self.episode_length = made(horizon, n, a, dtype=torch.int32)

    def row(self, name: str, t: int) -> torch.Tensor | None:
        """What the environment writes in step ``t``, in its own shape; None: nothing."""
        array: torch.Tensor | None = getattr(self, name)
        if array is None:
            return None
        row = array[t + (name in _SEEN)]
        row = row.squeeze(1) if self.alone else row
        way = self.role.flattening
        if way is None or name not in ("observations", "final_obs"):
            return row
        return None if way.pieces else row.view(*row.shape[:-1], *way.shape)

    def flatten(self, t: int, observations: Any, final_obs: Any) -> None:
        """Takes over from step ``t`` what the environment has not written here, being of another form."""
        way = self.role.flattening
        if way is None or not way.pieces:
            return
        way.write(observations, self.observations[t + 1].flatten(0, 1))
        if self.final_obs is not None:
            way.write(final_obs, self.final_obs[t].flatten(0, 1))

    def carry_over(self) -> None:
        """Begins a horizon where the last one ended."""
        for array in self.seen():
            array[0].copy_(array[-1])
        self.episode_length.zero_()

    def seen(self) -> list[torch.Tensor]:
        """What is known before a step, ``[horizon + 1, num_envs, agents, ...]`` each."""
        arrays: list[torch.Tensor | None] = [getattr(self, name) for name in _SEEN]
        return [array for array in arrays if array is not None]

    def episodes(self) -> torch.Tensor:
        """Of each step: how many agents' episodes ended, and the sums of their returns and lengths, ``[3, T]``."""
        ended = self.episode_length > 0
        returns = torch.where(ended, self.episode_return, 0.0)
        parts = (ended.sum((1, 2)), returns.sum((1, 2)), self.episode_length.sum((1, 2)))
        return torch.stack([part.to(torch.float32) for part in parts])


_SEEN = ("observations", "alive", "action_mask")
"""Arrays of which row ``t`` is what is known before step ``t``."""

_WRITTEN = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length", "action_mask"),
)


@final
class Arena:
    """An environment, and storage for a horizon of it.

    Attributes:
        env: The environment, with torch tensors.
        roles: Its roles.
        storage: What the horizon leaves, by role.
        limit: The step at which episodes are truncated; None: never.
        begun_midway: Whether each replica's first episode began at a later step, and is not over; None: none did.
    """

    def __init__(self, config: Config, device: str, num_envs: int, horizon: int) -> None:
        """Makes the environment and the storage."""
        self.env: Any = gpu_envs.make(
            config.env,
            num_envs,
            device=device,
            output="torch",
            autoreset_mode="SameStep",
            threads=config.cpu_threads if device == "cpu" else None,
            **config.params,
        )
        self.num_envs, self.horizon, self.device = num_envs, horizon, device
        self._alone = isinstance(self.env, gpu_envs.VectorEnv)
        self.roles = roles_of(self.env)
        self.limit: int | None = self.env.max_episode_steps
        self.storage = {
            role.name: RoleStorage(role, horizon, num_envs, device, alone=self._alone, limited=self.limit is not None)
            for role in self.roles
        }
        self._outs = [self._out(t) for t in range(horizon)]
        self.begun_midway: torch.Tensor | None = None

    def _out(self, t: int) -> Step:
        rows = {name: {r: s.row(name, t) for r, s in self.storage.items()} for name in _WRITTEN}
        present = {name: by_role for name, by_role in rows.items() if next(iter(by_role.values())) is not None}
        return Step(**({n: by_role[ALONE] for n, by_role in present.items()} if self._alone else present))

    def reset(self, seed: int, *, stagger: int | None = None) -> None:
        """Begins anew; the first observations are where the next horizon will look for them.

        Args:
            seed: The first replica's seed.
            stagger: With this seed, begin each replica's first episode at a random step of the limit.
        """
        observations, infos = self.env.reset(seed=seed)
        self.begun_midway = None
        if stagger is not None:
            observations = self.env.stagger(stagger)
            self.begun_midway = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        by_role = {ALONE: observations} if self._alone else observations
        masks = masks_of(self.env)
        for name, storage in self.storage.items():
            shape = storage.observations[-1].shape
            storage.observations[-1].copy_(rows_of(storage.role, by_role[name], alone=self._alone).reshape(shape))
            if storage.alive is not None:
                storage.alive[-1].copy_(infos["alive"][name])
            if storage.action_mask is not None:
                storage.action_mask[-1].copy_(masks[name])

    def step(self, t: int, actions: Mapping[str, torch.Tensor]) -> None:
        """Takes the horizon's step ``t``, with actions by role, ``[num_envs, agents, width]``."""
        given = as_taken(self.env, self.roles, actions)
        observations, *_, infos = self.env.step(given, out=self._outs[t])
        if self._alone:
            self.storage[ALONE].flatten(t, observations, infos["final_obs"])
            return
        for name, storage in self.storage.items():
            assert storage.alive is not None
            storage.alive[t + 1].copy_(infos["alive"][name])

    def observations(self, t: int) -> dict[str, torch.Tensor]:
        """By role, what is seen before step ``t``, ``[num_envs, agents, features]``."""
        return {name: storage.observations[t] for name, storage in self.storage.items()}

    def action_masks(self, t: int) -> dict[str, torch.Tensor]:
        """By role, what is possible in step ``t``, ``[num_envs, agents, choices]``; empty where there are no masks."""
        masks = {name: storage.action_mask for name, storage in self.storage.items()}
        return {name: mask[t] for name, mask in masks.items() if mask is not None}

    def forget_cut_episodes(self) -> None:
        """Takes the ends of episodes that began midway out of a complete horizon: they were not whole ones."""
        if self.begun_midway is None:
            return
        storages = list(self.storage.values())
        ended = (
            storages[0].episode_length[:, :, 0] > 0
        )  # the episodes of all of a replica's agents are reported together
        first = ended & (ended.cumsum(0) == 1) & self.begun_midway
        for storage in storages:
            storage.episode_length.masked_fill_(first.unsqueeze(-1), 0)
        self.begun_midway.logical_and_(~ended.any(0))


def as_taken(env: Any, roles: tuple[RoleInfo, ...], actions: Mapping[str, torch.Tensor]) -> Any:
    """Actions by role, ``[num_envs, agents, width]``, as an environment of either kind takes them."""
    given = {r.name: actions[r.name].squeeze(-1) if r.head.scalar else actions[r.name] for r in roles}
    return given[ALONE].squeeze(1) if isinstance(env, gpu_envs.VectorEnv) else given


def roles_of(env: Any) -> tuple[RoleInfo, ...]:
    """The roles of an environment of either kind."""
    masked = env.action_mask is not None
    if isinstance(env, gpu_envs.VectorEnv):
        return (_role(ALONE, env.single_observation_space, env.single_action_space, (ALONE,), masked),)
    found = []
    for name in env.roles:
        members = tuple(agent for agent in env.possible_agents if agent.rpartition("_")[0] == name)
        found.append(_role(name, env.single_observation_spaces[name], env.single_action_spaces[name], members, masked))
    return tuple(found)


def _role(
    name: str, observation: gymnasium.Space[Any], action: gymnasium.Space[Any], members: tuple[str, ...], masked: bool
) -> RoleInfo:
    way = Flattening.of(observation)
    plain = way.shape == (way.features,)
    return RoleInfo(name, len(members), way.features, Head.of(action), members, None if plain else way, masked)


def rows_of(role: RoleInfo, observations: Any, *, alone: bool) -> torch.Tensor:
    """A role's observations as an environment gives them, as rows ``[..., features]``.

    Args:
        role: Whose they are.
        observations: An array, or a dict of arrays.
        alone: They are a single-agent environment's, without the dimension of agents.
    """
    if role.flattening is not None:
        return role.flattening.rows(observations, 1 if alone else 2)
    own: torch.Tensor = observations
    return own


def masks_of(env: Any) -> dict[str, torch.Tensor]:
    """By role, what is possible now, ``[num_envs, agents, choices]``; empty where there are no action masks."""
    now = env.action_mask
    if now is None:
        return {}
    return {ALONE: now.unsqueeze(1)} if isinstance(env, gpu_envs.VectorEnv) else dict(now)
