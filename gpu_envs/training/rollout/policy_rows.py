"""Which agents a policy acts for, and how their rows lie one after another."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import final

import torch

from gpu_envs.errors import did_you_mean
from gpu_envs.training.engines.base import ActRequest, Networks
from gpu_envs.training.observations import Parts, Rows
from gpu_envs.training.policy import Policy, learns
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.horizon_env import RoleInfo


@final
@dataclasses.dataclass(frozen=True)
class RoleMembers:
    """Some agents of one role."""

    role: RoleInfo
    members: tuple[int, ...]
    """Their numbers within the role."""

    @property
    def whole(self) -> bool:
        """Whether that is everybody."""
        return self.members == tuple(range(self.role.agents))


@final
class PolicyRows:
    """The agents that one policy acts for: of each part, replica after replica, agent after agent."""

    def __init__(
        self, name: str, parts: tuple[RoleMembers, ...], num_envs: int, device: str, group: Group | None = None
    ) -> None:
        """Refuses agents whose spaces differ."""
        first = parts[0].role
        for part in parts:
            if (part.role.features, part.role.head) != (first.features, first.head):
                raise ValueError(
                    f"the policy {name!r} cannot act for both {first.name!r} and {part.role.name!r}: their spaces "
                    f"differ ({first.features} and {part.role.features} features; actions {first.head} and "
                    f"{part.role.head}); give them policies of their own"
                )
        self.name, self.parts, self.num_envs = name, parts, num_envs
        self.features, self.head, self.masked = first.features, first.head, first.masked
        self.split = first.split if all(part.role.split == first.split for part in parts) else None
        counts = {len(part.members) for part in parts}
        self.each = counts.pop() if self.split is not None and len(counts) == 1 else 1
        self.rows = num_envs * sum(len(part.members) for part in parts)
        self.spans = self._numbered(group or Group())
        self._whole = all(part.whole for part in parts)
        self._indices = [torch.tensor(part.members, device=device) for part in parts]

    def _numbered(self, group: Group) -> list[tuple[slice, int]]:
        """Where rows lie that are numbered one after another, and the number of the first in all processes' rows."""
        if group.size == 1:
            return [(slice(0, self.rows), 0)]
        spans, first = [], 0
        for part in self.parts:
            count = self.num_envs * len(part.members)
            spans.append((slice(first, first + count), group.size * first + group.rank * count))
            first += count
        return spans

    def take(self, by_role: Mapping[str, torch.Tensor], lead: int) -> torch.Tensor:
        """The rows of these agents, ``[*lead, rows, ...]``: a view where they are all of one role.

        Args:
            by_role: Arrays of ``[*lead, num_envs, agents, ...]``.
            lead: How many dimensions come first.
        """
        taken = []
        for part, index in zip(self.parts, self._indices, strict=True):
            array = by_role[part.role.name]
            if not part.whole:
                array = array.index_select(lead + 1, index)
            taken.append(array.flatten(lead, lead + 1))
        return taken[0] if len(taken) == 1 else torch.cat(taken, lead)

    def observed(self, by_role: Mapping[str, Rows], lead: int) -> Rows:
        """The observations of these agents, as ``take`` gives other arrays; of those in parts in groups of ``each``.

        Args:
            by_role: ``[*lead, num_envs, agents, features]``; in parts ``[*lead, num_envs, agents, numbers]`` and, of
                what a replica's agents share, ``[*lead, num_envs, numbers]`` or of each agent.
            lead: How many dimensions come first.
        """
        given = {part.role.name: by_role[part.role.name] for part in self.parts}
        if self.split is None:
            return self.take({role: _whole(rows, lead) for role, rows in given.items()}, lead)
        parts = {role: rows for role, rows in given.items() if isinstance(rows, Parts)}
        own = self.take({role: rows.own for role, rows in parts.items()}, lead)
        shared = {role: rows.shared for role, rows in parts.items()}
        first = next(iter(parts.values()))
        if first.shared.dim() == first.own.dim():
            return Parts(own, self.take(shared, lead), 1, self.split)
        counts = [len(part.members) if self.each == 1 else 1 for part in self.parts]
        taken = [
            shared[part.role.name].repeat_interleave(count, lead) if count > 1 else shared[part.role.name]
            for part, count in zip(self.parts, counts, strict=True)
        ]
        return Parts(own, taken[0] if len(taken) == 1 else torch.cat(taken, lead), self.each, self.split)

    def give(self, actions: torch.Tensor, by_role: dict[str, torch.Tensor]) -> None:
        """Hands the rows' actions ``[rows, width]`` to their roles, ``[num_envs, agents, width]``.

        Where these agents are all of a role, their part of ``actions`` itself becomes the role's actions; otherwise
        it is copied into what is there.
        """
        first = 0
        for part, index in zip(self.parts, self._indices, strict=True):
            count = self.num_envs * len(part.members)
            own = actions[first : first + count].view(self.num_envs, len(part.members), -1)
            if part.whole:
                by_role[part.role.name] = own
            else:
                by_role[part.role.name].index_copy_(1, index, own)
            first += count

    def act(self, networks: Networks, request: ActRequest) -> None:
        """Lets networks choose actions for all rows, each with the random numbers of its number."""
        if len(self.spans) == 1 and self.spans[0][1] == 0:
            networks.act(request)
            return
        for rows, first_row in self.spans:
            networks.act(request.sliced(rows, first_row))

    def shares(self, role: str) -> bool:
        """Whether these are some of the agents of a role, and others are not among them."""
        return any(part.role.name == role and not part.whole for part in self.parts)


def _whole(rows: Rows, lead: int) -> torch.Tensor:
    """A role's observations as whole rows, ``[*lead, num_envs, agents, features]``."""
    if not isinstance(rows, Parts):
        return rows
    of_each = rows.shared.dim() == rows.own.dim()
    shared = rows.shared.flatten(lead, lead + 1) if of_each else rows.shared
    flat = Parts(rows.own.flatten(lead, lead + 1), shared, 1 if of_each else rows.own.shape[lead + 1], rows.split)
    return flat.whole.view(*rows.own.shape[:-1], -1)


def assign(roles: tuple[RoleInfo, ...], policies: Mapping[str, "str | Policy"]) -> dict[str, tuple[RoleMembers, ...]]:
    """Which agents each policy acts for, from ``Run.policies``.

    An agent's own name counts before its role's; a role that is not named has a policy of its own name. Of "random"
    and frozen policies each role has one of its own.
    """
    known = [name for role in roles for name in (role.name, *role.members)]
    for name, policy in policies.items():
        if name not in known and isinstance(policy, str):  # others are settings: ``check_names`` looks at those names
            raise ValueError(
                f"policies names {name!r}, which is neither a role nor an agent{did_you_mean(name, known)} "
                f"The roles are: {', '.join(role.name for role in roles)}"
            )
        if isinstance(policy, str) and policy not in [role.name for role in roles]:
            _check_name(name, policy)
    names = {name: policy if isinstance(policy, str) else name for name, policy in policies.items()}
    found: dict[str, dict[str, list[int]]] = {}
    for role in roles:
        for number, member in enumerate(role.members):
            policy = names.get(member, names.get(role.name, role.name))
            key = f"{policy} ({role.name})" if not learns(policy) else policy
            found.setdefault(key, {}).setdefault(role.name, []).append(number)
    named = {role.name: role for role in roles}
    return {
        policy: tuple(RoleMembers(named[role], tuple(numbers)) for role, numbers in by_role.items())
        for policy, by_role in found.items()
    }


def _check_name(of: str, policy: str) -> None:
    """Refuses what was hardly meant as the name of a policy that learns."""
    given = f"policies gives {of!r} the policy {policy!r}"
    allowed = "allowed are a name of your own for one that learns, 'random', 'frozen:RUN' and 'frozen:RUN:POLICY'"
    kind, colon, source = policy.partition(":")
    if policy == "random" or (kind == "frozen" and source and not source.startswith(":")):
        return
    meant = difflib.get_close_matches(kind.strip().lower(), ("random", "frozen"), n=1, cutoff=0.8)
    if kind == "frozen":
        raise ValueError(f"{given}, which names no run; give frozen:RUN or frozen:RUN:POLICY")
    if meant:
        likely = "random" if meant[0] == "random" else f"frozen:{source or 'RUN'}"
        raise ValueError(f"{given}. Did you mean {likely!r}? Otherwise take a name less like it; {allowed}")
    if colon or " (" in policy or not policy:
        raise ValueError(f"{given}; a name is not empty and holds neither ':' nor ' ('; {allowed}")
