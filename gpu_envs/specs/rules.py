"""The functions that an author writes in Python in place of a header."""

import contextlib
import dataclasses
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

from gpu_envs import rules
from gpu_envs.documented import documented

Function: TypeAlias = Callable[..., Any]


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of an environment as Python functions, which are translated to a header and never run.

    They have the names, the arguments and the order of arguments of a header's functions; ``step`` of a single agent
    returns the reward and whether the episode has come to its end.
    """

    reset: Function
    """``reset(s, p, random)``; of a team ``reset(w, p, team)``."""
    step: Function
    """``step(s, p, action, random)``; of a team ``step(w, p, team, actions)``."""
    observe: Function
    """``observe(s, p, observation)``; of a team ``observe(w, p, i, row)``."""
    observe_shared: Function | None = None
    """Of a team: ``observe_shared(w, p, role, row)``, what all agents of a role see alike."""
    look: Function | None = None
    """Of a team: ``look(w, p, team)``."""
    allow: Function | None = None
    """``allow(s, p, mask)``, of a team ``allow(w, p, i, mask)``: which actions are possible, for ``action_mask``."""
    active: Function | None = None
    """Of a team: ``active(w, p, i, j)``, whether element j of an action means something now, for ``active_heads``."""
    measure: Function | None = None
    """``measure(s, p, metrics)``, of a team ``measure(w, p, team, metrics)``: the spec's ``metrics``."""

    def __post_init__(self) -> None:
        """Reads the source of all functions now, as their file may be edited before they are translated."""
        for field in dataclasses.fields(self):
            _read_ahead(getattr(self, field.name))

    @property
    def file(self) -> str:
        """Where they are written."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code is not None else "<rules>"


_LINES: weakref.WeakKeyDictionary[types.FunctionType, tuple[list[str], int]] = weakref.WeakKeyDictionary()


def source_lines(function: types.FunctionType) -> tuple[list[str], int]:
    """The lines of a function and the number of the first, as they were when it was first asked for them.

    Raises:
        OSError: There is no source of it.
    """
    if function not in _LINES:
        _LINES[function] = inspect.getsourcelines(function)
    return _LINES[function]


_WORDS = frozenset({"float", "int", "bool", "Any", *rules.__all__})
"""Names of the annotations of functions that rules call."""


def _read_ahead(function: object) -> None:
    """Reads the source of a function of the rules and of those that it calls, also through modules and classes."""
    waiting = [function]
    while waiting:
        found = waiting.pop()
        if isinstance(found, types.FunctionType) and found not in _LINES:
            with contextlib.suppress(OSError, TypeError, ValueError, NameError):  # said where it is translated
                source_lines(found)
                waiting += filter(_is_annotated, _named_in(found))


def _named_in(function: types.FunctionType) -> list[object]:
    """Returns what a function names, and what it may name of the modules and classes among that."""
    outside = inspect.getclosurevars(function)
    found = [*outside.nonlocals.values(), *outside.globals.values()]
    places = set()
    for value in found:  # which grows
        if isinstance(value, types.ModuleType | type | types.SimpleNamespace) and id(value) not in places:
            places.add(id(value))
            inside = vars(value)  # getattr might import what is imported lazily
            found += [inside[name] for name in function.__code__.co_names if name in inside]
    return [value.__func__ if isinstance(value, staticmethod) else value for value in found]


def _is_annotated(function: object) -> bool:
    """Whether this is a function whose arguments have the annotations of rules; others are not translated."""
    if not isinstance(function, types.FunctionType):
        return False
    code, annotations = function.__code__, function.__annotations__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    words = (getattr(annotations.get(name), "__name__", annotations.get(name, "")) for name in arguments)
    return all(str(word).rpartition(".")[2] in _WORDS for word in words)


def file_of_caller() -> Path | None:
    """The file that makes a spec; None where it is in no file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _makes_specs(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return Path(file).resolve() if file else None


def _makes_specs(module: str) -> bool:
    """Whether a module is one of those that every author's spec is made through."""
    return module in ("dataclasses", "copy") or module.startswith("gpu_envs.specs.")
