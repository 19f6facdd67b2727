"""Plot of steps per second by the number of replicas and of agents, with the limit of the memory bandwidth."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plot import style
from benchmarks.record import BYTES_PER_STEP

COLOURS = {"step": "#7fa6dd", "graph": style.OURS, "fused": style.SECOND}
LABELS = {
    "cuda": {"step": "1 step per call", "graph": "steps in a CUDA graph", "fused": "512 steps per call"},
    "cpu": {"step": "1 step per call", "fused": "512 steps per call"},
}
TEAMS = {"TagContinuous-v0": style.OURS, "TagGridWorld-v0": style.SECOND}


def draw(device: str, scaling: Mapping[str, Any], bandwidth: float | None) -> Figure:
    """Draw a panel for each single-agent environment, and one for teams.

    Args:
        device: cpu or cuda.
        scaling: The document of results.
        bandwidth: Bytes per second that a copy reads and writes; None: draw no limit.
    """
    results = scaling["results"]
    figure = style.new_figure(5.0, 0.02)
    panels = figure.subplots(2, 3)
    rates = [point["steps_per_s"] for ways in results["single"].values() for way in ways.values() for point in way]
    bottom, top = min(rates) / 2, max(rates) * 4
    for axes, (env_id, ways) in zip(panels.flat, results["single"].items(), strict=False):
        single(axes, env_id, ways)
        axes.set(ylim=(bottom, top))
        style.log_scale(axes, "x")
        style.log_scale(axes, "y")
        if bandwidth is not None:
            axes.axhline(bandwidth / BYTES_PER_STEP[env_id], color=style.INK, linewidth=1, linestyle=(0, (4, 2)))
    first = panels.flat[0]
    label(first, results["single"][next(iter(results["single"]))], LABELS[device])
    if bandwidth is not None:
        limit = bandwidth / BYTES_PER_STEP[next(iter(results["single"]))]
        style.annotate(first, "bandwidth of a copy", (first.get_xlim()[0] * 1.5, limit), ha="left")
    panels[0, 0].set_ylabel("steps/s")
    panels[1, 0].set_ylabel("steps/s")
    panels[1, 0].set_xlabel("replicas")
    panels[1, 1].set_xlabel("replicas")
    teams(panels.flat[-1], results["teams"])
    style.source(figure, scaling)
    return figure


def single(axes: Axes, env_id: str, ways: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Draw a line for each way of stepping."""
    for way, points in ways.items():
        axes.plot([p["num_envs"] for p in points], [p["steps_per_s"] for p in points], color=COLOURS[way])
    axes.set_title(env_id)
    axes.margins(x=0.04)


def label(axes: Axes, ways: Mapping[str, Sequence[Mapping[str, float]]], labels: Mapping[str, str]) -> None:
    """Label the lines, in the empty corner."""
    for number, way in enumerate(reversed(list(ways))):
        axes.text(
            0.97,
            0.06 + 0.11 * (len(ways) - 1 - number),
            labels[way],
            transform=axes.transAxes,
            color=COLOURS[way],
            fontsize=8,
            ha="right",
        )


def teams(axes: Axes, points_by_env: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Draw agent steps per second by the number of agents per replica."""
    for env_id, points in points_by_env.items():
        rates = [point["agent_steps_per_s"] for point in points]
        axes.plot([point["agents"] for point in points], rates, color=TEAMS[env_id], marker="o", markersize=3)
    axes.set_title("Teams: agent steps/s")
    axes.set_xlabel("agents per replica")
    rates = [point["agent_steps_per_s"] for points in points_by_env.values() for point in points]
    axes.set(ylim=(min(rates) / 4, max(rates) * 4))
    axes.set_xscale("log")
    style.log_scale(axes, "x")
    style.log_scale(axes, "y")
    for number, (env_id, colour) in enumerate(TEAMS.items()):
        if env_id in points_by_env:
            axes.text(0.04, 0.05 + 0.11 * number, env_id, transform=axes.transAxes, color=colour, fontsize=8)
