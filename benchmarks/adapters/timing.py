"""Times things in turns, so that what disturbs the machine disturbs all of them."""

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(work: Callable[[], object], synchronise: Callable[[], None]) -> float:
    """The seconds that some work takes, from an idle device to an idle device."""
    synchronise()
    begin = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - begin


def in_turns(
    works: Mapping[str, Callable[[], object]], rounds: int, synchronise: Callable[[], None]
) -> dict[str, list[float]]:
    """The seconds of each work in each round, after one turn that does not count.

    Args:
        works: What to time, by name.
        rounds: How many turns of each.
        synchronise: Waits for the device.
    """
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(seconds(work, synchronise))
    return found


def medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(times) for name, times in found.items()}
