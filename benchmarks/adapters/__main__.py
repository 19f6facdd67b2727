"""What the adapters cost and what is learnt through them: ``python -m benchmarks.adapters``.

It writes ``results/adapters_*.json``. Each section stands for itself; those named by --only are measured and replace
their like in the file. A library that is not installed is left out, and the results say so.
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
    """What the wrappers of ``gpu_envs.wrappers`` cost."""
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
"""What is measured, by name."""

USUAL = {
    "cpu": ("sb3", "wrappers", "learning"),
    "cuda": ("sb3_step", "torch_libraries", "wrappers", "learning"),
}
"""What is measured on a device unless --only says otherwise; each can be on either."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command.parser("adapters", __doc__)
    made.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="default: all that suits the device")
    made.add_argument("--quick", action="store_true", help="tiny sizes: prints what it finds and writes nothing")
    return made


def measure(plan: AdapterPlan, names: Sequence[str], keep: Callable[[str, dict[str, Any]], None]) -> None:
    """Measures sections one after the other.

    Args:
        plan: Where, and how much. What fails is listed in it.
        names: Of the sections.
        keep: Called with a section's name and figures as soon as they are there.
    """
    for name in names:
        keep(name, plan.part(name, functools.partial(SECTIONS[name], plan)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes after each section."""
    options = parser().parse_args(arguments)
    device, gpu = command.chosen_device(options, parser())
    plan = AdapterPlan(device, options.quick, log)

    def keep(name: str, found: dict[str, Any]) -> None:
        if options.quick:
            log(json.dumps({name: found}, allow_nan=False))
        elif name not in plan.failures:  # what was measured before, if anything, stays
            log(f"wrote {record.merge(f'adapters_{device}', {name: found}, options.commit, gpu, 'adapters')}: {name}")

    measure(plan, options.only or USUAL[device], keep)
    if plan.failures:
        sys.exit(f"failed: {', '.join(plan.failures)}")


if __name__ == "__main__":
    main()
