"""The exceptions of this package, and the help its messages give."""

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
    """The rules of an environment did not compile; the message names the author's own lines.

    Attributes:
        output: All that the compiler said.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class NoCompilerError(RuntimeError):
    """There is no C++ compiler for the CPU backend; the message names the ways to get one."""


class LostProcessError(RuntimeError):
    """Another of the processes that train together has ended."""


class ActionError(ValueError):
    """An action was out of range or not a number, or was given to a replica whose episode is over."""


class NotFiniteError(ArithmeticError):
    """In checking mode: a number of a state, a reward, an observation or a metric is NaN or infinite.

    Attributes:
        replica: Where.
        agent: The agent's name, such as ``tagger_0``; None: it belongs to no agent.
        step: Of the replica's episode; 0: its beginning.
        source: ``state``, ``reward``, ``observation`` or ``metric``.
        field: The field of the state, the key of the observation, or the metric; None: there is only one.
        element: Where in the field or observation; empty for a single number.
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
        """All of it: an exception as such remembers what was given by place, and not by name."""
        names = ("replica", "agent", "step", "source", "field", "element", "value")
        given = {name: getattr(self, name) for name in names}
        return functools.partial(type(self), *self.args, **given), (), vars(self)


class TranslationError(ValueError):
    """Rules written in Python use what cannot be translated; the message says where, why, and what to do instead."""

    def __init__(self, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class UnknownEnvironmentError(KeyError):
    """There is no environment of that id."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would quote it."""
        return str(self.args[0])


class SourceError(ValueError):
    """A file or module that should hold a spec cannot be imported, or has no spec of that name."""


def did_you_mean(given: str, known: Iterable[str], synonyms: Mapping[str, str] = types.MappingProxyType({})) -> str:
    """Return the end of a sentence: a full stop, and the closest known name if one is close.

    Args:
        given: An unknown name.
        known: The names that are allowed.
        synonyms: Allowed names by names that other libraries use for the same thing.
    """
    known = [*known]
    if synonyms.get(given) in known:
        return f". Did you mean {synonyms[given]!r}?"
    plain = {name.lower().replace("-", "_"): name for name in reversed(known)}
    close = difflib.get_close_matches(given.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return f". Did you mean {plain[close[0]]!r}?" if close else "."


class UntrustedError(ValueError):
    """A run's folder names code that nobody has named here; the message says which file, and how to trust it."""


class DivergedError(RuntimeError):
    """A loss or an observation of a training run is NaN or infinite."""


def display(path: str | Path) -> str:
    """A path as people read it: from the working folder where it lies therein."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


class NotWrittenError(OSError):
    """A file could not be written; the message says which, and why."""

    def __init__(self, number: int | None, why: str, path: str, *, advice: str = "") -> None:
        super().__init__(number, why, path)
        self.advice = advice

    @classmethod
    def of(cls, path: str | Path, error: OSError, advice: str = "") -> Self:
        """What writing a file failed with, and what to do."""
        return cls(error.errno, error.strerror or str(error), str(path), advice=advice)

    def __str__(self) -> str:
        """The message without the number of the error."""
        return f"{display(self.filename)} could not be written: {self.strerror}{self.advice}"


@final
class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to something else; the message says which, and what to do."""
