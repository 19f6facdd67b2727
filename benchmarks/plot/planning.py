"""Plans: what trials do from one moment on, iteration by iteration, and what more of them are good for."""

from collections.abc import Mapping
from typing import Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from benchmarks.plot import style

Document = Mapping[str, Any]

PANELS = (0, 3)
"""Iterations that are shown."""


def trials(document: Document) -> Figure:
    """Angles of some trials' pendulums; the darker, the greater the return. On the last panel what was chosen."""
    section = document["sections"]["trials"]
    found = section["results"]["fan"]
    figure = style.figure_of(2.2, 0.05)
    shade = LinearSegmentedColormap.from_list("returns", ["#dfe3e8", style.OURS])
    everything = [path["return"] for paths in found["iterations"] for path in paths]
    low, high = min(everything), max(everything)
    for axes, number in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for path in sorted(found["iterations"][number], key=lambda each: each["return"]):
            share = (path["return"] - low) / (high - low)
            axes.plot(found["seconds"], path["degrees"], color=shade(share), linewidth=0.9)
        axes.axhline(found["upright"], color=style.QUIET, linewidth=0.8, linestyle=(0, (3, 2)))
        if number == PANELS[0]:
            style.say(axes, "upright", (found["seconds"][0], found["upright"]), style.QUIET, ha="left", xytext=(0, -10))
        if number == PANELS[-1]:
            axes.plot(found["seconds"], found["chosen"]["degrees"], color=style.SECOND, linewidth=2.2)
            style.say(
                axes, "the plan", (found["seconds"][-1], found["chosen"]["degrees"][-1]), style.SECOND, xytext=(-2, 10)
            )
        axes.set_title(f"Trials of iteration {number + 1}")
        axes.set_xlabel("seconds from now")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}°")
        axes.yaxis.set_major_locator(MultipleLocator(90))
    style.source(figure, section)
    return figure


def returns(document: Document) -> Figure:
    """The mean return of episodes by the number of trials, for each method and number of iterations."""
    section = document["sections"]["trials"]
    figure = style.figure_of(2.8, 0.04)
    axes = figure.subplots()
    lines: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for each in section["results"]["returns"]:
        lines.setdefault((each["method"], each["iterations"]), []).append(each)
    for (method, iterations), points in lines.items():
        colour = style.OURS if method == "mppi" else style.SECOND
        times = "1 iteration" if iterations == 1 else f"{iterations} iterations"
        axes.plot(
            [point["trials"] for point in points],
            [point["mean"] for point in points],
            color=colour,
            linestyle="-" if iterations > 1 else (0, (3, 2)),
            label=f"{'MPPI' if method == 'mppi' else 'CEM'}, {times}",
        )
    episodes, horizon = (section["results"]["returns"][0][name] for name in ("episodes", "horizon"))
    axes.set_title(f"Pendulum: mean return of {episodes} episodes, planning {horizon} steps ahead")
    style.log_scale(axes, "x")
    numbers = [point["trials"] for point in next(iter(lines.values()))]
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xlabel("trials an iteration")
    axes.legend(frameon=False, loc="lower right")
    style.source(figure, section)
    return figure
