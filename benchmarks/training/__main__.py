"""Measure speed and results of training: ``python -m benchmarks.training`` writes ``results/training_*.json``.

Sections are independent; --only measures some of them and keeps the others in the file.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import command, record
from benchmarks.command import log
from benchmarks.training import (
    callbacks,
    drawn,
    engines,
    gpus,
    learning,
    off_policy,
    particles,
    planning,
    populations,
    profile,
    race,
    recurrent,
    replay,
    solving,
    speed,
    trials,
    worlds,
)
from benchmarks.training.plan import TrainingPlan

SECTIONS: Mapping[str, Callable[[TrainingPlan], dict[str, Any]]] = {
    "solve": solving.solve,
    "shell": solving.shell,
    "batch_sizes": solving.batch_sizes,
    "throughput": speed.throughput,
    "engines": engines.engines,
    "populations": populations.populations,
    "recurrent": recurrent.recurrent,
    "sampler": speed.sampler,
    "acting": speed.acting,
    "presets": learning.presets,
    "algorithms": learning.algorithms,
    "team_algorithms": learning.team_algorithms,
    "tag_throughput": speed.tag,
    "tag_learning": learning.tag,
    "worlds": worlds.worlds,
    "particles": particles.particles,
    "ippo": particles.ippo,
    "updates": off_policy.updates,
    "replay": replay.replay,
    "efficiency": off_policy.efficiency,
    "race": race.race,
    "drawn": drawn.drawn,
    "curriculum": drawn.curriculum,
    "planning": planning.planning,
    "trials": trials.trials,
    "gpus": gpus.measure_gpus,
    "profile": profile.profile,
    "callbacks": callbacks.callbacks,
}
"""The sections, by name."""

ON_CPU = ("solve", "shell", "throughput", "engines", "populations", "updates")
"""The sections that are measured on a CPU by default."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = command.parser("training", __doc__)
    result.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="default: the sections of the device")
    result.add_argument("--seeds", type=int, default=10, help="number of seeds of each training (default: 10)")
    result.add_argument(
        "--rounds", type=int, default=10, help="number of rounds of measurements in turns (default: 10)"
    )
    result.add_argument("--seconds", type=float, default=5.0, help="duration of a round (default: 5)")
    for peer in ("jax", "sb3"):
        result.add_argument(
            f"--{peer}-python", default=sys.executable, help=f"a Python interpreter with {peer} (default: this one)"
        )
    return result


def main() -> None:
    """Measure, print and write each section."""
    options = parser().parse_args()
    device, gpu = command.choose_device(options, parser())
    plan = TrainingPlan(
        device, options.seeds, options.rounds, options.seconds, options.jax_python, options.sb3_python, log
    )
    failed = []
    for name in options.only or (ON_CPU if device == "cpu" else SECTIONS):
        try:
            results = SECTIONS[name](plan)
        except Exception:  # noqa: BLE001  # a failure is reported and must not stop the other sections
            traceback.print_exc()
            failed.append(name)
            continue
        if "skipped" in results:  # the file keeps its results
            log(f"{name}: skipped: {results['skipped']}")
            continue
        log(f"wrote {record.merge(f'training_{device}', {name: results}, options.commit, gpu)}: {name}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
