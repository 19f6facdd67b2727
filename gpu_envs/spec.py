"""What Python knows of an environment: everything but its rules, which are a header or functions in Python.

From a spec follow the C++ structs, the buffers, the kernel arguments, the spaces and the command line's options.
"""

import dataclasses
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.arrays import dimensions
from gpu_envs.derived import FixedParams
from gpu_envs.errors import did_you_mean
from gpu_envs.fields import Field, Table, check_kinds
from gpu_envs.names import COPIES, GETTER, check_capitals, check_choices, check_name
from gpu_envs.params import ARGUMENTS, Param, Value
from gpu_envs.pictures import Drawing
from gpu_envs.spaces import SpaceSource, check_space, outline, space_of
from gpu_envs.translation import Rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec(ABC):
    """What every environment has: a name, a header, parameters and limits."""

    id: str
    """Its name, ``Name-v0``."""
    header: str | Path | Rules
    """Its rules: a header beside the file that makes the spec, another's path, or functions in Python."""
    params: Mapping[str, Param]
    """The fields of ``Params``, given to ``make`` or per replica."""
    options: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params`` that ``reset(options=...)`` sets for that reset alone."""
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params``: what all replicas read and nobody writes."""
    action_mask: bool | None = None
    """The rules say in ``allow`` which actions are possible: ``infos["action_mask"]``. None: they have no ``allow``;
    False: if they have one, it is left alone."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters or options of which the first must not exceed the second."""
    max_episode_steps: int | None = None
    """The step at which an episode is truncated; None: never."""
    reward_threshold: float | None = None
    """The mean return at which it counts as solved."""
    description: str = ""
    """One sentence."""

    layouts: tuple[str, ...] = ()
    """Fields of the state that ``reset(options=...)`` accepts as explicit starts."""
    layout_rule: Callable[[str, np.ndarray, Mapping[str, Any]], str] | None = None
    """Given a field, an explicit start and the parameters: what is expected where it is wrong; otherwise ``""``."""
    limit: str | None = None
    """The parameter that means ``max_episode_steps``, where there is one."""

    drawing: Drawing | None = None
    """What it looks like; None: it cannot be rendered."""
    written_in: Path | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """The file that makes the spec; None: it is in no file."""

    @property
    def masked(self) -> bool:
        """Whether the rules say which actions are possible, and are asked."""
        return bool(self.action_mask)

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields, as users see them."""

    def __post_init__(self) -> None:
        """Checks names, and freezes the mappings."""
        if not re.fullmatch(r"[\w.-]+-v\d+", self.id):
            raise ValueError(f"environment id {self.id!r} must look like 'Name-v0'")
        object.__setattr__(self, "written_in", _file_of_caller())
        self._check_kinds()
        if not isinstance(self.header, Rules) and self.written_in is not None:
            beside = self.written_in.parent / self.header
            object.__setattr__(self, "header", beside if beside.is_file() else self.header)
        if not self.fields:
            raise ValueError(f"{self.id}: state must name at least one field")
        names = [*self.fields, *self.params, *self.options, *self.tables]
        for name in names:
            check_name(name, f"{self.id}: the field", members=frozenset() if name in self.fields else GETTER)
        check_choices(self.settings, self.id, team=isinstance(self, TeamSpec))
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise ValueError(
                f"{self.id}: {sorted(repeated)} named more than once among state, params, options and tables"
            )
        for pair in self.ordered:
            if not set(pair) <= set(self.params) | set(self.options):
                raise ValueError(f"{self.id}: ordered pair {pair} names what is neither a parameter nor an option")
        if self.limit is not None and self.limit not in self.params:
            raise ValueError(f"{self.id}: limit names {self.limit!r}, which is no parameter")
        if not set(self.layouts) <= set(self.fields):
            raise ValueError(f"{self.id}: layouts names what is no field of the state: {self.layouts}")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ValueError(f"{self.id}: max_episode_steps is {self.max_episode_steps}; at least 1, or None")
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))

    def _check_kinds(self) -> None:
        """Refuses what is not of the kind that it must be, by the name of the field."""
        if not isinstance(self.header, str | Path | Rules):
            raise TypeError(f"{self.id}: header is {self.header!r}; give a path, or gpu_envs.Rules")
        for what, given, kind, example in (
            ("params", self.params, Param, "Param(9.8)"),
            ("options", self.options, Param, "Param(0.05)"),
            ("tables", self.tables, Table, "Table([0.0, 1.0])"),
        ):
            check_kinds(f"{self.id}: {what}", given, kind, example)
            taken = [name for name in given if name in ARGUMENTS and kind is Param]
            if taken:
                raise ValueError(f"{self.id}: {what}: {taken[0]!r} is an argument of gpu_envs.make; name it otherwise")
        if self.drawing is not None and not isinstance(self.drawing, Drawing):
            raise TypeError(f"{self.id}: drawing is {self.drawing!r}; give gpu_envs.pictures.Drawing(draw), or None")
        limit = self.max_episode_steps
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(f"{self.id}: max_episode_steps is {limit!r}; give a whole number, or None")

    @property
    def settings(self) -> dict[str, Param]:
        """Parameters and reset options together: the fields of ``Params``, in order."""
        return {**self.params, **self.options}

    def fixed_params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters as functions that lengths and tables come from see them: those that stay as they are."""
        return FixedParams(frozenset(name for name, param in self.params.items() if param.fixed), params)

    def length(self, name: str, field: Field, params: Mapping[str, Any]) -> int:
        """How many elements a field has under these parameters."""
        return field.elements(self.fixed_params(params), f"{self.id}: the length of the field {name!r}")

    def table(self, name: str, params: Mapping[str, Any]) -> np.ndarray:
        """The numbers of a table under these parameters."""
        return self.tables[name].array(self.fixed_params(params), f"{self.id}: the table {name!r}")

    @property
    @abstractmethod
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Its spaces, by what they are."""

    def check_shapes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Raises a ValueError where other parameters would give a space another shape."""
        for what, source in self.spaces.items():
            if isinstance(source, gymnasium.Space):
                continue
            old, new = space_of(source, before, f"{self.id}: {what}"), space_of(source, after, f"{self.id}: {what}")
            if outline(old) != outline(new):
                changed = [n for n in after if not np.array_equal(before[n], after[n])]
                raise ValueError(
                    f"{self.id}: {what} would become {new}, and is {old}: make another environment, and mark the "
                    f"parameter {', '.join(map(repr, changed))} fixed=True"
                )

    def check_params(self, given: Mapping[str, Any], num_envs: int) -> dict[str, Value]:
        """Completes the parameters with their defaults, or says which is wrong, how, and what is allowed."""
        settings = self.settings
        for name in given:
            if name not in settings:
                raise ValueError(
                    f"{self.id} has no parameter {name!r}{did_you_mean(name, settings)} "
                    f"Its parameters are: {', '.join(settings)}."
                )
        values = {n: p.check(n, given.get(n, p.default), num_envs) for n, p in settings.items()}
        self.check_order(values)
        return values

    def check_options(self, given: Mapping[str, Any], defaults: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the parameters of one reset: ``defaults`` with the options that were given."""
        for name in given:
            if name not in self.options:
                known = [*self.options, *self.layouts, "reset_mask"]
                raise ValueError(
                    f"{self.id} has no reset option {name!r}{did_you_mean(name, known)} "
                    f"Its reset options are: {', '.join(known)}."
                )
        values = dict(defaults)
        for name, value in given.items():
            if dimensions(value) != 0:
                raise ValueError(f"reset option {name!r} got {value!r}; allowed: {self.options[name].allowed}")
            values[name] = self.options[name].check(name, value, 1)
        self.check_order(values)
        return values

    def check_layout(self, name: str, values: np.ndarray, params: Mapping[str, Any]) -> str:
        """What is expected of an explicit start that is wrong; empty where nothing is."""
        return self.layout_rule(name, values, params) if self.layout_rule is not None else ""

    def check_order(self, values: Mapping[str, Value]) -> None:
        """Raises a ValueError where the first of an ordered pair exceeds the second."""
        for low, high in self.ordered:
            if np.any(np.asarray(values[low]) > np.asarray(values[high])):
                raise ValueError(
                    f"{self.id}: {low!r} must not exceed {high!r}; got {values[low]!r} and {values[high]!r}"
                )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvSpec(Spec):
    """Names the state, the parameters, the spaces and the limits of a single-agent environment.

    Gymnasium knows it as ``gpu_envs/<id>``.
    """

    state: Mapping[str, Field] | tuple[str, ...]
    """The fields of ``State``; names alone are of type ``real``."""
    observation: SpaceSource
    """The observation space of one replica: a Box of float32, uint8 or int32, or a Dict of such."""
    action: SpaceSource
    """The action space of one replica."""

    def __post_init__(self) -> None:
        """Checks names and types of the state's fields."""
        given = self.state
        if isinstance(given, str):
            raise TypeError(f"{self.id}: state is {given!r}; give names, such as ({given!r},), or a mapping to Field()")
        repeated = [name for name in given if tuple(given).count(name) > 1]
        if repeated:
            raise ValueError(f"{self.id}: state names {repeated[0]!r} more than once; name each field once")
        named = dict(given) if isinstance(given, Mapping) else {name: Field() for name in given}
        check_kinds(f"{self.id}: state", named, Field, "Field('int')")
        object.__setattr__(self, "state", MappingProxyType(named))
        Spec.__post_init__(self)
        for what in ("observation", "action"):
            check_space(f"{self.id}: {what}", getattr(self, what))
        for name, field in named.items():
            if field.type == "agent":
                raise ValueError(f"{self.id}: the field {name!r} is of type 'agent', which only a team has; give 'int'")

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields."""
        return tuple(self.state)

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Observation and action."""
        return {"observation": self.observation, "action": self.action}

    @property
    def typed_state(self) -> Mapping[str, Field]:
        """The state's fields with their types."""
        assert isinstance(self.state, Mapping)
        return self.state

    def observation_space(self, params: Mapping[str, Value]) -> gymnasium.Space[Any]:
        """The observation space of one replica under these parameters."""
        return space_of(self.observation, params, f"{self.id}: observation")

    def action_space(self, params: Mapping[str, Value]) -> gymnasium.Space[Any]:
        """The action space of one replica under these parameters."""
        return space_of(self.action, params, f"{self.id}: action")


def _file_of_caller() -> Path | None:
    """The file that makes a spec; None where it is in no file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "dataclasses", "copy"):
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return Path(file).resolve() if file else None


_WORLD_WORDS = ("present", "reward", "gain", "action", "terminated", "pending", "finished")


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """The agents of one kind in a team."""

    name: str
    """In the singular: its agents are called ``name_0``, ``name_1`` and so on."""
    count: int | str
    """How many there are, or the parameter that says so."""
    observation: SpaceSource
    """What one of them sees."""
    action: SpaceSource
    """What one of them may do."""

    def size(self, params: Mapping[str, Any]) -> int:
        """How many there are under these parameters."""
        return self.count if isinstance(self.count, int) else int(params[self.count])


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamSpec(Spec):
    """Names the roles, the state, the parameters and the limits of an environment with a team of agents.

    PettingZoo knows it as ``gpu_envs/<id>``. The state's fields become arrays of ``World``, one element an agent, in
    the order of the roles. ``in_game`` and ``elapsed`` are there in every world, and ``present``, ``reward`` and
    ``terminated`` during a step.
    """

    roles: tuple[Role, ...]
    """The kinds of agents, in order."""
    state: Mapping[str, Field]
    """What each agent has, ``[num_envs, num_agents]``; of arrays ``[num_envs, num_agents, length]``."""
    shared: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What a replica has once, ``[num_envs]``; of arrays ``[num_envs, length]``."""
    scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What each agent has from one phase of a step to the next, and no longer."""
    shared_scratch: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    """What a replica has once, and no longer than a step."""
    columns: Callable[[Mapping[str, Any]], int] | None = None
    """How many columns ``FOR_EACH_COLUMN`` goes through, so that so many threads share a row; None: many."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields, of agents and of replicas."""
        return (*self.state, "in_game", *self.shared, "elapsed")

    def __post_init__(self) -> None:
        """Checks the names of roles and fields."""
        for what in ("state", "shared", "scratch", "shared_scratch"):
            check_kinds(f"{self.id}: {what}", getattr(self, what), Field, "Field('int')")
        Spec.__post_init__(self)
        taken = [*self.fields, *self.scratch, *self.shared_scratch, *_WORLD_WORDS]
        for name in taken:
            check_name(name, f"{self.id}: the field", members=COPIES)
        repeated = {n for n in taken if taken.count(n) > 1}
        if repeated:
            raise ValueError(f"{self.id}: {sorted(repeated)} named more than once, or a name that every world has")
        if not self.roles or len({role.name for role in self.roles}) < len(self.roles):
            raise ValueError(f"{self.id}: roles must be named, each once; got {[r.name for r in self.roles]}")
        for role in self.roles:
            if not re.fullmatch(r"[a-z]+", role.name):
                raise ValueError(f"{self.id}: the role {role.name!r} must be of the letters a to z")
            self._check_role(role)
        fixed = (name for name, param in self.params.items() if param.fixed)
        check_capitals([*(role.name for role in self.roles), *fixed], self.id)

    def _check_role(self, role: Role) -> None:
        """Refuses a count that is no number of agents, and what is no space."""
        what = f"{self.id}: the role {role.name!r}:"
        if isinstance(role.count, str):
            param = self.params.get(role.count)
            if param is None:
                raise ValueError(
                    f"{what} its count names {role.count!r}, which is no parameter"
                    f"{did_you_mean(role.count, self.params)} There are: {', '.join(self.params) or 'none'}"
                )
            if param.kind != "int" or not param.fixed:
                raise ValueError(
                    f"{what} its count is the parameter {role.count!r}, which must be a whole number and fixed: "
                    f"Param({int(param.default) if param.kind in ('int', 'real') else 1}, positive=True, fixed=True)"
                )
        elif isinstance(role.count, bool) or not isinstance(role.count, int) or role.count < 1:
            raise ValueError(f"{what} its count is {role.count!r}; a whole number from 1 up, or a parameter's name")
        for name in ("observation", "action"):
            check_space(f"{what} {name}", getattr(role, name))

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Each role's."""
        named = [(f"the role {role.name!r}:", role) for role in self.roles]
        return {f"{n} observation": r.observation for n, r in named} | {f"{n} action": r.action for n, r in named}

    def check_params(self, given: Mapping[str, Any], num_envs: int) -> dict[str, Value]:
        """Completes the parameters, or says which is wrong: as of every spec, and there is somebody of each role."""
        values = Spec.check_params(self, given, num_envs)
        for role in self.roles:
            if isinstance(role.count, str) and role.size(values) < 1:
                raise ValueError(
                    f"{self.id}: the role {role.name!r}: its count is the parameter {role.count!r}, which is "
                    f"{values[role.count]!r}; give a whole number from 1 up"
                )
        return values

    def counts(self, params: Mapping[str, Value]) -> dict[str, int]:
        """How many agents each role has under these parameters."""
        return {role.name: role.size(params) for role in self.roles}

    def agents(self, params: Mapping[str, Value]) -> list[str]:
        """The names of all agents, role after role."""
        return [f"{role}_{i}" for role, count in self.counts(params).items() for i in range(count)]
