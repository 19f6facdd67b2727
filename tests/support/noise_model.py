"""When replicas begin episodes and take steps, and what the kernels of noise draw then, in NumPy."""

from collections.abc import Sequence

import numpy as np
from small_kernels import philox
from wrapper_cases import Array

OBSERVATION, ACTION, PUSH = 7, 8, 9
"""The wrappers' streams."""

EPISODE_DRAW, REPEAT_DRAW = 2**32 - 1, 2**32 - 2
"""Draws that are not of a feature."""

COUNT = 23
SEED = 11


def unit_floats(words: Array) -> Array:
    return ((words >> 8) * np.float32(2.0**-24)).astype(np.float32)


class ReplicaClock:
    """Episode and step of each replica, in every auto-reset mode, and what is drawn then."""

    def __init__(self, stream: int, mode: str, count: int = COUNT) -> None:
        self.stream = stream << 24
        self.mode = mode
        self.episode, self.step = np.zeros(count, int), np.zeros(count, int)
        self.over = np.zeros(count, bool)

    def reset(self, mask: Array) -> None:
        self.episode[mask] += 1
        self.step[mask] = 0
        self.over[mask] = False

    def stepped(self, done: Array) -> Array:
        """Takes in which episodes have ended; says which have begun."""
        begun = done if self.mode == "SameStep" else self.over & (self.mode == "NextStep")
        goes = ~begun & ~(self.over & (self.mode == "Disabled"))
        self.step[goes] += 1
        self.reset(begun)
        self.over = done & (self.mode != "SameStep")
        return begun

    def words(self, replica: int, draws: Sequence[int], *, step: int | None = None, back: int = 0) -> Array:
        """Of the draws of a step, this one unless another is named; ``back``: of so many episodes before."""
        step = int(self.step[replica]) if step is None else step
        row = [[draw, step, int(self.episode[replica]) - back, self.stream] for draw in draws]
        return philox(np.array(row, np.uint64), (SEED + replica, 0))

    def whole(self, replica: int, drawn: int | tuple[int, int], back: int = 0) -> int:
        if isinstance(drawn, int):
            return drawn
        word = int(self.words(replica, [EPISODE_DRAW], step=0, back=back)[0, 0])
        return drawn[0] + (word * (drawn[1] - drawn[0] + 1) >> 32)

    def uniform(self, replica: int, features: int, *, step: int | None = None, back: int = 0) -> Array:
        """Noise of each feature, between -1 and 1."""
        words = self.words(replica, range(features), step=step, back=back)
        return np.float32(2) * unit_floats(words[:, 0]) - np.float32(1)

    def normal(self, replica: int, features: int, *, step: int | None = None, back: int = 0) -> Array:
        words = self.words(replica, range(features), step=step, back=back)
        u, v = unit_floats(words[:, 0]).astype(float), unit_floats(words[:, 1]).astype(float)
        return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))
