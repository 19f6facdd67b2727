"""Conversion between environments and TensorDicts."""

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.data import Composite

from gpu_envs.adapters.torchrl.groups import END_KEYS, Group, Specs, not_done, unchecked
from gpu_envs.adapters.torchrl.specs import MASK, flag_spec
from gpu_envs.engine.results import Step
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface
from gpu_envs.seeds import Seeds

Current: TypeAlias = dict[str, dict[str, torch.Tensor]]
"""Observations, action masks and masks of active agents, by role and TorchRL's keys, in the environment's memory."""


@final
class RoleGroups:
    """An environment with TorchRL's keys: a group per role of a team, or a single agent's keys at the root."""

    def __init__(self, by_role: RoleInterface, device: torch.device, *, categorical: bool) -> None:
        """Create a ``Group`` for each role; ``categorical`` actions are numbers instead of one-hot vectors."""
        env = by_role.env
        self._env, self._by_role, self._device = env, by_role, device
        self._lead: Final = torch.Size((env.num_envs,))
        self._column: Final = torch.Size((env.num_envs, 1))
        self._masked: Final = env.action_mask is not None
        self._groups: Final = {
            name: Group(
                role, by_role.batch_shape(name), env.precision, device, categorical=categorical, masked=self._masked
            )
            for name, role in by_role.roles.items()
        }
        self._actions: Final = {role: self._key(role, "action") for role in self._groups}

    def _key(self, role: str, name: str) -> NestedKey:
        return name if self._by_role.single_agent else (role, name)

    def masks(self) -> list[tuple[NestedKey, NestedKey, tuple[int, ...]]]:
        """Return the keys of action masks, the keys of their actions, and the number of choices."""
        groups = self._groups.items()
        return [(self._key(role, MASK), self._actions[role], group.choices) for role, group in groups if group.masked]

    def specs(self) -> Specs:
        """Return the specs, nested by role for a team, which also has masks of active agents and ends of replicas."""
        by_group = {role: group.specs() for role, group in self._groups.items()}
        if self._by_role.single_agent:
            return by_group[SINGLE_ROLE]
        for role, group in self._groups.items():
            by_group[role].observation["mask"] = flag_spec(group.lead, self._device)
        observation, action, reward, done = (
            Composite({role: specs[i] for role, specs in by_group.items()}, shape=self._lead, device=self._device)
            for i in range(4)
        )
        for name in END_KEYS:
            done[name] = flag_spec(self._column, self._device)
        return Specs(observation, action, reward, done)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all replicas with the TensorDict's actions, and return the results in new tensors."""
        groups = self._groups
        if self._by_role.single_agent:
            agent, memory = groups[SINGLE_ROLE], groups[SINGLE_ROLE].allocate()
            out = Step(*agent.step_arrays(memory), action_mask=memory.action_mask)
            self._env.step(agent.actions(tensordict.get("action")), out=out)
            return agent.tensordict(agent.results(memory))
        memories = {role: group.allocate() for role, group in groups.items()}
        actions = {role: group.actions(tensordict.get(self._actions[role])) for role, group in groups.items()}
        masks = {role: memory.action_mask for role, memory in memories.items()} if self._masked else None
        arrays = zip(*(groups[role].step_arrays(memory) for role, memory in memories.items()), strict=True)
        observations, rewards, terminations, truncations = (dict(zip(groups, column, strict=True)) for column in arrays)
        self._env.step(actions, out=Step(observations, rewards, terminations, truncations, action_mask=masks))
        # The time limit truncates all active agents at once, so a replica is done if any agent is truncated.
        terminated = functools.reduce(torch.logical_and, (memory.terminated.all(1) for memory in memories.values()))
        truncated = functools.reduce(torch.logical_or, (memory.truncated.any(1) for memory in memories.values()))
        ends = (terminated | truncated, terminated, truncated)
        tensors: dict[str, Any] = dict(zip(END_KEYS, ends, strict=True))
        for role, memory in memories.items():
            group = groups[role]
            results = group.results(memory)
            tensors[role] = group.tensordict({"mask": ~results["done"].view(group.lead), **results})
        return unchecked(tensors, self._lead, self._device)

    def reset(self, seed: Seeds, options: Mapping[str, Any]) -> Current:
        """Reset the environment, and return its observations and masks, not copied."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._current(observations, infos.get("alive"))

    def observe(self) -> Current:
        """Return the current observations and masks without a reset, not copied."""
        if self._by_role.single_agent:
            return self._current(self._env.observe(), None)
        counts = [len(role.agents) for role in self._by_role.roles.values()]
        in_game = self._env.state["in_game"].bool().split(counts, 1)
        return self._current(self._env.observe(), dict(zip(self._groups, in_game, strict=True)))

    def _current(self, observations: Any, alive: Mapping[str, torch.Tensor] | None) -> Current:
        """Return observations and masks by role and key, without copying them."""
        by_role, action_masks = self._by_role.split(observations), self._by_role.action_masks
        return {
            role: group.keyed(by_role[role], action_masks.get(role)) | ({} if alive is None else {"mask": alive[role]})
            for role, group in self._groups.items()
        }

    def copied(self, current: Current) -> TensorDictBase:
        """Return a TensorDict with copies of the tensors, and False for all ends of episodes."""
        tensors: dict[str, Any] = {
            role: group.tensordict(
                {name: value.clone() for name, value in current[role].items()} | not_done(group.column, self._device)
            )
            for role, group in self._groups.items()
        }
        if self._by_role.single_agent:
            agent: TensorDictBase = tensors[SINGLE_ROLE]
            return agent
        return unchecked(not_done(self._column, self._device) | tensors, self._lead, self._device)

    def reset_done(self, tensordict: TensorDictBase, done: torch.Tensor) -> None:
        """Reset replicas that are done, and write their first observations; their other entries become zero.

        Args:
            tensordict: Entries of all replicas.
            done: Replicas to reset, ``[num_envs, 1]``.
        """
        current = self.reset(None, {"reset_mask": done.view(-1)})
        initial = {self._key(role, name): value for role, entries in current.items() for name, value in entries.items()}
        ends = not_done(done.shape, done.device)
        for key, old in tuple(tensordict.items(True, True)):
            if key in ends:
                tensordict.set(key, ends[key])
            elif isinstance(old, torch.Tensor):
                mask, new = done.view(-1, *(1,) * (old.ndim - 1)), initial.get(key)
                tensordict.set(key, old.masked_fill(mask, 0) if new is None else torch.where(mask, new, old))
