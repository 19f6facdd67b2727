"""The spec of an environment with a team of agents."""

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
    """The agents of one kind in a team."""

    name: str
    """In the singular."""
    count: int | str | Callable[[Mapping[str, Any]], int]
    """How many there are, the parameter that says so, or a function of the parameters marked ``fixed``."""
    observation: SpaceSource
    """What one of them sees, and others may see otherwise."""
    action: SpaceSource
    """What one of them may do."""
    shared_observation: SpaceSource | None = None
    """What all of them see alike, written once a replica by ``observe_shared``."""
    shared_at: int | str | None = None
    """How many numbers of ``observation`` stand before it in an agent's row, or the parameter that says so; None: all
    of them."""

    state: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What only these have, by their numbers in the role: ``[num_envs, count]``, arrays ``[num_envs, count, ...]``."""
    names: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    """The agents', or a function of the parameters marked ``fixed``; None: ``name_0``, ``name_1`` and so on."""

    def size(self, params: Mapping[str, Any], spec: str = "a team") -> int:
        """How many there are under these parameters, or raises what is wrong with that; ``spec`` is whose they are."""
        if callable(self.count):
            what = f"{spec}: the role {self.name!r}: its count"
            return check_count(evaluate(self.count, params, what), what)
        return self.count if isinstance(self.count, int) else int(params[self.count])

    def agents(self, params: Mapping[str, Any], what: str) -> tuple[str, ...]:
        """Their names under these parameters, or raises what is wrong with them.

        Args:
            params: The parameters marked ``fixed``.
            what: Spec and role, for a message.
        """
        count, given = self.size(params), self.names
        if given is None:
            return tuple(f"{self.name}_{i}" for i in range(count))
        names = tuple(evaluate(given, params, f"{what} names") if callable(given) else given)
        if len(names) != count or len({*names}) < count or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"{what} its names are {names}; give each of its {count} agents one of its own")
        return names


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TeamSpec(Spec):
    """Names the roles, the state, the parameters and the limits of an environment with a team of agents.

    PettingZoo knows it as ``gpu_envs/<id>``. The state's fields become arrays of ``World``, one element an agent, in
    the order of the roles. ``in_game`` and ``elapsed`` are there in every world, and ``present``, ``reward`` and
    ``terminated`` during a step.
    """

    has_team: ClassVar[bool] = True

    roles: tuple[Role, ...]
    """The kinds of agents, in order."""
    state: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What each agent has, ``[num_envs, num_agents]``; of arrays ``[num_envs, num_agents, ...]``."""
    shared: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What a replica has once, ``[num_envs]``; of arrays ``[num_envs, ...]``."""
    scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What each agent has from one phase of a step to the next, and no longer."""
    shared_scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What a replica has once, and no longer than a step."""
    active_heads: bool = False
    """The rules say in ``active`` which elements of an action mean something now. With ``make(..., active_heads=True)``
    masks leave the others one choice, so that policies learn nothing of them; the trainer asks for that."""
    columns: Callable[[Mapping[str, Any]], int] | None = None
    """How many columns ``FOR_EACH_COLUMN`` goes through, so that so many threads share a row; None: many."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields, of agents and of replicas."""
        return (*self.state, "in_game", *self.role_state, *self.shared, "elapsed")

    @property
    def role_state(self) -> dict[str, Field]:
        """The fields that roles have of their own."""
        return {name: field for role in self.roles for name, field in role.state.items()}

    def __post_init__(self) -> None:
        """Checks the names of roles and fields."""
        for what in ("state", "shared", "scratch", "shared_scratch"):
            check_types(f"{self.id}: {what}", getattr(self, what), Field, "Field('int')")
        for role in self.roles:
            check_types(f"{self.id}: the role {role.name!r}: state", role.state, Field, "Field('int')")
        Spec.__post_init__(self)
        taken = [*self.fields, *self.scratch, *self.shared_scratch, *_WORLD_WORDS]
        for name in taken:
            check_name(name, f"{self.id}: the field", members=WORLD_MEMBERS)
        repeated = {n for n in taken if taken.count(n) > 1}
        if repeated:
            raise ValueError(f"{self.id}: {sorted(repeated)} named more than once, or a name that every world has")
        if self.active_heads and not self.action_mask:
            raise ValueError(f"{self.id}: active_heads=True tells policies by masks: give action_mask=True too")
        if not self.roles or len({role.name for role in self.roles}) < len(self.roles):
            raise ValueError(f"{self.id}: roles must be named, each once; got {[r.name for r in self.roles]}")
        for role in self.roles:
            if not re.fullmatch(r"[a-z]+", role.name):
                raise ValueError(f"{self.id}: the role {role.name!r} must be of the letters a to z")
            self._check_role(role)
        fixed = (name for name, param in self.params.items() if param.fixed)
        check_constants([*(role.name for role in self.roles), *fixed], self.id)

    def _check_role(self, role: Role) -> None:
        """Refuses wrong counts and spaces."""
        what = f"{self.id}: the role {role.name!r}:"
        for name, given in (("count", role.count), ("shared_at", role.shared_at)):
            if isinstance(given, str):
                self._check_number(f"{what} its {name}", given)
        if role.shared_at is not None and role.shared_observation is None:
            raise ValueError(f"{what} shared_at says where its shared_observation stands, and it has none")
        if not (isinstance(role.count, str) or callable(role.count)) and (
            isinstance(role.count, bool) or not isinstance(role.count, int) or role.count < 1
        ):
            raise ValueError(f"{what} its count is {role.count!r}; a whole number from 1 up, or a parameter's name")
        for name in ("observation", "action", *(["shared_observation"] if role.shared_observation is not None else [])):
            check_space(f"{what} {name}", getattr(role, name))

    def _check_number(self, what: str, name: str) -> None:
        """Refuses the name of what is no fixed whole number among the parameters."""
        param = self.params.get(name)
        if param is None:
            raise ValueError(
                f"{what} names {name!r}, which is not a parameter"
                f"{did_you_mean(name, self.params)} There are: {', '.join(self.params) or 'none'}"
            )
        if param.kind != "int" or not param.fixed:
            raise ValueError(
                f"{what} is the parameter {name!r}, which must be a whole number and fixed: "
                f"Param({int(param.default) if param.kind in ('int', 'real') else 1}, positive=True, fixed=True)"
            )

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Each role's."""
        named = [(f"the role {role.name!r}:", role) for role in self.roles]
        seen = {f"{n} observation": r.observation for n, r in named}
        shared = {f"{n} shared_observation": r.shared_observation for n, r in named if r.shared_observation is not None}
        return seen | shared | {f"{n} action": r.action for n, r in named}

    def check_params(
        self, given: Mapping[str, Any], num_envs: int, precision: str = "float64"
    ) -> dict[str, ParamValue]:
        """Completes the parameters, or says which is wrong: as of every spec, and each role has an agent."""
        values = Spec.check_params(self, given, num_envs, precision)
        for role in self.roles:
            if isinstance(role.count, str) and role.size(values) < 1:
                raise ValueError(
                    f"{self.id}: the role {role.name!r}: its count is the parameter {role.count!r}, which is "
                    f"{values[role.count]!r}; give a whole number from 1 up"
                )
        actions = {r.name: space_of(r.action, values, f"{self.id}: the role {r.name!r}: action") for r in self.roles}
        if not all(isinstance(space, Box) for space in actions.values()):
            for name, space in actions.items():
                if not isinstance(space, Discrete | MultiDiscrete) or len(space.shape or ()) > 1:
                    raise ValueError(
                        f"{self.id}: the actions of all roles must be Discrete or MultiDiscrete, or all of them Box; "
                        f"those of {name} are {space}"
                    )
        return values

    def fixed_params(self, params: Mapping[str, Any]) -> FixedParams:
        """The parameters that stay as they are, and ``AGENTS``, how many agents there are."""
        fixed = Spec.fixed_params(self, params)
        return fixed.also({"AGENTS": sum(role.size(fixed, self.id) for role in self.roles)})

    def max_dimensions(self, name: str) -> int:
        """Of a field's shape: one less where agents have it each."""
        of_agents = any(name in group for group in (self.state, self.scratch, self.role_state))
        return Spec.max_dimensions(self, name) - of_agents

    def role_observation(self, role: Role, params: Mapping[str, Any]) -> RoleObservation:
        """What one agent of a role sees under these parameters."""
        what = f"{self.id}: the role {role.name!r}:"
        own = row_space(role.observation, params, f"{what} observation")
        seen = self.append_observed_params(own, params, f"{what} observation")
        assert isinstance(seen, Box)
        if role.shared_observation is None:
            return RoleObservation(seen)
        shared = row_space(role.shared_observation, params, f"{what} shared_observation")
        given, size = role.shared_at, int(own.shape[0])
        if not size or not shared.shape[0]:
            both = f"observation and shared_observation are {own} and {shared}"
            raise ValueError(f"{what} {both}; give each a number or more")
        at = size if given is None else params.get(given) if isinstance(given, str) else given
        if isinstance(at, bool) or not isinstance(at, int | np.integer) or not 0 <= at <= size:
            raise ValueError(
                f"{what} shared_at is {given!r}; give a whole number from 0 to {size}, the numbers of its observation, "
                "or the name of a parameter that is one"
            )
        return RoleObservation(seen, shared, int(at))

    @property
    def has_shared_observations(self) -> bool:
        """Whether agents of a role see something alike, which ``observe_shared`` writes."""
        return any(role.shared_observation is not None for role in self.roles)

    def counts(self, params: Mapping[str, ParamValue]) -> dict[str, int]:
        """How many agents each role has under these parameters."""
        return {role.name: role.size(params) for role in self.roles}

    def agents(self, params: Mapping[str, ParamValue]) -> list[str]:
        """The names of all agents, role after role."""
        names = [name for role in self.roles for name in self.role_agents(role, params)]
        if len({*names}) < len(names):
            raise ValueError(f"{self.id}: agents of several roles have the same name; they are {names}")
        return names

    def role_agents(self, role: Role, params: Mapping[str, ParamValue]) -> tuple[str, ...]:
        """The names of a role's agents."""
        return role.agents(self.fixed_params(params), f"{self.id}: the role {role.name!r}:")
