"""What Python knows of an environment: everything but its rules, which are a header or functions in Python.

From a spec follow the C++ structs, the buffers, the kernel arguments, the spaces and the command line's options.
"""

import copy
import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.pictures import Drawing
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.evaluate import FixedParams, evaluate
from gpu_envs.specs.fields import MAX_DIMENSIONS, Field, Table, check_count, check_types
from gpu_envs.specs.metrics import Metric, check_metrics
from gpu_envs.specs.names import PARAMS_MEMBERS, check_choices, check_name
from gpu_envs.specs.params import ARGUMENTS, SYNONYMS, Param, ParamValue
from gpu_envs.specs.rules import Rules, file_of_caller
from gpu_envs.specs.spaces import SpaceSource, append_to_box, comparison_key, space_layout, space_of

Steps: TypeAlias = int | Callable[[Mapping[str, Any]], int] | None
"""A number of steps, or a function of the parameters that says it."""


@documented
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Spec(ABC):
    """What every environment has: a name, a header, parameters and limits."""

    has_team: ClassVar[bool]
    """Whether it has a team of agents, by roles."""

    id: str
    """Its name, ``Name-v0``."""
    header: str | Path | Rules
    """Its rules: a header beside the file that makes the spec, another's path, or functions in Python."""
    params: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """The fields of ``Params``, given to ``make`` or per replica."""
    options: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params`` that ``reset(options=...)`` sets for that reset alone."""
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params``: what all replicas read and nobody writes."""
    action_mask: bool | None = None
    """The rules say in ``allow`` which actions are possible: ``infos["action_mask"]``. None: they have no ``allow``;
    False: if they have one, it is left alone."""
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """What the rules say of an episode in ``measure``: ``infos["episode"]``, ``env.episode_metrics``."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters or options of which the first must not exceed the second."""
    max_episode_steps: Steps = None
    """The step at which an episode is truncated; or a function of the parameters marked ``fixed`` that says so. None:
    at the longest."""
    longest_episode: Steps = None
    """The most steps that the rules are made for, such as a table has rows; or a function of the parameters marked
    ``fixed``. No ``max_episode_steps`` exceeds it. None: episodes may go on for ever."""
    reward_threshold: float | None = None
    """The mean return at which it counts as solved."""
    description: str = ""
    """One sentence."""

    start_fields: tuple[str, ...] = ()
    """Fields of the state that ``reset(options=...)`` accepts as explicit starts."""
    start_rule: Callable[[str, np.ndarray, Mapping[str, Any]], str] | None = None
    """Given a field, an explicit start and the parameters: what is expected where it is wrong; otherwise ``""``."""

    observe_params: tuple[str, ...] = ()
    """Parameters that follow what the rules write of an observation, an array's elements one after another; ``make``
    takes others."""

    drawing: Drawing | None = None
    """What it looks like; None: it cannot be rendered."""
    source_file: Path | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """The file that makes the spec; None: it is in no file."""
    rules_text: tuple[str, str] | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """Name and text of the header that an environment was made of; None: that of ``header`` as it stands."""
    key: str = dataclasses.field(default="", init=False, compare=False, repr=False)
    """What names it in pickles of its environments; empty: there are none."""

    def __eq__(self, other: object) -> bool:
        """Whether it is the same environment."""
        return isinstance(other, Spec) and comparison_key(self) == comparison_key(other)

    __hash__ = None  # type: ignore[assignment]  # its parts have none either

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
        object.__setattr__(self, "source_file", file_of_caller())
        self._check_kinds()
        if not isinstance(self.header, Rules) and self.source_file is not None:
            beside = self.source_file.parent / self.header
            object.__setattr__(self, "header", beside if beside.is_file() else self.header)
        if not self.fields:
            raise ValueError(f"{self.id}: state must name at least one field")
        names = [*self.fields, *self.params, *self.options, *self.tables]
        for name in names:
            check_name(name, f"{self.id}: the field", members=frozenset() if name in self.fields else PARAMS_MEMBERS)
        check_metrics(self.metrics, self.id)
        check_choices(self.settings, self.id, team=self.has_team)
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise ValueError(
                f"{self.id}: {sorted(repeated)} named more than once among state, params, options and tables"
            )
        for pair in self.ordered:
            if not set(pair) <= set(self.params) | set(self.options):
                raise ValueError(f"{self.id}: ordered pair {pair} names what is neither a parameter nor an option")
        object.__setattr__(self, "observe_params", self._check_observed(self.observe_params))
        if not set(self.start_fields) <= set(self.fields):
            raise ValueError(f"{self.id}: start_fields must name fields of the state; got {self.start_fields}")
        limit, longest = (
            None if given is None or callable(given) else check_count(given, f"{self.id}: {name}")
            for name, given in (
                ("max_episode_steps", self.max_episode_steps),
                ("longest_episode", self.longest_episode),
            )
        )
        if limit is not None and longest is not None and limit > longest:
            raise ValueError(f"{self.id}: max_episode_steps is {limit}; at most longest_episode, {longest}")
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))

    def _check_kinds(self) -> None:
        """Refuses what is not of the kind that it must be, by the name of the field."""
        if not isinstance(self.header, str | Path | Rules):
            raise TypeError(f"{self.id}: header is {self.header!r}; give a path, or gpu_envs.Rules")
        for what, given, kind, example in (
            ("params", self.params, Param, "Param(9.8)"),
            ("options", self.options, Param, "Param(0.05)"),
            ("tables", self.tables, Table, "Table([0.0, 1.0])"),
            ("metrics", self.metrics, Metric, "Metric('its unit')"),
        ):
            check_types(f"{self.id}: {what}", given, kind, example)
            taken = [name for name in given if name in ARGUMENTS and kind is Param]
            if taken:
                raise ValueError(f"{self.id}: {what}: {taken[0]!r} is an argument of gpu_envs.make; name it otherwise")
        arrays = [name for name, option in self.options.items() if not _is_number(option)]
        if arrays:
            raise ValueError(f"{self.id}: options: {arrays[0]!r} is an array or follows from others; give a number")
        if self.drawing is not None and not isinstance(self.drawing, Drawing):
            raise TypeError(f"{self.id}: drawing is {self.drawing!r}; give gpu_envs.pictures.Drawing(draw), or None")

    @property
    def settings(self) -> dict[str, Param]:
        """Parameters and reset options together: the fields of ``Params``, in order."""
        return {**self.params, **self.options}

    def _check_observed(self, names: Any) -> tuple[str, ...]:
        """The names of parameters that are to be observed, or raises what is wrong with them."""
        listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        wrong = [name for name in names if name not in self.params] if listed else [names]
        if wrong or len({*names}) < len(names):
            hint = did_you_mean(str((wrong or names)[0]), self.params)
            raise ValueError(
                f"{self.id}: observe_params is {names!r}{hint} Give names of parameters, each once: "
                f"{', '.join(self.params)}"
            )
        return tuple(names)

    def with_observed_params(self, names: Any) -> Self:
        """This environment whose observations end with these parameters; None: with those that they end with anyway."""
        if names is None:
            return self
        found = copy.copy(self)
        object.__setattr__(found, "observe_params", self._check_observed([names] if isinstance(names, str) else names))
        return found

    def with_rules_text(self, rules: tuple[str, str] | None) -> Self:
        """This environment under the rules of such a header, whatever becomes of the file; None: of ``header``."""
        if rules == self.rules_text:
            return self
        found = copy.copy(self)
        object.__setattr__(found, "rules_text", rules)
        return found

    def observed_sizes(self, params: Mapping[str, Any]) -> dict[str, int]:
        """How many numbers of observations each parameter that is observed makes."""
        fixed = self.fixed_params(params) if self.observe_params else {}
        return {name: math.prod(self.params[name].sizes(fixed)) for name in self.observe_params}

    def append_observed_params(
        self, space: gymnasium.Space[Any], params: Mapping[str, Any], what: str
    ) -> gymnasium.Space[Any]:
        """A space of observations that end with parameters; ``what`` begins a message."""
        sizes = self.observed_sizes(params).items()
        limits = [self.params[name].observed_limits for name, size in sizes for _ in range(size)]
        return append_to_box(space, limits, what) if limits else space

    def fixed_params(self, params: Mapping[str, Any]) -> FixedParams:
        """The parameters as functions that lengths and tables come from see them: those that stay as they are."""
        return FixedParams(frozenset(name for name, param in self.params.items() if param.fixed), params)

    def sizes(self, name: str, field: Field, params: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of a field under these parameters, for each replica or agent; of a single number ``()``."""
        sizes = field.sizes(self.fixed_params(params), f"{self.id}: {{}} of the field {name!r}")
        if len(sizes) > self.max_dimensions(name):
            raise ValueError(
                f"{self.id}: the shape of the field {name!r} is {sizes}; at most {MAX_DIMENSIONS} dimensions, that of "
                "the agents included"
            )
        return sizes

    def max_dimensions(self, name: str) -> int:
        """Of a field's shape."""
        del name
        return MAX_DIMENSIONS

    def step_limit(self, params: Mapping[str, Any]) -> int | None:
        """The step at which an episode is truncated under these parameters; None: at the longest."""
        return self._steps("max_episode_steps", self.max_episode_steps, params)

    def max_steps(self, params: Mapping[str, Any]) -> int | None:
        """The most steps that an episode may have under these parameters; None: any number."""
        return self._steps("longest_episode", self.longest_episode, params)

    def _steps(self, name: str, given: Steps, params: Mapping[str, Any]) -> int | None:
        what = f"{self.id}: {name}"
        return check_count(evaluate(given, self.fixed_params(params), what), what) if callable(given) else given

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
            if space_layout(old) != space_layout(new):
                changed = [n for n in after if not np.array_equal(before[n], after[n])]
                raise ValueError(
                    f"{self.id}: {what} would become {new}, and is {old}: make another environment, and mark the "
                    f"parameter {', '.join(map(repr, changed))} fixed=True"
                )

    def unknown(self, name: str, options: Sequence[str] = ()) -> str:
        """Return a message about an unknown parameter, after "has no": the name meant, and all that are allowed.

        Args:
            name: The unknown name.
            options: Options that are allowed in addition to the parameters.
        """
        if name == "seed":
            hint = ". Give a seed to reset: env.reset(seed=0)."
        else:
            hint = did_you_mean(name, [*options, *self.settings], SYNONYMS)
        listed = f"Options: {', '.join(options)}; parameters" if options else "Its parameters are"
        what = "option or parameter" if options else "parameter"
        return f"{what} {name!r}{hint} {listed}: {', '.join(self.settings)}."

    def check_params(
        self, given: Mapping[str, Any], num_envs: int, precision: str = "float64"
    ) -> dict[str, ParamValue]:
        """Completes the parameters with their defaults, or says which is wrong, how, and what is allowed."""
        settings = self.settings
        for name in given:
            if name not in settings:
                raise ValueError(f"{self.id} has no {self.unknown(name)}")
        for name in given:
            if isinstance(settings[name], Derived):
                settings[name].check(name, given[name], num_envs)
        drawn = self.drawn({n: v for n, v in given.items() if n in self.options}, precision)
        drawn |= self.drawn({n: given.get(n, p.default) for n, p in self.params.items()}, precision)
        values = {
            n: p.check(n, given.get(n, p.default), num_envs, precision) for n, p in settings.items() if _is_number(p)
        }
        fixed = self.fixed_params(values)
        for name, param in settings.items():
            if param.rank and not isinstance(param, Derived):
                what, default = f"{self.id}: {{}} of the parameter {name!r}", param.default
                if callable(default) and name not in given:
                    default = evaluate(default, fixed, what.format("the default"))
                values[name] = param.check(
                    name, given.get(name, default), num_envs, precision, param.sizes(fixed, what)
                )
        values = self.with_derived(values, num_envs, precision, drawn)
        self.check_order(values, precision, drawn=drawn)
        return values

    def drawn(self, given: Mapping[str, Any], precision: str = "float64") -> dict[str, Distribution]:
        """Those of the parameters given that are drawn for each episode, or says which cannot be.

        Args:
            given: Parameters as users give them.
            precision: Of real numbers in the simulation.
        """
        found = {}
        for name, value in given.items():
            if isinstance(self.settings[name], Derived):
                continue
            distribution = self.settings[name].distribution(name, value, precision)
            if distribution is not None and name in self.options:
                raise ValueError(f"{self.id}: {name!r} is a reset option, which is not drawn; give a number")
            if distribution is not None:
                found[name] = distribution
        return found

    def with_derived(
        self, values: Mapping[str, ParamValue], num_envs: int, precision: str, drawn: Container[str] = ()
    ) -> dict[str, ParamValue]:
        """These parameters, and those that follow from them, which must not be ``drawn``."""
        found = {n: value for n, value in values.items() if not isinstance(self.settings[n], Derived)}
        fixed = self.fixed_params(found)
        for name, param in self.params.items():
            if isinstance(param, Derived):
                sizes = param.sizes(fixed, f"{self.id}: {{}} of the parameter {name!r}")
                found[name], asked = param.compute(name, found, self.settings, num_envs, precision, sizes)
                if wrong := sorted(n for n in asked if n in drawn):
                    raise ValueError(
                        f"{self.id}: parameter {wrong[0]!r} cannot be drawn, because {name!r} follows from it on the "
                        "host; give a number, or one for each replica"
                    )
        return {name: found[name] for name in self.settings}

    def check_derived(self, values: Mapping[str, ParamValue], num_envs: int, precision: str) -> None:
        """Raises a ValueError where a parameter does not follow from others, for one of them was edited in place."""
        given = {n: value for n, value in values.items() if not isinstance(self.settings[n], Derived)}
        fixed = self.fixed_params(given)
        for name, param in self.params.items():
            if isinstance(param, Derived):
                made, asked = param.compute(name, given, self.settings, num_envs, precision, param.sizes(fixed))
                if not np.array_equal(np.broadcast_to(made, np.shape(values[name])), values[name]):
                    others = ", ".join(map(repr, sorted(asked)))
                    raise ValueError(
                        f"{self.id}: parameter {name!r} is not what follows from {others}: one of them was edited in "
                        f"place; assign to params[...], or use set_attr"
                    )
                given[name] = made

    def check_options(self, given: Mapping[str, Any], precision: str = "float64") -> dict[str, bool | float | str]:
        """Returns the options of one reset, or says which is wrong."""
        for name in given:
            if name not in self.options:
                known = [*self.options, *self.start_fields, "reset_mask"]
                raise ValueError(
                    f"{self.id} has no reset option {name!r}{did_you_mean(name, known)} "
                    f"Its reset options are: {', '.join(known)}."
                )
        return {n: self.options[n].check_one(f"reset option {n!r}", v, precision) for n, v in given.items()}

    def check_layout(self, name: str, values: np.ndarray, params: Mapping[str, Any]) -> str:
        """What is expected of an explicit start that is wrong; empty where nothing is."""
        return self.start_rule(name, values, params) if self.start_rule is not None else ""

    def check_order(
        self,
        values: Mapping[str, Any],
        precision: str = "float64",
        of: Container[str] | None = None,
        drawn: Mapping[str, Distribution] | None = None,
    ) -> None:
        """Raises a ValueError where the first of an ordered pair exceeds the second, or may do so in later episodes.

        Args:
            values: Parameters; a pair of which one is missing is left out.
            precision: Of real numbers in the simulation.
            of: Look only at pairs with one of these.
            drawn: Distributions of those that are drawn, of which no number may break the order.
        """
        ends = {n: d.within(*self.settings[n].limits(precision)).range for n, d in (drawn or {}).items()}
        for pair in self.ordered:
            if not set(pair) <= values.keys() or (of is not None and not any(name in of for name in pair)):
                continue
            kinds = [precision if self.settings[name].kind == "real" else "int64" for name in pair]
            for later in ({}, ends):  # the numbers that hold now, and those of the next episodes
                sides = (later[name][1 - side] if name in later else values[name] for side, name in enumerate(pair))
                low, high = (to_numpy(v).astype(kind) for v, kind in zip(sides, kinds, strict=True))
                if np.any(low > high):
                    told = ((drawn or {})[name] if name in later else values[name] for name in pair)
                    raise ValueError(
                        f"{self.id}: {pair[0]!r} must not exceed {pair[1]!r}; got {' and '.join(map(repr, told))}"
                    )


def _is_number(param: Param) -> bool:
    """Whether users give it, and it is no array."""
    return not param.rank and not isinstance(param, Derived)
