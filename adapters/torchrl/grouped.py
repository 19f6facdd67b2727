"""How environments of either kind meet TensorDicts."""

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.data import Composite

from gpu_envs.adapters.torchrl.groups import ENDS, Group, Specs, no_ends, unchecked
from gpu_envs.adapters.torchrl.specs import MASK, flag_spec
from gpu_envs.engine.by_role import ALONE, ByRole
from gpu_envs.engine.results import Step
from gpu_envs.seeds import Seeds

Now: TypeAlias = dict[str, dict[str, torch.Tensor]]
"""By role and TorchRL's keys what is there now, of all replicas, in the environment's own memory."""


@final
class Grouped:
    """An environment by TorchRL's keys: a group for each role of a team, or a single agent's entries at the root."""

    def __init__(self, by_role: ByRole, device: torch.device, *, categorical: bool) -> None:
        """Derives the groups; arguments as of ``Group``."""
        env = by_role.env
        self._env, self._by_role, self._device = env, by_role, device
        self._lead: Final = torch.Size((env.num_envs,))
        self._column: Final = torch.Size((env.num_envs, 1))
        self._masked: Final = env.action_mask is not None
        self._groups: Final = {
            name: Group(role, by_role.rows(name), env.precision, device, categorical=categorical, masked=self._masked)
            for name, role in by_role.roles.items()
        }
        self._actions: Final = {role: self._key(role, "action") for role in self._groups}

    def _key(self, role: str, name: str) -> NestedKey:
        return name if self._by_role.alone else (role, name)

    def masks(self) -> list[tuple[NestedKey, NestedKey, tuple[int, ...]]]:
        """Where it is said which actions are possible, the key of those actions, and how many choices there are."""
        groups = self._groups.items()
        return [(self._key(role, MASK), self._actions[role], own.choices) for role, own in groups if own.masked]

    def specs(self) -> Specs:
        """What TorchRL is told: of a team also who is in the game, and the ends of replicas."""
        by_group = {role: group.specs() for role, group in self._groups.items()}
        if self._by_role.alone:
            return by_group[ALONE]
        for role, group in self._groups.items():
            by_group[role].observation["mask"] = flag_spec(group.lead, self._device)
        observation, action, reward, done = (
            Composite({role: specs[i] for role, specs in by_group.items()}, shape=self._lead, device=self._device)
            for i in range(4)
        )
        for name in ENDS:
            done[name] = flag_spec(self._column, self._device)
        return Specs(observation, action, reward, done)

    def step(self, given: TensorDictBase) -> TensorDictBase:
        """Steps every replica straight into fresh tensors; the ends of a team's replicas follow from those of agents.

        Args:
            given: Holds the actions.

        Returns:
            What comes next.
        """
        groups = self._groups
        if self._by_role.alone:
            only, own = groups[ALONE], groups[ALONE].fresh()
            self._env.step(only.actions(given.get("action")), out=Step(*only.places(own), action_mask=own.action_mask))
            return only.tensordict(only.stepped(own))
        fresh = {role: group.fresh() for role, group in groups.items()}
        actions = {role: group.actions(given.get(self._actions[role])) for role, group in groups.items()}
        masks = {role: part.action_mask for role, part in fresh.items()} if self._masked else None
        places = zip(*(groups[role].places(part) for role, part in fresh.items()), strict=True)
        seen, rewards, ended, cut = (dict(zip(groups, column, strict=True)) for column in places)
        self._env.step(actions, out=Step(seen, rewards, ended, cut, action_mask=masks))
        # The time limit cuts short all who are in the game: where it does, or where all are out, a replica is done.
        terminated = functools.reduce(torch.logical_and, (part.terminated.all(1) for part in fresh.values()))
        truncated = functools.reduce(torch.logical_or, (part.truncated.any(1) for part in fresh.values()))
        ends = (terminated | truncated, terminated, truncated)
        tensors: dict[str, Any] = dict(zip(ENDS, ends, strict=True))
        for role, part in fresh.items():
            group = groups[role]
            stepped = group.stepped(part)
            tensors[role] = group.tensordict({"mask": ~stepped["done"].view(group.lead), **stepped})
        return unchecked(tensors, self._lead, self._device)

    def begin(self, seed: Seeds, options: Mapping[str, Any]) -> Now:
        """Begins new episodes; arguments as the environment takes them."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._now(observations, infos.get("alive"))

    def present(self) -> Now:
        """What is there now, where nothing is to begin."""
        if self._by_role.alone:
            return self._now(self._env.observe(), None)
        counts = [len(role.agents) for role in self._by_role.roles.values()]
        in_game = self._env.state["in_game"].bool().split(counts, 1)
        return self._now(self._env.observe(), dict(zip(self._groups, in_game, strict=True)))

    def _now(self, observations: Any, alive: Mapping[str, torch.Tensor] | None) -> Now:
        seen, possible = self._by_role.split(observations), self._by_role.action_masks
        return {
            role: group.keyed(seen[role], possible.get(role)) | ({} if alive is None else {"mask": alive[role]})
            for role, group in self._groups.items()
        }

    def copied(self, now: Now) -> TensorDictBase:
        """Copies of what is there, with no ends."""
        tensors: dict[str, Any] = {
            role: group.tensordict(
                {name: value.clone() for name, value in now[role].items()} | no_ends(group.column, self._device)
            )
            for role, group in self._groups.items()
        }
        if self._by_role.alone:
            only: TensorDictBase = tensors[ALONE]
            return only
        return unchecked(no_ends(self._column, self._device) | tensors, self._lead, self._device)

    def restart(self, tensordict: TensorDictBase, done: torch.Tensor) -> None:
        """Begins new episodes in some replicas, and writes of these what is there now; other entries become zero.

        Args:
            tensordict: What there was, of all replicas.
            done: Which replicas, ``[num_envs, 1]``.
        """
        now = self.begin(None, {"reset_mask": done.view(-1)})
        first = {self._key(role, name): value for role, own in now.items() for name, value in own.items()}
        ends = no_ends(done.shape, done.device)
        for key, old in tuple(tensordict.items(True, True)):
            if key in ends:
                tensordict.set(key, ends[key])
            elif isinstance(old, torch.Tensor):
                mask, new = done.view(-1, *(1,) * (old.ndim - 1)), first.get(key)
                tensordict.set(key, old.masked_fill(mask, 0) if new is None else torch.where(mask, new, old))
