"""NumPy model of the noise kernels' random numbers, by each replica's episode and step."""

from collections.abc import Sequence

import numpy as np
from small_kernels import philox
from wrapper_cases import Array

OBSERVATION, ACTION, PUSH = 7, 8, 9
"""Stream numbers of the wrappers."""

EPISODE_DRAW, REPEAT_DRAW = 2**32 - 1, 2**32 - 2
"""Draw indices that do not belong to a feature."""

COUNT = 23
SEED = 11


def unit_floats(words: Array) -> Array:
    return ((words >> 8) * np.float32(2.0**-24)).astype(np.float32)


class ReplicaClock:
    """Tracks each replica's episode and step in every autoreset mode, and computes its random numbers."""

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
        """Advances by a step; takes the mask of ended episodes, returns the mask of started ones."""
        started = done if self.mode == "SameStep" else self.over & (self.mode == "NextStep")
        steps = ~started & ~(self.over & (self.mode == "Disabled"))
        self.step[steps] += 1
        self.reset(started)
        self.over = done & (self.mode != "SameStep")
        return started

    def words(self, replica: int, draws: Sequence[int], *, step: int | None = None, back: int = 0) -> Array:
        """Returns random words of a step, by default the current one; ``back``: that many episodes earlier."""
        step = int(self.step[replica]) if step is None else step
        row = [[draw, step, int(self.episode[replica]) - back, self.stream] for draw in draws]
        return philox(np.array(row, np.uint64), (SEED + replica, 0))

    def integer(self, replica: int, drawn: int | tuple[int, int], back: int = 0) -> int:
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
