"""How the two kinds of environment, with one agent and with a team, meet TensorDicts."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.data import Composite

from gpu_envs.adapters.torchrl.groups import ENDS, Group, Specs, no_ends, unchecked
from gpu_envs.adapters.torchrl.specs import MASK, flag_spec
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.resets import Seeds
from gpu_envs.results import Step
from gpu_envs.vector_env import VectorEnv


class Kind(ABC):
    """One of the two."""

    @abstractmethod
    def specs(self) -> Specs:
        """What TorchRL is told."""

    @abstractmethod
    def masks(self) -> list[tuple[NestedKey, NestedKey, tuple[int, ...]]]:
        """Where it is said which actions are possible, the key of those actions, and how many choices there are."""

    @abstractmethod
    def step(self, given: TensorDictBase) -> TensorDictBase:
        """Steps every replica.

        Args:
            given: Holds the actions.

        Returns:
            What comes next.
        """

    @abstractmethod
    def copied(self, first: Mapping[Any, torch.Tensor]) -> TensorDictBase:
        """Copies what ``begin`` or ``present`` gave, with no ends."""

    def reset(self, seed: Seeds, options: Mapping[str, Any]) -> TensorDictBase:
        """Begins new episodes.

        Args:
            seed: As the environment takes it.
            options: As the environment takes them.

        Returns:
            What is there now, of all replicas.
        """
        return self.copied(self.begin(seed, options))

    @abstractmethod
    def begin(self, seed: Seeds, options: Mapping[str, Any]) -> dict[Any, torch.Tensor]:
        """Begins new episodes; arguments as of ``reset``.

        Returns:
            By TorchRL's keys what is there now, of all replicas, in the environment's own memory.
        """

    @abstractmethod
    def present(self) -> dict[Any, torch.Tensor]:
        """By TorchRL's keys what is there now, of all replicas, where nothing is to begin."""

    def restart(self, tensordict: TensorDictBase, done: torch.Tensor) -> None:
        """Begins new episodes in some replicas, and writes of these what is there now; other entries become zero.

        Args:
            tensordict: What there was, of all replicas.
            done: Which replicas, ``[num_envs, 1]``.
        """
        first = self.begin(None, {"reset_mask": done.view(-1)})
        ends = no_ends(done.shape, done.device)
        for key, old in tuple(tensordict.items(True, True)):
            if key in ends:
                tensordict.set(key, ends[key])
            elif isinstance(old, torch.Tensor):
                mask, now = done.view(-1, *(1,) * (old.ndim - 1)), first.get(key)
                tensordict.set(key, old.masked_fill(mask, 0) if now is None else torch.where(mask, now, old))


@final
class Single(Kind):
    """One agent in each replica."""

    def __init__(self, env: VectorEnv, device: torch.device, *, categorical: bool) -> None:
        """Keeps the environment; arguments as of ``Group``."""
        self._env: Final = env
        self._device: Final = device
        self._group: Final = Group(
            env.single_observation_space,
            env.single_action_space,
            (env.num_envs,),
            env.precision,
            device,
            categorical=categorical,
            masked=env.action_mask is not None,
        )

    def specs(self) -> Specs:
        """Those of the one agent."""
        return self._group.specs()

    def masks(self) -> list[tuple[NestedKey, NestedKey, tuple[int, ...]]]:
        """That of the one agent."""
        return [(MASK, "action", self._group.choices)] if self._group.masked else []

    def step(self, given: TensorDictBase) -> TensorDictBase:
        """Steps straight into fresh tensors."""
        group = self._group
        fresh, lead = group.fresh(), group.lead
        out = Step(
            group.written(fresh),
            fresh.reward.view(lead),
            fresh.terminated.view(lead),
            fresh.truncated.view(lead),
            action_mask=fresh.action_mask,
        )
        self._env.step(group.actions(given.get("action")), out=out)
        return group.tensordict(group.stepped(fresh))

    def copied(self, first: Mapping[Any, torch.Tensor]) -> TensorDictBase:
        """The observations."""
        copies = {key: value.clone() for key, value in first.items()}
        return self._group.tensordict(copies | no_ends(self._group.column, self._device))

    def present(self) -> dict[Any, torch.Tensor]:
        """The observations, and which actions are possible."""
        return self._group.keyed(self._env.observe(), self._env.action_mask)

    def begin(self, seed: Seeds, options: Mapping[str, Any]) -> dict[Any, torch.Tensor]:
        """The observations, and which actions are possible."""
        observations, _ = self._env.reset(seed=seed, options=options)
        return self._group.keyed(observations, self._env.action_mask)


@final
class Team(Kind):
    """A group of agents for each role."""

    def __init__(self, env: MultiAgentEnv, device: torch.device, *, categorical: bool) -> None:
        """Keeps the environment; arguments as of ``Group``."""
        self._env: Final = env
        self._device: Final = device
        self._lead: Final = torch.Size((env.num_envs,))
        self._groups: Final = {
            role: Group(
                env.single_observation_spaces[role],
                env.single_action_spaces[role],
                (env.num_envs, env.counts[role]),
                env.precision,
                device,
                categorical=categorical,
                masked=env.action_mask is not None,
            )
            for role in env.roles
        }

    def masks(self) -> list[tuple[NestedKey, NestedKey, tuple[int, ...]]]:
        """One for each group."""
        return [((role, MASK), (role, "action"), group.choices) for role, group in self._groups.items() if group.masked]

    def specs(self) -> Specs:
        """Those of each group under its name, with a mask among the observations; and the ends of replicas."""
        batch = {"shape": self._lead, "device": self._device}
        by_group = {role: group.specs() for role, group in self._groups.items()}
        for role, group in self._groups.items():
            by_group[role].observation["mask"] = flag_spec(group.lead, self._device)
        observation, action, reward, done = (
            Composite({role: specs[i] for role, specs in by_group.items()}, **batch) for i in range(4)
        )
        for name in ENDS:
            done[name] = flag_spec((*self._lead, 1), self._device)
        return Specs(observation, action, reward, done)

    def step(self, given: TensorDictBase) -> TensorDictBase:
        """Steps straight into fresh tensors; the ends of replicas follow from those of agents."""
        groups = self._groups
        fresh = {role: group.fresh() for role, group in groups.items()}
        out = Step(
            {role: groups[role].written(part) for role, part in fresh.items()},
            {role: part.reward.view(groups[role].lead) for role, part in fresh.items()},
            {role: part.terminated.view(groups[role].lead) for role, part in fresh.items()},
            {role: part.truncated.view(groups[role].lead) for role, part in fresh.items()},
            action_mask={role: part.action_mask for role, part in fresh.items()} if self.masks() else None,
        )
        self._env.step({role: group.actions(given.get((role, "action"))) for role, group in groups.items()}, out=out)
        # The time limit cuts short all who are in the game: where it does, or where all are out, a replica is done.
        terminated = functools.reduce(torch.logical_and, (part.terminated.all(1) for part in fresh.values()))
        truncated = functools.reduce(torch.logical_or, (part.truncated.any(1) for part in fresh.values()))
        tensors: dict[str, Any] = {
            "done": terminated | truncated,
            "terminated": terminated,
            "truncated": truncated,
        }
        for role, part in fresh.items():
            group = groups[role]
            stepped = group.stepped(part)
            tensors[role] = group.tensordict({"mask": ~stepped["done"].view(group.lead), **stepped})
        return unchecked(tensors, self._lead, self._device)

    def copied(self, first: Mapping[Any, torch.Tensor]) -> TensorDictBase:
        """The observations and masks, group by group."""
        tensors: dict[str, Any] = {**no_ends(torch.Size((*self._lead, 1)), self._device)}
        for role, group in self._groups.items():
            own = {name: value.clone() for (owner, name), value in first.items() if owner == role}
            tensors[role] = group.tensordict(own | no_ends(group.column, self._device))
        return unchecked(tensors, self._lead, self._device)

    def begin(self, seed: Seeds, options: Mapping[str, Any]) -> dict[Any, torch.Tensor]:
        """Observations and masks: at the beginning all are in the game."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._keyed(observations, infos["alive"])

    def present(self) -> dict[Any, torch.Tensor]:
        """Observations and masks."""
        observations, counts = self._env.observe(), [self._env.counts[role] for role in self._groups]
        in_game = self._env.state["in_game"].bool().split(counts, 1)
        return self._keyed(observations, dict(zip(self._groups, in_game, strict=True)))

    def _keyed(self, observations: Mapping[str, Any], alive: Mapping[str, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """What the groups see, who is in the game, and which actions are possible."""
        possible = self._env.action_mask or {}
        return {
            (role, name): value
            for role, group in self._groups.items()
            for name, value in (group.keyed(observations[role], possible.get(role)) | {"mask": alive[role]}).items()
        }
