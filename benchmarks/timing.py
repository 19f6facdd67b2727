"""The time of a call that is made again and again, found in the same way for all that are compared."""

import time
from collections.abc import Callable

ROUNDS = 5


def nothing() -> None:
    """There is nothing to wait for: a call returns when its work is done."""


def seconds_per_call(
    call: Callable[[int], object],
    wait: Callable[[], object] = nothing,
    *,
    seconds: float = 0.5,
    warm_up: int = 64,
) -> float:
    """The median over some rounds of calls of the seconds that one takes.

    Args:
        call: Makes the call of a number; numbers count up, so that what is given to calls can change.
        wait: Returns when all that was called is done.
        seconds: Of all rounds together.
        warm_up: Calls before, as many as go into ``seconds`` too.
    """
    begin, made = time.perf_counter(), 0
    while made < warm_up and (made < 2 or time.perf_counter() - begin < seconds):
        call(made)
        made += 1
    wait()

    def spent(count: int) -> float:
        begin = time.perf_counter()
        for number in range(count):
            call(number)
        wait()
        return time.perf_counter() - begin

    wanted, count = seconds / ROUNDS, 1
    while (took := spent(count)) < wanted / 4:
        count *= 2
    count = max(1, round(count * wanted / took))
    return sorted(spent(count) / count for _ in range(ROUNDS))[ROUNDS // 2]
