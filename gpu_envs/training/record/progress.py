"""How far a training run is: a line drawn anew and anew or, where there is no terminal, a line now and then."""

import io
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Final, TextIO, final

_INTERVAL: Final = 0.1
_INTERVAL_OF_LINES: Final = 30.0
_LENGTH_OF_LINES: Final = 200
_BAR: Final = (10, 30)  # columns, at least and at most


@final
class Progress:
    """Percentage, speed, returns and the time that is left: a bar redrawn in place, or a line every 30 seconds."""

    def __init__(
        self,
        total_steps: int,
        quiet: bool | None = None,
        stream: TextIO | None = None,
        *,
        unit: str = "steps",
        target: Mapping[str, float] | None = None,
    ) -> None:
        """Draws nothing yet; figures of the names in ``target`` are aimed at.

        With ``quiet`` there is nothing, with False a bar whatever the stream is, with None a bar in a terminal or a
        notebook and lines elsewhere. Without a stream it is standard error, or nowhere if that is closed.
        """
        self._total, self._unit, self._target = max(1, total_steps), unit, target or {}
        self._stream = sys.stderr if stream is None else stream
        # Python has no standard error where it started with a closed one, as a daemon and pythonw do.
        self._draws = not quiet and self._stream is not None and not self._stream.closed
        notebook = type(self._stream).__module__.startswith("ipykernel.")
        self._in_lines = quiet is None and self._draws and not (notebook or self._stream.isatty())
        self._drawn_at = time.monotonic() if self._in_lines else -math.inf
        self._shown = 0

    def update(
        self, steps: int, steps_per_s: float, returns: Mapping[str, float], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Says how far it is: a bar at most ten times a second, and when all steps are done.

        NaN is the return of a role, or the metric, of which no episode has ended.
        """
        interval = _INTERVAL_OF_LINES if self._in_lines else _INTERVAL if steps < self._total else 0.0
        if not self._draws or time.monotonic() - self._drawn_at < interval:
            return
        self._drawn_at = time.monotonic()
        line = self._fitted(steps, steps_per_s, returns, metrics or {})
        if self._in_lines:
            self._write(line.lstrip() + "\n")
            return
        self._write("\r" + line + " " * (self._shown - len(line)))
        self._shown = len(line)

    def close(self) -> None:
        """Leaves the bar as it is, and goes to the next line."""
        if self._shown and self._draws:
            self._write("\n")
        self._shown, self._draws = 0, False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal or the stream was closed: what the bar is of goes on
            self._draws = False

    def _fitted(
        self, steps: int, steps_per_s: float, returns: Mapping[str, float], metrics: Mapping[str, float]
    ) -> str:
        done = min(1.0, steps / self._total)
        left = (self._total - steps) / steps_per_s if steps_per_s > 0 else math.inf
        # Most important first: what does not fit is left out from the end.
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
        if self._in_lines:
            return _LENGTH_OF_LINES
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError, io.UnsupportedOperation):
            return shutil.get_terminal_size().columns or 80


def amount(value: float) -> str:
    """A number with a unit of thousands, millions or milliards: ``1.2 M``."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= size * 0.9995:
            scaled = value / size
            return (f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.1f}") + unit
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as ``12s``, ``3:04`` or ``1:02:03``."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}" if minute else f"{second}s"
