"""What a run shows: a bar or lines while it goes on; then rows of a table, and curves of what it has logged."""

import csv
import html
import io
import itertools
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, final

Row = tuple[str, ...]

COLOURS: Final = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#117a65")
"""Of curves: of one alone the second."""

_REASONS: Final = {
    "total_steps": "all steps are done",
    "target_return": "the return that was aimed at is reached",
    "interrupted": "interrupted",
}


def result_rows(result: Any) -> list[Row]:
    """Names and values of a training run's ``Result``."""
    speed = result.steps / result.seconds if result.seconds > 0 else 0.0
    names = {role: "return" if len(result.returns) == 1 else f"return of {role}" for role in result.returns}
    returns = {names[role]: value for role, value in result.returns.items()}
    return [
        ("finished", _REASONS.get(result.reason, result.reason)),
        *((name, "no episode ended" if math.isnan(value) else f"{value:.6g}") for name, value in returns.items()),
        *((name, f"{value:.6g}") for name, value in result.metrics.items() if not math.isnan(value)),
        ("steps", f"{result.steps:,} in {result.iterations:,} updates"),
        ("training", f"{result.seconds:.2f} s, {speed:,.0f} steps/s"),
        *((f"torch ran {name}", why) for name, why in result.fallback_reasons.items()),
    ]


def evaluation_rows(results: Mapping[str, Any]) -> list[Row]:
    """How each role does, by the ``Evaluation`` of it, below a row of headings."""
    rows: list[Row] = [("role", "mean return", "95 %", "deviation", "mean length", "episodes")]
    metrics: dict[str, Any] = {}  # alike for all roles
    for role, evaluation in results.items():
        rows.append((role, *_numbers(evaluation), f"{evaluation.length:.6g}", f"{evaluation.episodes:,}"))
        metrics |= evaluation.metrics
    return rows + [(name, *_numbers(metric), "", "") for name, metric in metrics.items()]


def _numbers(estimate: Any) -> Row:
    return f"{estimate.mean:.6g}", f"+-{estimate.interval:.3g}", f"{estimate.std:.4g}"


def table(rows: Sequence[Row], *, heading: bool = False) -> str:
    """Rows as a table of HTML, the first of them headings or not; of each row the first cell is one."""
    lines = []
    for number, row in enumerate(rows):
        kinds = ["th" if column == 0 or (heading and number == 0) else "td" for column in range(len(row))]
        cells = (f"<{kind}>{html.escape(cell)}</{kind}>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>"])


def read_log(path: str | Path) -> dict[str, list[float]]:
    """The columns of a run's log.csv by name; NaN where a row has no value."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no log {path}")
    with Path(path).open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    whole = [row for row in rows if len(row) == len(names)]  # the last may be being written
    return {name: [float(row[i] or "nan") for row in whole] for i, name in enumerate(names)}


def curves(log: Mapping[str, Sequence[float]]) -> list[str]:
    """A picture of each return and metric in a log, as SVG."""
    names = [name for name in log if name.rpartition("/")[2] == "return" or name.startswith("metrics/")]
    colours = COLOURS[1:2] if len(names) == 1 else COLOURS
    pictures = []
    for name, colour in zip(names, itertools.cycle(colours), strict=False):
        first, _, last = name.rpartition("/")
        title = f"return of {first}" if last == "return" and first else last
        pictures.append(curve(title, log["steps"], log[name], colour))
    return pictures


_WIDTH, _HEIGHT = 380, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 12, 28, 22
_MOST_POINTS = 400


def curve(title: str, steps: Sequence[float], values: Sequence[float], colour: str) -> str:
    """One curve against steps as a picture in SVG, whose ink is that of the text around it."""
    points = [(x, y) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    points = points[:: -len(points) // _MOST_POINTS or -1][::-1]  # the last one is among them
    marks = _ticks(min((y for _, y in points), default=0.0), max((y for _, y in points), default=0.0))
    last = max(steps, default=0.0)

    def across(x: float) -> float:
        return _LEFT + x / (last or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - marks[0]) / (marks[-1] - marks[0]) * (_HEIGHT - _TOP - _BOTTOM)

    def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
        style = f'text-anchor="{anchor}" font-weight="{weight}" fill="currentColor"'
        return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(words)}</text>'

    grid = "".join(f"M{_LEFT} {down(mark):.1f}H{_WIDTH - _RIGHT}" for mark in marks)
    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
    now = f"{points[-1][1]:.4g}" if points else "no episode ended"
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width: 100%; height: auto" role="img" '
            f'aria-label="{html.escape(title)} against steps" font-family="system-ui, sans-serif" font-size="11">',
            f'<rect x="{_LEFT}" y="6" width="10" height="10" rx="2" fill="{colour}"/>',
            text(_LEFT + 15, 15, title, weight="bold"),
            text(_WIDTH - _RIGHT, 15, now, "end"),
            f'<path d="{grid}" stroke="currentColor" stroke-opacity=".18"/>',
            *(text(_LEFT - 5, down(mark) + 4, f"{mark:.6g}", "end") for mark in marks),
            text(_LEFT, _HEIGHT - 6, "0"),
            text(_WIDTH - _RIGHT, _HEIGHT - 6, f"{last:,.0f} steps", "end"),
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>',
            "</svg>",
        ]
    )


def _ticks(low: float, high: float) -> list[float]:
    """Numbers at round distances from one another, from below the least to above the greatest."""
    raw = (high - low or abs(high) or 1.0) / 3
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(times * unit for times in (1, 2, 5, 10) if times * unit >= raw)
    first = math.floor(low / step)
    return [(first + i) * step for i in range(max(1, math.ceil(high / step - 1e-9) - first) + 1)]


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
        header: Sequence[str] = (),
    ) -> None:
        """Draws nothing yet; figures of the names in ``target`` are aimed at, and ``header`` is written first.

        With ``quiet`` there is nothing, with False a bar whatever the stream is, with None a bar in a terminal or a
        notebook and lines elsewhere. Without a stream it is standard error, or nowhere if that is closed.
        """
        self._total, self._unit, self._target = max(1, total_steps), unit, target or {}
        self._header = "".join(f"{line}\n" for line in header)
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
        header, self._header = self._header, ""
        if self._in_lines:
            self._write(header + line.lstrip() + "\n")
            return
        self._write(header + "\r" + line + " " * (self._shown - len(line)))
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
