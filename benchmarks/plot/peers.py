"""Plot of the peers' steps per second, compared with gpu_envs: the fastest result of each variant."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from benchmarks.plot import style
from benchmarks.record import format_short

Row = Mapping[str, Any]


class BarGroup(NamedTuple):
    """A heading, and the workloads of the bars below it."""

    heading: str
    task: str
    ways: tuple[str, ...]


GROUPS = (
    BarGroup("CartPole, NumPy in and out, one step per call", "CartPole-v1", ("host",)),
    BarGroup("CartPole, arrays of the device, one step per call or a CUDA graph", "CartPole-v1", ("step", "graph")),
    BarGroup("CartPole, 128 steps per call", "CartPole-v1", ("fused",)),
    BarGroup("TagContinuous, 10 + 100 agents", "TagContinuous-v0", ("step", "graph")),
    BarGroup("TagGridWorld, 4 + 1 agents", "TagGridWorld-v0", ("step", "graph")),
    BarGroup("SimpleTag, 3 + 1 agents", "SimpleTag-v3", ("step",)),
    BarGroup("SimpleSpread, 3 agents", "SimpleSpread-v3", ("step",)),
    BarGroup("PPO on CartPole, complete training", "CartPole-v1", ("train",)),
)
NAMES = {"graph": "CUDA graph", "asynchronous": "asynchronous"}


class Bar(NamedTuple):
    """The fastest result of a variant."""

    name: str
    rate: float
    ratio: float | None
    """Rate of gpu_envs with the same number of replicas divided by this rate; None: this is gpu_envs."""


def draw(document: Mapping[str, Any]) -> Figure:
    """Draw all groups, each from the slowest to the fastest."""
    groups = [(group, bars) for group in GROUPS if len(bars := bars_of(document["sections"], group)) > 1]
    lines = sum(len(bars) + 1.5 for _, bars in groups)
    figure = style.new_figure(0.7 + 0.185 * lines, 0.015)
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
            axes.text(bar.rate * 1.15, y, format_bar(bar), va="center", fontsize=8)
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
        "environment steps/s, with the fastest number of replicas of each;\n"
        "in brackets: how much faster gpu_envs is with the same number"
    )
    style.source(figure, document["sections"]["ours"])
    return figure


def format_bar(bar: Bar) -> str:
    """Return the text of a bar: the rate and, for peers, the ratio of gpu_envs."""
    if bar.ratio is None:
        return format_short(bar.rate)
    return f"{format_short(bar.rate)}  ({short_ratio(bar.ratio)})"


def short_ratio(ratio: float) -> str:
    """Format a ratio with at most three digits."""
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def bars_of(sections: Mapping[str, Any], group: BarGroup) -> list[Bar]:
    """Return the fastest result of each variant and way; empty without peers."""
    fastest: dict[str, Bar] = {}
    for name, section in sections.items():
        is_ours = name == "ours"
        for row in section["results"]["rows"]:
            if row["task"] != group.task or row["way"] not in group.ways or "failed" in row:
                continue
            ours = row["ours_env_steps_per_s"]
            if not is_ours and ours is None:
                continue
            bar = Bar(
                bar_name(section["results"]["label"], row, sections),
                row["env_steps_per_s"],
                None if is_ours else ours / row["env_steps_per_s"],
            )
            if bar.name not in fastest or fastest[bar.name].rate < bar.rate:
                fastest[bar.name] = bar
    peers = [bar for bar in fastest.values() if bar.ratio is not None]
    if peers and len(peers) == len(fastest):  # gpu_envs was measured again since, without these workloads
        rate = max(bar.rate * (bar.ratio or 0) for bar in peers)
        fastest["gpu_envs"] = Bar("gpu_envs", rate, None)
    return sorted(fastest.values(), key=lambda bar: bar.rate) if peers else []


def bar_name(label: str, row: Row, sections: Mapping[str, Any]) -> str:
    """Return the name of a bar: library, variant and device."""
    on_gpu = sections["ours"]["machine"]["gpu"] is not None
    parts = [label, row["variant"] if row["variant"] != label else None, NAMES.get(row["way"])]
    if row["way"] == "host":
        parts.append("GPU" if row["device"] == "cuda" else "one core" if row["cores"] == "one" else "all cores")
    elif on_gpu and row["device"] == "cpu":
        parts.append("CPU")
    return ", ".join(dict.fromkeys(filter(None, parts)))
