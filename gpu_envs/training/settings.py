"""Settings: dataclass fields that hold a default, limits, a help text, and whether a resumed run may change them.

Validation, error messages, command-line options, shell completion and settings files are derived from the fields.
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from gpu_envs.backend.several import PerRun
from gpu_envs.documented import field_docs
from gpu_envs.errors import did_you_mean
from gpu_envs.training.recurrent_settings import Memory
from gpu_envs.training.schedule import Schedule

MAX_COUNT = 2**31 - 1
"""Largest value of an integer setting."""

MAX_LAYERS = 100
MAX_STEPS = 10**15
"""Largest number of steps, below 2**53: a float64 represents every integer up to it."""


def setting(default: Any, **limits: Any) -> Any:
    """Return a dataclass field with this default; ``limits`` are fields of ``Setting``, from ``minimum`` on."""
    return dataclasses.field(default=default, metadata={"limits": limits})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting: a field of a ``Settings`` class, with its type and allowed values."""

    owner: type
    name: str
    kind: Any
    """The type of values, without None and keywords: int, float, Schedule, Memory, str, bool, a tuple of int or str."""
    default: Any
    optional: bool
    """Whether None is allowed."""
    keywords: tuple[str, ...]
    """Strings that are allowed besides values of the type, such as ``auto``."""
    minimum: float = -math.inf
    maximum: float = math.inf
    exclusive_minimum: bool = False
    """Whether ``minimum`` itself is not allowed."""
    choices: tuple[str, ...] = ()
    """The allowed values of a string setting; empty: any string."""
    automatic: bool = False
    """Whether None means that the trainer chooses the value; otherwise None turns the setting off."""
    resume: bool = False
    """Whether a resumed run may change it."""
    algorithms: tuple[str, ...] = ()
    """The algorithms that a network setting applies to; empty: all."""

    @property
    def doc(self) -> str:
        """The docstring under the field."""
        return field_docs(self.owner)[self.name]

    def validate(self, value: Any) -> Any:
        """Return the value converted to the setting's type, or raise a ValueError that says what is allowed."""
        if (value is None and self.optional) or (isinstance(value, str) and value in self.keywords):
            return value
        return _KINDS[self.kind][0](self, value)

    def parse(self, text: str) -> Any:
        """Convert text of the command line to the setting's type, or raise a ValueError; limits are not checked."""
        if text in self.keywords:
            return text
        if self.optional and text.lower() == "none":
            return None
        keywords = (*self.keywords, *["none"] * self.optional)
        also = f", nor {' or '.join(keywords)}" if keywords else ""
        _, parse, wrong = _KINDS[self.kind]
        try:
            return parse(text)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{text!r} is {wrong}{also}" if wrong else str(error)) from None

    def format(self, value: Any) -> str:
        """Format a value so that ``parse`` can read it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple | list):
            return ",".join(map(str, value)) or "none"
        return "none" if value is None else str(Schedule.of(value)) if self.kind is Schedule else str(value)


class Settings:
    """Base class of frozen dataclasses whose fields are settings, validated by the constructor."""

    def __post_init__(self) -> None:
        """Validate and convert every field."""
        for name, field in settings_of(type(self)).items():
            object.__setattr__(self, name, field.validate(getattr(self, name)))


_CACHE: dict[type, Mapping[str, Setting]] = {}


def settings_of(cls: type) -> Mapping[str, Setting]:
    """Return the settings of a ``Settings`` class by name, in the order of its fields."""
    if cls in _CACHE:
        return _CACHE[cls]
    hints, settings = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if "limits" not in field.metadata:
            continue
        hint = hints[field.name]
        kinds = typing.get_args(hint | None)
        literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
        owner = next(base for base in reversed(cls.__mro__) if field.name in vars(base).get("__annotations__", {}))
        settings[field.name] = Setting(
            owner=owner,
            name=field.name,
            kind=Schedule if Schedule in kinds else kinds[0],  # schedules and memories may also be given as text
            default=field.default,
            optional=types.NoneType in typing.get_args(hint),
            keywords=tuple(word for literal in literals for word in typing.get_args(literal)),
            **field.metadata["limits"],
        )
    _CACHE[cls] = settings
    return settings


def as_int(value: Any) -> int | None:
    """Convert an integer of any library to a Python int; return None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_float(value: Any) -> float | None:
    """Convert a real number of any library to a Python float; return None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return value if isinstance(value, PerRun) else float(value)
    except OverflowError:
        return math.inf


def _check_int(field: Setting, value: Any) -> int:
    number = as_int(value)
    if number is None or not field.minimum <= number <= field.maximum:
        also = "".join(f", or {word!r}" for word in field.keywords)
        end = f"up{also}" if number is None or number < field.minimum else f"to {field.maximum:,.0f}"
        raise ValueError(f"{field.name} is {value!r}; give an integer from {field.minimum:.0f} {end}")
    return number


def _check_float(field: Setting, value: Any) -> float:
    real = as_float(value)
    if real is None or not math.isfinite(real):
        raise ValueError(f"{field.name} is {value!r}; give a finite number")
    if not field.minimum <= real <= field.maximum or (field.exclusive_minimum and real == field.minimum):
        start = f"above {field.minimum:g}" if field.exclusive_minimum else f"from {field.minimum:g}"
        raise ValueError(f"{field.name} is {value!r}; give a number {start} to {field.maximum:g}")
    return real


def _check_schedule(field: Setting, value: Any) -> Schedule:
    try:
        schedule = Schedule.of(value if as_float(value) is None else as_float(value))
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}") from None
    if not all(field.minimum <= at <= field.maximum for _, at in schedule.points):
        limits = f"from {field.minimum:g} " + ("up" if math.isinf(field.maximum) else f"to {field.maximum:g}")
        raise ValueError(f"{field.name} is {value}; give values {limits}")
    return schedule


def _check_memory(field: Setting, value: Any) -> Memory:
    try:
        return Memory.of(value)
    except ValueError as error:
        raise ValueError(f"{field.name}: {error}, or None") from None


def _check_str(field: Setting, value: Any) -> str:
    if field.choices and not (isinstance(value, str) and value in field.choices):
        hint = did_you_mean(str(value), field.choices)
        raise ValueError(f"{field.name} is {value!r}{hint} Allowed: {', '.join(field.choices)}")
    if not isinstance(value, str):
        raise ValueError(f"{field.name} is {value!r}; give a string{', or None' * field.optional}. {field.doc}")
    return str(value)


def _check_bool(field: Setting, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{field.name} is {value!r}; give True or False{', or None' if field.optional else ''}")
    return value


def _check_widths(field: Setting, value: Any) -> tuple[int, ...]:
    try:
        widths = tuple(as_int(width) or 0 for width in value)
    except TypeError:
        widths = ()
    if len(widths) > MAX_LAYERS:
        raise ValueError(f"{field.name} has {len(widths):,} layers; give {MAX_LAYERS} or fewer")
    if not widths or not 1 <= min(widths) <= max(widths) <= MAX_COUNT:
        raise ValueError(f"{field.name} is {value!r}; give the width of each hidden layer, such as (64, 64)")
    return widths


def _check_texts(field: Setting, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text.isprintable() for text in value):
        raise ValueError(f"{field.name} is {value!r}; give a list of texts. {field.doc}")
    last = max((index for index, text in enumerate(value) if text == "none"), default=-1)
    return tuple(value[last + 1 :])  # "none" removes the texts before it


def _parse_int(text: str) -> int:
    """Parse an integer, which may be written as 1e6."""
    try:
        return int(text)
    except ValueError:
        if not float(text).is_integer():
            raise
        return int(float(text))


_BOOLS = {"on": True, "true": True, "off": False, "false": False}

_KINDS: Mapping[Any, tuple[Callable[[Setting, Any], Any], Callable[[str], Any], str]] = {
    int: (_check_int, _parse_int, "not an integer"),
    float: (_check_float, float, "not a number"),
    Schedule: (_check_schedule, Schedule.of, ""),
    Memory: (_check_memory, Memory.of, ""),
    str: (_check_str, str, ""),
    bool: (_check_bool, lambda text: _BOOLS[text.lower()], "neither on nor off"),
    tuple[int, ...]: (
        _check_widths,
        lambda text: tuple(int(part) for part in text.split(",") if part.strip()),
        "not a list of integers such as 64,64",
    ),
    tuple[str, ...]: (_check_texts, lambda text: tuple(text.split(",")), ""),
}
"""For each type of setting: the function that checks a value, the function that parses text, and the parsing error."""
