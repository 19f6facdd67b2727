"""Training by the clock: when CartPole is solved, how fast PPO is, and how long runners of Tag last."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plot import style
from benchmarks.record import short

Document = Mapping[str, Any]
TEAMS = {"taggers": style.SECOND, "runners": style.OURS}
MOST_POINTS = 200


def solved_and_fast(document: Document) -> Figure:
    """CartPole: the share of seeds that have solved it by a time, and steps a second of all of PPO, beside JAX."""
    sections = document["sections"]
    figure = style.figure_of(3.0, 0.035)
    left, right = figure.subplots(1, 2)
    solved(left, sections["solve"]["results"])
    fast(right, sections["throughput"]["results"])
    style.source(figure, sections["solve"])
    return figure


def solved(axes: Axes, found: Mapping[str, Any]) -> None:
    """A step up for each seed that reached the target, and whose policy kept to it in fresh episodes."""
    target = found["target"]
    runs = {who: found[who].get("runs", []) for who in ("ours", "jax")}
    last = max(run["seconds"] for listed in runs.values() for run in listed) * 1.6
    for who, colour in (("ours", style.OURS), ("jax", style.QUIET)):
        good = [r for r in runs[who] if (r["last_100"] or 0) >= target and (r["evaluated"] or 0) >= target]
        times = sorted(run["seconds"] for run in good)
        if not times:
            continue
        shares = [100 * number / len(runs[who]) for number in range(len(times) + 1)]
        axes.step([times[0], *times, last], [0, *shares[1:], shares[-1]], where="post", color=colour)
        # the curve rises from zero at its first time
        axes.plot([times[0]] * 2, [0, shares[1]], color=colour)
        prepare = found["ours"]["runs"][0]["prepare_s"] if who == "ours" else found["jax"].get("compile_s")
        name = "gpu_envs" if who == "ours" else "JAX"
        words = f"{name}, after {prepare:.2g} s of {'preparation' if who == 'ours' else 'compiling'}"
        style.say(axes, words, (last, shares[-1]), colour if who == "ours" else style.INK)
    axes.set(ylim=(0, 112), yticks=(0, 50, 100))
    axes.set_title(f"CartPole solved ({target:g}), % of seeds")
    axes.set_xscale("log")
    style.log_scale(axes, "x")
    axes.set_xlabel("seconds of training")


def fast(axes: Axes, found: Mapping[str, Any]) -> None:
    """A pair of bars for each precision and number of epochs."""
    ticks, names = [], []
    for y, (name, pair) in enumerate(found.items()):
        precision, epochs = name.rsplit("_", 1)
        for offset, who, colour in ((-0.2, "ours", style.OURS), (0.2, "jax", style.PEER)):
            rate = pair[who].get("steps_per_s")
            if rate is None:
                continue
            axes.barh(y + offset, rate, height=0.36, color=colour)
            name_of = f", {'JAX' if who == 'jax' else 'gpu_envs'}" if y == 0 else ""
            axes.text(rate, y + offset, f" {short(rate)}{name_of}", va="center", fontsize=7.5)
        ticks.append(y)
        names.append(f"{precision}, {epochs} {'epoch' if epochs == '1' else 'epochs'}")
    axes.set_yticks(ticks, names)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    replicas = next(iter(found.values()))["settings"]["num_envs"]
    axes.set_title(f"PPO on CartPole, {replicas:,} replicas")
    axes.set_xlabel("steps/s of rollouts and updates")


def survival(document: Document) -> Figure:
    """How long runners last while one team trains against the other, which acts at random."""
    section = document["sections"]["tag_learning"]
    figure = style.figure_of(3.0, 0.035)
    for axes, (env_id, found) in zip(figure.subplots(1, 2), section["results"].items(), strict=True):
        game(axes, env_id, found)
    style.source(figure, section)
    return figure


def game(axes: Axes, env_id: str, found: Mapping[str, Any]) -> None:
    """The curves of each seed, and a line where all act at random."""
    random = float(found["random"]["length"])
    curves = {team: [thinned(run["curve"]) for run in found[team]["runs"]["kernels"]] for team in TEAMS}
    points = [point for each in curves.values() for curve in each for point in curve]
    end, most = max(seconds for seconds, _ in points), max(random, *(length for _, length in points))
    axes.axhline(random, color=style.QUIET, linewidth=1, linestyle=(0, (4, 2)))
    axes.set(xlim=(0, end * 1.02), ylim=(0, most * 1.12))
    style.say(axes, "all random", (end, random))
    for team, colour in TEAMS.items():
        for curve in curves[team]:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, alpha=0.6)
        seconds = max(curve[-1][0] for curve in curves[team])
        if seconds < 0.6 * end:  # there is room beside its end
            length = statistics.median(curve[-1][1] for curve in curves[team])
            level = "top" if abs(length - random) < 0.1 * most else "center"
            style.say(axes, f"{team} learn", (seconds, length), colour, xytext=(6, -2), ha="left", va=level)
        else:
            top = max(length for curve in curves[team] for at, length in curve if at > seconds - 0.2 * end)
            style.say(axes, f"{team} learn", (seconds, top), colour)
    axes.set_title(f"{env_id}: steps a runner lasts")
    axes.set_xlabel("seconds of training")


def thinned(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """The means of so few neighbours that a curve has at most ``MOST_POINTS``."""
    each = -(-len(curve) // MOST_POINTS)
    parts = [curve[first : first + each] for first in range(0, len(curve), each)]
    return [(part[-1][0], sum(length for _, length in part) / len(part)) for part in parts]
