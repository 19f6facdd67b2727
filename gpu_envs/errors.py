"""The exceptions of this package, and the help its messages give."""

import difflib
from collections.abc import Iterable


class CompileError(RuntimeError):
    """The rules of an environment did not compile; the message is the compiler's, with the header's line numbers."""


class NoCompilerError(RuntimeError):
    """There is no C++ compiler for the CPU backend; the message names the ways to get one."""


class ActionError(ValueError):
    """An action was out of range or not a number, or was given to a replica whose episode is over."""


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


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Ends a sentence: a full stop, and the closest known name where one is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]!r}?" if close else "."


class DivergedError(RuntimeError):
    """A loss or an observation of a training run is not a number any more."""
