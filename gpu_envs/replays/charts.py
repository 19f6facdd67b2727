"""Charts of a page against time: metrics, and the state of an environment without a drawing."""

import dataclasses
import math
from typing import Any, Final, final

import numpy as np

from gpu_envs.replays.block import Block
from gpu_envs.replays.recorded import Recorded

MAX_CHARTS: Final = 12
"""Maximum number of charts of the state."""

MAX_CURVES: Final = 3
"""Maximum number of elements of an array with a chart per element. Larger arrays have one chart, of their mean."""

_LEVELS: Final = 2**14
"""Quantization steps of a chart: many for each pixel of its height."""

_REDUCED: Final = {"last": "", "mean": "(mean)", "sum": "(summed)", "max": "(maximum)"}
"""Words for the reduction of a metric over steps."""


@final
@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart with a curve for each replica."""

    name: str
    note: str
    """Explanation, after the name."""
    values: np.ndarray
    """``[frames, replicas]``."""
    bounds: tuple[np.ndarray, ...] = ()
    """Lower and upper bound of a band, ``[frames, replicas]`` each, or empty."""

    def describe(self, block: Block, colour: str) -> dict[str, Any]:
        """Return the chart's description, and append its values to the block."""
        description = {"name": self.name, "note": self.note, "colour": colour, "values": _add(self.values, block)}
        return description | ({"bounds": [_add(values, block) for values in self.bounds]} if self.bounds else {})


def metric_charts(replay: Recorded) -> list[Chart]:
    """Return a chart for each metric."""
    charts = []
    for name, values in replay.metrics.items():
        metric = replay.measured[name]
        note = f"{metric.description} {_REDUCED[metric.reduce]}".strip()
        charts.append(Chart(name, note, values))
    return charts


def state_charts(replay: Recorded) -> tuple[list[Chart], list[str]]:
    """Return charts of the state's fields, in their order, and the names of the fields without a chart.

    Constant fields have no chart. Fields beyond ``MAX_CHARTS`` charts have none either.
    """
    charts: list[Chart] = []
    omitted = []
    for name, values in replay.state.items():
        if name == "elapsed":  # the number of steps, which is the time axis
            continue
        added = _charts_of(name, values)
        if (values == values[:1]).all():
            omitted.append(f"{name} (constant)")
        elif len(charts) + len(added) > MAX_CHARTS:
            omitted.append(name)
        else:
            charts += added
    return charts, omitted


def _charts_of(name: str, values: np.ndarray) -> list[Chart]:
    """Return the charts of a field, ``[frames, replicas, ...]``."""
    if values.ndim == 2:
        return [Chart(name, "", values)]
    count = math.prod(values.shape[2:])
    if count <= MAX_CURVES:
        return [
            Chart(f"{name}[{', '.join(map(str, index))}]", "", values[:, :, *index])
            for index in np.ndindex(*values.shape[2:])
        ]
    flat = values.reshape(*values.shape[:2], count).astype(np.float64)
    with np.errstate(all="ignore"):  # diverged states have NaN and infinity
        note = f"mean and range of {count:,} values"
        return [Chart(name, note, flat.mean(-1), (flat.min(-1), flat.max(-1)))]


def _add(values: np.ndarray, block: Block) -> dict[str, Any]:
    """Append values to the block as multiples of a step in 16 bits; return step, first multiple and offset.

    Code 0 is NaN or infinity, which have no curve. The step is a power of two: most integers stay exact.
    """
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        rows = values.T.astype(np.float32).astype(np.float64)
    finite = np.isfinite(rows)
    low, high = (float(extreme(rows[finite])) if finite.any() else 0.0 for extreme in (np.min, np.max))
    step = 2.0 ** math.ceil(math.log2((high - low) / _LEVELS)) if high > low else abs(low) or 1.0
    multiples = np.rint(np.where(finite, rows, low) / step)
    first = float(multiples.min())
    codes = np.where(finite, multiples - first + 1, 0)
    return {"first": first - 1, "step": step, "at": block.add_changes(codes.astype(np.uint16))}
