"""Rates of others beside ours: a bar for the best that each does of every kind of work."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from benchmarks.plot import style
from benchmarks.record import short

Row = Mapping[str, Any]


class BarGroup(NamedTuple):
    """Bars that belong together."""

    heading: str
    task: str
    ways: tuple[str, ...]


GROUPS = (
    BarGroup("CartPole, NumPy in and out, a step a call", "CartPole-v1", ("host",)),
    BarGroup(
        "CartPole, arrays of the device, a step a call or a CUDA graph of steps", "CartPole-v1", ("step", "graph")
    ),
    BarGroup("CartPole, 128 steps a call", "CartPole-v1", ("fused",)),
    BarGroup("TagContinuous, 10 + 100 agents", "TagContinuous-v0", ("step", "graph")),
    BarGroup("TagGridWorld, 4 + 1 agents", "TagGridWorld-v0", ("step", "graph")),
    BarGroup("SimpleTag, 3 + 1 agents", "SimpleTag-v3", ("step",)),
    BarGroup("SimpleSpread, 3 agents", "SimpleSpread-v3", ("step",)),
    BarGroup("PPO on CartPole, all of training", "CartPole-v1", ("train",)),
)
NAMES = {"graph": "CUDA graph", "asynchronous": "asynchronous"}


class Bar(NamedTuple):
    """The best of one way of somebody's."""

    name: str
    rate: float
    ratio: float | None
    """Ours over it, of the same number of replicas; None: it is ours."""


def draw(document: Mapping[str, Any]) -> Figure:
    """All groups, from the slowest of each to the fastest."""
    groups = [(group, bars) for group in GROUPS if len(bars := bars_of(document["sections"], group)) > 1]
    lines = sum(len(bars) + 1.5 for _, bars in groups)
    figure = style.figure_of(0.7 + 0.185 * lines, 0.015)
    axes = figure.subplots()
    rates = [bar.rate for _, bars in groups for bar in bars]
    left, right = 10 ** (len(str(int(min(rates)))) - 1) / 10, max(rates) * 60
    axes.set(xlim=(left, right))
    y = 0.0
    ticks, names = [], []
    for group, bars in groups:
        axes.text(left, y, group.heading, fontweight="bold", va="center")
        y += 1.05
        for bar in bars:
            axes.barh(y, bar.rate - left, left=left, height=0.72, color=style.PEER if bar.ratio else style.OURS)
            axes.text(bar.rate * 1.15, y, told(bar), va="center", fontsize=8)
            ticks.append(y)
            names.append(bar.name)
            y += 1
        y += 0.45
    axes.set_yticks(ticks, names)
    axes.set(ylim=(y - 0.6, -0.7))
    style.log_scale(axes, "x")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(
        "steps of environments/s, at the number of replicas that suits each best;\n"
        "in brackets: how much faster gpu_envs is at that same number"
    )
    style.source(figure, document["sections"]["ours"])
    return figure


def told(bar: Bar) -> str:
    """The rate, and of others how much faster ours is."""
    if bar.ratio is None:
        return short(bar.rate)
    return f"{short(bar.rate)}  ({short_ratio(bar.ratio)})"


def short_ratio(ratio: float) -> str:
    """Three digits at most."""
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def bars_of(sections: Mapping[str, Any], group: BarGroup) -> list[Bar]:
    """The best of each variant and way, ours among them; none where there are no others."""
    found: dict[str, Bar] = {}
    for name, section in sections.items():
        own = name == "ours"
        for row in section["results"]["rows"]:
            if row["task"] != group.task or row["way"] not in group.ways or "failed" in row:
                continue
            ours = row["ours_env_steps_per_s"]
            if not own and ours is None:
                continue
            bar = Bar(
                called(section["results"]["label"], row, sections),
                row["env_steps_per_s"],
                None if own else ours / row["env_steps_per_s"],
            )
            if bar.name not in found or found[bar.name].rate < bar.rate:
                found[bar.name] = bar
    others = [bar for bar in found.values() if bar.ratio is not None]
    return sorted(found.values(), key=lambda bar: bar.rate) if others else []


def called(label: str, row: Row, sections: Mapping[str, Any]) -> str:
    """Whose it is, which of their ways, and on what."""
    on_gpu = sections["ours"]["machine"]["gpu"] is not None
    words = [label, row["variant"] if row["variant"] != label else None, NAMES.get(row["way"])]
    if row["way"] == "host":
        words.append("GPU" if row["device"] == "cuda" else "one core" if row["cores"] == "one" else "all cores")
    elif on_gpu and row["device"] == "cpu":
        words.append("CPU")
    return ", ".join(dict.fromkeys(filter(None, words)))
