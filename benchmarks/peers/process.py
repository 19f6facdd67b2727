"""Runs a peer in its own process, with a Python that has the library."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.workloads import Workload

ROOT = Path(__file__).parent.parent.parent

CACHES = ("GPU_ENVS_CACHE_DIR", "CUPY_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR")
"""Cache folders of compilers, empty for each peer. JAX has no persistent cache by default."""

SEARCH = """
import importlib.util, sys
print(" ".join(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with more variables, and with bytecode caching, as for installed packages."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | dict(more)


class PeerOutput(NamedTuple):
    """The output of a peer's process."""

    lines: list[dict[str, Any]]
    """The printed results."""
    error: str | None
    """Why results are missing; None: the process completed."""


def missing_modules(python: str, modules: Sequence[str]) -> list[str]:
    """Return the modules that an interpreter cannot import."""
    command = [python, "-c", SEARCH, *modules]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def run_peer(
    python: str, package: str, module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a peer; return its results, with the duration of its process as ``process_s``.

    Args:
        python: The interpreter.
        package: The package that the peer needs; without it the result is an entry ``skipped``.
        module: The module's name in ``benchmarks.peers``.
        arguments: The peer's command-line arguments.
        environment: Additional environment variables.

    Raises:
        RuntimeError: The peer failed.
    """
    if missing_modules(python, [package]):
        return {"skipped": f"{python} has no {package}"}
    command = [python, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    start = time.perf_counter()
    completed = subprocess.run(
        command, cwd=ROOT, env=variables(environment or {}), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if completed.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {completed.returncode}:\n{completed.stderr[-4000:]}")
    results: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return results | {"process_s": seconds}


def run_workloads(
    python: str, module: str, workloads: Sequence[Workload], seconds: float, limit_s: float
) -> PeerOutput:
    """Run workloads in a peer's process; return the results until its end, its failure, or the time limit.

    Args:
        python: The interpreter.
        module: The module's name in ``benchmarks.peers``; it calls ``child.serve``.
        workloads: The workloads to measure.
        seconds: The duration of each measurement.
        limit_s: Seconds until the process and its subprocesses are killed.
    """
    workloads_json = json.dumps([dataclasses.asdict(work) for work in workloads])
    command = [python, "-m", f"benchmarks.peers.{module}", "--workloads", workloads_json, "--seconds", str(seconds)]
    with (
        tempfile.TemporaryDirectory() as caches,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        # by default JAX allocates three quarters of the GPU's memory
        environment = variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
        environment |= {name: f"{caches}/{name}" for name in CACHES}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the process group, with the peer's worker processes
        process.wait()
        stdout.seek(0)
        stderr.seek(0)
        lines = list(parse_lines(stdout.read()))
        if status == 0:
            return PeerOutput(lines, None)
        if status is None:
            return PeerOutput(lines, f"stopped after {limit_s:g} s")
        return PeerOutput(lines, f"ended with status {status}: {error_line(stderr.read())}")


def error_line(output: str) -> str:
    """Return the line with the last exception in a failed process's output; JAX prints notes after it."""
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    return ([line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)] or lines)[-1]


def parse_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; libraries print other lines between them."""
    objects = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if isinstance(value := json.loads(line), dict):
                objects.append(value)
    return objects
