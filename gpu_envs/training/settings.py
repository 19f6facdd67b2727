"""Settings: a field holds its default, limits, help, and whether a resumed run may change it.

Checks, messages, options of the command line, shell completion and files are derived from the fields.
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, final

from gpu_envs.documented import field_docs
from gpu_envs.errors import did_you_mean
from gpu_envs.training.schedule import Schedule

MOST = 2**31 - 1
"""The largest count."""

MOST_LAYERS = 100

MOST_STEPS = 10**15
"""The largest number of steps: doubles count so far exactly."""


@final
@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a setting, and where it applies."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is not allowed."""
    words: tuple[str, ...] = ()
    """The allowed words, of a setting that is a word."""
    resume: bool = False
    """Whether a resumed run may have another value."""
    only: tuple[str, ...] = ()
    """Of a network's setting: the algorithms that have it; empty: all."""


def setting(default: Any, **limits: Any) -> Any:
    """Makes a field of a class of settings. Arguments after the default go to ``Limits``."""
    return dataclasses.field(default=default, metadata={"limits": Limits(**limits)})


@final
@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a class of settings."""

    owner: type
    name: str
    kind: Any
    """Its type, without None and without words."""
    optional: bool
    """Whether None is allowed."""
    others: tuple[str, ...]
    """Allowed words besides values of the type."""
    default: Any
    limits: Limits

    @property
    def doc(self) -> str:
        """The docstring under the field."""
        return field_docs(self.owner)[self.name]

    def checked(self, value: Any) -> Any:
        """The value in the form that is kept.

        Raises:
            ValueError: It is not allowed; the message says what is.
        """
        if (value is None and self.optional) or (isinstance(value, str) and value in self.others):
            return value
        check = _CHECKS.get(self.kind)
        return value if check is None else check(self, value)

    def parsed(self, text: str) -> Any:
        """Reads a value that is given as text, on the command line or in a sweep."""
        if (text in self.others) or (self.optional and text.lower() == "none"):
            return None if text not in self.others else text
        words = (*self.others, *["none"] * self.optional)
        also = f", nor {' or '.join(words)}" if words else ""
        parse, what = _PARSERS.get(self.kind, (str, ""))
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is {what}{also}" if what else str(error)) from None

    def shown(self, value: Any) -> str:
        """The text that ``parsed`` reads as this value."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple | list):
            return ",".join(map(str, value))
        return "none" if value is None else str(Schedule.of(value)) if self.kind is Schedule else str(value)


class Settings:
    """A frozen dataclass whose fields are settings, checked when it is made."""

    def __post_init__(self) -> None:
        """Brings every field into the form that is kept, or says which value is wrong and what is allowed."""
        for name, field in settings_of(type(self)).items():
            object.__setattr__(self, name, field.checked(getattr(self, name)))


def settings_of(cls: type) -> Mapping[str, Setting]:
    """The settings of a class by name, in the order of its fields."""
    if cls not in _KNOWN:
        _KNOWN[cls] = _read(cls)
    return _KNOWN[cls]


_KNOWN: dict[type, Mapping[str, Setting]] = {}


def _read(cls: type) -> Mapping[str, Setting]:
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if "limits" not in field.metadata:
            continue
        union = typing.get_origin(hints[field.name]) in (types.UnionType, typing.Union)
        kinds = typing.get_args(hints[field.name]) if union else (hints[field.name],)
        words = tuple(word for each in kinds if typing.get_origin(each) is Literal for word in typing.get_args(each))
        plain = [each for each in kinds if each is not types.NoneType and typing.get_origin(each) is not Literal]
        kind = Schedule if Schedule in plain else plain[0]  # Python may give a schedule as a number or text too
        owner = next(base for base in reversed(cls.__mro__) if field.name in vars(base).get("__annotations__", {}))
        found[field.name] = Setting(
            owner, field.name, kind, types.NoneType in kinds, words, field.default, field.metadata["limits"]
        )
    return found


def whole_number(value: Any) -> int | None:
    """A whole number of any library as Python's own; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real_number(value: Any) -> float | None:
    """A number of any library as Python's own; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _check_whole(field: Setting, value: Any) -> int:
    least, most = field.limits.least, field.limits.most
    number = whole_number(value)
    also = "".join(f", or {word!r}" for word in field.others)
    if number is None or number < least:
        raise ValueError(f"{field.name} is {value!r}; give a whole number from {least:.0f} up{also}")
    if number > most:
        raise ValueError(f"{field.name} is {value!r}; give a whole number from {least:.0f} to {most:,.0f}")
    return number


def _check_real(field: Setting, value: Any) -> float:
    limits, real = field.limits, real_number(value)
    if real is None or not math.isfinite(real):
        raise ValueError(f"{field.name} is {value!r}; give a number")
    if not limits.least <= real <= limits.most or (limits.above and real == limits.least):
        start = f"above {limits.least:g}" if limits.above else f"from {limits.least:g}"
        raise ValueError(f"{field.name} is {value!r}; it must lie {start} to {limits.most:g}")
    return real


def _check_schedule(field: Setting, value: Any) -> Schedule:
    low, high = field.limits.least, field.limits.most
    try:
        schedule = Schedule.of(value if real_number(value) is None else real_number(value))
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}") from None
    if not all(low <= at <= high for _, at in schedule.points):
        wrong = "cannot be negative" if math.isinf(high) else f"must lie from {low:g} to {high:g}"
        raise ValueError(f"{field.name} is {value}; it {wrong}")
    return schedule


def _check_word(field: Setting, value: Any) -> str:
    allowed = field.limits.words
    if allowed and not (isinstance(value, str) and value in allowed):
        raise ValueError(f"{field.name} is {value!r}{did_you_mean(str(value), allowed)} Allowed: {', '.join(allowed)}")
    if not isinstance(value, str):
        raise ValueError(f"{field.name} is {value!r}; give a text{', or None' * field.optional}: {field.doc}")
    return str(value)


def _check_switch(field: Setting, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{field.name} is {value!r}; give True or False{', or None' if field.optional else ''}")
    return value


def _check_widths(field: Setting, value: Any) -> tuple[int, ...]:
    try:
        widths = tuple(whole_number(width) or 0 for width in value)
    except TypeError:
        widths = ()
    if len(widths) > MOST_LAYERS:
        raise ValueError(f"{field.name} has {len(widths):,} layers; give {MOST_LAYERS} or fewer")
    if not widths or not 1 <= min(widths) <= max(widths) <= MOST:
        raise ValueError(f"{field.name} is {value!r}; give the width of each hidden layer, such as (64, 64)")
    return widths


_CHECKS: Mapping[Any, Any] = {
    int: _check_whole,
    float: _check_real,
    Schedule: _check_schedule,
    str: _check_word,
    bool: _check_switch,
    tuple[int, ...]: _check_widths,
}


def _parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        if not float(text).is_integer():  # 1e6 is one
            raise
        return int(float(text))


def _parse_switch(text: str) -> bool:
    words = {"on": True, "true": True, "off": False, "false": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


_PARSERS: Mapping[Any, Any] = {
    int: (_parse_whole, "not a whole number"),
    float: (float, "not a number"),
    Schedule: (Schedule.of, ""),
    bool: (_parse_switch, "neither on nor off"),
    tuple[int, ...]: (
        lambda text: tuple(int(part) for part in text.split(",") if part.strip()),
        "not a list of whole numbers such as 64,64",
    ),
}
