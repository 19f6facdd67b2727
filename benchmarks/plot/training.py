"""Plots of training: time until CartPole is solved, speed of PPO, and survival of runners in Tag."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plot import style
from benchmarks.record import format_short

Document = Mapping[str, Any]
TEAMS = {"taggers": style.SECOND, "runners": style.OURS}
MAX_POINTS = 200


def solving_and_speed(document: Document) -> Figure:
    """Draw the share of seeds that have solved CartPole over time, and PPO's steps per second, compared with JAX."""
    sections = document["sections"]
    figure = style.new_figure(3.0, 0.035)
    left, right = figure.subplots(1, 2)
    solving(left, sections["solve"]["results"])
    speed(right, sections["throughput"]["results"])
    style.source(figure, sections["solve"])
    return figure


def solving(axes: Axes, results: Mapping[str, Any]) -> None:
    """Draw a step for each seed that reached the target in training and evaluation."""
    target = results["target"]
    runs = {who: results[who].get("runs", []) for who in ("ours", "jax")}
    last = max(run["seconds"] for library_runs in runs.values() for run in library_runs) * 1.6
    for who, colour in (("ours", style.OURS), ("jax", style.QUIET)):
        solved_runs = [r for r in runs[who] if (r["last_100"] or 0) >= target and (r["evaluated"] or 0) >= target]
        times = sorted(run["seconds"] for run in solved_runs)
        if not times:
            continue
        shares = [100 * number / len(runs[who]) for number in range(len(times) + 1)]
        axes.step([times[0], *times, last], [0, *shares[1:], shares[-1]], where="post", color=colour)
        # the curve rises from zero at its first time
        axes.plot([times[0]] * 2, [0, shares[1]], color=colour)
        prepare = results["ours"]["runs"][0]["prepare_s"] if who == "ours" else results["jax"].get("compile_s")
        name = "gpu_envs" if who == "ours" else "JAX"
        text = f"{name}, after {prepare:.2g} s of {'preparation' if who == 'ours' else 'compilation'}"
        style.annotate(axes, text, (last, shares[-1]), colour if who == "ours" else style.INK)
    axes.set(ylim=(0, 112), yticks=(0, 50, 100))
    axes.set_title(f"CartPole solved ({target:g}), % of seeds")
    axes.set_xscale("log")
    style.log_scale(axes, "x")
    axes.set_xlabel("seconds of training")


def speed(axes: Axes, results: Mapping[str, Any]) -> None:
    """Draw a pair of bars for each precision and number of epochs."""
    ticks, names = [], []
    for y, (name, pair) in enumerate(results.items()):
        precision, epochs = name.rsplit("_", 1)
        for offset, who, colour in ((-0.2, "ours", style.OURS), (0.2, "jax", style.PEER)):
            rate = pair[who].get("steps_per_s")
            if rate is None:
                continue
            axes.barh(y + offset, rate, height=0.36, color=colour)
            library = f", {'JAX' if who == 'jax' else 'gpu_envs'}" if y == 0 else ""
            axes.text(rate, y + offset, f" {format_short(rate)}{library}", va="center", fontsize=7.5)
        ticks.append(y)
        names.append(f"{precision}, {epochs} {'epoch' if epochs == '1' else 'epochs'}")
    axes.set_yticks(ticks, names)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: format_short(value) if value else "0")
    replicas = next(iter(results.values()))["settings"]["num_envs"]
    axes.set_title(f"PPO on CartPole, {replicas:,} replicas")
    axes.set_xlabel("steps/s of rollouts and updates")


def survival(document: Document) -> Figure:
    """Draw the survival of runners while one team trains against the other, which acts at random."""
    section = document["sections"]["tag_learning"]
    figure = style.new_figure(3.0, 0.035)
    for axes, (env_id, results) in zip(figure.subplots(1, 2), section["results"].items(), strict=True):
        survival_curves(axes, env_id, results)
    style.source(figure, section)
    return figure


def survival_curves(axes: Axes, env_id: str, results: Mapping[str, Any]) -> None:
    """Draw the curve of each seed, and a line for random actions."""
    random = float(results["random"]["length"])
    curves = {team: [thin(run["curve"]) for run in results[team]["runs"]["kernels"]] for team in TEAMS}
    points = [point for team_curves in curves.values() for curve in team_curves for point in curve]
    end, longest = max(seconds for seconds, _ in points), max(random, *(length for _, length in points))
    axes.axhline(random, color=style.QUIET, linewidth=1, linestyle=(0, (4, 2)))
    axes.set(xlim=(0, end * 1.02), ylim=(0, longest * 1.12))
    style.annotate(axes, "random actions", (end, random))
    for team, colour in TEAMS.items():
        for curve in curves[team]:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, alpha=0.6)
        seconds = max(curve[-1][0] for curve in curves[team])
        if seconds < 0.6 * end:  # there is room right of its end
            length = statistics.median(curve[-1][1] for curve in curves[team])
            level = "top" if abs(length - random) < 0.1 * longest else "center"
            style.annotate(axes, f"{team} train", (seconds, length), colour, xytext=(6, -2), ha="left", va=level)
        else:
            top = max(length for curve in curves[team] for time, length in curve if time > seconds - 0.2 * end)
            style.annotate(axes, f"{team} train", (seconds, top), colour)
    axes.set_title(f"{env_id}: runner survival, steps")
    axes.set_xlabel("seconds of training")


def thin(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Average neighbouring points, so that a curve has at most ``MAX_POINTS``."""
    size = -(-len(curve) // MAX_POINTS)
    parts = [curve[first : first + size] for first in range(0, len(curve), size)]
    return [(part[-1][0], sum(length for _, length in part) / len(part)) for part in parts]
