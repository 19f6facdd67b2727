"""The plan of a run: environment, roles and policies, derived from the settings before anything is allocated."""

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
"""Factors of observations by the dtype of a Box."""


@final
@dataclasses.dataclass(frozen=True)
class Flattening:
    """Conversion of observations to rows: Boxes of a Dict are concatenated in key order, images scaled to 0 to 1."""

    features: int
    """Length of a row."""
    shape: tuple[int, ...]
    """Shape of an observation, if the environment writes directly into rows."""
    pieces: tuple[tuple[str, slice, float], ...]
    """Key (empty without a Dict), columns and factor of each Box to copy; empty: the environment writes into rows."""

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "Flattening":
        """Return the flattening of an observation space; raise a ValueError for spaces that are not supported."""
        pieces, first = [], 0
        for key, box in space.spaces.items() if isinstance(space, gymnasium.spaces.Dict) else [("", space)]:
            if not isinstance(box, gymnasium.spaces.Box) or np.dtype(box.dtype).name not in _SCALES:
                raise ValueError(
                    f"the observation space {box} is not supported; give a Box of float32, uint8 or int32, or a Dict "
                    "of such Boxes"
                )
            columns = slice(first, first + math.prod(box.shape))
            pieces.append((key, columns, _SCALES[np.dtype(box.dtype).name]))
            first = columns.stop
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32:
            return cls(first, space.shape, ())
        return cls(first, (), tuple(pieces))

    def write(self, observations: Any, rows: torch.Tensor) -> None:
        """Copy observations, an array or a dict of arrays ``[num_envs, ...]``, into rows ``[num_envs, features]``."""
        for key, columns, scale in self.pieces:
            source = observations[key] if key else observations
            torch.mul(source.reshape(rows.shape[0], -1), scale, out=rows[:, columns])

    def rows(self, observations: Any, lead: int) -> torch.Tensor:
        """Convert observations with ``lead`` leading dimensions to rows ``[..., features]``, a view if possible."""
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
class PolicyRole:
    """A role of an environment, as training needs it."""

    name: str
    agents: int
    features: int
    """Length of an agent's row, the flat observations of ``frames`` steps."""
    head: Head
    members: tuple[str, ...]
    """The agents' names."""
    flattening: Flattening | None = None
    """Conversion of observations to rows; None: the environment returns ``SplitRows``."""
    masked: bool = False
    """Whether there are action masks."""
    split: Split | None = None
    """Individual and shared features of observations; None: observations are full rows."""
    frames: int = 1
    """Number of observations in a row, the oldest first."""
    features_of_all: int = 0
    """Features of the observations of all roles' agents together; those that agents share count once."""

    @property
    def features_of_team(self) -> int:
        """Features of the observations of the role's agents together; those that agents share count once."""
        own, shared = (self.features, 0) if self.split is None else (self.split.individual, self.split.shared)
        return self.agents * own + shared

    @classmethod
    def of(cls, roles: Collection[RoleInfo], *, masked: bool, frames: int) -> "tuple[PolicyRole, ...]":
        """Return a PolicyRole for each of an environment's roles, whose rows have ``frames`` observations."""
        results = []
        splits = splits_of(role.observation_parts if frames == 1 else None for role in roles)
        for role, split in zip(roles, splits, strict=True):
            flattening, head, agents = Flattening.of(role.observation), Head.of(role.action), role.agents
            options = None if split else flattening, masked, split, frames
            results.append(cls(role.name, len(agents), flattening.features * frames, head, agents, *options))
        features = sum(role.features_of_team for role in results)
        return tuple(dataclasses.replace(role, features_of_all=features) for role in results)


@final
@dataclasses.dataclass(frozen=True)
class RoleMembers:
    """Some agents of one role."""

    role: PolicyRole
    members: tuple[int, ...]
    """Indices of the agents within the role."""

    @property
    def all_members(self) -> bool:
        """Whether these are all agents of the role."""
        return len(self.members) == self.role.agents


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """A run on a device; the properties are computed at their first use, and cached."""

    config: Run
    device: str
    """``cpu`` or ``cuda:N``."""
    num_envs: int
    """Number of replicas of this process."""
    spec: Spec | None = None
    """Spec of an existing environment, whose rules are used; None: the spec that ``config.env`` names."""

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend of the device; raises an error if the device cannot be used."""
        return open_backend(resolve_device(self.device))

    @functools.cached_property
    def world(self) -> SimulationConfig:
        """The configuration of the simulation; shared features are separate if policies use ``SplitRows``."""
        spec, params = self.spec or gpu_envs.spec(self.config.env), self.config.params
        names = {field.name for field in dataclasses.fields(Options)}
        given = {name: value for name, value in params.items() if name in names}
        options = Options(**{"device": self.device, "output": "torch", "autoreset_mode": "SameStep"} | given)
        env_params = {name: value for name, value in params.items() if name not in (*names, "render_mode")}
        world = config_of(spec, self.num_envs, options, env_params)
        check_replica_memory(world, self.backend)  # before roles_of names each agent
        parts = [role.observation_parts for role in roles_of(world.spec, world.params)]
        separate_shared = self.config.frame_stack == 1 and any(splits_of(parts))
        active_heads = isinstance(spec, TeamSpec) and spec.active_heads
        return dataclasses.replace(world, separate_shared=separate_shared, active_heads=active_heads)

    @property
    def code(self) -> str:
        """Versions of the libraries and a hash of the rules, which must agree between processes that train together."""
        rules = hashlib.sha256(rules_part(self.world)[1].encode()).hexdigest()
        return f"gpu_envs {gpu_envs.__version__}, torch {torch.__version__}, rules {rules[:12]}"

    @property
    def limit(self) -> int | None:
        """Number of steps after which episodes are truncated; None: never."""
        return None if self.world.limit == NO_LIMIT else self.world.limit

    @functools.cached_property
    def roles(self) -> tuple[PolicyRole, ...]:
        """The roles of the environment."""
        roles, spec = roles_of(self.world.spec, self.world.params), self.world.spec
        return PolicyRole.of(roles, masked=spec.masked, frames=self.config.frame_stack)

    @functools.cached_property
    def policies(self) -> dict[str, tuple[RoleMembers, ...]]:
        """For each policy, the agents that it acts for."""
        return assign(self.roles, self.config.policies)


def with_replicas(config: Run, count: int) -> Run:
    """Return the run for ``count`` replicas; values of a parameter with one value per replica are repeated or cut."""

    def resize_per_replica(value: Any) -> Any:
        if isinstance(value, str) or ndim_of(value) != 1 or len(value) == 0:
            return value
        return np.resize(to_numpy(value), count)

    values = config.params.items()
    params = {name: value if name in ARGUMENTS else resize_per_replica(value) for name, value in values}
    return dataclasses.replace(config, params=params)


def assign(roles: tuple[PolicyRole, ...], policies: Mapping[str, "str | Policy"]) -> dict[str, tuple[RoleMembers, ...]]:
    """Return for each policy the agents that it acts for; ``policies``: by role or agent, as ``Run.policies``.

    The policy of an agent takes precedence over the policy of its role; a role without a policy learns a policy called
    like the role. "random" and frozen policies are separate for each role: their names get the suffix " (ROLE)".
    """
    valid_names = [name for role in roles for name in (role.name, *role.members)]
    for name, policy in policies.items():
        if name not in valid_names and isinstance(policy, str):  # ``check_learning_policies`` checks names of Policy
            raise ValueError(
                f"policies names {name!r}, which is neither a role nor an agent{did_you_mean(name, valid_names)} "
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
        for policy, indices in numbers.items():
            assigned.setdefault(policy, []).append(RoleMembers(role, tuple(indices)))
    return {policy: tuple(parts) for policy, parts in assigned.items()}


def _check_name(role: str, policy: str) -> None:
    """Raise a ValueError if ``policy`` is no valid name, or a likely misspelling of "random" or "frozen"."""
    message = f"policies gives {role!r} the policy {policy!r}"
    allowed = "allowed are 'random', 'frozen:RUN', 'frozen:RUN:POLICY', and any other name for a learning policy"
    kind, colon, source = policy.partition(":")
    if policy == "random" or (kind == "frozen" and source and not source.startswith(":")):
        return
    similar = difflib.get_close_matches(kind.strip().lower(), ("random", "frozen"), n=1, cutoff=0.8)
    if kind == "frozen":
        raise ValueError(f"{message}, which names no run; give frozen:RUN or frozen:RUN:POLICY")
    if similar:
        suggestion = "random" if similar[0] == "random" else f"frozen:{source or 'RUN'}"
        raise ValueError(f"{message}. Did you mean {suggestion!r}? Otherwise use a less similar name; {allowed}")
    if colon or " (" in policy or not policy:
        raise ValueError(f"{message}; give a name that is not empty and has no ':' or ' ('; {allowed}")


@final
class PolicyRows:
    """Rows of the agents that one policy acts for, ordered by part (``RoleMembers``), replica and agent.

    Attributes:
        group_size: Number of consecutive rows that share features in ``SplitRows``; otherwise 1.
        spans: Slices of rows, each with the index of its first row among the rows of all processes.
    """

    def __init__(
        self, name: str, parts: tuple[RoleMembers, ...], num_envs: int, device: str, group: Group | None = None
    ) -> None:
        """Initialise; raise a ValueError if the agents' spaces differ."""
        first = parts[0].role
        for part in parts:
            if (part.role.features, part.role.head) != (first.features, first.head):
                raise ValueError(
                    f"the policy {name!r} cannot act for both {first.name!r} and {part.role.name!r}: their spaces "
                    f"differ ({first.features} and {part.role.features} features; actions {first.head} and "
                    f"{part.role.head}); give them separate policies"
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
        """Return this policy's rows of arrays ``[..., num_envs, agents, ...]`` by role, joined: ``[..., rows, ...]``.

        ``lead`` is the number of leading dimensions. A view if the policy acts for all agents of a single role.
        """
        arrays = []
        for part, index in zip(self.parts, self._indices, strict=True):
            array = by_role[part.role.name]
            if not part.all_members:
                array = array.index_select(lead + 1, index)
            arrays.append(array.flatten(lead, lead + 1))
        return arrays[0] if len(arrays) == 1 else torch.cat(arrays, lead)

    def observed(self, by_role: Mapping[str, Rows], lead: int) -> Rows:
        """Return this policy's rows of observations, joined over roles: full rows, or ``SplitRows`` if it uses them.

        The shared features in ``by_role`` are ``[..., num_envs, features]``, or by agent
        ``[..., num_envs, agents, features]``.
        """
        rows_of = {part.role.name: by_role[part.role.name] for part in self.parts}
        if self.split is None:
            return self.take({role: _full_rows(rows, lead) for role, rows in rows_of.items()}, lead)
        split_rows = {role: rows for role, rows in rows_of.items() if isinstance(rows, SplitRows)}
        individual = self.take({role: rows.individual for role, rows in split_rows.items()}, lead)
        shared = {role: rows.shared for role, rows in split_rows.items()}
        first = next(iter(split_rows.values()))
        if first.shared.dim() == first.individual.dim():
            return SplitRows(individual, self.take(shared, lead), 1, self.split)
        groups = [shared[part.role.name] for part in self.parts]
        if self.group_size == 1:
            groups = [
                array if len(part.members) == 1 else array.repeat_interleave(len(part.members), lead)
                for part, array in zip(self.parts, groups, strict=True)
            ]
        joined = groups[0] if len(groups) == 1 else torch.cat(groups, lead)
        return SplitRows(individual, joined, self.group_size, self.split)

    def put_actions(self, actions: torch.Tensor, by_role: dict[str, torch.Tensor]) -> None:
        """Put actions ``[rows, width]`` into ``by_role``: a view if it acts for all agents of a role, otherwise a copy.

        A role's tensor is ``[num_envs, agents, width]``; a copy fills the rows of this policy's agents.
        """
        for part, index, array in zip(self.parts, self._indices, torch.split(actions, self._counts), strict=True):
            part_actions = array.view(self.num_envs, len(part.members), -1)
            if part.all_members:
                by_role[part.role.name] = part_actions
            else:
                by_role[part.role.name].index_copy_(1, index, part_actions)

    def act(self, networks: Networks, request: ActRequest) -> None:
        """Let ``networks`` act for all rows of a request; random numbers depend on a row's index in all processes."""
        if len(self.spans) == 1 and self.spans[0][1] == 0:
            networks.act(request)
            return
        for rows, first_row in self.spans:
            networks.act(request.sliced(rows, first_row))


def _full_rows(rows: Rows, lead: int) -> torch.Tensor:
    """Return a role's observations with shared features in each agent's row; ``lead``: dimensions before num_envs."""
    if not isinstance(rows, SplitRows):
        return rows
    by_agent = rows.shared.dim() == rows.individual.dim()
    shared = rows.shared.flatten(lead, lead + 1) if by_agent else rows.shared
    group_size = 1 if by_agent else rows.individual.shape[lead + 1]
    flat = SplitRows(rows.individual.flatten(lead, lead + 1), shared, group_size, rows.split)
    return flat.joined.view(*rows.individual.shape[:-1], -1)
