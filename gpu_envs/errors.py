"""The exceptions of this package, and helpers for their messages."""

import contextlib
import difflib
import functools
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, final

__all__ = [
    "ActionError",
    "CheckpointError",
    "CompileError",
    "DivergedError",
    "LostProcessError",
    "NoCompilerError",
    "NotFiniteError",
    "NotWrittenError",
    "SourceError",
    "TranslationError",
    "UnknownEnvironmentError",
    "UntrustedError",
]


class CompileError(RuntimeError):
    """The rules of an environment did not compile; the message points to lines of the author's file.

    Attributes:
        output: The compiler's full output.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class NoCompilerError(RuntimeError):
    """No C++ compiler for the CPU backend was found; the message says how to install one."""


class LostProcessError(RuntimeError):
    """Another process of the same distributed training run has ended."""


class ActionError(ValueError):
    """An action was out of range or NaN, or was for a replica whose episode is over."""


class NotFiniteError(ArithmeticError):
    """Checking mode found NaN or infinity in a state, a reward, an observation or a metric.

    Attributes:
        replica: Index of the replica.
        agent: Name of the agent, such as ``tagger_0``; None if the number belongs to no agent.
        step: Step of the replica's episode; 0 is the reset.
        source: ``state``, ``reward``, ``observation`` or ``metric``.
        field: Field of the state, key of the observation, or name of the metric; None if there is only one array.
        element: Index within the field or observation; empty for a scalar.
        value: NaN or an infinity.
    """

    def __init__(
        self,
        message: str,
        *,
        replica: int,
        agent: str | None,
        step: int,
        source: str,
        field: str | None,
        element: tuple[int, ...],
        value: float,
    ) -> None:
        super().__init__(message)
        self.replica, self.agent, self.step = replica, agent, step
        self.source, self.field, self.element, self.value = source, field, element, value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the keyword arguments too: an exception restores only its positional arguments by default."""
        names = ("replica", "agent", "step", "source", "field", "element", "value")
        keywords = {name: getattr(self, name) for name in names}
        return functools.partial(type(self), *self.args, **keywords), (), vars(self)


class TranslationError(ValueError):
    """Rules written in Python cannot be translated; the message says where, why, and what to write instead."""

    def __init__(self, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class UnknownEnvironmentError(KeyError):
    """No environment has this id."""

    def __str__(self) -> str:
        """The plain message; a KeyError would put it in quotes."""
        return str(self.args[0])


class SourceError(ValueError):
    """A file or module that should define a spec cannot be imported, or defines no spec of this name."""


def did_you_mean(unknown: str, allowed: Iterable[str], synonyms: Mapping[str, str] = types.MappingProxyType({})) -> str:
    """Return the end of a sentence: a full stop, or a question with the closest allowed name if one is close.

    Args:
        unknown: A name that is not allowed.
        allowed: The allowed names.
        synonyms: Allowed names by names that other libraries use for the same thing.
    """
    allowed = [*allowed]
    if synonyms.get(unknown) in allowed:
        return f". Did you mean {synonyms[unknown]!r}?"
    normalized = {name.lower().replace("-", "_"): name for name in reversed(allowed)}
    close = difflib.get_close_matches(unknown.lower().replace("-", "_"), normalized, n=1, cutoff=0.6)
    return f". Did you mean {normalized[close[0]]!r}?" if close else "."


class UntrustedError(ValueError):
    """A run directory refers to code that the user did not allow; the message says which file, and how to trust it."""


class DivergedError(RuntimeError):
    """A loss or an observation of a training run became NaN or infinite."""


def display(path: str | Path) -> str:
    """Return a path as messages show it: relative to the working directory if it is inside."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


class NotWrittenError(OSError):
    """A file could not be written; the message says which, and why."""

    def __init__(self, number: int | None, reason: str, path: str, *, advice: str = "") -> None:
        super().__init__(number, reason, path)
        self.advice = advice

    @classmethod
    def of(cls, path: str | Path, error: OSError, advice: str = "") -> Self:
        """Convert the error of a failed write; ``advice`` ends the message."""
        return cls(error.errno, error.strerror or str(error), str(path), advice=advice)

    def __str__(self) -> str:
        """The message without the error number."""
        return f"{display(self.filename)} could not be written: {self.strerror}{self.advice}"


@final
class CheckpointError(ValueError):
    """A checkpoint is damaged or was written for something else; the message says which, and what to do."""
