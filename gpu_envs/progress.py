"""Progress output in terminals, notebooks and log files."""

import io
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, TextIO, final

_INTERVAL: Final = 0.1
_INTERVAL_OF_LINES: Final = 30.0
_LENGTH_OF_LINES: Final = 200
_BAR: Final = (10, 30)  # minimum and maximum width in columns


@final
class Progress:
    """Progress output (percentage, speed, returns, time left): a bar redrawn in place, or a line every 30 seconds."""

    def __init__(
        self,
        total_steps: int,
        quiet: bool | None = None,
        stream: TextIO | None = None,
        *,
        unit: str = "steps",
        target: Mapping[str, float] | None = None,
        header: Sequence[str] = (),
    ) -> None:
        """Initialise without output.

        Args:
            total_steps: Number of steps, or of other units, at 100 %.
            quiet: True: no output. False: a bar. None: a bar in a terminal or a notebook, otherwise lines.
            stream: Output stream; None: standard error, or no output if that is closed.
            unit: Unit of the speed, per second.
            target: Target returns by role, shown after the returns.
            header: Lines that are written before the first output.
        """
        self._total, self._unit, self._target = max(1, total_steps), unit, target or {}
        self._header = "".join(f"{line}\n" for line in header)
        self._stream = sys.stderr if stream is None else stream
        # sys.stderr is None if the process started without standard error, such as a daemon or pythonw
        self._draws = not quiet and self._stream is not None and not self._stream.closed
        notebook = type(self._stream).__module__.startswith("ipykernel.")
        self._in_lines = quiet is None and self._draws and not (notebook or self._stream.isatty())
        self._drawn_at = time.monotonic() if self._in_lines else -math.inf
        self._shown = 0

    def update(
        self, steps: int, steps_per_s: float, returns: Mapping[str, float], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write a line every 30 s, or redraw the bar, at most ten times per second and when all steps are done.

        Returns and metrics are NaN as long as no episode has ended.
        """
        interval = _INTERVAL_OF_LINES if self._in_lines else _INTERVAL if steps < self._total else 0.0
        if not self._draws or time.monotonic() - self._drawn_at < interval:
            return
        self._drawn_at = time.monotonic()
        line = self._fitted(steps, steps_per_s, returns, metrics or {})
        header, self._header = self._header, ""
        if self._in_lines:
            self._write(header + line.lstrip() + "\n")
            return
        self._write(header + "\r" + line + " " * (self._shown - len(line)))
        self._shown = len(line)

    def close(self) -> None:
        """End the output: leave the bar as it is, and move to the next line."""
        if self._shown and self._draws:
            self._write("\n")
        self._shown, self._draws = 0, False

    def _write(self, text: str) -> None:
        """Write and flush text; if the stream is closed, stop all output."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal or the stream was closed: continue without output
            self._draws = False

    def _fitted(
        self, steps: int, steps_per_s: float, returns: Mapping[str, float], metrics: Mapping[str, float]
    ) -> str:
        """Return the bar or line of progress, without the parts that do not fit the width."""
        done = min(1.0, steps / self._total)
        left = (self._total - steps) / steps_per_s if steps_per_s > 0 else math.inf
        # in the order of importance: parts that do not fit are omitted from the end
        parts = [f"{math.floor(done * 100):3d}%", f"{amount(steps_per_s)} {self._unit}/s"]
        for role, value in returns.items():
            goal = f" of {self._target[role]:.4g}" if role in self._target else ""
            if not math.isnan(value):
                parts.append(f"{'return' if len(returns) == 1 else role} {value:.4g}{goal}")
        if returns and len(parts) == 2:
            goals = (f", for {value:.4g}" for value in self._target.values())
            parts.append("no episode has ended yet" + next(goals, ""))
        parts.append(f"{duration(max(0.0, left))} left")
        parts += [f"{name} {value:.4g}" for name, value in metrics.items() if not math.isnan(value)]
        width = self._width() - 1  # the last column would wrap the line in some terminals
        while len(parts) > 1 and len("  ".join(parts)) > width:
            parts.pop()
        text = "  ".join(parts)[:width]
        room = 0 if self._in_lines else min(_BAR[1], width - len(text) - 1)
        if room < _BAR[0]:
            return text
        full, empty = "█░"
        try:
            (full + empty).encode(self._stream.encoding or "ascii")
        except UnicodeEncodeError:
            full, empty = "#."
        count = math.floor(done * room)
        return f"{full * count}{empty * (room - count)} {text}"

    def _width(self) -> int:
        """Return the width of the output in columns."""
        if self._in_lines:
            return _LENGTH_OF_LINES
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError, io.UnsupportedOperation):
            return shutil.get_terminal_size().columns or 80


def amount(value: float) -> str:
    """Format a number with the suffix k, M or G: ``1.2 M``."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= size * 0.9995:
            scaled = value / size
            return (f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.1f}") + unit
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Format seconds as ``12s``, ``3:04`` or ``1:02:03``."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}" if minute else f"{second}s"
