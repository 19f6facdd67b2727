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


def _read_ahead(function: object) -> None:
    """Reads the source of a function and of those that it calls by name, where there is any."""
    if isinstance(function, types.FunctionType) and function not in _LINES:
        with contextlib.suppress(OSError, TypeError, ValueError):  # said where it is translated
            source_lines(function)
            called = inspect.getclosurevars(function)
            for each in (*called.nonlocals.values(), *called.globals.values()):
                _read_ahead(each)


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
