"""Rules of an environment as Python functions, instead of a header."""

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
    """Rules of an environment as Python functions, which are translated to a header and never called.

    They take the arguments of a header's functions, in this order; ``step`` of a single agent returns the reward and
    whether the episode is terminated.
    """

    reset: Function
    """``reset(s, p, random)``; of a team ``reset(w, p, team)``."""
    step: Function
    """``step(s, p, action, random)``; of a team ``step(w, p, team, actions)``."""
    observe: Function
    """``observe(s, p, observation)``; of a team ``observe(w, p, i, row)``."""
    observe_shared: Function | None = None
    """Of a team: ``observe_shared(w, p, role, row)``, elements that are equal for all agents of a role."""
    look: Function | None = None
    """Of a team: ``look(w, p, team)``."""
    allow: Function | None = None
    """``allow(s, p, mask)``, of a team ``allow(w, p, i, mask)``: sets the action mask."""
    active: Function | None = None
    """Of a team: ``active(w, p, i, j)``, whether element j of the action has an effect now, for ``active_heads``."""
    measure: Function | None = None
    """``measure(s, p, metrics)``, of a team ``measure(w, p, team, metrics)``: writes the spec's ``metrics``."""

    def __post_init__(self) -> None:
        """Reads the source of all functions now, because the file may be edited before they are translated."""
        for field in dataclasses.fields(self):
            _read_ahead(getattr(self, field.name))

    @property
    def file(self) -> str:
        """File of the functions."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code is not None else "<rules>"


_LINES: weakref.WeakKeyDictionary[types.FunctionType, tuple[list[str], int]] = weakref.WeakKeyDictionary()


def source_lines(function: types.FunctionType) -> tuple[list[str], int]:
    """Returns the source lines of a function and the number of the first, as they were at the first call.

    Raises:
        OSError: The source is not available.
    """
    if function not in _LINES:
        _LINES[function] = inspect.getsourcelines(function)
    return _LINES[function]


_WORDS = frozenset({"float", "int", "bool", "Any", *rules.__all__})
"""Names of types in annotations of functions that rules call."""


def _read_ahead(function: object) -> None:
    """Caches the source of a function, and of the functions that it calls, also through modules and classes."""
    pending = [function]
    while pending:
        function = pending.pop()
        if isinstance(function, types.FunctionType) and function not in _LINES:
            with contextlib.suppress(OSError, TypeError, ValueError, NameError):  # the translation reports it
                source_lines(function)
                pending += filter(_is_annotated, _named_in(function))


def _named_in(function: types.FunctionType) -> list[object]:
    """Returns the objects that a function refers to, including attributes of modules and classes."""
    closure = inspect.getclosurevars(function)
    objects = [*closure.nonlocals.values(), *closure.globals.values()]
    visited = set()
    for value in objects:  # the loop appends to the list
        if isinstance(value, types.ModuleType | type | types.SimpleNamespace) and id(value) not in visited:
            visited.add(id(value))
            attributes = vars(value)  # getattr could trigger lazy imports
            objects += [attributes[name] for name in function.__code__.co_names if name in attributes]
    return [value.__func__ if isinstance(value, staticmethod) else value for value in objects]


def _is_annotated(function: object) -> bool:
    """Whether this is a function with the annotations of rules; others are not translated."""
    if not isinstance(function, types.FunctionType):
        return False
    code, annotations = function.__code__, function.__annotations__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    type_names = (getattr(annotations.get(name), "__name__", annotations.get(name, "")) for name in arguments)
    return all(str(word).rpartition(".")[2] in _WORDS for word in type_names)


def file_of_caller() -> Path | None:
    """Returns the file that makes a spec: of the first caller outside this package's specs. None: no file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _makes_specs(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return Path(file).resolve() if file else None


def _makes_specs(module: str) -> bool:
    """Whether a module is between the author's code and the constructor of a spec."""
    return module in ("dataclasses", "copy") or module.startswith("gpu_envs.specs.")
