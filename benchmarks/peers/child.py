"""The main function of a peer's process: measures workloads and prints a line of JSON for each."""

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.workloads import Measurement, Workload
from benchmarks.record import versions
from benchmarks.timing import seconds_per_call

MeasureFunction = Callable[[Workload, float], Measurement]


def serve(packages: Sequence[str], measure: MeasureFunction) -> None:
    """Measure the workloads on the command line.

    Args:
        packages: Distributions whose versions are printed, if they are installed.
        measure: Measures a workload for about a number of seconds.
    """
    parser = argparse.ArgumentParser(description="run by benchmarks.peers")
    parser.add_argument("--workloads", type=json.loads, required=True, help="workloads, as a JSON list")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of each measurement")
    options = parser.parse_args()
    print_line({"versions": versions(packages)})
    for number, fields in enumerate(options.workloads):
        try:
            measurement = measure(Workload.from_json(fields), options.seconds)
        except Exception as error:  # noqa: BLE001  # a failure is reported and must not stop the other workloads
            traceback.print_exc()
            print_line({"work": number, "failed": f"{type(error).__name__}: {error}".splitlines()[0]})
        else:
            print_line({"work": number, **measurement._asdict()})


def time_steps(env: Any, actions: Any, start: float, seconds: float) -> Measurement:
    """Measure the seconds per step of an environment after its reset.

    Args:
        env: The environment, whose ``step`` returns when the step is done.
        actions: The actions of several steps, used in turn.
        start: When the preparation started, by ``time.perf_counter``.
        seconds: The duration of the measurement.
    """
    env.step(actions[0])
    prepare = time.perf_counter() - start
    return Measurement(seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=seconds), prepare)


def print_line(line: object) -> None:
    """Print a value as a line of JSON, unbuffered."""
    print(json.dumps(line), flush=True)
