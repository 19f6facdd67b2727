"""What a peer's process does: it measures pieces of work, and prints a line of JSON for each as soon as it is done."""

import argparse
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable, Sequence

from benchmarks.peers.works import Measured, Work

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


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of Python and of the packages."""
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def said(line: object) -> None:
    """Prints it at once."""
    print(json.dumps(line), flush=True)
