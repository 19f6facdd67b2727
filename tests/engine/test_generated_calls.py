"""Generated calls, right and wrong ones, in all modes and outputs: the environment stays equal to its untouched twin.

``GENERATED_CALLS=100000`` makes so many; ``GENERATED_SEED=7`` begins with the calls of that seed.
"""

import os

import pytest
from generated import Calls
from registered import VARIANTS

EACH = 40
"""Calls to one environment."""

TOTAL = int(os.environ.get("GENERATED_CALLS", "2000"))

FIRST = int(os.environ.get("GENERATED_SEED", "1"))

PARTS = 8


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_calls_leave_no_trace(part: int) -> None:
    """An environment that is given wrong calls as well goes on, bit for bit, as its twin that never was."""
    variants = list(VARIANTS.values())
    for seed in range(FIRST + part, FIRST + max(1, TOTAL // EACH), PARTS):
        calls = Calls(seed, variants[seed % len(variants)])
        try:
            for _ in range(EACH):
                calls.take()
            calls.finish()
        except Exception as error:
            raise AssertionError("\n".join(["these calls came before:", *calls.log])) from error
