"""Rows of results' tables, and SVG plots of logs."""

import csv
import html
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpu_envs.tables import Row

COLOURS: Final = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#117a65")
"""Colours of plots; a single plot has the second."""

_REASONS: Final = {
    "total_steps": "all steps are done",
    "target_return": "the target return is reached",
    "interrupted": "interrupted",
}


NO_STEP_TAKEN: Final = "no step was taken"
"""Words in each ``no_step_notice``."""


def no_step_notice(result: Any, *, total_steps: str = "total_steps", no_target: str = "target_return=None") -> str:
    """Return why resuming a run took no step, and which setting continues it, by its name in Python or the shell."""
    state, give = "is already complete", f"more {total_steps}"
    if result.reason == "target_return":
        state, give = "has reached its target return", no_target
    return f"{result.run_dir} {state}, with {result.steps:,} steps, and {NO_STEP_TAKEN}: to continue, give {give}"


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
    latest = f"latest {points[-1][1]:.4g}" if points else "no episode ended"
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
