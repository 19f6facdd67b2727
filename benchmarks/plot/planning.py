"""Plots of the planning example: paths of trials by iteration, and returns by the number of trials."""

from collections.abc import Mapping
from typing import Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from benchmarks.plot import style

Document = Mapping[str, Any]

PANELS = (0, 3)
"""The plotted iterations."""


def trials(document: Document) -> Figure:
    """Draw the angles of trials' pendulums, darker for a greater return, and the chosen plan in the last panel."""
    section = document["sections"]["trials"]
    paths_data = section["results"]["fan"]
    figure = style.new_figure(2.2, 0.05)
    colour_of = LinearSegmentedColormap.from_list("returns", ["#dfe3e8", style.OURS])
    all_returns = [path["return"] for paths in paths_data["iterations"] for path in paths]
    low, high = min(all_returns), max(all_returns)
    for axes, number in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for path in sorted(paths_data["iterations"][number], key=lambda path: path["return"]):
            share = (path["return"] - low) / (high - low)
            axes.plot(paths_data["seconds"], path["degrees"], color=colour_of(share), linewidth=0.9)
        axes.axhline(paths_data["upright"], color=style.QUIET, linewidth=0.8, linestyle=(0, (3, 2)))
        if number == PANELS[0]:
            style.annotate(
                axes,
                "upright",
                (paths_data["seconds"][0], paths_data["upright"]),
                style.QUIET,
                ha="left",
                xytext=(0, -10),
            )
        if number == PANELS[-1]:
            axes.plot(paths_data["seconds"], paths_data["chosen"]["degrees"], color=style.SECOND, linewidth=2.2)
            style.annotate(
                axes,
                "the plan",
                (paths_data["seconds"][-1], paths_data["chosen"]["degrees"][-1]),
                style.SECOND,
                xytext=(-2, 10),
            )
        axes.set_title(f"Trials of iteration {number + 1}")
        axes.set_xlabel("seconds from now")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}°")
        axes.yaxis.set_major_locator(MultipleLocator(90))
    style.source(figure, section)
    return figure


def returns(document: Document) -> Figure:
    """Draw the mean return by the number of trials, for each method and number of iterations."""
    section = document["sections"]["trials"]
    figure = style.new_figure(2.8, 0.04)
    axes = figure.subplots()
    lines: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for point in section["results"]["returns"]:
        lines.setdefault((point["method"], point["iterations"]), []).append(point)
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
    axes.set_xlabel("trials per iteration")
    axes.legend(frameon=False, loc="lower right")
    style.source(figure, section)
    return figure
