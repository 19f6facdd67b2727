"""What a peer's process does: it measures pieces of work, and prints a line of JSON for each as soon as it is done."""

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.works import Measured, Work
from benchmarks.record import versions
from benchmarks.timing import seconds_per_call

Measure = Callable[[Work, float], Measured]


def serve(packages: Sequence[str], measure: Measure) -> None:
    """Does what the command line says.

    Args:
        packages: Distributions whose versions matter; those that are not installed go without.
        measure: Measures a piece of work for about so many seconds.
    """
    parser = argparse.ArgumentParser(description="run by benchmarks.peers")
    parser.add_argument("--works", type=json.loads, required=True, help="a JSON list of works")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    options = parser.parse_args()
    said({"versions": versions(packages)})
    for number, fields in enumerate(options.works):
        try:
            found = measure(Work.read(fields), options.seconds)
        except Exception as error:  # noqa: BLE001  # what one piece of work fails by is told, and the next has its turn
            traceback.print_exc()
            said({"work": number, "failed": f"{type(error).__name__}: {error}".splitlines()[0]})
        else:
            said({"work": number, **found._asdict()})


def stepped(env: Any, actions: Any, begin: float, seconds: float) -> Measured:
    """Seconds of a step of an environment that has been reset, with these actions in turn.

    Args:
        env: Returns when a step is done.
        actions: Of some steps, by their number.
        begin: When getting ready began, by ``time.perf_counter``.
        seconds: To measure for.
    """
    env.step(actions[0])
    prepare = time.perf_counter() - begin
    return Measured(seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=seconds), prepare)


def said(line: object) -> None:
    """Prints it at once."""
    print(json.dumps(line), flush=True)
