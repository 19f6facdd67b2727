"""Distributions of parameters: each replica draws a value when an episode starts.

Each has a text form, such as ``uniform:0.05:0.4``, which is accepted wherever the object is, and is what files store.
"""

import abc
import dataclasses
import math
import numbers
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean

MIN_PROBABILITY = 0.01
"""Minimum probability mass of a normal distribution between its limits. With less, the tail probabilities are too small
for ``normal_quantile`` in ``kernels/dialect/distributions.cuh``."""

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


@final
class Kind(NamedTuple):
    """The part of a distribution that is compiled in; kernels read its numbers from memory."""

    name: str
    """Name of the distribution, such as ``uniform``."""
    numbers: int
    """Count of the numbers that kernels read."""


@dataclasses.dataclass(frozen=True)
class Distribution(abc.ABC):
    """Distribution of a parameter, given in place of a number. ``str`` returns its text form, which ``parse`` reads."""

    name: ClassVar[str]
    kernel_numbers: ClassVar[int]
    """Count of the numbers that kernels read: ``numbers``, with limits, and ``derived``."""

    @property
    @abc.abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """Numbers of the text form, after the name."""

    @property
    def kind(self) -> Kind:
        """The part of the distribution that is compiled in."""
        return Kind(self.name, self.kernel_numbers)

    @property
    @abc.abstractmethod
    def range(self) -> tuple[float, float]:
        """Smallest and largest value that may be drawn."""

    @property
    def start(self) -> float:
        """Value of the parameter before a replica's first episode."""
        return self.range[0]

    @property
    def derived(self) -> tuple[float, ...]:
        """Further constants for kernels, correctly rounded, so that every host computes the same."""
        return ()

    @property
    def factors(self) -> Mapping[str, float]:
        """Factors in the arithmetic of a draw, by name, which must be normal numbers in the simulation's precision."""
        return {}

    def with_limits(self, low: float, high: float) -> "Distribution":
        """Returns this distribution with these limits where it has none."""
        del low, high
        return self

    def __str__(self) -> str:
        """Text form."""
        return ":".join([self.name, *map(_text, self.numbers)])


@dataclasses.dataclass(frozen=True)
class _Range(Distribution):
    """Base class of distributions between two numbers."""

    low: float
    """Minimum."""
    high: float
    """Maximum."""

    def __post_init__(self) -> None:
        """Checks that the limits are finite and in order."""
        _convert_numbers(self)
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"{self!r} needs two finite numbers, the first at most the second")

    @property
    def numbers(self) -> tuple[float, ...]:
        """Minimum and maximum."""
        return self.range

    @property
    def range(self) -> tuple[float, float]:
        """Minimum and maximum."""
        return self.low, self.high


@final
@documented
@dataclasses.dataclass(frozen=True)
class Uniform(_Range):
    """Uniform distribution from ``low`` to ``high``: ``uniform:0.05:0.4``."""

    name: ClassVar[str] = "uniform"
    kernel_numbers: ClassVar[int] = 2


@final
@documented
@dataclasses.dataclass(frozen=True)
class LogUniform(_Range):
    """Distribution whose logarithm is uniform: each order of magnitude is equally likely. ``loguniform:0.1:10``."""

    name: ClassVar[str] = "loguniform"
    kernel_numbers: ClassVar[int] = 3

    def __post_init__(self) -> None:
        """Checks that the limits are positive."""
        _Range.__post_init__(self)
        if self.low <= 0:
            raise ValueError(f"{self!r} needs a low above 0")

    @property
    def derived(self) -> tuple[float, ...]:
        """Logarithm of ``high / low``."""
        return (float((Decimal(self.high) / Decimal(self.low)).ln()),)

    @property
    def factors(self) -> Mapping[str, float]:
        """Minimum."""
        return {"low": self.low}


@final
@documented
@dataclasses.dataclass(frozen=True)
class Normal(Distribution):
    """Normal distribution, truncated to ``low`` and ``high``: ``normal:9.8:0.2:9:10.6``.

    ``low`` and ``high`` default to the limits of the parameter.
    """

    name: ClassVar[str] = "normal"
    kernel_numbers: ClassVar[int] = 6

    mean: float
    """Mean of the distribution before truncation."""
    std: float
    """Standard deviation before truncation."""
    low: float = -math.inf
    """Minimum."""
    high: float = math.inf
    """Maximum."""

    def __post_init__(self) -> None:
        """Checks the numbers, and that enough of the distribution is between the limits."""
        _convert_numbers(self)
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf and self.low < self.high):
            raise ValueError(f"{self!r} needs a finite mean, a standard deviation above 0, and low below high")
        if (share := 1 - sum(self.derived)) < MIN_PROBABILITY:
            raise ValueError(
                f"{self!r} has a probability of {share:.2g} between {self.low:g} and {self.high:g}; "
                f"it must be {MIN_PROBABILITY:g} or more"
            )

    @property
    def derived(self) -> tuple[float, ...]:
        """Probabilities below ``low`` and above ``high``."""
        return _upper_tail((self.mean - self.low) / self.std), _upper_tail((self.high - self.mean) / self.std)

    @property
    def factors(self) -> Mapping[str, float]:
        """Bound of the distance from the mean: a draw that is farther away has a probability below 1e-12."""
        return {"8 standard deviations": 8 * self.std}

    @property
    def numbers(self) -> tuple[float, ...]:
        """Mean and standard deviation, and the limits if there are any."""
        limited = self.low > -math.inf or self.high < math.inf
        return (self.mean, self.std, *(self.range if limited else ()))

    @property
    def range(self) -> tuple[float, float]:
        """Minimum and maximum."""
        return self.low, self.high

    @property
    def start(self) -> float:
        """The mean, clipped to the limits."""
        return min(max(self.mean, self.low), self.high)

    def with_limits(self, low: float, high: float) -> "Normal":
        """Returns this distribution with these limits where it has none."""
        low = low if self.low == -math.inf else self.low
        return dataclasses.replace(self, low=low, high=high if self.high == math.inf else self.high)


@final
@documented
@dataclasses.dataclass(frozen=True, init=False)
class Choice(Distribution):
    """One of several numbers, each equally likely: ``choice:1:2:5``."""

    name: ClassVar[str] = "choice"

    values: tuple[float, ...]
    """The numbers to choose from."""

    def __init__(self, *values: float) -> None:
        """Takes the numbers to choose from."""
        object.__setattr__(self, "values", values)
        _convert_numbers(self)
        if not values or not all(map(math.isfinite, self.values)):
            raise ValueError(f"{self!r} needs at least one number, all of them finite")

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"Choice({', '.join(map(repr, self.values))})"

    @property
    def kind(self) -> Kind:
        """The part of the distribution that is compiled in."""
        return Kind(self.name, len(self.values))

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers to choose from."""
        return self.values

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest of the numbers."""
        return min(self.values), max(self.values)


EXAMPLES = {"Uniform": "0.05, 0.4", "LogUniform": "0.1, 10", "Normal": "9.8, 0.2", "Choice": "1, 2, 5"}
"""Example arguments of each class, for messages."""

KINDS: dict[str, type[Distribution]] = {kind.name: kind for kind in (Uniform, LogUniform, Normal, Choice)}
"""Classes by the name at the start of their text form."""


def parse(value: Any) -> Any:
    """Parses the text form of a distribution; returns any other value unchanged.

    Raises:
        ValueError: The text has colons, but is not a distribution.
    """
    if not isinstance(value, str) or ":" not in value:
        return value
    name, *arguments = value.split(":")
    kind = KINDS.get(name.strip().lower())
    if kind is None:
        raise ValueError(
            f"got {value!r}; there is no distribution {name!r}{did_you_mean(name, KINDS)} Give one such as "
            "'uniform:0.05:0.4', 'loguniform:0.1:10', 'normal:9.8:0.2:9:10.6' or 'choice:1:2:5'"
        )
    try:
        return kind(*map(float, arguments))
    except TypeError:
        fields = ", ".join(field.name for field in dataclasses.fields(kind))
        raise ValueError(f"got {value!r}; {name} takes {fields}, separated by colons") from None
    except ValueError as error:
        raise ValueError(f"got {value!r}: {error}") from None


def stored(value: Any) -> Any:
    """Returns a parameter's value as files store it: the text form of a distribution, any other value unchanged."""
    return str(value) if isinstance(value, Distribution) else value


def _upper_tail(x: float) -> float:
    """Probability above x under the standard normal distribution; 0 if it is less than 1e-23."""
    if abs(x) > 10:
        return 0.0 if x > 0 else 1.0
    with localcontext(prec=60):
        square = Decimal(x) ** 2
        term, total, n = Decimal(x), Decimal(0), 1
        while abs(term) > Decimal("1e-50"):
            total, n = total + term, n + 2
            term *= square / n
        return float(Decimal("0.5") - total * (-square / 2).exp() / (2 * PI).sqrt())


def _convert_numbers(distribution: Distribution) -> None:
    """Converts the fields of a distribution to floats, or raises a TypeError."""
    for field in dataclasses.fields(distribution):
        value = getattr(distribution, field.name)
        values = value if isinstance(value, tuple) else (value,)
        invalid = [x for x in values if isinstance(x, bool | np.bool_) or not isinstance(x, numbers.Real)]
        if invalid:
            name = type(distribution).__name__
            raise TypeError(
                f"{name} got {invalid[0]!r}; give numbers as separate arguments, such as {name}({EXAMPLES[name]})"
            )
        converted = tuple(float(x) for x in values)
        object.__setattr__(distribution, field.name, converted if isinstance(value, tuple) else converted[0])


def _text(number: float) -> str:
    """Shortest text that parses to the same number."""
    return repr(number).removesuffix(".0")
