"""What a policy's outputs mean for an action space."""

import dataclasses
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.documented import documented

MOST_CHOICE = 2**31 - 1
"""Actions are 32-bit integers."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Head:
    """The distribution of actions that a policy's outputs are the parameters of."""

    kind: str
    """``discrete``: independent categorical distributions; ``box``: independent Gaussians."""
    sizes: tuple[int, ...]
    """Discrete: the number of choices of each element. Box: the number of elements alone."""
    starts: tuple[int, ...]
    """Discrete: the first choice of each element. Box: none."""
    low: tuple[float, ...]
    """Box: the least of each element. Discrete: none."""
    high: tuple[float, ...]
    """Box: the most of each element. Discrete: none."""
    scalar: bool
    """Whether the environment's actions lack the last dimension, as those of Discrete do."""

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "Head":
        """The head for a space of actions.

        Raises:
            ValueError: The space is of a kind that cannot be learnt; the message says which can.
        """
        if isinstance(space, gymnasium.spaces.Discrete):
            return cls._discrete((int(space.n),), (int(space.start),), scalar=True)
        if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls._discrete(tuple(map(int, space.nvec)), tuple(map(int, space.start)), scalar=False)
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1:
            low, high = tuple(map(float, space.low)), tuple(map(float, space.high))
            if np.isfinite(low).all() and np.isfinite(high).all() and low:
                return cls("box", (len(low),), (), low, high, scalar=False)
        raise ValueError(
            f"actions of {space} cannot be learnt; give the environment a Discrete, a one-dimensional MultiDiscrete, "
            "or a one-dimensional float32 Box with finite bounds"
        )

    @classmethod
    def _discrete(cls, sizes: tuple[int, ...], starts: tuple[int, ...], scalar: bool) -> "Head":
        if not sizes:
            raise ValueError("a MultiDiscrete without elements leaves nothing to choose; give it one or more")
        for size, start in zip(sizes, starts, strict=True):
            if start < -MOST_CHOICE or start + size - 1 > MOST_CHOICE:
                raise ValueError(
                    f"actions from {start} to {start + size - 1} do not fit into 32 bits; start nearer to 0"
                )
        return cls("discrete", sizes, starts, (), (), scalar)

    @property
    def parameters(self) -> int:
        """How many outputs a policy has: a logit a choice; for a box means, then logarithms of deviations."""
        return sum(self.sizes) if self.kind == "discrete" else 2 * self.sizes[0]

    @property
    def width(self) -> int:
        """How many elements an action has."""
        return len(self.sizes) if self.kind == "discrete" else self.sizes[0]

    @property
    def log_stds(self) -> int:
        """How many of the parameters are logarithms of standard deviations that do not depend on the observation."""
        return self.width if self.kind == "box" else 0
