"""One parameter of an environment: what it may be, and the form in which the simulation keeps it."""

import dataclasses
import math
import operator
from typing import Any, TypeAlias

import numpy as np

from gpu_envs.arrays import dimensions, to_numpy

Value: TypeAlias = bool | float | str | np.ndarray
"""A parameter's value: one for all replicas, or an array with one for each (choices as indices)."""

ARGUMENTS = (
    *("self", "spec", "id", "env_id", "num_envs", "seed", "device", "output", "autoreset_mode", "precision"),
    *("max_episode_steps", "copy", "statistics", "threads", "block_size", "checking", "render_mode"),
)
"""What environments are made with besides their parameters, none of which can have such a name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One number, switch or choice that the rules depend on.

    The type of ``default`` says what it is: a bool is a switch, a string a choice among ``choices``, an int a whole
    number, a float a real one.
    """

    default: bool | int | float | str
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
    """Compile the value in, so that a branch on it costs nothing; another value compiles anew. Switches, choices and
    whole numbers always are, unless each replica has its own."""
    fixed: bool = False
    """Shapes depend on it, so it is the same for all replicas and stays as it was when the environment was made."""

    def __post_init__(self) -> None:
        """Refuses a default that breaks the parameter's own limits."""
        if isinstance(self.default, str) != bool(self.choices):
            raise ValueError(
                f"a choice needs a string as its default and choices; got {self.default!r}, {self.choices}"
            )
        try:
            self.check("default", self.default, 1)
        except ValueError as error:
            allowed = str(error).rpartition("; allowed: ")[2]
            raise ValueError(f"the default {self.default!r} is not allowed: give {allowed}") from None

    @property
    def kind(self) -> str:
        """Its kind: ``bool``, ``choice``, ``int`` or ``real``."""
        if self.choices:
            return "choice"
        return "bool" if isinstance(self.default, bool) else "int" if isinstance(self.default, int) else "real"

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return "one of " + ", ".join(repr(c) for c in self.choices)
        if isinstance(self.default, bool):
            return "True or False"
        number = "a whole number" if self.kind == "int" else "a finite number"
        if self.positive:
            return f"{number} above 0" + (f", at most {self.maximum:g}" if self.maximum < math.inf else "")
        if self.maximum == math.inf > -self.minimum:
            return f"{number} of at least {self.minimum:g}"
        if self.minimum == -math.inf < self.maximum < math.inf:
            return f"{number} of at most {self.maximum:g}"
        if self.minimum > -math.inf or self.maximum < math.inf:
            return f"{number} from {self.minimum:g} to {self.maximum:g}"
        return number

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
        if self.fixed:
            raise ValueError(
                f"parameter {name!r} got one value for each replica; shapes depend on it, so give one for all"
            )
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
            number = operator.index(value) if self.kind == "int" else float(value)
        except (TypeError, ValueError):
            raise refusal from None
        if self.kind == "int" and isinstance(value, bool):
            raise refusal
        if self.kind == "int" and abs(number) >= 2**31:
            raise ValueError(f"{refusal} (of 32 bits: {1 - 2**31} to {2**31 - 1})")
        outside = not math.isfinite(number) or number < self.minimum or number > self.maximum
        if outside or (self.positive and number <= 0):
            raise refusal
        return number

    def index(self, value: bool | float | str) -> int:
        """The integer that stands for a switch or a choice in C++."""
        return self.choices.index(str(value)) if self.choices else int(value)
