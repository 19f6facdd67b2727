"""Values of settings: numbers of any library as Python's own, and mappings laid over one another."""

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any


def whole_number(value: Any) -> int | None:
    """A whole number of any library as Python's own; None for all else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real_number(value: Any) -> float | None:
    """A number of any library as Python's own; None for all else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What either says; where both do the second, or of two mappings again what either says."""
    found = dict(under)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else value
    return found
