"""Tables of off-policy algorithms and PQN."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.results import results
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
            f"{entry['batch']:,}",
            " x ".join(map(str, entry["hidden"])),
            *(digits(rates[name]) if name in (rates := entry["updates_per_s"]) else "" for name in columns.values()),
        )
        for entry in results(document, "updates").values()
    ]
    return table(("batch", "hidden layers", *columns), rows)


def replay(_page: Path) -> str:
    """Return the table of the time of a replay buffer's samples and insertions."""
    rows = [
        (
            f"{entry['count']:,} of {entry['rows'] * (entry['slots'] - 1):,}",
            *name.split("_")[0].split("+"),
            *(f"{entry[f'{way}_us']:.1f}, {percent(entry[f'{way}_share'])}" for way in ("draw", "insert")),
        )
        for name, entry in results("training_cuda", "replay").items()
        if "_" in name and isinstance(entry, dict)
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
    for name, entry in both.items():
        env, preset = name.split()
        ends = sorted(run["evaluated"] for run in entry["runs"])
        label = "return" if entry["role"] == "agent" else "runners' survival"
        reached, seconds = (
            f"{entry['reached']} of {len(ends)}",
            statistics.median(run["seconds"] for run in entry["runs"]),
        )
        returns = (f"{entry['threshold']:g}", f"{ends[0]:.1f}, {ends[-1]:.1f}")
        rows.append((env, f"`{preset}`", label, *returns, reached, f"{seconds:.2f}"))
    return table(
        ("environment", "preset", "metric", "target", "minimum and maximum", "seeds that reach it", "training, s"), rows
    )


def efficiency(_page: Path) -> str:
    """Return the table of the returns of SAC with SB3's settings after some numbers of steps, compared with SB3."""
    data = results("training_cpu", "efficiency")
    rows = []
    for name, library in (("ours", "gpu_envs"), ("sb3", "Stable-Baselines3")):
        returns = [run["returns"] for run in data[name] if "returns" in run]
        if returns:
            means = (f"{statistics.mean(of_seeds):.0f}" for of_seeds in zip(*returns, strict=True))
            rows.append((library, str(len(returns)), *means))
    return table(("mean return", "seeds", *(f"after {steps:,} steps" for steps in data["steps"])), rows)


def race(_page: Path) -> str:
    """Return the table of the time until SAC solves Pendulum on a GPU, compared with other libraries."""
    race, rows = results("training_cuda", "race"), []
    for name, library in {
        "ours": "gpu_envs",
        "sbx": "SBX (JAX)",
        "rejax": "rejax (JAX)",
        "skrl": "skrl (torch)",
    }.items():
        if "skipped" in (entry := race[name]):
            continue
        values = (entry["median_s"], entry["median_steps"], entry["prepare_s"])
        reached = f"{entry['reached']} of {entry['seeds']}"
        rows.append((library, reached, *("" if value is None else digits(value) for value in values)))
    return table(("library", "seeds that reach the target", "training, s", "steps", "preparation, s"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "updates-cpu": updates_cpu,
    "updates-cuda": updates_cuda,
    "replay": replay,
    "algorithms": algorithms,
    "efficiency": efficiency,
    "race": race,
}
"""Generators by the name of their block in the pages."""
