"""Results of checks, and their report."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

from gpu_envs.documented import documented

Print = Callable[[str], object]
"""Function that takes a line, like ``print``."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CheckError(AssertionError):
    """An environment failed checks. The message lists them, with the expected results and advice.

    Attributes:
        lines: Results of all checks, whether passed or not.
    """

    def __init__(self, message: str, lines: "Sequence[Line]" = ()) -> None:
        super().__init__(message, lines)
        self.lines = lines

    def __str__(self) -> str:
        return str(self.args[0])


class FailedError(Exception):
    """A check failed; the message is for the report."""


class UnsafeError(FailedError):
    """A check failed, and the mistake may crash the process that runs the environment."""


class SkippedError(Exception):
    """A check could not run; the message says why."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Result of one check."""

    title: str
    """Title of the check."""
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    detail: str
    """Details of the check or the failure, or the reason to skip it."""

    def __str__(self) -> str:
        return f"{self.outcome:7}  {self.title}: {self.detail}"


@final
class Report:
    """Results of the checks of one environment, each printed as soon as it is known.

    Attributes:
        env_id: Id of the environment.
        lines: Results of the checks.
        safe: Whether no failure may crash this process.
    """

    def __init__(self, env_id: str, print_line: Print) -> None:
        self.env_id = env_id
        self.lines: list[Line] = []
        self.safe = True
        self._print = print_line

    def run(self, title: str, check: Callable[[], str]) -> bool:
        """Runs one check and prints the result; returns whether it did not fail.

        ``check`` returns details of the check, or raises a FailedError or a SkippedError.
        """
        try:
            line = Line(title, PASSED, check())
        except SkippedError as error:
            line = Line(title, SKIPPED, str(error))
        except FailedError as error:
            line = Line(title, FAILED, str(error))
            self.safe = self.safe and not isinstance(error, UnsafeError)
        except Exception as error:  # noqa: BLE001  # mistakes in rules and spec may raise anything
            line = Line(title, FAILED, f"{type(error).__name__}: {error}")
        self._add(line)
        return line.outcome != FAILED

    def skip(self, title: str, reason: str) -> None:
        """Reports a check that does not run."""
        self._add(Line(title, SKIPPED, reason))

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        self._print(str(line))

    @property
    def failures(self) -> list[Line]:
        """Results of the failed checks."""
        return [line for line in self.lines if line.outcome == FAILED]

    def finish(self) -> None:
        """Prints a summary, and raises a CheckError if a check failed."""
        counts = {o: sum(line.outcome == o for line in self.lines) for o in (PASSED, FAILED, SKIPPED)}
        self._print(f"{self.env_id}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
        if self.failures:
            listed = "\n".join(f"- {line.title}: {line.detail}" for line in self.failures)
            message = f"{self.env_id} failed {len(self.failures)} of {len(self.lines)} checks:\n{listed}"
            raise CheckError(message, self.lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))
