"""Runs a peer in a process of its own, in a Python that has what it needs."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


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
    search = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", search], check=False).returncode:
        return {"skipped": f"{python} has no {package}"}
    command = [python, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed | {"process_s": seconds}
