"""Settings: a field holds its default, limits, help, and whether a resumed run may change it.

Checks, messages, options of the command line, shell completion and files are derived from the fields.
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from gpu_envs.documented import field_docs
from gpu_envs.errors import did_you_mean
from gpu_envs.training.schedule import Schedule

MOST = 2**31 - 1
"""The largest count."""

MOST_LAYERS = 100
MOST_STEPS = 10**15
"""The largest number of steps: doubles count so far exactly."""


def setting(default: Any, **limits: Any) -> Any:
    """Makes a field of a class of settings. Arguments after the default are those of ``Setting`` from ``least`` on."""
    return dataclasses.field(default=default, metadata={"limits": limits})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A field of a class of settings: its type (without None and words), and what else is allowed."""

    owner: type
    name: str
    kind: Any
    default: Any
    optional: bool
    """Whether None is allowed."""
    others: tuple[str, ...]
    """Allowed words besides values of the type."""
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is not allowed."""
    words: tuple[str, ...] = ()
    """The allowed words, of a setting that is a word."""
    automatic: bool = False
    """Whether None leaves the choice to the trainer; otherwise None means without."""
    resume: bool = False
    """Whether a resumed run may have another value."""
    only: tuple[str, ...] = ()
    """Of a network's setting: the algorithms that have it; empty: all."""

    @property
    def doc(self) -> str:
        """The docstring under the field."""
        return field_docs(self.owner)[self.name]

    def checked(self, value: Any) -> Any:
        """The value in the form that is kept; or a message that says what is allowed."""
        if (value is None and self.optional) or (isinstance(value, str) and value in self.others):
            return value
        return _KINDS[self.kind][0](self, value)

    def parsed(self, text: str) -> Any:
        """Reads a value that is given as text, on the command line or in a sweep."""
        if text in self.others:
            return text
        if self.optional and text.lower() == "none":
            return None
        words = (*self.others, *["none"] * self.optional)
        also = f", nor {' or '.join(words)}" if words else ""
        _, parse, wrong = _KINDS[self.kind]
        try:
            return parse(text)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{text!r} is {wrong}{also}" if wrong else str(error)) from None

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


_KNOWN: dict[type, Mapping[str, Setting]] = {}


def settings_of(cls: type) -> Mapping[str, Setting]:
    """The settings of a class by name, in the order of its fields."""
    if cls in _KNOWN:
        return _KNOWN[cls]
    hints, settings = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if "limits" not in field.metadata:
            continue
        hint = hints[field.name]
        kinds = typing.get_args(hint | None)
        words = tuple(word for each in kinds if typing.get_origin(each) is Literal for word in typing.get_args(each))
        owner = next(base for base in reversed(cls.__mro__) if field.name in vars(base).get("__annotations__", {}))
        settings[field.name] = Setting(
            owner=owner,
            name=field.name,
            kind=Schedule if Schedule in kinds else kinds[0],  # Python may give a schedule as a number or text too
            default=field.default,
            optional=types.NoneType in typing.get_args(hint),
            others=words,
            **field.metadata["limits"],
        )
    _KNOWN[cls] = settings
    return settings


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
    number = whole_number(value)
    if number is None or not field.least <= number <= field.most:
        also = "".join(f", or {word!r}" for word in field.others)
        end = f"up{also}" if number is None or number < field.least else f"to {field.most:,.0f}"
        raise ValueError(f"{field.name} is {value!r}; give a whole number from {field.least:.0f} {end}")
    return number


def _check_real(field: Setting, value: Any) -> float:
    real = real_number(value)
    if real is None or not math.isfinite(real):
        raise ValueError(f"{field.name} is {value!r}; give a number")
    if not field.least <= real <= field.most or (field.above and real == field.least):
        start = f"above {field.least:g}" if field.above else f"from {field.least:g}"
        raise ValueError(f"{field.name} is {value!r}; it must lie {start} to {field.most:g}")
    return real


def _check_schedule(field: Setting, value: Any) -> Schedule:
    try:
        schedule = Schedule.of(value if real_number(value) is None else real_number(value))
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}") from None
    if not all(field.least <= at <= field.most for _, at in schedule.points):
        wrong = "cannot be negative" if math.isinf(field.most) else f"must lie from {field.least:g} to {field.most:g}"
        raise ValueError(f"{field.name} is {value}; it {wrong}")
    return schedule


def _check_word(field: Setting, value: Any) -> str:
    if field.words and not (isinstance(value, str) and value in field.words):
        hint = did_you_mean(str(value), field.words)
        raise ValueError(f"{field.name} is {value!r}{hint} Allowed: {', '.join(field.words)}")
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


def _parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        if not float(text).is_integer():  # 1e6 is one
            raise
        return int(float(text))


_SWITCHES = {"on": True, "true": True, "off": False, "false": False}

_KINDS: Mapping[Any, tuple[Callable[[Setting, Any], Any], Callable[[str], Any], str]] = {
    int: (_check_whole, _parse_whole, "not a whole number"),
    float: (_check_real, float, "not a number"),
    Schedule: (_check_schedule, Schedule.of, ""),
    str: (_check_word, str, ""),
    bool: (_check_switch, lambda text: _SWITCHES[text.lower()], "neither on nor off"),
    tuple[int, ...]: (
        _check_widths,
        lambda text: tuple(int(part) for part in text.split(",") if part.strip()),
        "not a list of whole numbers such as 64,64",
    ),
}
"""By a setting's type: what checks a value, what reads a text, and what a text is that cannot be read."""
