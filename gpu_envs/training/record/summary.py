"""Progress output, tables of results, and SVG plots of logs."""

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
"""Colours of plots; a single plot has the second."""

_REASONS: Final = {
    "total_steps": "all steps are done",
    "target_return": "the target return is reached",
    "interrupted": "interrupted",
}


def result_rows(result: Any) -> list[Row]:
    """Return the names and values of a ``Result`` as table rows."""
    speed = result.steps / result.seconds if result.seconds > 0 else 0.0
    names = {role: "return" if len(result.returns) == 1 else f"return of {role}" for role in result.returns}
    returns = {names[role]: value for role, value in result.returns.items()}
    return [
        ("finished", _REASONS.get(result.reason, result.reason)),
        *((name, "no episode ended" if math.isnan(value) else f"{value:.6g}") for name, value in returns.items()),
        *((name, f"{value:.6g}") for name, value in result.metrics.items() if not math.isnan(value)),
        ("steps", f"{result.steps:,} in {result.iterations:,} updates"),
        ("training", f"{result.seconds:.2f} s, {speed:,.0f} steps/s"),
        *((f"torch ran {name}", reason) for name, reason in result.fallback_reasons.items()),
    ]


def evaluation_rows(results: Mapping[str, Any]) -> list[Row]:
    """Return a row of headings, and a row for each role's ``Evaluation`` and each metric."""
    rows: list[Row] = [("role", "mean return", "95 %", "std", "mean length", "episodes")]
    metrics: dict[str, Any] = {}  # the same for all roles
    for role, evaluation in results.items():
        rows.append((role, *_numbers(evaluation), f"{evaluation.length:.6g}", f"{evaluation.episodes:,}"))
        metrics |= evaluation.metrics
    return rows + [(name, *_numbers(metric), "", "") for name, metric in metrics.items()]


def _numbers(estimate: Any) -> Row:
    return f"{estimate.mean:.6g}", f"+-{estimate.interval:.3g}", f"{estimate.std:.4g}"


def table(rows: Sequence[Row], *, heading: bool = False) -> str:
    """Return an HTML table; the first cell of each row is a heading, and with ``heading`` the first row, too."""
    lines = []
    for number, row in enumerate(rows):
        kinds = ["th" if column == 0 or (heading and number == 0) else "td" for column in range(len(row))]
        cells = (f"<{kind}>{html.escape(cell)}</{kind}>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>"])


def read_log(path: str | Path) -> dict[str, list[float]]:
    """Read the columns of a run's log.csv by name; missing values are NaN."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"the log {path} does not exist")
    with Path(path).open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    complete = [row for row in rows if len(row) == len(names)]  # the last row may be incomplete while it is written
    return {name: [float(row[i] or "nan") for row in complete] for i, name in enumerate(names)}


def curves(log: Mapping[str, Sequence[float]]) -> list[str]:
    """Plot each return and metric in a log as SVG."""
    names = [name for name in log if name.rpartition("/")[2] == "return" or name.startswith("metrics/")]
    colours = COLOURS[1:2] if len(names) == 1 else COLOURS
    plots = []
    for name, colour in zip(names, itertools.cycle(colours), strict=False):
        first, _, last = name.rpartition("/")
        title = f"return of {first}" if last == "return" and first else last
        plots.append(curve(title, log["steps"], log[name], colour))
    return plots


_WIDTH, _HEIGHT = 380, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 12, 28, 22
_MAX_POINTS = 400


def curve(title: str, steps: Sequence[float], values: Sequence[float], colour: str) -> str:
    """Plot values against steps as SVG; text and axes have the colour of the surrounding text."""
    points = [(x, y) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    points = points[:: -len(points) // _MAX_POINTS or -1][::-1]  # includes the last point
    ticks = _ticks(min((y for _, y in points), default=0.0), max((y for _, y in points), default=0.0))
    last = max(steps, default=0.0)

    def to_x(step: float) -> float:
        return _LEFT + step / (last or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def to_y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (_HEIGHT - _TOP - _BOTTOM)

    def text(x: float, y: float, content: str, anchor: str = "start", weight: str = "normal") -> str:
        style = f'text-anchor="{anchor}" font-weight="{weight}" fill="currentColor"'
        return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(content)}</text>'

    grid = "".join(f"M{_LEFT} {to_y(tick):.1f}H{_WIDTH - _RIGHT}" for tick in ticks)
    line = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in points)
    latest = f"{points[-1][1]:.4g}" if points else "no episode ended"
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width: 100%; height: auto" role="img" '
            f'aria-label="{html.escape(title)} against steps" font-family="system-ui, sans-serif" font-size="11">',
            f'<rect x="{_LEFT}" y="6" width="10" height="10" rx="2" fill="{colour}"/>',
            text(_LEFT + 15, 15, title, weight="bold"),
            text(_WIDTH - _RIGHT, 15, latest, "end"),
            f'<path d="{grid}" stroke="currentColor" stroke-opacity=".18"/>',
            *(text(_LEFT - 5, to_y(tick) + 4, f"{tick:.6g}", "end") for tick in ticks),
            text(_LEFT, _HEIGHT - 6, "0"),
            text(_WIDTH - _RIGHT, _HEIGHT - 6, f"{last:,.0f} steps", "end"),
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>',
            "</svg>",
        ]
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return tick values at a round distance that cover the range from ``low`` to ``high``."""
    raw = (high - low or abs(high) or 1.0) / 3
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(times * unit for times in (1, 2, 5, 10) if times * unit >= raw)
    first = math.floor(low / step)
    return [(first + i) * step for i in range(max(1, math.ceil(high / step - 1e-9) - first) + 1)]


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
