"""Result files, with the machine, versions, commit and command of each measurement."""

import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BYTES_PER_STEP = {
    "CartPole-v1": 78,
    "MountainCar-v0": 54,
    "MountainCarContinuous-v0": 50,
    "Pendulum-v1": 54,
    "Acrobot-v1": 86,
}
"""Bytes that a step must read and write: state, elapsed steps, return; action, observation, reward, flags."""

PACKAGES = (
    *("gpu_envs", "gymnasium", "numpy", "torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc"),
    *("envpool", "jax", "stable-baselines3", "torchrl", "tensordict", "skrl", "rsl-rl-lib"),
)


def commit() -> str:
    """Return the commit of the sources, with ``+`` if files have changed since; empty without git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", ":/", ":!/benchmarks/results"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed.strip() else "")


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def strip_folder(argument: str) -> str:
    """Return a command-line argument; of an absolute path, only its last part."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def provenance(given_commit: str | None, gpu: str | None, module: str) -> dict[str, Any]:
    """Return machine, versions, commit, command and date.

    Args:
        given_commit: The commit, for a copy without git.
        gpu: The GPU's name.
        module: The benchmark's name in ``benchmarks``.
    """
    from gpu_envs.backend.background import available_threads
    from gpu_envs.backend.toolchain import compiler_version, find_compiler, processor_name
    from gpu_envs.errors import NoCompilerError

    try:
        compiler = compiler_version(find_compiler()).splitlines()[0]
    except (NoCompilerError, IndexError):
        compiler = "none"
    return {
        "machine": {
            "cpu": processor_name(),
            "cores": available_threads(),
            "gpu": gpu,
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": versions(PACKAGES) | {"compiler": compiler},
        "commit": given_commit or commit(),
        "command": " ".join([f"python -m benchmarks.{module}", *map(strip_folder, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(
    name: str, results: dict[str, Any], given_commit: str | None, gpu: str | None = None, module: str = "throughput"
) -> Path:
    """Write results with their provenance.

    Args:
        name: The file's name without its extension.
        results: The measured results.
        given_commit: The commit, for a copy without git.
        gpu: The GPU's name.
        module: The benchmark's name in ``benchmarks``.
    """
    return _save(name, provenance(given_commit, gpu, module) | {"results": results})


def merge(
    name: str, results: dict[str, Any], given_commit: str | None, gpu: str | None = None, module: str = "training"
) -> Path:
    """Write sections of results, each with its provenance; keep the other sections of the file.

    The arguments are the same as for ``write``; ``results`` has an entry for each section.
    """
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"sections": {}}
    origin = provenance(given_commit, gpu, module)
    for section, section_results in results.items():
        document["sections"][section] = origin | {"results": section_results}
    return _save(name, document)


def _save(name: str, document: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return path


def format_short(value: float) -> str:
    """Format a number with at most three digits and an SI prefix: 41 G."""
    for size, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"
