"""Time several functions in turns, so that disturbances of the machine affect all of them."""

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(work: Callable[[], object], synchronise: Callable[[], None]) -> float:
    """Return the seconds of ``work``, from an idle device to an idle device."""
    synchronise()
    start = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - start


def time_in_turns(
    workloads: Mapping[str, Callable[[], object]], rounds: int, synchronise: Callable[[], None]
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round, after a warm-up.

    Args:
        workloads: The functions, by name.
        rounds: The number of rounds.
        synchronise: Waits for the device.
    """
    for work in workloads.values():
        work()
    seconds_by_name: dict[str, list[float]] = {name: [] for name in workloads}
    for _ in range(rounds):
        for name, work in workloads.items():
            seconds_by_name[name].append(seconds(work, synchronise))
    return seconds_by_name


def medians(seconds_by_name: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median of each list."""
    return {name: statistics.median(times) for name, times in seconds_by_name.items()}
