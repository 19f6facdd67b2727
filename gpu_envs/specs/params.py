"""One parameter of an environment: what it may be, and the form in which the simulation keeps it."""

import dataclasses
import math
import numbers
from typing import Any, TypeAlias

import numpy as np

from gpu_envs.backend.arrays import to_numpy

ParamValue: TypeAlias = bool | float | str | np.ndarray
"""A parameter's value: one for all replicas, or an array with one for each (choices as indices)."""

ARGUMENTS = (
    *("self", "spec", "id", "env_id", "num_envs", "seed", "device", "output", "autoreset_mode", "precision"),
    *("max_episode_steps", "copy", "statistics", "threads", "block_size", "checking", "first_replica", "render_mode"),
)
"""What environments are made with besides their parameters, none of which can have such a name."""

_MOST_SHOWN = 200
"""Characters of a value in a message."""

_MOST_WHOLE = 2**31
"""Whole numbers in kernels are nearer to zero than this."""


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
        """Refuses a default that is none, or that breaks the parameter's own limits."""
        if not isinstance(self.default, bool | numbers.Real | str):
            raise TypeError(
                f"a parameter's default is {self.default!r}; give a number, True or False, or one of its choices "
                "(make() takes an array with a value for each replica)"
            )
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

    def check(self, name: str, value: Any, num_envs: int, precision: str = "float64") -> ParamValue:
        """Returns ``value`` in the form the simulation keeps it, or raises a ValueError.

        Args:
            name: The parameter's name, for the message.
            value: A scalar, or one value a replica: a list or an array of any library, shape ``[num_envs]``.
            num_envs: The number of replicas.
            precision: Of real numbers in the simulation, in which they must keep to the limits.

        Returns:
            A bool, a float, a string, or an array of ``[num_envs]`` of the precision (reals) or int32 (the others).
        """
        given = self.read(f"parameter {name!r}", value)
        if given.ndim == 0:
            return self.check_one(f"parameter {name!r}", value, precision)
        if self.fixed:
            raise ValueError(
                f"parameter {name!r} got one value for each replica; shapes depend on it, so give one for all"
            )
        if given.shape == (num_envs,) and (given.dtype.kind in "UOb" or self.choices):
            words = enumerate(given.tolist())
            scalars = [self.check_one(f"parameter {name!r} of replica {i}", v, precision) for i, v in words]
            given = np.array([float(v) if self.kind == "real" else self.index(v) for v in scalars])
        return self.check_kept(name, given, num_envs, precision)

    def check_kept(self, name: str, values: np.ndarray, num_envs: int, precision: str) -> np.ndarray:
        """Returns the numbers of all replicas as the simulation keeps them, or raises a ValueError.

        Args:
            name: The parameter's name, for the message.
            values: Numbers: of switches 0 and 1, of choices their indices.
            num_envs: The number of replicas.
            precision: Of real numbers.
        """
        if values.shape != (num_envs,):
            raise ValueError(
                f"parameter {name!r} got an array of shape {values.shape}; give one value, or one for each of the "
                f"{num_envs} replicas: shape ({num_envs},)"
            )
        if values.dtype.kind not in ("iuf" if self.kind == "real" else "iu"):
            raise ValueError(f"parameter {name!r} got an array of {values.dtype}; allowed: {self.allowed}")
        kept = _rounded(values, precision) if self.kind == "real" else values
        wrong = self._wrong(kept)
        if wrong.any():
            at = int(np.argmax(wrong))
            allowed = f"0 to {len(self.choices) - 1} for {self.choices}" if self.choices else self.allowed
            raise ValueError(f"parameter {name!r} of replica {at} is {values[at]!r}; allowed: {allowed}")
        return kept if self.kind == "real" else kept.astype(np.int32)

    def check_one(self, what: str, value: Any, precision: str = "float64") -> bool | float | str:
        """Returns one value for all replicas as a bool, a float or a string, or raises a ValueError.

        Args:
            what: Begins the message.
            value: A scalar of Python or of any array library.
            precision: Of real numbers in the simulation.
        """
        given, kind, note = self.read(what, value), self.kind, ""
        value = value if isinstance(value, str) or given.ndim else given.item()
        whole = isinstance(value, numbers.Integral)
        if kind == "choice":
            if isinstance(value, str) and value in self.choices:
                return str(value)
        elif kind == "bool":
            if whole and value in (0, 1):
                return bool(value)
        elif isinstance(value, bool):
            pass
        elif kind == "int" and whole:
            if abs(value) >= _MOST_WHOLE:
                note = f" (of 32 bits: {1 - _MOST_WHOLE} to {_MOST_WHOLE - 1})"
            elif not self._wrong(np.asarray(int(value))):
                return int(value)
        elif kind == "real" and isinstance(value, numbers.Real):
            number = _as_float(value)
            rounded = _rounded(number, precision)
            if not self._wrong(rounded):
                return number
            note = "" if self._wrong(np.asarray(number)) else f" ({precision} makes it {rounded})"
        raise ValueError(f"{what} got {_shown(value)}; allowed: {self.allowed}{note}")

    def read(self, what: str, value: Any) -> np.ndarray:
        """A value as NumPy reads it, or a ValueError, which ``what`` begins."""
        try:
            given = to_numpy(value)
        except (TypeError, ValueError, RuntimeError):  # rows of several lengths, elements that NumPy does not know
            given = None
        if given is None or given.dtype.kind not in "biufUO":
            raise ValueError(f"{what} got {_shown(value)}; allowed: {self.allowed}")
        return given

    def _wrong(self, values: np.ndarray) -> np.ndarray:
        """Which of the numbers that the simulation would keep are not allowed."""
        if self.kind != "real":
            whole = max(self.minimum, 1 - _MOST_WHOLE), min(self.maximum, _MOST_WHOLE - 1)
            low, high = {"bool": (0, 1), "choice": (0, len(self.choices) - 1), "int": whole}[self.kind]
            return np.asarray((values < low) | (values > high) | ((values <= 0) & self.positive))
        limits = _rounded([self.minimum, self.maximum], values.dtype.name)
        wrong = ~np.isfinite(values) | (values < limits[0]) | (values > limits[1])
        least = np.finfo(values.dtype).tiny if self.positive else -math.inf  # what is less, kernels take for zero
        return np.asarray(wrong | (values < least))

    def index(self, value: bool | float | str) -> int:
        """The integer that stands for a switch or a choice in C++."""
        return self.choices.index(str(value)) if self.choices else int(value)


def _shown(value: object) -> str:
    """What was given, cut to what people read."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        text = f"a number of type {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _rounded(values: Any, precision: str) -> np.ndarray:
    """Real numbers as an array of the precision; infinite where they are too large for it."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, np.float64).astype(precision)


def _as_float(number: Any) -> float:
    """A real number as a float; infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf
