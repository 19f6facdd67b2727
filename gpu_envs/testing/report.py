"""What a check found, and how it is told."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

from gpu_envs.documented import documented

Tell = Callable[[str], object]
"""Takes a line, such as ``print`` does."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CheckError(AssertionError):
    """An environment failed some checks; the message lists them, each with what was expected and what to do.

    Attributes:
        lines: Outcomes of all checks, including those that passed.
    """

    def __init__(self, message: str, lines: "Sequence[Line]" = ()) -> None:
        super().__init__(message, lines)
        self.lines = lines

    def __str__(self) -> str:
        return str(self.args[0])


class FailedError(Exception):
    """A check found something wrong; the message is for the report."""


class UnsafeError(FailedError):
    """What is wrong may crash the process that plays the environment."""


class SkippedError(Exception):
    """A check could not be made; the message says why."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What became of one check."""

    title: str
    """What was checked."""
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    detail: str
    """How, with what, or why not."""

    def __str__(self) -> str:
        return f"{self.outcome:7}  {self.title}: {self.detail}"


@final
class Report:
    """The checks of one environment, in order, told one by one as they are made.

    Attributes:
        env_id: The environment.
        lines: What became of each check.
        safe: Nothing was found that may crash this process.
    """

    def __init__(self, env_id: str, tell: Tell) -> None:
        self.env_id = env_id
        self.lines: list[Line] = []
        self.safe = True
        self._tell = tell

    def make(self, title: str, check: Callable[[], str]) -> bool:
        """Makes one check, and tells what it found; returns whether nothing was found wrong.

        ``check`` returns how it was checked, or raises a FailedError or a SkippedError.
        """
        try:
            line = Line(title, PASSED, check())
        except SkippedError as error:
            line = Line(title, SKIPPED, str(error))
        except FailedError as error:
            line = Line(title, FAILED, str(error))
            self.safe = self.safe and not isinstance(error, UnsafeError)
        except Exception as error:  # noqa: BLE001  # whatever the rules and the spec bring about is the author's to see
            line = Line(title, FAILED, f"{type(error).__name__}: {error}")
        self._add(line)
        return line.outcome != FAILED

    def leave_out(self, title: str, why: str) -> None:
        """Tells of a check that is not made."""
        self._add(Line(title, SKIPPED, why))

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        self._tell(str(line))

    @property
    def failures(self) -> list[Line]:
        """The checks that found something wrong."""
        return [line for line in self.lines if line.outcome == FAILED]

    def conclude(self) -> None:
        """Tells the result, and raises a CheckError where anything was wrong."""
        counts = {o: sum(line.outcome == o for line in self.lines) for o in (PASSED, FAILED, SKIPPED)}
        self._tell(f"{self.env_id}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
        if self.failures:
            listed = "\n".join(f"- {line.title}: {line.detail}" for line in self.failures)
            message = f"{self.env_id} failed {len(self.failures)} of {len(self.lines)} checks:\n{listed}"
            raise CheckError(message, self.lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))
