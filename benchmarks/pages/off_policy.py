"""Tables of off-policy algorithms and PQN."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.figures import results
from benchmarks.pages.tables import digits, percent, table


def updates_cpu(_page: Path) -> str:
    """Return the table of SAC's updates per second on a CPU, compared with other libraries."""
    return _updates(
        "training_cpu", {"gpu_envs": "kernels", "gpu_envs in torch": "torch", "SBX (JAX)": "sbx", "SB3": "sb3"}
    )


def updates_cuda(_page: Path) -> str:
    """Return the table of SAC's updates per second on a GPU."""
    return _updates("training_cuda", {"gpu_envs": "kernels", "gpu_envs in torch": "torch"})


def _updates(document: str, columns: Mapping[str, str]) -> str:
    rows = [
        (
            f"{of['batch']:,}",
            " x ".join(map(str, of["hidden"])),
            *(digits(of["updates_per_s"][name]) for name in columns.values()),
        )
        for of in results(document, "updates").values()
    ]
    return table(("batch", "hidden layers", *columns), rows)


def replay(_page: Path) -> str:
    """Return the table of the time of a replay buffer's samples and insertions."""
    rows = [
        (
            f"{of['count']:,} of {of['rows'] * (of['slots'] - 1):,}",
            *name.split("_")[0].split("+"),
            *(f"{of[f'{way}_us']:.1f}, {percent(of[f'{way}_share'])}" for way in ("draw", "insert")),
        )
        for name, of in results("training_cuda", "replay").items()
        if "_" in name and isinstance(of, dict)
    ]
    header = (
        "sampled transitions",
        "observation size",
        "action size",
        "us per sample, share of copy bandwidth",
        "us per insertion of 32 steps, share of copy bandwidth",
    )
    return table(header, rows)


def algorithms(_page: Path) -> str:
    """Return the table of the returns of other algorithms' presets."""
    rows = []
    both = results("training_cuda", "algorithms") | results("training_cuda", "team_algorithms")
    for name, of in both.items():
        env, preset = name.split()
        ends = sorted(run["evaluated"] for run in of["runs"])
        what = "return" if of["role"] == "agent" else "runners' survival"
        reached, seconds = f"{of['reached']} of {len(ends)}", statistics.median(run["seconds"] for run in of["runs"])
        returns = (f"{of['threshold']:g}", f"{ends[0]:.1f}, {ends[-1]:.1f}")
        rows.append((env, f"`{preset}`", what, *returns, reached, f"{seconds:.2f}"))
    return table(
        ("environment", "preset", "metric", "target", "minimum and maximum", "seeds that reach it", "training, s"), rows
    )


def race_cpu(_page: Path) -> str:
    """Return the table of the time until SAC solves Pendulum on a CPU, compared with other libraries."""
    return _race("training_cpu")


def race_cuda(_page: Path) -> str:
    """Return the table of the time until SAC solves Pendulum on a GPU."""
    return _race("training_cuda")


def _race(document: str) -> str:
    race, rows = results(document, "race"), []
    for name, who in {"ours": "gpu_envs", "sbx": "SBX (JAX)", "rejax": "rejax (JAX)", "skrl": "skrl (torch)"}.items():
        if "skipped" in (of := race[name]):
            continue
        values = (of["median_s"], of["median_steps"], of["prepare_s"])
        reached = f"{of['reached']} of {of['seeds']}"
        rows.append((who, reached, *("" if value is None else digits(value) for value in values)))
    return table(("library", "seeds that reach the target", "training, s", "steps", "preparation, s"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "updates-cpu": updates_cpu,
    "updates-cuda": updates_cuda,
    "replay": replay,
    "algorithms": algorithms,
    "race-cpu": race_cpu,
    "race-cuda": race_cuda,
}
"""Generators by the name of their block in the pages."""
