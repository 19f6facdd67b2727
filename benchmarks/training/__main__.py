"""What training costs and what comes of it: ``python -m benchmarks.training`` writes ``results/training_*.json``.

Each section stands for itself; those named by --only are measured and replace their like in the file.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import command, record
from benchmarks.command import log
from benchmarks.training import (
    drawn,
    gpus,
    learning,
    off_policy,
    particles,
    planning,
    profile,
    race,
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
    "throughput": speed.throughput,
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
    "planning": planning.planning,
    "trials": trials.trials,
    "gpus": gpus.several,
    "profile": profile.profile,
}
"""What is measured, by name."""

ON_CPU = ("solve", "shell", "throughput", "updates")
"""What is measured on a CPU unless --only says otherwise."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command.parser("training", __doc__)
    made.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="default: all that suits the device")
    made.add_argument("--seeds", type=int, default=10, help="of what is trained several times (default: 10)")
    made.add_argument("--rounds", type=int, default=10, help="of what is measured in turn (default: 10)")
    made.add_argument("--seconds", type=float, default=5.0, help="of such a round (default: 5)")
    for peer in ("jax", "sb3"):
        made.add_argument(f"--{peer}-python", default=sys.executable, help=f"a Python that has {peer}, if not this one")
    return made


def main() -> None:
    """Measures, prints, and writes after each section."""
    options = parser().parse_args()
    device, gpu = command.chosen_device(options, parser())
    plan = TrainingPlan(
        device, options.seeds, options.rounds, options.seconds, options.jax_python, options.sb3_python, log
    )
    failed = []
    for name in options.only or (ON_CPU if device == "cpu" else SECTIONS):
        try:
            found = SECTIONS[name](plan)
        except Exception:  # noqa: BLE001  # a section that fails is told of, and leaves the others their turn
            traceback.print_exc()
            failed.append(name)
            continue
        log(f"wrote {record.merge(f'training_{device}', {name: found}, options.commit, gpu)}: {name}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
