"""The style of all plots, and helpers that make their files reproducible."""

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

from benchmarks.record import format_short

OURS, PEER, SECOND, QUIET, INK = "#1f5fbf", "#a3a8b0", "#c8553d", "#8b9099", "#24292f"
"""Colours: gpu_envs, peers, second series, reference lines, text."""

WIDTH, DPI = 8.0, 160
"""Width in inches and dots per inch."""

STYLE: dict[Any, Any] = {
    # a fixed background, also on dark pages
    "figure.facecolor": "#fcfcfb",
    "savefig.facecolor": "#fcfcfb",
    "axes.facecolor": "#fcfcfb",
    "font.family": "DejaVu Sans",  # bundled with matplotlib
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
def applied() -> Iterator[None]:
    """Use this style inside the block, in place of the user's."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def software() -> str:
    """Return the versions that determine a plot's bytes; they are stored in the file."""
    names = ("matplotlib", "pillow", "numpy")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def save(figure: Figure, path: Path, comment: str) -> None:
    """Write a PNG file with the software versions and a comment, without a date."""
    figure.savefig(path, dpi=DPI, metadata={"Software": software(), "Comment": comment})


def log_scale(axes: Axes, which: str) -> None:
    """Make an axis logarithmic, with grid lines whose spacing depends on its range."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    axis.set_major_locator(LogLocator(base=10 if high / low < 1e5 else 1000, subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_short(value)))
    axis.set_minor_formatter(NullFormatter())


def annotate(axes: Axes, text: str, point: tuple[float, float], colour: str = INK, **options: Any) -> None:
    """Write text next to a point, with a halo over the lines behind it.

    Args:
        axes: The axes.
        text: The text.
        point: The point.
        colour: The colour of the text.
        options: Options of ``Axes.annotate``.
    """
    halo = [withStroke(linewidth=3, foreground=STYLE["axes.facecolor"])]
    placement = {"xytext": (0, 4), "ha": "right"} | options
    axes.annotate(text, point, textcoords="offset points", color=colour, fontsize=8, path_effects=halo, **placement)


def new_figure(height: float, bottom: float) -> Figure:
    """Create a figure of the standard width; ``bottom`` is the fraction of its height for ``source``."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    rect = (0, bottom, 1, 1 - bottom)
    figure.get_layout_engine().set(rect=rect)  # type: ignore[union-attr, call-arg]  # the constrained engine
    return figure


def source(figure: Figure, document: Any) -> None:
    """Write machine, commit and date of the results at the bottom."""
    machine = document["machine"]
    device = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    commit = document["commit"]
    changes = " and changes" if commit.endswith("+") else ""
    text = f"{device}; commit {commit[:7] or 'unknown'}{changes}, {document['date'][:10]}"
    figure.text(0.99, 0.004, text, ha="right", va="bottom", fontsize=6.5, color=QUIET)
