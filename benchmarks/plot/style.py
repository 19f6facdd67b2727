"""What all pictures have in common, and what makes them the same bytes every time."""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.record import short

OURS, PEER, SECOND, QUIET, INK = "#1f5fbf", "#a3a8b0", "#c8553d", "#8b9099", "#24292f"
"""Ours; others; what is set against ours where colour must tell; lines that help; words."""

WIDTH, DPI = 8.0, 160
"""Inches and dots: shown 800 pixels wide, ten points are ten pixels and a bit."""

STYLE: dict[Any, Any] = {
    # a background of its own: the picture looks the same on a dark page
    "figure.facecolor": "#fcfcfb",
    "savefig.facecolor": "#fcfcfb",
    "axes.facecolor": "#fcfcfb",
    "font.family": "DejaVu Sans",  # it comes with matplotlib
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6e9",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@contextmanager
def styled() -> Iterator[None]:
    """Within it pictures are drawn in this style, whatever the user's own is."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def software() -> str:
    """What decides the bytes of a picture; it is written into it."""
    names = ("matplotlib", "pillow", "numpy")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def save(figure: Figure, path: Path, comment: str) -> None:
    """Writes a PNG file without date, which says by what it was drawn, and has a comment besides."""
    figure.savefig(path, dpi=DPI, metadata={"Software": software(), "Comment": comment})


def log_scale(axes: Axes, which: str) -> None:
    """A logarithmic axis, with a line for every third power of ten, for each where there are few, or between them."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    between = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    axis.set_major_locator(LogLocator(base=10 if high / low < 1e5 else 1000, subs=between, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def say(axes: Axes, words: str, at: tuple[float, float], colour: str = INK, **how: Any) -> None:
    """Words beside a point, on a ground of their own, so that lines behind them do not cross them out.

    Args:
        axes: Where.
        words: What.
        at: The point.
        colour: Of the words.
        how: As matplotlib names it.
    """
    halo = [withStroke(linewidth=3, foreground=STYLE["axes.facecolor"])]
    given = {"xytext": (0, 4), "ha": "right"} | how
    axes.annotate(words, at, textcoords="offset points", color=colour, fontsize=8, path_effects=halo, **given)


def figure_of(height: float, left_below: float) -> Figure:
    """An empty figure of the usual width, in inches, with a part of its height left below for ``source``."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    rect = (0, left_below, 1, 1 - left_below)
    figure.get_layout_engine().set(rect=rect)  # type: ignore[union-attr, call-arg]  # the constrained one
    return figure


def source(figure: Figure, document: Any) -> None:
    """Says below where the figures come from: machine, commit and date."""
    machine = document["machine"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    commit = document["commit"]
    edited = " and edits" if commit.endswith("+") else ""
    text = f"{where}; commit {commit[:7] or 'unknown'}{edited}, {document['date'][:10]}"
    figure.text(0.99, 0.004, text, ha="right", va="bottom", fontsize=6.5, color=QUIET)
