"""Base class of environment specs, which declare everything except the rules (a header or Python functions).

The C++ structs, buffers, kernel arguments, spaces and command-line options are derived from a spec.
"""

import copy
import dataclasses
import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
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
"""A number of steps, or a function of the parameters that returns it."""


@documented
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Spec(ABC):
    """Fields of every environment: id, header, parameters and limits."""

    has_team: ClassVar[bool]
    """Whether the environment has a team of agents, grouped by role."""

    id: str
    """Id of the environment, such as ``Name-v0``."""
    header: str | Path | Rules
    """The rules: path of a header, relative to the file that makes the spec; or ``Rules``, functions in Python."""
    params: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """Fields of ``Params``, set by ``make``, with one value for all replicas or one for each."""
    options: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params``, which ``reset(options=...)`` sets for that reset only."""
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params``: read-only arrays shared by all replicas."""
    action_mask: bool | None = None
    """Whether ``allow`` of the rules is called for ``infos["action_mask"]``. None: if C++ rules have this function;
    Python rules with it need True or False."""
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """Metrics of an episode, written by ``measure`` of the rules: ``infos["episode"]``, ``env.episode_metrics``."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters or options, whose first must not exceed the second."""
    max_episode_steps: Steps = None
    """Step at which an episode is truncated, or a function of the ``fixed`` parameters. None: ``longest_episode``."""
    longest_episode: Steps = None
    """Maximum of ``max_episode_steps``, such as the number of rows of a table, or a function of the ``fixed``
    parameters. None: no maximum."""
    reward_threshold: float | None = None
    """Mean return at which the environment counts as solved."""
    description: str = ""
    """One sentence that describes the environment."""

    start_fields: tuple[str, ...] = ()
    """State fields that ``reset(options=...)`` can set."""
    start_rule: Callable[[str, np.ndarray, Mapping[str, Any]], str] | None = None
    """Checks a value from ``reset(options=...)``: given the field's name, the value and the parameters, returns what is
    expected instead, or ``""`` if the value is valid."""

    observe_params: tuple[str, ...] = ()
    """Parameters appended to each observation, arrays flattened; ``make(..., observe_params=...)`` overrides them."""

    drawing: Drawing | None = None
    """Draws the state for rendering. None: the environment cannot be rendered."""
    source_file: Path | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """File that makes the spec. None: no file."""
    rules_text: tuple[str, str] | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """Name and text of the header that an environment was compiled from. None: read ``header``."""
    key: str = dataclasses.field(default="", init=False, compare=False, repr=False)
    """Identifies the spec in pickles of its environments; empty until one is pickled."""

    def __eq__(self, other: object) -> bool:
        """Whether the other spec describes the same environment."""
        return isinstance(other, Spec) and comparison_key(self) == comparison_key(other)

    __hash__ = None  # type: ignore[assignment]  # mappings and arrays are unhashable

    @property
    def masked(self) -> bool:
        """Whether action masks are computed."""
        return bool(self.action_mask)

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """Names of all state fields, as users see them."""

    def __post_init__(self) -> None:
        """Validates the fields and makes the mappings read-only."""
        if not re.fullmatch(r"[\w.-]+-v\d+", self.id):
            raise ValueError(f"the environment id is {self.id!r}; give a name and a version, such as 'Name-v0'")
        object.__setattr__(self, "source_file", file_of_caller())
        self._check_types()
        if not isinstance(self.header, Rules) and self.source_file is not None:
            path = self.source_file.parent / self.header
            object.__setattr__(self, "header", path if path.is_file() else self.header)
        if not self.fields:
            raise ValueError(f"{self.id}: state must name at least one field")
        names = [*self.fields, *self.params, *self.options, *self.tables]
        for name in names:
            check_name(name, f"{self.id}: the field", members=frozenset() if name in self.fields else PARAMS_MEMBERS)
        check_metrics(self.metrics, self.id)
        check_choices(self.settings, self.id, is_team=self.has_team)
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise ValueError(f"{self.id}: {sorted(repeated)} occur more than once in state, params, options and tables")
        for pair in self.ordered:
            if not set(pair) <= set(self.params) | set(self.options):
                raise ValueError(f"{self.id}: ordered has the pair {pair}; give two parameters or options")
        object.__setattr__(self, "observe_params", self._check_observed(self.observe_params))
        if not set(self.start_fields) <= set(self.fields):
            raise ValueError(f"{self.id}: start_fields is {self.start_fields}; allowed: {', '.join(self.fields)}")
        limit, longest = (
            None if steps is None or callable(steps) else check_count(steps, f"{self.id}: {name}")
            for name, steps in (
                ("max_episode_steps", self.max_episode_steps),
                ("longest_episode", self.longest_episode),
            )
        )
        if limit is not None and longest is not None and limit > longest:
            raise ValueError(f"{self.id}: max_episode_steps is {limit}; use longest_episode, {longest}, or fewer")
        for name in ("params", "options", "tables", "metrics"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def _check_types(self) -> None:
        """Raises a TypeError or ValueError if a field has the wrong type."""
        if not isinstance(self.header, str | Path | Rules):
            raise TypeError(f"{self.id}: header is {self.header!r}; give a path, or gpu_envs.Rules")
        for what, fields, kind, example in (
            ("params", self.params, Param, "Param(9.8)"),
            ("options", self.options, Param, "Param(0.05)"),
            ("tables", self.tables, Table, "Table([0.0, 1.0])"),
            ("metrics", self.metrics, Metric, "Metric('its unit')"),
        ):
            check_types(f"{self.id}: {what}", fields, kind, example)
            reserved = [name for name in fields if name in ARGUMENTS and kind is Param]
            if reserved:
                raise ValueError(f"{self.id}: {what}: {reserved[0]!r} is an argument of gpu_envs.make; rename it")
        arrays = [name for name, option in self.options.items() if not _is_number(option)]
        if arrays:
            raise ValueError(
                f"{self.id}: options: {arrays[0]!r} is an array or a Derived; give a scalar, such as Param(0.05)"
            )
        if self.drawing is not None and not isinstance(self.drawing, Drawing):
            raise TypeError(f"{self.id}: drawing is {self.drawing!r}; give gpu_envs.pictures.Drawing(draw), or None")

    @functools.cached_property
    def settings(self) -> Mapping[str, Param]:
        """Parameters and reset options together: the fields of ``Params``, in order."""
        return {**self.params, **self.options}

    def _check_observed(self, names: Any) -> tuple[str, ...]:
        """Validates ``observe_params`` and returns it as a tuple."""
        is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        unknown = [name for name in names if name not in self.params] if is_list else [names]
        if unknown or len({*names}) < len(names):
            hint = did_you_mean(str((unknown or names)[0]), self.params)
            raise ValueError(
                f"{self.id}: observe_params is {names!r}{hint} Give names of parameters, each once: "
                f"{', '.join(self.params)}"
            )
        return tuple(names)

    def with_observed_params(self, names: Any) -> Self:
        """Returns this spec with ``names`` in place of its ``observe_params``. None: the spec itself."""
        if names is None:
            return self
        spec = copy.copy(self)
        object.__setattr__(spec, "observe_params", self._check_observed([names] if isinstance(names, str) else names))
        return spec

    def with_rules_text(self, rules: tuple[str, str] | None) -> Self:
        """Returns this spec with the header's text fixed, even if the file changes later. None: read the file again."""
        if rules == self.rules_text:
            return self
        spec = copy.copy(self)
        object.__setattr__(spec, "rules_text", rules)
        return spec

    def observed_sizes(self, params: Mapping[str, Any]) -> dict[str, int]:
        """Number of elements that each observed parameter adds to an observation."""
        fixed = self.fixed_params(params) if self.observe_params else {}
        return {name: math.prod(self.params[name].sizes(fixed)) for name in self.observe_params}

    def append_observed_params(
        self, space: gymnasium.Space[Any], params: Mapping[str, Any], what: str
    ) -> gymnasium.Space[Any]:
        """Returns an observation space with the observed parameters appended. Messages start with ``what``."""
        sizes = self.observed_sizes(params).items()
        limits = [self.params[name].observed_limits for name, size in sizes for _ in range(size)]
        return append_to_box(space, limits, what) if limits else space

    def fixed_params(self, params: Mapping[str, Any]) -> FixedParams:
        """The ``fixed`` parameters, which functions for shapes, tables and limits may read."""
        return FixedParams(frozenset(name for name, param in self.params.items() if param.fixed), params)

    def sizes(self, name: str, field: Field, params: Mapping[str, Any]) -> tuple[int, ...]:
        """Shape of the field ``name``, for each replica or agent; ``()`` for a scalar."""
        sizes = field.sizes(self.fixed_params(params), f"{self.id}: {{}} of the field {name!r}")
        if len(sizes) > self.max_dimensions(name):
            raise ValueError(
                f"{self.id}: the shape of the field {name!r} is {sizes}; use at most {MAX_DIMENSIONS} dimensions, "
                "including the dimension of the agents"
            )
        return sizes

    def max_dimensions(self, name: str) -> int:
        """Maximum number of dimensions of a field, without the dimension of the agents."""
        del name
        return MAX_DIMENSIONS

    def step_limit(self, params: Mapping[str, Any]) -> int | None:
        """Step at which an episode is truncated under these parameters. None: ``max_steps``."""
        return self._steps("max_episode_steps", self.max_episode_steps, params)

    def max_steps(self, params: Mapping[str, Any]) -> int | None:
        """Maximum length of an episode under these parameters, in steps. None: no maximum."""
        return self._steps("longest_episode", self.longest_episode, params)

    def _steps(self, name: str, steps: Steps, params: Mapping[str, Any]) -> int | None:
        what = f"{self.id}: {name}"
        return check_count(evaluate(steps, self.fixed_params(params), what), what) if callable(steps) else steps

    def table(self, name: str, params: Mapping[str, Any]) -> np.ndarray:
        """Values of a table under these parameters."""
        return self.tables[name].array(self.fixed_params(params), f"{self.id}: the table {name!r}")

    @property
    @abstractmethod
    def spaces(self) -> Mapping[str, SpaceSource]:
        """The spaces, by what they are in messages."""

    def check_shapes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Raises a ValueError if a change of parameters would change the shape of a space."""
        for what, source in self.spaces.items():
            if isinstance(source, gymnasium.Space):
                continue
            old, new = space_of(source, before, f"{self.id}: {what}"), space_of(source, after, f"{self.id}: {what}")
            if space_layout(old) != space_layout(new):
                changed = [n for n in after if not np.array_equal(before[n], after[n])]
                raise ValueError(
                    f"{self.id}: {what} would change from {old} to {new} with {', '.join(map(repr, changed))}: make "
                    "another environment with the new value; the spec should compute spaces only from scalar "
                    "parameters with fixed=True"
                )

    def unknown(self, name: str, options: Sequence[str] = ()) -> str:
        """Returns the end of a message "... has no ...": the name, a similar one, all ``options`` and parameters."""
        if name == "seed":
            hint = ". Give a seed to reset: env.reset(seed=0)."
        else:
            hint = did_you_mean(name, [*options, *self.settings], SYNONYMS)
        listed = f"Options: {', '.join(options)}; parameters" if options else "Its parameters are"
        what = "option or parameter" if options else "parameter"
        return f"{what} {name!r}{hint} {listed}: {', '.join(self.settings)}."

    def check_params(
        self, params: Mapping[str, Any], num_envs: int, precision: str = "float64"
    ) -> dict[str, ParamValue]:
        """Returns validated parameters by name, as the simulation stores them, with the defaults of missing ones."""
        settings = self.settings
        for name in params:
            if name not in settings:
                raise ValueError(f"{self.id} has no {self.unknown(name)}")
        for name in params:
            if isinstance(settings[name], Derived):
                settings[name].check(name, params[name], num_envs)
        drawn = self.drawn({n: v for n, v in params.items() if n in self.options}, precision)
        drawn |= self.drawn({n: params.get(n, p.default) for n, p in self.params.items()}, precision)
        values = {
            n: p.check(n, params.get(n, p.default), num_envs, precision) for n, p in settings.items() if _is_number(p)
        }
        fixed = self.fixed_params(values)
        for name, param in settings.items():
            if param.rank and not isinstance(param, Derived):
                what, default = f"{self.id}: {{}} of the parameter {name!r}", param.default
                if callable(default) and name not in params:
                    default = evaluate(default, fixed, what.format("the default"))
                values[name] = param.check(
                    name, params.get(name, default), num_envs, precision, param.sizes(fixed, what)
                )
        values = self.with_derived(values, num_envs, precision, drawn)
        self.check_order(values, precision, drawn=drawn)
        return values

    def drawn(self, params: Mapping[str, Any], precision: str = "float64") -> dict[str, Distribution]:
        """Returns the validated distributions among parameters as users give them, by name."""
        distributions = {}
        for name, value in params.items():
            if isinstance(self.settings[name], Derived):
                continue
            distribution = self.settings[name].distribution(name, value, precision)
            if distribution is not None and name in self.options:
                raise ValueError(f"{self.id}: {name!r} is a reset option, which takes no distribution; give a number")
            if distribution is not None:
                distributions[name] = distribution
        return distributions

    def with_derived(
        self, values: Mapping[str, ParamValue], num_envs: int, precision: str, drawn: Container[str] = ()
    ) -> dict[str, ParamValue]:
        """Returns the values with ``Derived`` ones computed again; raises a ValueError if these read ``drawn`` ones."""
        completed = dict(values)
        for name, value, read in self._compute_derived(values, num_envs, precision):
            completed[name] = value
            if sampled := sorted(n for n in read if n in drawn):
                raise ValueError(
                    f"{self.id}: parameter {sampled[0]!r} cannot be a distribution, because {name!r} is computed "
                    "from it on the host; give a number, or one for each replica"
                )
        return {name: completed[name] for name in self.settings}

    def _compute_derived(
        self, values: Mapping[str, ParamValue], num_envs: int, precision: str
    ) -> Iterator[tuple[str, ParamValue, Set[str]]]:
        """Yields the name and value of each ``Derived`` parameter, and the names of the parameters that it read."""
        known = {n: value for n, value in values.items() if not isinstance(self.settings[n], Derived)}
        fixed = self.fixed_params(known)
        for name, param in self.params.items():
            if isinstance(param, Derived):
                sizes = param.sizes(fixed, f"{self.id}: {{}} of the parameter {name!r}")
                known[name], read = param.compute(name, known, self.settings, num_envs, precision, sizes)
                yield name, known[name], read

    def check_derived(self, values: Mapping[str, ParamValue], num_envs: int, precision: str) -> None:
        """Raises a ValueError if a ``Derived`` parameter is outdated, because another one was edited in place."""
        for name, expected, read in self._compute_derived(values, num_envs, precision):
            if not np.array_equal(np.broadcast_to(expected, np.shape(values[name])), values[name]):
                inputs = ", ".join(map(repr, sorted(read)))
                raise ValueError(
                    f"{self.id}: parameter {name!r} is computed from {inputs}, and one of them was edited in place; "
                    "assign to params[...], or use set_attr"
                )

    def check_options(self, options: Mapping[str, Any], precision: str = "float64") -> dict[str, bool | float | str]:
        """Returns validated options of one reset by name; limits apply to values rounded to ``precision``."""
        for name in options:
            if name not in self.options:
                names = [*self.options, *self.start_fields, "reset_mask"]
                raise ValueError(
                    f"{self.id} has no reset option {name!r}{did_you_mean(name, names)} "
                    f"Its reset options are: {', '.join(names)}."
                )
        return {n: self.options[n].check_scalar(f"reset option {n!r}", v, precision) for n, v in options.items()}

    def check_layout(self, name: str, values: np.ndarray, params: Mapping[str, Any]) -> str:
        """Returns what is expected of a value from ``reset(options=...)``, or ``""`` if the value is valid."""
        return self.start_rule(name, values, params) if self.start_rule is not None else ""

    def check_order(
        self,
        values: Mapping[str, Any],
        precision: str = "float64",
        of: Container[str] | None = None,
        drawn: Mapping[str, Distribution] | None = None,
    ) -> None:
        """Raises a ValueError if the first of an ordered pair exceeds the second, now or in a later episode.

        Args:
            values: Parameters. Pairs with a missing parameter are skipped.
            precision: Precision of the simulation.
            of: Check only pairs that include one of these.
            drawn: Distributions of the parameters that are sampled; none of their values may break the order.
        """
        if not self.ordered:
            return
        ends = {n: d.with_limits(*self.settings[n].limits(precision)).range for n, d in (drawn or {}).items()}
        for pair in self.ordered:
            if not set(pair) <= values.keys() or (of is not None and not any(name in of for name in pair)):
                continue
            kinds = [precision if self.settings[name].kind == "real" else "int64" for name in pair]
            for ranges in ({}, ends):  # current values, then the ranges of the distributions
                sides = (ranges[name][1 - side] if name in ranges else values[name] for side, name in enumerate(pair))
                low, high = (to_numpy(v).astype(kind) for v, kind in zip(sides, kinds, strict=True))
                if np.any(low > high):
                    shown = ((drawn or {})[name] if name in ranges else values[name] for name in pair)
                    raise ValueError(
                        f"{self.id}: {pair[0]!r} must not exceed {pair[1]!r}; got {' and '.join(map(repr, shown))}"
                    )


def _is_number(param: Param) -> bool:
    """Whether the parameter is a scalar that users can set."""
    return not param.rank and not isinstance(param, Derived)
