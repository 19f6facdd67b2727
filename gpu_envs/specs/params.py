"""One parameter of an environment: what it may be, and the form in which the simulation keeps it."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.documented import documented
from gpu_envs.specs.distributions import Distribution, parse
from gpu_envs.specs.fields import Size, check_shape, sizes_of

ParamValue: TypeAlias = bool | float | str | np.ndarray
"""A parameter's value: one for all replicas, or an array with one for each (choices as indices)."""

ARGUMENTS = (
    *("self", "spec", "id", "env_id", "num_envs", "seed", "device", "output", "autoreset_mode", "precision"),
    *("max_episode_steps", "copy", "statistics", "threads", "block_size", "checking", "first_replica", "render_mode"),
    "shared_observations",
    *("active_heads", "observe_params"),
)
"""What environments are made with besides their parameters, none of which can have such a name."""

SYNONYMS = {
    "n_envs": "num_envs",
    "num_replicas": "num_envs",
    "max_steps": "max_episode_steps",
    "time_limit": "max_episode_steps",
    "episode_length": "max_episode_steps",
    "horizon": "max_episode_steps",
    "dtype": "precision",
    "masscart": "cart_mass",
    "masspole": "pole_mass",
}
"""Options and parameters by their names in Gymnasium and other libraries, where those differ by more than spelling."""

_MOST_SHOWN = 200
"""Characters of a value in a message."""

_MOST_WHOLE = 2**31
"""Whole numbers in kernels are nearer to zero than this."""


Default: TypeAlias = Any
"""A bool, an int, a float or a string; of an array a number, nested lists, an array, or a function that gives it. Of a
real parameter also a distribution, from which each replica draws its own when an episode begins, or its text."""


@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One number, switch or choice that the rules depend on, or an array of numbers.

    The type of ``default`` says what it is: a bool is a switch, a string a choice among ``choices``, an int a whole
    number, a float a real one. Of an array it may be a number for all its elements, or a function of the parameters
    marked ``fixed`` that gives real ones.
    """

    default: Default
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
    whole numbers always are, unless each replica has its own. Derived ones never are in a spec with reset options."""
    fixed: bool = False
    """Shapes depend on it, so it is the same for all replicas and stays as it was when the environment was made."""
    shape: tuple[Size, ...] | None = None
    """The sizes of an array, as a field's; None: a single number, or as the default has them."""

    def __post_init__(self) -> None:
        """Refuses a default that is none, or that breaks the parameter's own limits."""
        if not self.choices and isinstance(default := parse(self.default), Distribution):
            object.__setattr__(self, "default", default)
            self.distribution("default", default)
            if self.shape is None:
                return
        if self.shape is not None or callable(self.default) or isinstance(self.default, list | tuple | np.ndarray):
            self._check_array()
            return
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

    def _check_array(self) -> None:
        """Refuses what an array of numbers cannot be."""
        if self.choices or self.baked or self.fixed:
            raise ValueError("a parameter with a shape has no choices, and is neither baked nor fixed")
        if isinstance(self.default, Distribution):
            pass
        elif callable(self.default):
            if self.shape is None:
                raise ValueError(
                    "a function gives a parameter's default; give its shape too, such as shape=('AGENTS',)"
                )
        else:
            given = self.read("a parameter's default", self.default)
            if given.dtype.kind not in "iuf":
                raise ValueError(f"a parameter's default is {_shown(self.default)}; give numbers")
            object.__setattr__(self, "default", _nested(given.tolist()))
            object.__setattr__(self, "shape", given.shape if self.shape is None else self.shape)
        shape = check_shape(self.shape, "a parameter's shape")
        if callable(shape):
            raise TypeError("a parameter's shape is a function; give its sizes, any of which may be a function")
        object.__setattr__(self, "shape", shape)

    @property
    def rank(self) -> int:
        """How many dimensions it has; 0: it is a single number."""
        return len(self.shape or ())

    def is_per_replica(self, value: Any) -> bool:
        """Whether a checked value has one for each replica."""
        return np.ndim(value) > self.rank

    def sizes(self, params: Mapping[str, Any], what: str = "{} of a parameter") -> tuple[int, ...]:
        """Its shape under the parameters marked ``fixed``; of a single number ``()``."""
        return sizes_of(self.shape, params, what.format("the shape")) if self.shape is not None else ()

    @property
    def kind(self) -> str:
        """Its kind: ``bool``, ``choice``, ``int`` or ``real``."""
        if self.shape is not None:
            whole = not callable(self.default) and np.asarray(self.default).dtype.kind in "iu"
            return "int" if whole else "real"
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

    def check(
        self, name: str, value: Any, num_envs: int, precision: str = "float64", sizes: tuple[int, ...] = ()
    ) -> ParamValue:
        """Returns ``value`` in the form the simulation keeps it, or raises a ValueError.

        Args:
            name: The parameter's name, for the message.
            value: A scalar, or one value a replica: a list or an array of any library, shape ``[num_envs]``.
            num_envs: The number of replicas.
            precision: Of real numbers in the simulation, in which they must keep to the limits.
            sizes: Of an array.

        Returns:
            A bool, a float, a string, or an array of ``[num_envs]`` of the precision (reals) or int32 (the others); of
            an array one, or one for each replica.
        """
        if (drawn := self.distribution(name, value, precision)) is not None:
            return np.full((num_envs, *sizes), drawn.within(*self.limits(precision)).start, precision)
        given = self.read(f"parameter {name!r}", value)
        if sizes:
            if given.dtype.kind not in "iuf":
                raise ValueError(f"parameter {name!r} got {_shown(value)}; allowed: {self.allowed}")
            whole = np.broadcast_to(given, sizes) if given.ndim == 0 else given
            return self.check_array(name, np.array(whole), num_envs, precision, sizes)
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
        return self.check_array(name, given, num_envs, precision)

    @property
    def observed_limits(self) -> tuple[float, float]:
        """The least and the greatest number that it is in an observation, where switches and choices are numbers."""
        most = {"bool": 1.0, "choice": len(self.choices) - 1.0}.get(self.kind)
        return (
            (0.0, most)
            if most is not None
            else (max(self.minimum, 0.0) if self.positive else self.minimum, self.maximum)
        )

    def limits(self, precision: str) -> tuple[float, float]:
        """The least and the greatest real number allowed, both finite."""
        numbers = np.finfo(precision)
        least = max(self.minimum, float(numbers.tiny if self.positive else numbers.min))
        return least, min(self.maximum, float(numbers.max))

    def distribution(self, name: str, value: Any, precision: str = "float64") -> Distribution | None:
        """The distribution that a value is, or that its text names, checked; None: it is another value.

        Args:
            name: The parameter's name, for the message.
            value: As given.
            precision: Of real numbers in the simulation.
        """
        if self.choices:
            return None
        try:
            found = parse(value)
            if not isinstance(found, Distribution):
                return None
            if self.fixed or self.baked or self.kind != "real":
                reason = "shapes depend on it" if self.fixed else "it is compiled in" if self.baked else ""
                reason = reason or f"it is {'a switch' if self.kind == 'bool' else 'a whole number'}"
                raise ValueError(f"is drawn from {found}, and {reason}: only real numbers that may change are drawn")
            limited = found.within(*self.limits(precision))
        except ValueError as error:
            raise ValueError(f"parameter {name!r} {error}") from None
        if not all(math.isfinite(_rounded(number, precision)) for number in found.numbers if math.isfinite(number)):
            raise ValueError(f"parameter {name!r} is drawn from {found}, of which {precision} makes a number infinite")
        least, most = float(np.finfo(precision).tiny), float(np.finfo(precision).max)
        for what, number in found.factors.items():
            if not least <= number <= most:
                allowed = f"allowed in {precision}: {least:g} to {most:g}"
                raise ValueError(f"parameter {name!r} is drawn from {found}: {what} is {number:g}; {allowed}")
        for number in limited.range:
            self.check_one(f"parameter {name!r}, drawn from {found},", number, precision)
        return found

    def check_array(
        self, name: str, values: np.ndarray, num_envs: int, precision: str, sizes: tuple[int, ...] = ()
    ) -> np.ndarray:
        """Returns the numbers of all replicas as the simulation keeps them, or raises a ValueError.

        Args:
            name: The parameter's name, for the message.
            values: Numbers: of switches 0 and 1, of choices their indices.
            num_envs: The number of replicas.
            precision: Of real numbers.
            sizes: Of an array, which all replicas may have in common.
        """
        each = (num_envs, *sizes)
        if values.shape != each and (not sizes or values.shape != sizes):
            one = f"one of shape {sizes}" if sizes else "one value"
            raise ValueError(
                f"parameter {name!r} got an array of shape {values.shape}; give {one}, or one for each of the "
                f"{num_envs} replicas: shape {each}"
            )
        if values.dtype.kind not in ("iuf" if self.kind == "real" else "iu"):
            raise ValueError(f"parameter {name!r} got an array of {values.dtype}; allowed: {self.allowed}")
        kept = _rounded(values, precision) if self.kind == "real" else values
        wrong = self._wrong(kept)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            allowed = f"0 to {len(self.choices) - 1} for {self.choices}" if self.choices else self.allowed
            owner, element = (f" of replica {at[0]}", at[1:]) if values.shape == each else ("", at)
            place = "".join(f"[{i}]" for i in element)
            raise ValueError(f"parameter {name!r}{place}{owner} is {values[at]!r}; allowed: {allowed}")
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


def _nested(values: Any) -> Any:
    """Nested lists as tuples, which can be compared."""
    return tuple(map(_nested, values)) if isinstance(values, list) else values


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
