"""Where a figure comes from: machine, versions, commit and command, written beside it."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BYTES = {
    "CartPole-v1": 78,
    "MountainCar-v0": 54,
    "MountainCarContinuous-v0": 50,
    "Pendulum-v1": 54,
    "Acrobot-v1": 86,
}
"""What one step must move: state, elapsed and running return read and written, action, observation, reward, flags."""

PACKAGES = (
    *("gpu_envs", "gymnasium", "numpy", "torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc"),
    *("envpool", "jax", "stable-baselines3", "torchrl", "tensordict", "skrl", "rsl-rl-lib"),
)


def commit() -> str:
    """The commit of the sources, with ``+`` where they have been edited since; empty where there is no git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        edited = subprocess.run(
            ["git", "status", "--porcelain", "--", ":/", ":!/benchmarks/results"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if edited.strip() else "")


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def unplaced(word: str) -> str:
    """A word of the command line; of a path on this machine, its last part."""
    return Path(word).name if Path(word).is_absolute() else word


def provenance(commit_given: str | None, gpu: str | None, module: str) -> dict[str, Any]:
    """Machine, versions, commit, command and date.

    Args:
        commit_given: The commit, where the copy measured has no git.
        gpu: The GPU's name.
        module: What was run, below ``benchmarks``.
    """
    from gpu_envs.backend.toolchain import compiler_version, find_compiler, processor_name
    from gpu_envs.errors import NoCompilerError

    try:
        compiler = compiler_version(find_compiler()).splitlines()[0]
    except (NoCompilerError, IndexError):
        compiler = "none"
    return {
        "machine": {
            "cpu": processor_name(),
            "cores": os.cpu_count(),
            "gpu": gpu,
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": versions(PACKAGES) | {"compiler": compiler},
        "commit": commit_given or commit(),
        "command": " ".join([f"python -m benchmarks.{module}", *map(unplaced, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(
    name: str, results: dict[str, Any], commit_given: str | None, gpu: str | None = None, module: str = "throughput"
) -> Path:
    """Writes results with their provenance.

    Args:
        name: The file's name without its ending.
        results: What was measured.
        commit_given: The commit, where the copy measured has no git.
        gpu: The GPU's name.
        module: What was run, below ``benchmarks``.
    """
    return _save(name, provenance(commit_given, gpu, module) | {"results": results})


def merge(
    name: str, results: dict[str, Any], commit_given: str | None, gpu: str | None = None, module: str = "training"
) -> Path:
    """Writes sections of results, each with its own provenance; other sections of the file stay as they are.

    Arguments as of ``write``; ``results`` are by section.
    """
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"sections": {}}
    origin = provenance(commit_given, gpu, module)
    for section, figures in results.items():
        document["sections"][section] = origin | {"results": figures}
    return _save(name, document)


def _save(name: str, document: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return path


def short(value: float) -> str:
    """A number in three digits at most, with a prefix: 41 G."""
    for size, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"
