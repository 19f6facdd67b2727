"""What Python knows of an environment: everything but its rules, which are a header in ``kernels/``.

From a spec follow the C++ structs, the buffers, the kernel arguments, the spaces and the command line's options.
"""

import dataclasses
import keyword
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from gpu_envs.arrays import dimensions, to_numpy
from gpu_envs.errors import did_you_mean

Value: TypeAlias = bool | float | str | np.ndarray
"""A parameter's value: one for all replicas, or an array with one for each (choices as indices)."""

SpaceSource: TypeAlias = gymnasium.Space[Any] | Callable[[Mapping[str, Any]], gymnasium.Space[Any]]
"""A space, or a function that derives it from the parameters."""

_CPP_WORDS = frozenset(
    "alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double "
    "else enum explicit export extern false float for friend goto if inline int long mutable namespace new not "
    "operator or private protected public real register return short signed sizeof static struct switch template "
    "this throw true try typedef typename union unsigned using virtual void volatile while xor".split()
)


def _check_name(name: str, what: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _CPP_WORDS or keyword.iskeyword(name):
        raise ValueError(f"{what} {name!r} must be a name in both C++ and Python: a letter, then letters, digits, '_'")


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One number, switch or choice that the rules depend on.

    The type of ``default`` says what it is: a bool is a switch, a string a choice among ``choices``, a number a real.
    """

    default: bool | float | str
    """Its value where the user gives none."""
    description: str = ""
    """What it is, with its unit."""
    minimum: float = -math.inf
    """The least value allowed."""
    maximum: float = math.inf
    """The greatest value allowed."""
    positive: bool = False
    """Zero and below are not allowed."""
    choices: tuple[str, ...] = ()
    """The words allowed, for a choice; in C++ the members of an enum."""
    baked: bool = False
    """Compile the value in, so that a branch on it costs nothing; another value compiles anew. Switches and choices
    always are, unless each replica has its own."""

    def __post_init__(self) -> None:
        """Refuses a default that breaks the parameter's own limits."""
        if isinstance(self.default, str) != bool(self.choices):
            raise ValueError(
                f"a choice needs a string as its default and choices; got {self.default!r}, {self.choices}"
            )
        self.check("default", self.default, 1)

    @property
    def kind(self) -> str:
        """Its kind: ``bool``, ``choice`` or ``real``."""
        return "choice" if self.choices else "bool" if isinstance(self.default, bool) else "real"

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return "one of " + ", ".join(repr(c) for c in self.choices)
        if isinstance(self.default, bool):
            return "True or False"
        if self.positive:
            return "a finite number above 0" + (f", at most {self.maximum:g}" if self.maximum < math.inf else "")
        if self.maximum == math.inf > -self.minimum:
            return f"a finite number of at least {self.minimum:g}"
        if self.minimum > -math.inf or self.maximum < math.inf:
            return f"a finite number from {self.minimum:g} to {self.maximum:g}"
        return "a finite number"

    def check(self, name: str, value: Any, num_envs: int) -> Value:
        """Returns ``value`` in the form the simulation keeps it, or raises a ValueError.

        Args:
            name: The parameter's name, for the message.
            value: A scalar, or one value a replica: a list or an array of any library, shape ``[num_envs]``.
            num_envs: The number of replicas.

        Returns:
            A bool, a float, a string, or an array of ``[num_envs]`` float64 (reals) or int32 (the others).
        """
        if isinstance(value, str) or dimensions(value) == 0:
            return self._check_scalar(name, value)
        values = to_numpy(value)
        if values.shape != (num_envs,):
            raise ValueError(
                f"parameter {name!r} got an array of shape {values.shape}; give one value, or one for each of the "
                f"{num_envs} replicas: shape ({num_envs},)"
            )
        if self.kind == "real":
            try:
                reals = values.astype(np.float64)
            except (TypeError, ValueError):
                raise ValueError(f"parameter {name!r} got {value!r}; allowed: {self.allowed}") from None
            wrong = ~np.isfinite(reals) | (reals < self.minimum) | (reals > self.maximum)
            wrong |= (reals <= 0) if self.positive else False
            if wrong.any():
                at = int(np.argmax(wrong))
                raise ValueError(f"parameter {name!r} of replica {at} is {values[at]!r}; allowed: {self.allowed}")
            return reals
        scalars = [self._check_scalar(f"{name}[{i}]", v.item()) for i, v in enumerate(values)]
        return np.array([self.index(v) for v in scalars], np.int32)

    def _check_scalar(self, name: str, value: Any) -> bool | float | str:
        refusal = ValueError(f"parameter {name!r} got {value!r}; allowed: {self.allowed}")
        if self.choices:
            if value not in self.choices:
                raise refusal
            return str(value)
        if isinstance(self.default, bool):
            if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
                raise refusal
            return bool(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise refusal from None
        outside = not math.isfinite(number) or number < self.minimum or number > self.maximum
        if outside or (self.positive and number <= 0):
            raise refusal
        return number

    def index(self, value: bool | float | str) -> int:
        """The integer that stands for a switch or a choice in C++."""
        return self.choices.index(str(value)) if self.choices else int(value)


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Names the state, the parameters, the spaces and the limits of a single-agent environment."""

    id: str
    """Its name, ``Name-v0``; Gymnasium knows it as ``gpu_envs/Name-v0``."""
    header: str | Path
    """The header with its rules: a name in ``kernels/``, or a path."""
    state: tuple[str, ...]
    """The fields of ``State``, all of type ``real``."""
    params: Mapping[str, Param]
    """The fields of ``Params``, given to ``make`` or per replica."""
    observation: SpaceSource
    """The observation space of one replica."""
    action: SpaceSource
    """The action space of one replica."""
    options: Mapping[str, Param] = dataclasses.field(default_factory=dict)
    """Further fields of ``Params`` that ``reset(options=...)`` sets for that reset alone."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters or options of which the first must not exceed the second."""
    max_episode_steps: int | None = None
    """The step at which an episode is truncated; None: never."""
    reward_threshold: float | None = None
    """The mean return at which it counts as solved."""
    description: str = ""
    """One sentence."""

    def __post_init__(self) -> None:
        """Checks names, and freezes the mappings."""
        if not re.fullmatch(r"[\w.-]+-v\d+", self.id):
            raise ValueError(f"environment id {self.id!r} must look like 'Name-v0'")
        if not self.state:
            raise ValueError(f"{self.id}: state must name at least one field")
        names = [*self.state, *self.params, *self.options]
        for name in names:
            _check_name(name, f"{self.id}: the field")
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise ValueError(f"{self.id}: {sorted(repeated)} named more than once among state, params and options")
        for pair in self.ordered:
            if not set(pair) <= set(self.params) | set(self.options):
                raise ValueError(f"{self.id}: ordered pair {pair} names what is neither a parameter nor an option")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ValueError(f"{self.id}: max_episode_steps is {self.max_episode_steps}; at least 1, or None")
        object.__setattr__(self, "state", tuple(self.state))
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @property
    def settings(self) -> dict[str, Param]:
        """Parameters and reset options together: the fields of ``Params``, in order."""
        return {**self.params, **self.options}

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
                known = [*self.options, "reset_mask"]
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

    def check_order(self, values: Mapping[str, Value]) -> None:
        """Raises a ValueError where the first of an ordered pair exceeds the second."""
        for low, high in self.ordered:
            if np.any(np.asarray(values[low]) > np.asarray(values[high])):
                raise ValueError(
                    f"{self.id}: {low!r} must not exceed {high!r}; got {values[low]!r} and {values[high]!r}"
                )

    def observation_space(self, params: Mapping[str, Value]) -> gymnasium.Space[Any]:
        """The observation space of one replica under these parameters."""
        return self.observation if isinstance(self.observation, gymnasium.Space) else self.observation(params)

    def action_space(self, params: Mapping[str, Value]) -> gymnasium.Space[Any]:
        """The action space of one replica under these parameters."""
        return self.action if isinstance(self.action, gymnasium.Space) else self.action(params)
