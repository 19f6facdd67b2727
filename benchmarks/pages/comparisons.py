"""Tables that compare gpu_envs with other libraries, and users' environments with built-in ones."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.results import device, document, results
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import format_short

METHODS = {
    "host": "NumPy",
    "step": "one step per call",
    "graph": "a CUDA graph of steps",
    "fused": "128 steps per call",
    "train": "PPO",
}
"""How steps are taken, by the name in the results."""


def peers_cuda(_page: Path) -> str:
    """Return the table of gpu_envs and all peers, on a GPU and its host."""
    return _peers("peers_cuda")


def peers_cpu(_page: Path) -> str:
    """Return the table of gpu_envs and all peers, on a CPU."""
    return _peers("peers_cpu")


def _peers(file: str) -> str:
    lines = []
    for content in document(file)["sections"].values():
        best: dict[tuple[str, str, str], dict[str, Any]] = {}
        for row in content["results"]["rows"]:
            if "failed" in row:
                continue
            cores = f"{row['cores']} core{'s' * (row['cores'] == 'all')}" if row["device"] == "cpu" else "on the GPU"
            cores = f", {cores}" if row["way"] == "host" else ""
            label = content["results"]["label"] + (f", {row['variant']}" if row["variant"] else "")
            task = row["task"] + (f", {row['agents']} agents" if row["agents"] > 1 else "")
            key = (label, task, METHODS[row["way"]] + cores)
            if row["env_steps_per_s"] > best.get(key, row)["env_steps_per_s"] or key not in best:
                best[key] = row
        for key, row in best.items():
            peer, ours = row["env_steps_per_s"], row["ours_env_steps_per_s"]
            comparison = ("", "") if ours is None else (format_short(ours), f"{digits(ours / peer)}x")
            lines.append((*key, f"{row['num_envs']:,}", format_short(peer), *comparison))
    return table(("library", "task", "method", "replicas", "steps/s", "gpu_envs steps/s", "ratio"), lines)


def peers_notes_cuda(_page: Path) -> str:
    """Return the versions of the libraries on a GPU and its host, and what is missing."""
    return _peers_notes("peers_cuda")


def peers_notes_cpu(_page: Path) -> str:
    """Return the versions of the libraries on a CPU, and what is missing."""
    return _peers_notes("peers_cpu")


def _peers_notes(file: str) -> str:
    found = [content["results"] for name, content in document(file)["sections"].items() if name != "ours"]
    peers = [content for content in found if content["rows"]]  # others are not installed, or need a GPU
    versions: dict[str, list[str]] = {}
    for content in peers:
        for package, version in content["versions"].items():
            versions.setdefault(package, []).append(version)
    text = ", ".join(f"{package} {' and '.join(dict.fromkeys(all_of))}" for package, all_of in versions.items())
    missing = [
        f"* {content['label']}, {row['task']}, {row['num_envs']:,} replicas: {row['failed']}"
        for content in peers
        for row in content["rows"]
        if "failed" in row
    ]
    missing += [f"* {content['label']}: {reason}" for content in peers for reason in content["trouble"]]
    return "\n".join([f"Versions: {text}.", *(["", "Not measured:", "", *missing] if missing else [])])


def envpool_one_core() -> str:
    """Return the ratios of gpu_envs to EnvPool on one core, on the two machines."""
    ratios = []
    for file in ("peers_cuda", "peers_cpu"):
        rows = document(file)["sections"]["envpool"]["results"]["rows"]
        fastest = max((row for row in rows if row["cores"] == "one"), key=lambda row: float(row["env_steps_per_s"]))
        ratios.append(digits(fastest["ours_env_steps_per_s"] / fastest["env_steps_per_s"]))
    return " and ".join(ratios)


def custom(_page: Path) -> str:
    """Return the table of users' environments, compared with built-in ones."""
    cuda, cpu = results("custom_cuda"), results("custom_cpu")
    compared = (
        ("CartPole as a user's C++ header, compared with the built-in one", "CartPoleOutside-v1", "share"),
        ("the same rules in Python, compared with C++", "CartPoleInPython-v1", "share"),
        ("the tutorial's lander in C++, compared with MountainCar", "LanderInCpp-v0", "share"),
        ("the same, in bytes per second", "LanderInCpp-v0", "share_of_bytes"),
        ("the lander in Python, compared with C++", "Lander-v0", "share"),
    )
    lines = [
        (label, *(percent(entry[kind], 1) for entry in (*reversed(cuda["speed"][env]), *cpu["speed"][env])))
        for label, env, kind in compared
    ]
    sizes = [f"{entry['num_envs']:,} replicas" for entry in reversed(cuda["speed"]["LanderInCpp-v0"])]
    compiled = [
        f"{entry['compile_s']['LanderInCpp-v0']:.2f} s ({entry['compile_s']['Lander-v0']:.2f} s)"
        for entry in (cuda, cpu)
    ]
    label = "compilation of the lander without a cache, C++ (Python)"
    lines.append((label, compiled[0], *[""] * (len(sizes) - 1), compiled[1]))
    on_cpu = f"one core of an {device('custom_cpu')}, {cpu['speed']['LanderInCpp-v0'][0]['num_envs']:,} replicas"
    return table(("environment", *(f"{device('custom_cuda')}, {size}" for size in sizes), on_cpu), lines)


def particles(_page: Path) -> str:
    """Return the table of training in the particle environments, compared with JaxMARL."""
    lines, ippo = [], results("training_cuda", "ippo")
    for env_id, ours in results("training_cuda", "particles").items():
        for library, section, entry in (("ours", "particles", ours), ("JaxMARL's IPPO", "ippo", ippo[env_id])):
            if "skipped" in entry:
                continue
            runs = entry["runs"]
            ends = sorted(run["evaluated"] for run in runs)
            first = [run["reached_s"] for run in runs if run.get("reached_s") is not None]
            reached, seconds = f"{entry['reached']} of {len(runs)}", statistics.median(run["seconds"] for run in runs)
            returns = (f"{entry['random']:.2f}", f"{ends[0]:.2f}, {ends[-1]:.2f}")
            until = digits(statistics.median(first)) if first else ""
            where = device("training_cuda", section)
            lines.append((f"{env_id}, {ours['metric']}", library, where, *returns, reached, digits(seconds), until))
    head = ("environment", "library", "GPU", "random", "minimum and maximum", "seeds that reach the target")
    return table((*head, "training, s", "time to the target, s"), lines)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "peers-cuda": peers_cuda,
    "peers-cpu": peers_cpu,
    "peers-notes-cuda": peers_notes_cuda,
    "peers-notes-cpu": peers_notes_cpu,
    "particles": particles,
    "custom": custom,
}
"""Generators by the name of their block in the pages."""
