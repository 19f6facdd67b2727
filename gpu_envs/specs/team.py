"""Spec of an environment with a team of agents."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.evaluate import FixedParams, evaluate
from gpu_envs.specs.fields import Field, check_count, check_types
from gpu_envs.specs.names import WORLD_MEMBERS, check_constants, check_name
from gpu_envs.specs.params import ParamValue
from gpu_envs.specs.spaces import RoleObservation, SpaceSource, check_space, row_space, space_of

_WORLD_WORDS = ("present", "reward", "action", "terminated", "pending", "finished")


@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """Agents of one kind in a team."""

    name: str
    """Name of the role, in the singular."""
    count: int | str | Callable[[Mapping[str, Any]], int]
    """Number of agents, name of a ``fixed`` integer parameter, or a function of the ``fixed`` parameters."""
    observation: SpaceSource
    """Observation space of one agent: elements that ``observe`` writes for each agent."""
    action: SpaceSource
    """Action space of one agent."""
    shared_observation: SpaceSource | None = None
    """Space of elements that are equal for all agents of the role, written once per replica by ``observe_shared``."""
    shared_at: int | str | None = None
    """Index in an agent's row at which the shared elements start, or the name of a parameter. None: at the end."""

    state: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """State fields of this role only: ``[num_envs, count]``, arrays ``[num_envs, count, ...]``."""
    names: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    """Names of the agents, or a function of the ``fixed`` parameters. None: ``name_0``, ``name_1`` and so on."""

    def size(self, params: Mapping[str, Any], spec: str = "a team") -> int:
        """Number of agents under these parameters. Messages start with ``spec``, its id."""
        if callable(self.count):
            what = f"{spec}: the role {self.name!r}: its count"
            return check_count(evaluate(self.count, params, what), what)
        return self.count if isinstance(self.count, int) else int(params[self.count])

    def agents(self, params: Mapping[str, Any], what: str) -> tuple[str, ...]:
        """Names of the agents under these ``fixed`` parameters. Messages start with ``what``, spec and role."""
        count = self.size(params)
        if self.names is None:
            return tuple(f"{self.name}_{i}" for i in range(count))
        names = tuple(evaluate(self.names, params, f"{what} names") if callable(self.names) else self.names)
        if len(names) != count or len({*names}) < count or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"{what} its names are {names}; give {count} different names, one for each agent")
        return names


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TeamSpec(Spec):
    """Roles, state, parameters and limits of an environment with a team of agents.

    PettingZoo registers it as ``gpu_envs/<id>``. State fields are arrays of ``World`` with one element per agent, role
    after role. Every ``World`` also has ``in_game`` and ``elapsed``, and during a step ``present``, ``reward`` and
    ``terminated``.
    """

    has_team: ClassVar[bool] = True

    roles: tuple[Role, ...]
    """The roles; agents are ordered by role."""
    state: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """State fields of each agent: ``[num_envs, num_agents]``, arrays ``[num_envs, num_agents, ...]``."""
    shared: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """State fields of each replica: ``[num_envs]``, arrays ``[num_envs, ...]``."""
    scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """Fields of each agent that pass values between the phases of one step, and are not saved."""
    shared_scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """Fields of each replica that pass values between the phases of one step, and are not saved."""
    active_heads: bool = False
    """Whether the rules have ``active``, which says if an element of an action has an effect now. With ``make(...,
    active_heads=True)``, as in training, masks leave one choice for the other elements: policies do not learn them."""
    columns: Callable[[Mapping[str, Any]], int] | None = None
    """Number of columns that ``FOR_EACH_COLUMN`` loops over, so that as many threads share a row. None: unknown."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all state fields, of agents and of replicas."""
        return (*self.state, "in_game", *self.role_state, *self.shared, "elapsed")

    @property
    def role_state(self) -> dict[str, Field]:
        """State fields of single roles."""
        return {name: field for role in self.roles for name, field in role.state.items()}

    def __post_init__(self) -> None:
        """Validates the roles and fields."""
        for what in ("state", "shared", "scratch", "shared_scratch"):
            check_types(f"{self.id}: {what}", getattr(self, what), Field, "Field('int')")
        for role in self.roles:
            check_types(f"{self.id}: the role {role.name!r}: state", role.state, Field, "Field('int')")
        Spec.__post_init__(self)
        names = [*self.fields, *self.scratch, *self.shared_scratch, *_WORLD_WORDS]
        for name in names:
            check_name(name, f"{self.id}: the field", members=WORLD_MEMBERS)
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise ValueError(f"{self.id}: {sorted(repeated)} occur more than once, or are fields that every World has")
        if self.active_heads and not self.action_mask:
            raise ValueError(f"{self.id}: active_heads=True needs masks: give action_mask=True too")
        if not self.roles or len({role.name for role in self.roles}) < len(self.roles):
            raise ValueError(
                f"{self.id}: give one role or more, with different names; got {[r.name for r in self.roles]}"
            )
        for role in self.roles:
            if not re.fullmatch(r"[a-z]+", role.name):
                raise ValueError(f"{self.id}: the role {role.name!r} must consist of the letters a to z")
            if role.name in self.metrics:
                raise ValueError(
                    f"{self.id}: the metric {role.name!r} has the name of a role, but tables show roles and metrics "
                    f"together; rename the metric, such as num_{role.name}"
                )
            self._check_role(role)
        fixed = (name for name, param in self.params.items() if param.fixed)
        check_constants([*(role.name for role in self.roles), *fixed], self.id)

    def _check_role(self, role: Role) -> None:
        """Raises an error if the role's count, spaces or ``shared_at`` are invalid."""
        what = f"{self.id}: the role {role.name!r}:"
        for name, parameter in (("count", role.count), ("shared_at", role.shared_at)):
            if isinstance(parameter, str):
                self._check_fixed_integer(f"{what} its {name}", parameter)
        if role.shared_at is not None and role.shared_observation is None:
            raise ValueError(f"{what} shared_at is the position of a shared_observation, which is missing; give both")
        if not (isinstance(role.count, str) or callable(role.count)) and (
            isinstance(role.count, bool) or not isinstance(role.count, int) or role.count < 1
        ):
            raise ValueError(
                f"{what} its count is {role.count!r}; give an integer of at least 1, the name of a fixed "
                "integer parameter, or a function of fixed parameters"
            )
        for name in ("observation", "action", *(["shared_observation"] if role.shared_observation is not None else [])):
            check_space(f"{what} {name}", getattr(role, name))

    def _check_fixed_integer(self, what: str, name: str) -> None:
        """Raises a ValueError, starting with ``what``, unless a parameter of this name is an integer and fixed."""
        param = self.params.get(name)
        if param is None:
            raise ValueError(
                f"{what} names {name!r}, which is not a parameter"
                f"{did_you_mean(name, self.params)} There are: {', '.join(self.params) or 'none'}"
            )
        if param.kind != "int" or not param.fixed:
            raise ValueError(
                f"{what} is the parameter {name!r}, which must be an integer and fixed: "
                f"Param({int(param.default) if param.kind in ('int', 'real') else 1}, positive=True, fixed=True)"
            )

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Observation, shared observation and action spaces of each role."""
        named = [(f"the role {role.name!r}:", role) for role in self.roles]
        individual = {f"{n} observation": r.observation for n, r in named}
        shared = {f"{n} shared_observation": r.shared_observation for n, r in named if r.shared_observation is not None}
        return individual | shared | {f"{n} action": r.action for n, r in named}

    def check_params(
        self, params: Mapping[str, Any], num_envs: int, precision: str = "float64"
    ) -> dict[str, ParamValue]:
        """Validates parameters as ``Spec`` does, and checks that each role has an agent and actions fit together."""
        values = Spec.check_params(self, params, num_envs, precision)
        for role in self.roles:
            if isinstance(role.count, str) and role.size(values) < 1:
                raise ValueError(
                    f"{self.id}: the role {role.name!r}: its count is the parameter {role.count!r}, which is "
                    f"{values[role.count]!r}; give an integer of at least 1"
                )
        actions = {r.name: space_of(r.action, values, f"{self.id}: the role {r.name!r}: action") for r in self.roles}
        if not all(isinstance(space, Box) for space in actions.values()):
            for name, space in actions.items():
                if not isinstance(space, Discrete | MultiDiscrete) or len(space.shape or ()) > 1:
                    raise ValueError(
                        f"{self.id}: the actions of all roles must be Discrete or MultiDiscrete, or all of them Box; "
                        f"{name} has {space}"
                    )
        return values

    def fixed_params(self, params: Mapping[str, Any]) -> FixedParams:
        """The ``fixed`` parameters, and ``AGENTS``, the number of agents."""
        fixed = Spec.fixed_params(self, params)
        return fixed.also({"AGENTS": sum(role.size(fixed, self.id) for role in self.roles)})

    def max_dimensions(self, name: str) -> int:
        """Maximum number of dimensions of a field, without the dimension of the agents."""
        of_agents = any(name in group for group in (self.state, self.scratch, self.role_state))
        return Spec.max_dimensions(self, name) - of_agents

    def role_observation(self, role: Role, params: Mapping[str, Any]) -> RoleObservation:
        """Observation spaces of one agent of a role under these parameters."""
        what = f"{self.id}: the role {role.name!r}:"
        individual = row_space(role.observation, params, f"{what} observation")
        extended = self.append_observed_params(individual, params, f"{what} observation")
        assert isinstance(extended, Box)
        if role.shared_observation is None:
            return RoleObservation(extended)
        shared = row_space(role.shared_observation, params, f"{what} shared_observation")
        position, size = role.shared_at, int(individual.shape[0])
        if not size or not shared.shape[0]:
            both = f"observation and shared_observation are {individual} and {shared}"
            raise ValueError(f"{what} {both}; give each at least one element")
        shared_at = size if position is None else params.get(position) if isinstance(position, str) else position
        if isinstance(shared_at, bool) or not isinstance(shared_at, int | np.integer) or not 0 <= shared_at <= size:
            raise ValueError(
                f"{what} shared_at is {position!r}; give an integer from 0 to {size}, the size of its observation, or "
                "the name of a fixed integer parameter"
            )
        return RoleObservation(extended, shared, int(shared_at))

    @property
    def has_shared_observations(self) -> bool:
        """Whether the rules write shared observations in ``observe_shared``."""
        return any(role.shared_observation is not None for role in self.roles)

    def counts(self, params: Mapping[str, ParamValue]) -> dict[str, int]:
        """Number of agents of each role under these parameters."""
        return {role.name: role.size(params) for role in self.roles}

    def agents(self, params: Mapping[str, ParamValue]) -> list[str]:
        """Names of all agents, role after role."""
        names = [name for role in self.roles for name in self.role_agents(role, params)]
        if len({*names}) < len(names):
            raise ValueError(f"{self.id}: names of agents must be different; got {names}")
        return names

    def role_agents(self, role: Role, params: Mapping[str, ParamValue]) -> tuple[str, ...]:
        """Names of a role's agents."""
        return role.agents(self.fixed_params(params), f"{self.id}: the role {role.name!r}:")
