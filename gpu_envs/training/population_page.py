"""The page of a population: its runs as lines over what differs between them, their learning curves, and a table."""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from gpu_envs.pages import fill_template, read_asset, script_data
from gpu_envs.tables import html_facts
from gpu_envs.training.comparison import iqm
from gpu_envs.training.record.summary import ticks_of

_WIDE: Final = 20.0
"""Ratio of the largest and the smallest value above which an axis is logarithmic."""
_MAX_POINTS: Final = 400
"""Maximum number of points of a curve."""
_MISSING: Final = -0.1
"""Place of missing and infinite values: below the axis, which is from 0 to 1."""


def population_page(
    title: str, facts: Sequence[Any], rows: Sequence[Any], steps: np.ndarray, curves: np.ndarray
) -> str:
    """Return a page of the ``rows``, ``steps`` and ``curves`` of a ``PopulationResult``; facts are names and texts."""
    names, *runs = rows
    kept = np.arange(len(steps) - 1, -1, -(len(steps) // _MAX_POINTS + 1))[::-1]  # includes the last
    steps, curves = steps[kept], curves[:, kept]
    shown = {name: [run[k] for run in runs] for k, name in enumerate(names[:-2]) if k}  # settings and return
    axes = {name: _axis(values, wide=name not in ("seed", "return")) for name, values in shown.items()}
    known = [column[np.isfinite(column)] for column in np.array([_filled(steps, curve) for curve in curves]).T]
    means, heights = _axis([*curves.ravel(), *(float(iqm(values)) if len(values) else math.nan for values in known)])
    times, across = _axis([0, *steps])
    data = {
        "axes": [{"name": name, "ticks": ticks} for name, (ticks, _) in axes.items()],
        "places": [*zip(*(places for _, places in axes.values()), strict=True)],
        "columns": names,
        "runs": [[*map(short_text, run)] for run in runs],
        "order": np.argsort(-np.array(shown["return"], float), kind="stable").tolist(),
        "times": times,
        "steps": across[1:],
        "means": means,
        "curves": np.reshape(heights, (len(runs) + 1, len(steps))).tolist(),  # the last is the interquartile mean
    }
    parts = {"TITLE": html.escape(title), "FACTS": html_facts(facts), "DATA": script_data(data)}
    script = read_asset("population.js", __package__)
    return fill_template(read_asset("population.html", __package__), parts | {"SCRIPT": script})


def _filled(steps: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Return a curve with values at missing points between and after others: groups of runs have their own steps."""
    known = np.isfinite(curve)
    return np.interp(steps, steps[known], curve[known], left=math.nan) if known.any() else curve


def _axis(values: Sequence[Any], *, wide: bool = False) -> tuple[list[tuple[float, str]], list[float]]:
    """Return the ticks of an axis, each a place and a text, and the places of values.

    If a value is no number, all are words at equal distances. Numbers over a wide range are logarithmic if ``wide``.
    """
    found, words = list(map(_number, values)), list[str]()
    if any(isinstance(value, str) for value in found):
        words = sorted(set(map(short_text, values)), key=lambda word: (len(word), word))
        found = [words.index(short_text(value)) for value in values]
    numbers = np.array(found, float)
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    logarithmic = wide and not words and low > 0 and high / low > _WIDE
    scale: Callable[..., np.ndarray] = np.log if logarithmic else np.asarray
    marks = [*range(0, len(words), len(words) // 16 + 1)] or _marks(low, high, logarithmic)
    points = scale([low, high, *np.where(finite, numbers, low), *marks])
    places = ((points[2:] - points[0]) / (points[1] - points[0]) if low < high else points[2:] * 0 + 0.5).round(4)
    texts = words[:: len(words) // 16 + 1] or map(short_text, marks)
    ticks = [
        (at, text)
        for at, text in zip(places[len(values) :].tolist(), texts, strict=True)
        if finite.any() and 0 <= at <= 1
    ]
    absent = dict.fromkeys(map(short_text, itertools.compress(values, ~finite)))
    ticks += [(_MISSING, ", ".join(absent))] if absent else []
    return ticks, np.where(finite, places[: len(values)], _MISSING).tolist()


def _marks(low: float, high: float, logarithmic: bool) -> list[float]:
    if not logarithmic:
        return ticks_of(low, high, 6) if low < high else [low]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) <= 4 else (1,)
    return [digit * 10.0**k for k in decades[:: len(decades) // 9 + 1] for digit in digits]


def _number(value: Any) -> float | str:
    """Return a number, which may be in a text, as a float, NaN for None, and anything else as its text."""
    try:
        return str(value) if isinstance(value, bool) else math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return str(value)


def short_text(value: Any) -> str:
    """Return a number, which may be in a text, with four digits, and anything else as its text."""
    number = _number(value)
    if isinstance(value, int | None) or isinstance(number, str):
        return str(value)
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
