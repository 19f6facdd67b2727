"""Declaration of one parameter of an environment, with its limits; validation and conversion of its values."""

import ctypes
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
"""Value of a parameter: one for all replicas, or an array with one for each (choices as indices)."""

ARGUMENTS = (
    *("self", "spec", "id", "env_id", "num_envs", "seed", "device", "output", "autoreset_mode", "precision"),
    *("max_episode_steps", "copy", "statistics", "threads", "block_size", "checking", "first_replica", "render_mode"),
    "shared_observations",
    *("active_heads", "observe_params"),
)
"""Names of other arguments of ``make`` and the environments, which no parameter may have."""

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
"""Names of options and parameters by their names in Gymnasium and other libraries, for "Did you mean"."""

_MAX_SHOWN = 200
"""Maximum number of characters of a value in a message."""

_INT_BOUND = 2**31
"""Bound of the absolute value of integer parameters, which are int32."""


Default: TypeAlias = Any
"""A bool, int, float or string; for an array a number, nested lists, an array, or a function that returns it. A real
parameter may have a ``Distribution`` or its text form: each replica draws a value when an episode starts."""


@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """Parameter of the rules: a number, a switch, a choice, or an array of numbers.

    The type of ``default`` sets the kind: bool for a switch, str for a choice among ``choices``, int for an integer,
    float for a real number. The default of an array may be a number for all elements, or a function of the ``fixed``
    parameters that returns real numbers.
    """

    default: Default
    """Value if the user gives none."""
    description: str = ""
    """Meaning of the parameter, with its unit."""
    minimum: float = -math.inf
    """Minimum value."""
    maximum: float = math.inf
    """Maximum value."""
    positive: bool = False
    """Whether the value must be greater than zero."""
    choices: tuple[str, ...] = ()
    """Values of a choice: members of an enum in C++."""
    baked: bool = False
    """Whether to compile the value in: branches on it cost nothing, but another value needs another compilation.
    Switches, choices and integers always are, unless each replica has its own value; ``Derived`` parameters never are
    in a spec with reset options."""
    fixed: bool = False
    """Whether shapes may depend on it: then it is the same for all replicas, and cannot be set after ``make``."""
    shape: tuple[Size, ...] | None = None
    """Shape of an array, as in ``Field``. None: the shape of ``default``."""

    def __post_init__(self) -> None:
        """Validates the default."""
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
                f"a parameter's default is {self.default!r} and its choices are {self.choices}: give a string with "
                "choices, or neither"
            )
        try:
            self.check("default", self.default, 1)
        except ValueError as error:
            allowed = str(error).rpartition("; allowed: ")[2]
            raise ValueError(f"the default {self.default!r} is not allowed: give {allowed}") from None

    def _check_array(self) -> None:
        """Validates the default and the shape of an array, and stores both as tuples."""
        if self.choices or self.baked or self.fixed:
            raise ValueError("a parameter with a shape cannot have choices, be baked or be fixed: leave these out")
        if isinstance(self.default, Distribution):
            pass
        elif callable(self.default):
            if self.shape is None:
                raise ValueError("a parameter's default is a function; give its shape too, such as shape=('AGENTS',)")
        else:
            array = self.to_array("a parameter's default", self.default)
            if array.dtype.kind not in "iuf":
                raise ValueError(f"a parameter's default is {_shown(self.default)}; give numbers")
            object.__setattr__(self, "default", _nested(array.tolist()))
            object.__setattr__(self, "shape", array.shape if self.shape is None else self.shape)
        shape = check_shape(self.shape, "a parameter's shape")
        if callable(shape):
            raise TypeError("a parameter's shape is a function; give a tuple of sizes, whose elements may be functions")
        object.__setattr__(self, "shape", shape)

    @property
    def rank(self) -> int:
        """Number of dimensions; 0 for a scalar."""
        return len(self.shape or ())

    def is_per_replica(self, value: Any) -> bool:
        """Whether a validated value has an element for each replica."""
        return np.ndim(value) > self.rank

    def sizes(self, params: Mapping[str, Any], what: str = "{} of a parameter") -> tuple[int, ...]:
        """Shape under the ``fixed`` parameters; ``()`` for a scalar."""
        return sizes_of(self.shape, params, what.format("the shape")) if self.shape is not None else ()

    @property
    def kind(self) -> str:
        """Kind of the parameter: ``bool``, ``choice``, ``int`` or ``real``."""
        if self.shape is not None:
            is_int = not callable(self.default) and np.asarray(self.default).dtype.kind in "iu"
            return "int" if is_int else "real"
        if self.choices:
            return "choice"
        return "bool" if isinstance(self.default, bool) else "int" if isinstance(self.default, int) else "real"

    @property
    def allowed(self) -> str:
        """Description of the valid values, for messages."""
        if self.choices:
            return "one of " + ", ".join(repr(c) for c in self.choices)
        if isinstance(self.default, bool):
            return "True or False"
        number = "an integer" if self.kind == "int" else "a finite number"
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
        """Validates a value and converts it to the form that the simulation stores.

        Args:
            name: Name of the parameter, for messages.
            value: A scalar, or one value for each replica: a list or an array of any library, shape ``[num_envs]``.
            num_envs: Number of replicas.
            precision: Precision of the simulation; limits apply to the rounded value.
            sizes: Shape of an array parameter; ``()`` for a scalar.

        Returns:
            A bool, float or string; or an array, shape ``[num_envs]``, in the precision (real) or int32 (other kinds).
            For an array parameter, shape ``sizes`` or ``[num_envs, *sizes]``.
        """
        if (drawn := self.distribution(name, value, precision)) is not None:
            return np.full((num_envs, *sizes), drawn.with_limits(*self.limits(precision)).start, precision)
        array = self.to_array(f"parameter {name!r}", value)
        if sizes:
            if array.dtype.kind not in "iuf":
                raise ValueError(f"parameter {name!r} got {_shown(value)}; allowed: {self.allowed}")
            full = np.broadcast_to(array, sizes) if array.ndim == 0 else array
            return self.check_array(name, np.array(full), num_envs, precision, sizes)
        if array.ndim == 0:
            return self.check_scalar(f"parameter {name!r}", value, precision)
        if self.fixed:
            raise ValueError(
                f"parameter {name!r} got one value for each replica; give one for all, because shapes depend on it"
            )
        if array.shape == (num_envs,) and (array.dtype.kind in "UOb" or self.choices):
            values = enumerate(array.tolist())
            scalars = [self.check_scalar(f"parameter {name!r} of replica {i}", v, precision) for i, v in values]
            array = np.array([float(v) if self.kind == "real" else self.index(v) for v in scalars])
        return self.check_array(name, array, num_envs, precision)

    @property
    def observed_limits(self) -> tuple[float, float]:
        """Minimum and maximum in an observation, where switches and choices are numbers."""
        if self.kind in ("bool", "choice"):
            return 0.0, 1.0 if self.kind == "bool" else len(self.choices) - 1.0
        return max(self.minimum, 0.0) if self.positive else self.minimum, self.maximum

    def limits(self, precision: str) -> tuple[float, float]:
        """Minimum and maximum of a real parameter in a precision, both finite."""
        smallest, largest = _RANGES[precision]
        return max(self.minimum, smallest if self.positive else -largest), min(self.maximum, largest)

    def distribution(self, name: str, value: Any, precision: str = "float64") -> Distribution | None:
        """Returns a distribution, given as an object or as text, if the parameter allows it; None for other values."""
        if self.choices:
            return None
        try:
            distribution = parse(value)
            if not isinstance(distribution, Distribution):
                return None
            if self.fixed or self.baked or self.kind != "real":
                reason = "shapes depend on it" if self.fixed else "it is compiled in" if self.baked else ""
                reason = reason or f"it is {'a switch' if self.kind == 'bool' else 'an integer'}"
                raise ValueError(
                    f"is drawn from {distribution}, and {reason}: only real numbers that may change are drawn; give "
                    "a single value"
                )
            limited = distribution.with_limits(*self.limits(precision))
        except ValueError as error:
            raise ValueError(f"parameter {name!r} {error}") from None
        if any(math.isfinite(x) and not math.isfinite(_rounded_float(x, precision)) for x in distribution.numbers):
            raise ValueError(f"parameter {name!r} is drawn from {distribution}, which is not finite in {precision}")
        minimum, maximum = _RANGES[precision]
        for what, number in distribution.factors.items():
            if not minimum <= number <= maximum:
                allowed = f"allowed in {precision}: {minimum:g} to {maximum:g}"
                raise ValueError(f"parameter {name!r} is drawn from {distribution}: {what} is {number:g}; {allowed}")
        for number in limited.range:
            if not self._allows(number, precision):
                self.check_scalar(f"parameter {name!r}, drawn from {distribution},", number, precision)  # raises
        return distribution

    def check_array(
        self, name: str, values: np.ndarray, num_envs: int, precision: str, sizes: tuple[int, ...] = ()
    ) -> np.ndarray:
        """Validates an array of numbers, and converts it to the form that the simulation stores.

        ``values``, 0 and 1 for a switch and indices for a choice, have the shape ``[num_envs, *sizes]`` or, for an
        array that all replicas share, ``sizes``.
        """
        per_replica = (num_envs, *sizes)
        if values.shape != per_replica and (not sizes or values.shape != sizes):
            shared = f"one of shape {sizes}" if sizes else "one value"
            raise ValueError(
                f"parameter {name!r} got an array of shape {values.shape}; give {shared}, or one for each of the "
                f"{num_envs} replicas: shape {per_replica}"
            )
        if values.dtype.kind not in ("iuf" if self.kind == "real" else "iu"):
            raise ValueError(f"parameter {name!r} got an array of {values.dtype}; allowed: {self.allowed}")
        stored = _rounded(values, precision) if self.kind == "real" else values
        invalid = self._invalid(stored)
        if invalid.any():
            index = tuple(np.argwhere(invalid)[0].tolist())
            allowed = f"0 to {len(self.choices) - 1} for {self.choices}" if self.choices else self.allowed
            owner, element = (f" of replica {index[0]}", index[1:]) if values.shape == per_replica else ("", index)
            position = "".join(f"[{i}]" for i in element)
            raise ValueError(f"parameter {name!r}{position}{owner} is {values[index]!r}; allowed: {allowed}")
        return stored if self.kind == "real" else stored.astype(np.int32)

    def check_scalar(self, what: str, value: Any, precision: str = "float64") -> bool | float | str:
        """Validates one value for all replicas, and returns it as a bool, int, float or string.

        ``value`` is a scalar of Python or of any array library. Messages start with ``what``.
        """
        if self.kind == "real" and type(value) is float and self._allows(value, precision):
            return value
        array, kind, note = self.to_array(what, value), self.kind, ""
        value = value if isinstance(value, str) or array.ndim else array.item()
        is_integer = isinstance(value, numbers.Integral)
        if kind == "choice":
            if isinstance(value, str) and value in self.choices:
                return str(value)
        elif kind == "bool":
            if is_integer and value in (0, 1):
                return bool(value)
        elif isinstance(value, bool):
            pass
        elif kind == "int" and is_integer:
            if abs(value) >= _INT_BOUND:
                note = f" (32 bits: {1 - _INT_BOUND} to {_INT_BOUND - 1})"
            elif not self._invalid(np.asarray(int(value))):
                return int(value)
        elif kind == "real" and isinstance(value, numbers.Real):
            number = _as_float(value)
            rounded = _rounded(number, precision)
            if not self._invalid(rounded):
                return number
            note = "" if self._invalid(np.asarray(number)) else f" ({precision} rounds it to {rounded})"
        raise ValueError(f"{what} got {_shown(value)}; allowed: {self.allowed}{note}")

    def to_array(self, what: str, value: Any) -> np.ndarray:
        """Converts a value to a NumPy array, or raises a ValueError that starts with ``what``."""
        try:
            array = to_numpy(value)
        except (TypeError, ValueError, RuntimeError):  # ragged rows, unknown elements
            array = None
        if array is None or array.dtype.kind not in "biufUO":
            raise ValueError(f"{what} got {_shown(value)}; allowed: {self.allowed}")
        return array

    def _allows(self, number: float, precision: str) -> bool:
        """Whether a real number, rounded to the precision, is allowed: as ``_invalid``, but fast."""
        rounded, smallest = _rounded_float(number, precision), _RANGES[precision][0]
        low, high = (_rounded_float(end, precision) for end in (self.minimum, self.maximum))
        return math.isfinite(rounded) and max(low, smallest if self.positive else low) <= rounded <= high

    def _invalid(self, values: np.ndarray) -> np.ndarray:
        """Returns for each value whether it is not allowed, as an array."""
        if self.kind != "real":
            integers = max(self.minimum, 1 - _INT_BOUND), min(self.maximum, _INT_BOUND - 1)
            low, high = {"bool": (0, 1), "choice": (0, len(self.choices) - 1), "int": integers}[self.kind]
            return np.asarray((values < low) | (values > high) | ((values <= 0) & self.positive))
        limits = _rounded([self.minimum, self.maximum], values.dtype.name)
        invalid = ~np.isfinite(values) | (values < limits[0]) | (values > limits[1])
        minimum = np.finfo(values.dtype).tiny if self.positive else -math.inf  # kernels flush denormals to zero
        return np.asarray(invalid | (values < minimum))

    def index(self, value: bool | float | str) -> int:
        """The C++ integer of a switch or choice."""
        return self.choices.index(str(value)) if self.choices else int(value)


def _nested(values: Any) -> Any:
    """Converts nested lists to tuples, which are hashable and comparable."""
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def _shown(value: object) -> str:
    """The ``repr`` of a value, truncated for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        text = f"a number of type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _rounded(values: Any, precision: str) -> np.ndarray:
    """Real numbers as an array of the precision; infinite beyond its range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, np.float64).astype(precision)


_RANGES = {name: (float(np.finfo(name).tiny), float(np.finfo(name).max)) for name in ("float32", "float64")}
"""The smallest positive normal number and the largest number of each precision."""


def _rounded_float(number: float, precision: str) -> float:
    """One real number rounded to the precision; infinite beyond its range."""
    return number if precision == "float64" else ctypes.c_float(number).value


def _as_float(number: Any) -> float:
    """A real number as a float; infinite beyond its range."""
    try:
        return float(number)
    except OverflowError:
        return math.inf
