"""What a result says: rows of a table, for the shell and for notebooks, and curves of what a run has logged."""

import csv
import html
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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
        *((f"torch ran {name}", why) for name, why in result.torch_because.items()),
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
