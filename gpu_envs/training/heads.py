"""Heads: the action distribution that a policy's outputs parametrise."""

import dataclasses
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.documented import documented

MAX_CHOICE = 2**31 - 1
"""Largest discrete action: actions are 32-bit integers."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Head:
    """The distribution over actions that a policy's outputs parametrise."""

    kind: str
    """``discrete``: independent categorical distributions; ``box``: independent Gaussians."""
    sizes: tuple[int, ...]
    """Discrete: number of choices of each action element. Box: a single item, the number of elements."""
    starts: tuple[int, ...]
    """Discrete: first choice of each element. Box: empty."""
    low: tuple[float, ...]
    """Box: lower bound of each element. Discrete: empty."""
    high: tuple[float, ...]
    """Box: upper bound of each element. Discrete: empty."""
    scalar: bool
    """Whether the environment's actions have no dimension of elements, as in a Discrete space."""

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "Head":
        """Return the head for an action space; a ValueError if it is not supported."""
        if isinstance(space, gymnasium.spaces.Discrete):
            return cls._discrete((int(space.n),), (int(space.start),), scalar=True)
        if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls._discrete(tuple(map(int, space.nvec)), tuple(map(int, space.start)), scalar=False)
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1:
            low, high = tuple(map(float, space.low)), tuple(map(float, space.high))
            if np.isfinite(low).all() and np.isfinite(high).all() and low:
                return cls("box", (len(low),), (), low, high, scalar=False)
        raise ValueError(
            f"the action space {space} is not supported; give the environment a Discrete, a one-dimensional "
            "MultiDiscrete, or a one-dimensional float32 Box with finite bounds"
        )

    @classmethod
    def _discrete(cls, sizes: tuple[int, ...], starts: tuple[int, ...], scalar: bool) -> "Head":
        """Return a discrete head; a ValueError if it has no elements, or choices that do not fit into 32 bits."""
        if not sizes:
            raise ValueError("the action space is a MultiDiscrete without elements; give it one or more")
        for size, start in zip(sizes, starts, strict=True):
            if start < -MAX_CHOICE or start + size - 1 > MAX_CHOICE:
                raise ValueError(f"actions {start} to {start + size - 1} do not fit into 32 bits; start nearer to 0")
        return cls("discrete", sizes, starts, (), (), scalar)

    @property
    def parameters(self) -> int:
        """Number of a policy's outputs: one logit per choice; for a box the means, then the log standard deviations."""
        return sum(self.sizes) if self.kind == "discrete" else 2 * self.sizes[0]

    @property
    def width(self) -> int:
        """Number of elements of an action."""
        return len(self.sizes) if self.kind == "discrete" else self.sizes[0]

    @property
    def log_stds(self) -> int:
        """Number of log standard deviations among the outputs; they do not depend on the observation."""
        return self.width if self.kind == "box" else 0
