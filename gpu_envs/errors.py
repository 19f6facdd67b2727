"""The exceptions of this package, and the help its messages give."""

import difflib
import functools
from collections.abc import Iterable
from typing import Any


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


class ActionError(ValueError):
    """An action was out of range or not a number, or was given to a replica whose episode is over."""


class NotFiniteError(ArithmeticError):
    """In checking mode: a number of a state, a reward or an observation is NaN or infinite.

    Attributes:
        replica: Where.
        agent: The agent's name, such as ``tagger_0``; None: it is none of an agent's.
        step: Of the replica's episode; 0: its beginning.
        source: ``state``, ``reward`` or ``observation``.
        field: The field of the state, or the key of the observation; None: there is but one.
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
        """Keeps what the message says, part by part."""
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
        """Keeps where it is."""
        super().__init__(message)
        self.file = file
        self.line = line


class UnknownEnvironmentError(KeyError):
    """There is no environment of that id."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would quote it."""
        return str(self.args[0])


class SourceError(ValueError):
    """A file or module that is named for its spec cannot be imported, or has none of that name."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Ends a sentence: a full stop, and the closest known name where one is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]!r}?" if close else "."


class DivergedError(RuntimeError):
    """A loss or an observation of a training run is not a number any more."""
