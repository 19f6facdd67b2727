"""Runs a peer in a process of its own, in a Python that has what it needs."""

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

from benchmarks.peers.works import Work

ROOT = Path(__file__).parent.parent.parent

CACHES = ("GPU_ENVS_CACHE_DIR", "CUPY_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR")
"""Where compilers keep what they made: for who is compared they are empty. JAX keeps nothing unless told to."""

SEARCH = """
import importlib.util, sys
print(" ".join(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """For a process: this one's variables and more. Python may keep bytecode, which an installed package has."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | dict(more)


class Answer(NamedTuple):
    """The output of a peer's process."""

    lines: list[dict[str, Any]]
    """The lines that it printed."""
    trouble: str | None
    """Why there are no more of them; None: it came to its end."""


def lacking(python: str, modules: Sequence[str]) -> list[str]:
    """Which of these an interpreter cannot import."""
    command = [python, "-c", SEARCH, *modules]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def figures(
    python: str, package: str, module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the peer printed, and the seconds from the start of its process to its end, as ``process_s``.

    Args:
        python: The interpreter.
        package: What it must have; where it is absent the peer is skipped, and the figures say so.
        module: Below ``benchmarks.peers``.
        arguments: Of its command line.
        environment: Variables beside those of this process.

    Raises:
        RuntimeError: The peer is there and failed.
    """
    if lacking(python, [package]):
        return {"skipped": f"{python} has no {package}"}
    command = [python, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=variables(environment or {}), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed | {"process_s": seconds}


def answer(python: str, module: str, works: Sequence[Work], seconds: float, limit_s: float) -> Answer:
    """What a peer measured until its end, its failure, or the limit: each costs it no more than what is missing.

    Args:
        python: The interpreter.
        module: Below ``benchmarks.peers``; it is made by ``child.serve``.
        works: What to measure.
        seconds: Of each.
        limit_s: Seconds until it is stopped, and all processes that it started.
    """
    listed = json.dumps([dataclasses.asdict(work) for work in works])
    command = [python, "-m", f"benchmarks.peers.{module}", "--works", listed, "--seconds", str(seconds)]
    with (
        tempfile.TemporaryDirectory() as caches,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as complained,
    ):
        # JAX would take three quarters of a device's memory at once
        environment = variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
        environment |= {name: f"{caches}/{name}" for name in CACHES}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=complained, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own, which its workers belong to
        process.wait()
        said.seek(0)
        complained.seek(0)
        lines = list(parsed(said.read()))
        if status == 0:
            return Answer(lines, None)
        if status is None:
            return Answer(lines, f"stopped after {limit_s:g} s")
        return Answer(lines, f"ended with status {status}: {why(complained.read())}")


def why(complaint: str) -> str:
    """The line of a failed process's complaint that says why: the last error's, which JAX's notes come after."""
    lines = [line for line in complaint.splitlines() if line.strip()] or ["no word"]
    return ([line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)] or lines)[-1]


def parsed(text: str) -> list[dict[str, Any]]:
    """The lines that are JSON objects: libraries print words of their own among them."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found
