"""A step's results on their way to NumPy: fresh arrays each step, brought from a GPU in one go."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias, final

import numpy as np
import torch

from gpu_envs import MultiAgentEnv, Step, VectorEnv
from gpu_envs.arrays import to_numpy

Shapes: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]

WRITTEN = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length"),
)
"""What a step writes where it is told to; anything else that is fetched is the environment's own memory."""

_ALIGNMENT = 256
"""In bytes, of each result within the block: as a GPU's allocator would give."""


def shapes_of(env: VectorEnv | MultiAgentEnv, role: str | None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each result of a step, those of one role where there are several."""
    n = env.num_envs
    if isinstance(env, VectorEnv):
        rows: tuple[int, ...] = (n,)
        space = env.single_observation_space
    else:
        assert role is not None
        rows = (n, env.counts[role])
        space = env.single_observation_spaces[role]
    row = (*rows, *(space.shape or ()))
    found = {
        "observations": (row, "float32"),
        "rewards": (rows, env.precision),
        "terminations": (rows, "bool"),
        "truncations": (rows, "bool"),
        "final_obs": (row, "float32"),
        "episode_return": (rows, env.precision),
        "episode_length": (rows, "int32"),
    }
    return found if role is None else found | {"alive": (rows, "bool"), "finished": ((n,), "bool")}


class Results(ABC):
    """Where one step after the other leaves what it gives."""

    @abstractmethod
    def prepare(self) -> Step:
        """Where the next step is to write."""

    @abstractmethod
    def fetch(self, live: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Arrays that no later step changes. Of final_obs and episode_* only rows of ended episodes mean anything.

        Args:
            live: Results that the environment keeps in its own memory.
        """


@final
class HostResults(Results):
    """New arrays for each step, written straight into."""

    def __init__(self, shapes: Shapes, role: str | None) -> None:
        """Keeps what they are to be."""
        self._shapes = shapes
        self._role = role
        self._arrays: dict[str, np.ndarray] = {}

    def prepare(self) -> Step:
        """New arrays."""
        self._arrays = {name: np.empty(*self._shapes[name]) for name in WRITTEN}
        return _step(self._arrays, self._role)

    def fetch(self, live: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays, and copies of what is live."""
        return self._arrays | {name: np.array(to_numpy(array)) for name, array in live.items()}


@final
class DeviceResults(Results):
    """One block of the GPU's memory that all results lie in, and one copy of it to pinned memory each step."""

    def __init__(self, shapes: Shapes, role: str | None, device: str) -> None:
        """Allocates both, for good."""
        self._places: dict[str, tuple[slice, tuple[int, ...], str]] = {}
        size = 0
        for name, (shape, dtype) in shapes.items():
            length = math.prod(shape) * np.dtype(dtype).itemsize
            self._places[name] = slice(size, size + length), shape, dtype
            size += -(-length // _ALIGNMENT) * _ALIGNMENT
        self._block = torch.empty(size, dtype=torch.uint8, device=device)
        self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._arrived = self._pinned.numpy()
        self._views = {
            name: self._block[place].view(getattr(torch, dtype)).view(shape)
            for name, (place, shape, dtype) in self._places.items()
        }
        self._step = _step({name: self._views[name] for name in WRITTEN}, role)

    def prepare(self) -> Step:
        """The same places each time."""
        return self._step

    def fetch(self, live: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copies all there is, and waits for it."""
        for name, array in live.items():
            self._views[name].copy_(torch.as_tensor(array))
        self._pinned.copy_(self._block)
        fresh = self._arrived.copy()
        return {name: fresh[place].view(dtype).reshape(shape) for name, (place, shape, dtype) in self._places.items()}


def results_for(env: VectorEnv | MultiAgentEnv, role: str | None) -> Results:
    """What suits the environment's device."""
    shapes = shapes_of(env, role)
    return HostResults(shapes, role) if env.device == "cpu" else DeviceResults(shapes, role, env.device)


def _step(arrays: Mapping[str, Any], role: str | None) -> Step:
    return Step(**(arrays if role is None else {name: {role: array} for name, array in arrays.items()}))
