"""Distributions that parameters are drawn from, for each replica when an episode begins.

Each has one text, such as ``uniform:0.05:0.4``, which is taken wherever the object is, and is what is stored.
"""

import abc
import dataclasses
import math
import numbers
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, ClassVar, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean

MIN_PROBABILITY = 0.01
"""Of a normal distribution that must lie within its limits: with less, shares that are drawn would be too small for
``normal_below`` in ``kernels/dialect/distributions.cuh``."""

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


@dataclasses.dataclass(frozen=True)
class Distribution(abc.ABC):
    """What a parameter may be given in place of a number; ``str`` tells its text, and ``parse`` reads it."""

    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """What stands in its text, after the name."""

    @property
    @abc.abstractmethod
    def range(self) -> tuple[float, float]:
        """The least and the greatest number that may be drawn."""

    @property
    def start(self) -> float:
        """What replicas have before their first episode."""
        return self.range[0]

    @property
    def derived(self) -> tuple[float, ...]:
        """What a draw takes besides, rounded correctly, so that it is the same on every host."""
        return ()

    @property
    def factors(self) -> Mapping[str, float]:
        """Numbers that a draw multiplies by, so that the precision must have them as normal numbers."""
        return {}

    def within(self, least: float, greatest: float) -> "Distribution":
        """This distribution, which ends at these limits where it had none of its own."""
        del least, greatest
        return self

    def __str__(self) -> str:
        """Its text."""
        return ":".join([self.name, *map(_text, self.numbers)])


@dataclasses.dataclass(frozen=True)
class _Between(Distribution):
    """Between two numbers."""

    low: float
    """The least."""
    high: float
    """The greatest."""

    def __post_init__(self) -> None:
        """Refuses what is no range."""
        _keep_numbers(self)
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"{self!r} needs two finite numbers, low not above high")

    @property
    def numbers(self) -> tuple[float, ...]:
        """Both ends."""
        return self.range

    @property
    def range(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high


@final
@documented
@dataclasses.dataclass(frozen=True)
class Uniform(_Between):
    """Any number from ``low`` to ``high`` is as likely as another: ``uniform:0.05:0.4``."""

    name: ClassVar[str] = "uniform"


@final
@documented
@dataclasses.dataclass(frozen=True)
class LogUniform(_Between):
    """The logarithm is uniform, so that each order of magnitude is as likely as another: ``loguniform:0.1:10``."""

    name: ClassVar[str] = "loguniform"

    def __post_init__(self) -> None:
        """Refuses what has no logarithm."""
        _Between.__post_init__(self)
        if self.low <= 0:
            raise ValueError(f"{self!r} needs a low above 0")

    @property
    def derived(self) -> tuple[float, ...]:
        """The logarithm of ``high / low``."""
        return (float((Decimal(self.high) / Decimal(self.low)).ln()),)

    @property
    def factors(self) -> Mapping[str, float]:
        """The least number."""
        return {"low": self.low}


@final
@documented
@dataclasses.dataclass(frozen=True)
class Normal(Distribution):
    """A normal distribution, cut off below ``low`` and above ``high``: ``normal:9.8:0.2:9:10.6``.

    Where there is no ``low`` or ``high``, the parameter's own limits hold.
    """

    name: ClassVar[str] = "normal"

    mean: float
    """Of the whole distribution, without limits."""
    deviation: float
    """The standard deviation, likewise."""
    low: float = -math.inf
    """The least number that is drawn."""
    high: float = math.inf
    """The greatest."""

    def __post_init__(self) -> None:
        """Refuses what is no distribution, or hardly ever within its limits."""
        _keep_numbers(self)
        if not (math.isfinite(self.mean) and 0 < self.deviation < math.inf and self.low < self.high):
            raise ValueError(f"{self!r} needs a finite mean, a deviation above 0, and low below high")
        if (share := 1 - sum(self.derived)) < MIN_PROBABILITY:
            raise ValueError(
                f"{self!r} lies within {self.low:g} to {self.high:g} for {share:.2g} of its numbers; at least "
                f"{MIN_PROBABILITY:g} must"
            )

    @property
    def derived(self) -> tuple[float, ...]:
        """The shares of the distribution that lie below and above its limits."""
        return _share_above((self.mean - self.low) / self.deviation), _share_above(
            (self.high - self.mean) / self.deviation
        )

    @property
    def factors(self) -> Mapping[str, float]:
        """More than any draw is away from the mean, whose share is 1e-12 or more."""
        return {"8 standard deviations": 8 * self.deviation}

    @property
    def numbers(self) -> tuple[float, ...]:
        """Mean and deviation, and the limits where there are some."""
        limited = self.low > -math.inf or self.high < math.inf
        return (self.mean, self.deviation, *(self.range if limited else ()))

    @property
    def range(self) -> tuple[float, float]:
        """The limits."""
        return self.low, self.high

    @property
    def start(self) -> float:
        """The mean, or the limit nearest to it."""
        return min(max(self.mean, self.low), self.high)

    def within(self, least: float, greatest: float) -> "Normal":
        """This distribution, which ends at these limits where it had none of its own."""
        low = least if self.low == -math.inf else self.low
        return dataclasses.replace(self, low=low, high=greatest if self.high == math.inf else self.high)


@final
@documented
@dataclasses.dataclass(frozen=True, init=False)
class Choice(Distribution):
    """One of several numbers, each as likely as another: ``choice:1:2:5``."""

    name: ClassVar[str] = "choice"

    values: tuple[float, ...]
    """The numbers."""

    def __init__(self, *values: float) -> None:
        """Takes the numbers."""
        object.__setattr__(self, "values", values)
        _keep_numbers(self)
        if not values or not all(map(math.isfinite, self.values)):
            raise ValueError(f"{self!r} needs one finite number or more")

    def __repr__(self) -> str:
        """As it is made."""
        return f"Choice({', '.join(map(repr, self.values))})"

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of them."""
        return self.values

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest."""
        return min(self.values), max(self.values)


EXAMPLES = {"Uniform": "0.05, 0.4", "LogUniform": "0.1, 10", "Normal": "9.8, 0.2", "Choice": "1, 2, 5"}
"""What each is given, in messages."""

KINDS: dict[str, type[Distribution]] = {kind.name: kind for kind in (Uniform, LogUniform, Normal, Choice)}
"""By the word that begins their text."""


def parse(given: Any) -> Any:
    """Returns the distribution that a text stands for, or what was given where it is no such text.

    Raises:
        ValueError: A text with colons is none of a distribution.
    """
    if not isinstance(given, str) or ":" not in given:
        return given
    word, *written = given.split(":")
    kind = KINDS.get(word.strip().lower())
    if kind is None:
        raise ValueError(
            f"got {given!r}; there is no distribution {word!r}{did_you_mean(word, KINDS)} Give one such as "
            "'uniform:0.05:0.4', 'loguniform:0.1:10', 'normal:9.8:0.2:9:10.6' or 'choice:1:2:5'"
        )
    try:
        return kind(*map(float, written))
    except TypeError:
        wanted = ", ".join(field.name for field in dataclasses.fields(kind))
        raise ValueError(f"got {given!r}; {word} has {wanted}, divided by colons") from None
    except ValueError as error:
        raise ValueError(f"got {given!r}: {error}") from None


def stored(value: Any) -> Any:
    """What is written down of a parameter's value: of a distribution its text."""
    return str(value) if isinstance(value, Distribution) else value


def _share_above(x: float) -> float:
    """Of the standard normal distribution; below 1e-23 it is zero."""
    if abs(x) > 10:
        return 0.0 if x > 0 else 1.0
    with localcontext(prec=60):
        square = Decimal(x) ** 2
        term, total, n = Decimal(x), Decimal(0), 1
        while abs(term) > Decimal("1e-50"):
            total, n = total + term, n + 2
            term *= square / n
        return float(Decimal("0.5") - total * (-square / 2).exp() / (2 * PI).sqrt())


def _keep_numbers(made: Distribution) -> None:
    """Turns what a distribution was made with into Python's floats, or raises what is wrong with it."""
    for field in dataclasses.fields(made):
        given = getattr(made, field.name)
        several = given if isinstance(given, tuple) else (given,)
        wrong = [x for x in several if isinstance(x, bool | np.bool_) or not isinstance(x, numbers.Real)]
        if wrong:
            kind = type(made).__name__
            raise TypeError(f"{kind} got {wrong[0]!r}; give numbers one by one, such as {kind}({EXAMPLES[kind]})")
        kept = tuple(float(x) for x in several)
        object.__setattr__(made, field.name, kept if isinstance(given, tuple) else kept[0])


def _text(number: float) -> str:
    """A number as short as it can be told exactly."""
    return repr(number).removesuffix(".0")
