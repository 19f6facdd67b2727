"""Tables of what learns from a buffer, and of PQN."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.figures import results
from benchmarks.pages.tables import digits, percent, table


def updates_cpu(_page: Path) -> str:
    """SAC's updates in a second on a CPU, beside those of others."""
    return _updates("training_cpu", {"ours": "kernels", "ours in torch": "torch", "SBX (JAX)": "sbx", "SB3": "sb3"})


def updates_cuda(_page: Path) -> str:
    """The same on a GPU."""
    return _updates("training_cuda", {"ours": "kernels", "ours in torch": "torch"})


def _updates(document: str, ways: Mapping[str, str]) -> str:
    rows = [
        (
            f"{of['batch']:,}",
            " x ".join(map(str, of["hidden"])),
            *(digits(of["updates_per_s"][name]) for name in ways.values()),
        )
        for of in results(document, "updates").values()
    ]
    return table(("batch", "hidden layers", *ways), rows)


def replay(_page: Path) -> str:
    """What a replay buffer's draws take."""
    rows = [
        (
            f"{of['count']:,} of {of['rows'] * (of['slots'] - 1):,}",
            *name.split("_")[0].split("+"),
            *(f"{of[f'{way}_us']:.1f}, {percent(of[f'{way}_share'])}" for way in ("draw", "insert")),
        )
        for name, of in results("training_cuda", "replay").items()
        if "_" in name and isinstance(of, dict)
    ]
    kinds = (
        "transitions drawn",
        "features",
        "elements of an action",
        "us of a draw, its share",
        "us of 32 steps taken in",
    )
    return table(kinds, rows)


def algorithms(_page: Path) -> str:
    """What presets of other algorithms reach."""
    rows = []
    both = results("training_cuda", "algorithms") | results("training_cuda", "team_algorithms")
    for name, of in both.items():
        env, own = name.split()
        ends = sorted(run["evaluated"] for run in of["runs"])
        what = "return" if of["role"] == "agent" else "runners' survival"
        reached, seconds = f"{of['reached']} of {len(ends)}", statistics.median(run["seconds"] for run in of["runs"])
        returns = (f"{of['threshold']:g}", f"{ends[0]:.1f}, {ends[-1]:.1f}")
        rows.append((env, f"`{own}`", what, *returns, reached, f"{seconds:.2f}"))
    return table(("what", "preset", "of", "aim", "least and most", "seeds that reach it", "seconds of training"), rows)


def race_cpu(_page: Path) -> str:
    """How long SAC trains until it swings Pendulum up, on a CPU, beside other libraries."""
    return _race("training_cpu")


def race_cuda(_page: Path) -> str:
    """The same on a GPU."""
    return _race("training_cuda")


def _race(document: str) -> str:
    found, rows = results(document, "race"), []
    for name, who in {"ours": "ours", "sbx": "SBX (JAX)", "rejax": "rejax (JAX)", "skrl": "skrl (torch)"}.items():
        if "skipped" in (of := found[name]):
            continue
        figures = (of["median_s"], of["median_steps"], of["prepare_s"])
        reached = f"{of['reached']} of {of['seeds']}"
        rows.append((who, reached, *("" if figure is None else digits(figure) for figure in figures)))
    return table(("who", "seeds that reach it", "seconds of training", "steps", "seconds to prepare"), rows)


MADE: Mapping[str, Callable[[Path], str]] = {
    "updates-cpu": updates_cpu,
    "updates-cuda": updates_cuda,
    "replay": replay,
    "algorithms": algorithms,
    "race-cpu": race_cpu,
    "race-cuda": race_cuda,
}
"""By the name in the pages."""
