"""Measure the overhead of the adapters, and training with each library: ``python -m benchmarks.adapters``.

Writes ``results/adapters_*.json``. Sections are independent; --only measures some of them and keeps the others in the
file. Libraries that are not installed are skipped, which the results note.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import command, record
from benchmarks.adapters.learning import learning
from benchmarks.adapters.libraries import torch_libraries
from benchmarks.adapters.plan import AdapterPlan
from benchmarks.adapters.sb3 import sb3
from benchmarks.adapters.sb3_step import sb3_step
from benchmarks.command import log
from gpu_envs.training.process.device import torch_threads


def wrappers(plan: AdapterPlan) -> dict[str, Any]:
    """Measure the overhead of the wrappers in ``gpu_envs.wrappers``."""
    from benchmarks.throughput import wrapping

    with torch_threads("cpu", 1):
        return {"torch_threads": 1} | wrapping.measure(plan.device, quick=plan.quick, log=plan.log)


SECTIONS: Mapping[str, Callable[[AdapterPlan], dict[str, Any]]] = {
    "sb3": sb3,
    "sb3_step": sb3_step,
    "torch_libraries": torch_libraries,
    "wrappers": wrappers,
    "learning": learning,
}
"""The sections, by name."""

DEFAULT_SECTIONS = {
    "cpu": ("sb3", "wrappers", "learning"),
    "cuda": ("sb3_step", "torch_libraries", "wrappers", "learning"),
}
"""The sections that each device measures by default; --only may name any on any device."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = command.parser("adapters", __doc__)
    result.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="default: the sections of the device")
    result.add_argument("--quick", action="store_true", help="use tiny sizes, print the results and write no files")
    return result


def measure(plan: AdapterPlan, names: Sequence[str], save: Callable[[str, dict[str, Any]], None]) -> None:
    """Measure sections one after the other.

    Args:
        plan: The device and the sizes; collects failures.
        names: The names of the sections.
        save: Called with the name and the results of each section.
    """
    for name in names:
        save(name, plan.part(name, functools.partial(SECTIONS[name], plan)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write each section."""
    options = parser().parse_args(arguments)
    device, gpu = command.choose_device(options, parser())
    plan = AdapterPlan(device, options.quick, log)

    def save(name: str, results: dict[str, Any]) -> None:
        if options.quick:
            log(json.dumps({name: results}, allow_nan=False))
        elif name not in plan.failures:  # after a failure the file keeps its results
            log(f"wrote {record.merge(f'adapters_{device}', {name: results}, options.commit, gpu, 'adapters')}: {name}")

    measure(plan, options.only or DEFAULT_SECTIONS[device], save)
    if plan.failures:
        sys.exit(f"failed: {', '.join(plan.failures)}")


if __name__ == "__main__":
    main()
