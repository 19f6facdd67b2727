"""What a run consists of, worked out from its settings before anything is made: its environment, roles and policies."""

import dataclasses
import difflib
import functools
import hashlib
import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any, final

import gymnasium
import numpy as np
import torch

import gpu_envs
from gpu_envs.backend import Backend, open_backend, resolve_device
from gpu_envs.backend.arrays import ndim_of, to_numpy
from gpu_envs.codegen import SimulationConfig
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.results import check_replica_memory
from gpu_envs.engine.roles import RoleInfo, roles_of
from gpu_envs.engine.simulation import NO_LIMIT
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.params import ARGUMENTS
from gpu_envs.specs.team import TeamSpec
from gpu_envs.training.engines.base import ActRequest, Networks
from gpu_envs.training.heads import Head
from gpu_envs.training.observations import Rows, Split, SplitRows, splits_of
from gpu_envs.training.policy import Policy, learns
from gpu_envs.training.process.group import Group
from gpu_envs.training.run import Run

_SCALES = {"float32": 1.0, "int32": 1.0, "uint8": 1.0 / 255.0}
"""By the type of a Box: what its numbers are multiplied by."""


@final
@dataclasses.dataclass(frozen=True)
class Flattening:
    """How observations become rows: a Dict's Boxes one after another in the order of its keys, images from 0 to 1."""

    features: int
    """Of a row."""
    shape: tuple[int, ...]
    """Of one observation, where the environment writes into the rows by itself."""
    pieces: tuple[tuple[str, slice, float], ...]
    """What is copied into the rows, of each Box key (empty: there is one), columns and scale; none: nothing is."""

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "Flattening":
        """Of a space of observations, if it can be flattened."""
        pieces, first = [], 0
        for key, box in space.spaces.items() if isinstance(space, gymnasium.spaces.Dict) else [("", space)]:
            if not isinstance(box, gymnasium.spaces.Box) or np.dtype(box.dtype).name not in _SCALES:
                raise ValueError(
                    f"observations of {box} cannot be learnt from; give a Box of float32, uint8 or int32, or a "
                    "Dict of such"
                )
            columns = slice(first, first + math.prod(box.shape))
            pieces.append((key, columns, _SCALES[np.dtype(box.dtype).name]))
            first = columns.stop
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32:
            return cls(first, space.shape, ())
        return cls(first, (), tuple(pieces))

    def write(self, observations: Any, rows: torch.Tensor) -> None:
        """Copies observations, an array or a dict of arrays ``[num_envs, ...]``, into rows ``[num_envs, features]``."""
        for key, columns, scale in self.pieces:
            source = observations[key] if key else observations
            torch.mul(source.reshape(rows.shape[0], -1), scale, out=rows[:, columns])

    def rows(self, observations: Any, lead: int) -> torch.Tensor:
        """Observations with ``lead`` dimensions before those of the space as rows ``[..., features]``, maybe a view."""
        if not self.pieces:
            rows: torch.Tensor = observations.reshape(*observations.shape[:lead], self.features)
            return rows
        key = self.pieces[0][0]
        first = observations[key] if key else observations
        rows = first.new_empty((math.prod(first.shape[:lead]), self.features), dtype=torch.float32)
        self.write(observations, rows)
        return rows


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
    """How observations become rows of features; None: they are such rows, or in parts."""
    masked: bool = False
    """Whether there are action masks."""
    split: Split | None = None
    """How a row is made of what an agent sees and of what all see alike; None: it is one."""

    @classmethod
    def of(cls, views: Collection[RoleInfo], *, masked: bool) -> "tuple[RoleInfo, ...]":
        """What training has to know of the roles of an environment."""
        roles = []
        for view, split in zip(views, splits_of(view.observation_parts for view in views), strict=True):
            flattening, head, agents = Flattening.of(view.observation), Head.of(view.action), view.agents
            how = None if split else flattening, masked, split
            roles.append(cls(view.name, len(agents), flattening.features, head, agents, *how))
        return tuple(roles)


@final
@dataclasses.dataclass(frozen=True)
class RoleMembers:
    """Some agents of one role."""

    role: RoleInfo
    members: tuple[int, ...]
    """Their numbers within the role."""

    @property
    def all_members(self) -> bool:
        """Whether that is everybody."""
        return len(self.members) == self.role.agents


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """A run on a device; what follows from it is worked out once, when it is first asked for."""

    config: Run
    device: str
    """``cpu`` or ``cuda:N``."""
    num_envs: int
    """Replicas of this process."""
    spec: Spec | None = None
    """The environment's, under whose rules it was made before; None: that of ``config``."""

    @functools.cached_property
    def backend(self) -> Backend:
        """The device's; or an error that says what it lacks."""
        return open_backend(resolve_device(self.device))

    @functools.cached_property
    def world(self) -> SimulationConfig:
        """What the environment simulates: where policies learn from observations in parts, it gives them so."""
        spec, params = self.spec or gpu_envs.spec(self.config.env), self.config.params
        known = {field.name for field in dataclasses.fields(Options)}
        of_options = {name: value for name, value in params.items() if name in known}
        options = Options(**{"device": self.device, "output": "torch", "autoreset_mode": "SameStep"} | of_options)
        own = {name: value for name, value in params.items() if name not in (*known, "render_mode")}
        world = config_of(spec, self.num_envs, options, own)
        check_replica_memory(world, self.backend)  # before roles_of names each agent
        separate_shared = any(splits_of(role.observation_parts for role in roles_of(world.spec, world.params)))
        return dataclasses.replace(world, separate_shared=separate_shared, active_heads=isinstance(spec, TeamSpec) and spec.active_heads)

    @property
    def code(self) -> str:
        """What its rules are, and what runs them, in short: of processes that train together they are the same."""
        rules = hashlib.sha256(rules_part(self.world)[1].encode()).hexdigest()
        return f"gpu_envs {gpu_envs.__version__}, torch {torch.__version__}, rules {rules[:12]}"

    @property
    def limit(self) -> int | None:
        """The step at which episodes are truncated; None: never."""
        return None if self.world.limit == NO_LIMIT else self.world.limit

    @functools.cached_property
    def roles(self) -> tuple[RoleInfo, ...]:
        """The roles of the environment."""
        return RoleInfo.of(roles_of(self.world.spec, self.world.params), masked=self.world.spec.masked)

    @functools.cached_property
    def policies(self) -> dict[str, tuple[RoleMembers, ...]]:
        """By policy, the agents that it acts for."""
        return assign(self.roles, self.config.policies)


def with_replicas(config: Run, count: int) -> Run:
    """The run with so many replicas: of a parameter with a value for each, those values take turns."""

    def taken(value: Any) -> Any:
        if isinstance(value, str) or ndim_of(value) != 1 or len(value) == 0:
            return value
        return np.resize(to_numpy(value), count)

    params = {name: value if name in ARGUMENTS else taken(value) for name, value in config.params.items()}
    return dataclasses.replace(config, params=params)


def assign(roles: tuple[RoleInfo, ...], policies: Mapping[str, "str | Policy"]) -> dict[str, tuple[RoleMembers, ...]]:
    """Which agents each policy acts for, from ``Run.policies``.

    An agent's own name counts before its role's; a role that is not named has a policy of its own name. Of "random"
    and frozen policies each role has one of its own.
    """
    known = [name for role in roles for name in (role.name, *role.members)]
    for name, policy in policies.items():
        if name not in known and isinstance(
            policy, str
        ):  # others are settings: ``check_learning_policies`` looks at those names
            raise ValueError(
                f"policies names {name!r}, which is neither a role nor an agent{did_you_mean(name, known)} "
                f"The roles are: {', '.join(role.name for role in roles)}"
            )
        if isinstance(policy, str) and policy not in [role.name for role in roles]:
            _check_name(name, policy)
    names = {name: policy if isinstance(policy, str) else name for name, policy in policies.items()}
    assigned: dict[str, list[RoleMembers]] = {}
    for role in roles:
        numbers: dict[str, list[int]] = {}
        for number, member in enumerate(role.members):
            policy = names.get(member, names.get(role.name, role.name))
            numbers.setdefault(policy if learns(policy) else f"{policy} ({role.name})", []).append(number)
        for policy, some in numbers.items():
            assigned.setdefault(policy, []).append(RoleMembers(role, tuple(some)))
    return {policy: tuple(parts) for policy, parts in assigned.items()}


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
        self.name, self.parts, self.num_envs, self.device = name, parts, num_envs, device
        self.features, self.head, self.masked = first.features, first.head, first.masked
        self.split = first.split if all(part.role.split == first.split for part in parts) else None
        counts = {len(part.members) for part in parts}
        self.group_size = counts.pop() if self.split is not None and len(counts) == 1 else 1
        self._counts = [num_envs * len(part.members) for part in parts]
        self.rows = sum(self._counts)
        self._indices = [torch.tensor(part.members, device=device) for part in parts]
        group = group or Group()
        ends = itertools.accumulate(self._counts)
        self.spans = [
            (slice(end - count, end), group.size * (end - count) + group.rank * count)
            for count, end in zip(self._counts, ends, strict=True)
        ]
        if group.size == 1:
            self.spans = [(slice(0, self.rows), 0)]

    def take(self, by_role: Mapping[str, torch.Tensor], lead: int) -> torch.Tensor:
        """The rows ``[*lead, rows, ...]`` of arrays ``[*lead, num_envs, agents, ...]``: a view where all are of a role.

        So many dimensions as ``lead`` come first.
        """
        taken = []
        for part, index in zip(self.parts, self._indices, strict=True):
            array = by_role[part.role.name]
            if not part.all_members:
                array = array.index_select(lead + 1, index)
            taken.append(array.flatten(lead, lead + 1))
        return taken[0] if len(taken) == 1 else torch.cat(taken, lead)

    def observed(self, by_role: Mapping[str, Rows], lead: int) -> Rows:
        """The observations of these agents, as ``take`` gives other arrays; of those in parts in groups of ``group_size``.

        What agents share is ``[*lead, num_envs, numbers]``, or of each agent.
        """
        rows_of = {part.role.name: by_role[part.role.name] for part in self.parts}
        if self.split is None:
            return self.take({role: _whole(rows, lead) for role, rows in rows_of.items()}, lead)
        parts = {role: rows for role, rows in rows_of.items() if isinstance(rows, SplitRows)}
        own = self.take({role: rows.individual for role, rows in parts.items()}, lead)
        shared = {role: rows.shared for role, rows in parts.items()}
        first = next(iter(parts.values()))
        if first.shared.dim() == first.individual.dim():
            return SplitRows(own, self.take(shared, lead), 1, self.split)
        taken = [shared[part.role.name] for part in self.parts]
        if self.group_size == 1:
            taken = [
                array if len(part.members) == 1 else array.repeat_interleave(len(part.members), lead)
                for part, array in zip(self.parts, taken, strict=True)
            ]
        return SplitRows(own, taken[0] if len(taken) == 1 else torch.cat(taken, lead), self.group_size, self.split)

    def put_actions(self, actions: torch.Tensor, by_role: dict[str, torch.Tensor]) -> None:
        """Hands the rows' actions ``[rows, width]`` to their roles, ``[num_envs, agents, width]``.

        Where these agents are all of a role, their part of ``actions`` itself becomes the role's actions; otherwise
        it is copied into what is there.
        """
        for part, index, own in zip(self.parts, self._indices, torch.split(actions, self._counts), strict=True):
            own = own.view(self.num_envs, len(part.members), -1)
            if part.all_members:
                by_role[part.role.name] = own
            else:
                by_role[part.role.name].index_copy_(1, index, own)

    def act(self, networks: Networks, request: ActRequest) -> None:
        """Lets networks choose actions for all rows, each with the random numbers of its number."""
        if len(self.spans) == 1 and self.spans[0][1] == 0:
            networks.act(request)
            return
        for rows, first_row in self.spans:
            networks.act(request.sliced(rows, first_row))


def _whole(rows: Rows, lead: int) -> torch.Tensor:
    """A role's observations as whole rows, ``[*lead, num_envs, agents, features]``."""
    if not isinstance(rows, SplitRows):
        return rows
    of_each = rows.shared.dim() == rows.individual.dim()
    shared = rows.shared.flatten(lead, lead + 1) if of_each else rows.shared
    flat = SplitRows(rows.individual.flatten(lead, lead + 1), shared, 1 if of_each else rows.individual.shape[lead + 1], rows.split)
    return flat.joined.view(*rows.individual.shape[:-1], -1)
