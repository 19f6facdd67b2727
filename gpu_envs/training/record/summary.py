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
        names, *rows = list(csv.reader(file)) or [[]]  # the log of a run that has just started is empty
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
        plots.append(plot(title, {title: (log["steps"], log[name])}, colours=[colour]))
    return plots


_WIDTH, _HEIGHT = 380, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 12, 28, 22
_MAX_POINTS, _KEY = 400, 16


def plot(title: str, lines: Mapping[str, Sequence[Any]], width: int = _WIDTH, colours: Sequence[str] = COLOURS) -> str:
    """Plot lines of steps, values and optionally limits below and above as SVG, whose text has the colour around it."""
    rows = [[row for row in zip(*line, strict=True) if math.isfinite(row[1])] for line in lines.values()]
    rows = [points[:: -len(points) // _MAX_POINTS or -1][::-1] for points in rows]  # includes the last point
    heights = [y for points in rows for _, *heights in points for y in heights if math.isfinite(y)]
    ticks = ticks_of(min(heights, default=0.0), max(heights, default=0.0))
    last = max((step for steps, *_ in lines.values() for step in steps), default=0.0)
    height = _HEIGHT + _KEY * (len(lines) - 1)

    def to_y(value: float) -> float:
        return height - _BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (_HEIGHT - _TOP - _BOTTOM)

    def to_points(row: Sequence[tuple[float, ...]]) -> str:
        return " ".join(f"{_LEFT + x / (last or 1.0) * (width - _LEFT - _RIGHT):.1f},{to_y(y):.1f}" for x, y, *_ in row)

    def text(x: float, y: float, content: str, anchor: str = "start", weight: str = "normal") -> str:
        style = f'text-anchor="{anchor}" font-weight="{weight}" fill="currentColor"'
        return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(content)}</text>'

    parts, stroke = [], 'stroke-width="1.8" stroke-linejoin="round"'
    for name, row, colour, y in zip(lines, rows, itertools.cycle(colours), itertools.count(15, _KEY), strict=False):
        low, high = ([(x, y[k]) for x, _, *y in row if y and math.isfinite(y[k])] for k in (0, 1))
        parts += [
            f'<rect x="{_LEFT}" y="{y - 9}" width="10" height="10" rx="2" fill="{colour}"/>',
            text(_LEFT + 15, y, name, weight="bold"),
            text(width - _RIGHT, y, f"latest {row[-1][1]:.4g}" if row else "no episode ended", "end"),
            *([f'<polygon points="{to_points(low + high[::-1])}" fill="{colour}" fill-opacity=".18"/>'] if low else []),
            f'<polyline points="{to_points(row)}" fill="none" stroke="{colour}" {stroke}/>',
        ]
    grid = "".join(f"M{_LEFT} {to_y(tick):.1f}H{width - _RIGHT}" for tick in ticks)
    return "\n".join(
        [
            f'<svg viewBox="0 0 {width} {height}" width="{width}" style="max-width: 100%; height: auto" role="img" '
            f'aria-label="{html.escape(title)} against steps" font-family="system-ui, sans-serif" font-size="11">',
            f'<path d="{grid}" stroke="currentColor" stroke-opacity=".18"/>',
            *parts,
            *(text(_LEFT - 5, to_y(tick) + 4, f"{tick:.6g}", "end") for tick in ticks),
            text(_LEFT, height - 6, "0"),
            text(width - _RIGHT, height - 6, f"{last:,.0f} steps", "end"),
            "</svg>",
        ]
    )


def ticks_of(low: float, high: float, count: int = 3) -> list[float]:
    """Return about ``count`` tick values at a round distance that cover the range from ``low`` to ``high``."""
    raw = (high - low or abs(high) or 1.0) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(times * unit for times in (1, 2, 5, 10) if times * unit >= raw)
    first = math.floor(low / step)
    return [(first + i) * step for i in range(max(1, math.ceil(high / step - 1e-9) - first) + 1)]
