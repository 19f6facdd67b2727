"""A step's results on their way to NumPy, brought from a GPU in one go."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict

from gpu_envs import MultiAgentEnv, Step, VectorEnv
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ALONE, ByRole

Shapes: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]

Live: TypeAlias = Callable[[str], Any]
"""From a result's name to the environment's own memory of it."""

WRITTEN = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length"),
)
"""What a step writes where it is told to."""

SELDOM = ("final_obs", "episode_return", "episode_length", "episode_metrics")
"""What it writes only where an episode ended."""

SEEN = ("observations", "final_obs")
"""What it gives as a dict of arrays where the observation space is a Dict: ``name.key`` here."""

_ALIGNMENT = 256
"""In bytes, of each result within the block: as a GPU's allocator would give."""


def shapes_of(env: VectorEnv | MultiAgentEnv, role: str | None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each result of a step, of a team those of one role."""
    by_role = ByRole(env)
    rows, space = by_role.rows(role or ALONE), by_role.roles[role or ALONE].observation
    found = {
        **_seen("observations", rows, space),
        "rewards": (rows, env.precision),
        "terminations": (rows, "bool"),
        "truncations": (rows, "bool"),
        **_seen("final_obs", rows, space),
        "episode_return": (rows, env.precision),
        "episode_length": (rows, "int32"),
        **{f"episode_metrics.{name}": (rows[:1], env.precision) for name in env.env_spec.metrics},
    }
    return found if by_role.alone else found | {"alive": (rows, "bool"), "finished": (rows[:1], "bool")}


def _seen(name: str, rows: tuple[int, ...], space: gymnasium.Space[Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of observations, those of each key of a Dict."""
    parts = {f"{name}.{key}": part for key, part in space.items()} if isinstance(space, Dict) else {name: space}
    found = {}
    for label, part in parts.items():
        assert part.dtype is not None
        found[label] = ((*rows, *(part.shape or ())), part.dtype.name)
    return found


def keys_of(space: gymnasium.Space[Any]) -> tuple[str, ...]:
    """The keys of a Dict; of other spaces none."""
    return tuple(space) if isinstance(space, Dict) else ()


def joined(got: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> Any:
    """One of the results: of a Dict space the arrays by their keys."""
    return {key: got[f"{name}.{key}"] for key in keys} if keys else got[name]


class Results(ABC):
    """Where one step after the other leaves what it gives."""

    @abstractmethod
    def prepare(self) -> Step | None:
        """Where the next step is to write; None: into the environment's own memory."""

    @abstractmethod
    def fetch(self, live: Live) -> dict[str, np.ndarray]:
        """What the step gave.

        Args:
            live: Gives the environment's own results by name, those of one role.

        Returns:
            Arrays that no later step changes; but of final_obs, returns, lengths and metrics only the rows of
            episodes that ended mean anything, and they are to be copied before the next step.
        """


@final
class HostResults(Results):
    """Copies of the environment's own memory: cheaper than to have it write elsewhere, where all is on the host."""

    def __init__(self, shapes: Shapes) -> None:
        """Keeps the names of the results."""
        self._names = list(shapes)
        self._kept = [name for name in shapes if name.partition(".")[0] not in SELDOM]
        self._first: Any = None
        self._views: dict[str, np.ndarray] = {}

    def prepare(self) -> None:
        """The environment's own memory will do."""

    def fetch(self, live: Live) -> dict[str, np.ndarray]:
        first = live(self._names[0])
        if first is not self._first:  # otherwise all results are where they were
            self._first = first
            self._views = {name: to_numpy(live(name)) for name in self._names}
        return self._views | {name: self._views[name].copy() for name in self._kept}


@final
class DeviceResults(Results):
    """One block of the GPU's memory that all results lie in, and one copy of it to pinned memory each step."""

    def __init__(self, shapes: Shapes, role: str | None, device: str) -> None:
        """Allocates both, for good."""
        self._made_of = shapes, role, device
        self._places: dict[str, tuple[slice, tuple[int, ...], str]] = {}
        size = 0
        for name, (shape, dtype) in shapes.items():
            length = math.prod(shape) * np.dtype(dtype).itemsize
            self._places[name] = slice(size, size + length), shape, dtype
            size += -(-length // _ALIGNMENT) * _ALIGNMENT
        self._block = torch.empty(size, dtype=torch.uint8, device=device)
        self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=torch.device(device).type == "cuda")
        self._arrived = self._pinned.numpy()
        self._views = {
            name: self._block[place].view(getattr(torch, dtype)).view(shape)
            for name, (place, shape, dtype) in self._places.items()
        }
        self._unwritten = [name for name in shapes if name.partition(".")[0] not in WRITTEN]
        keys = tuple(name.partition(".")[2] for name in shapes if name.startswith("observations."))
        self._step = _step({name: joined(self._views, name, keys if name in SEEN else ()) for name in WRITTEN}, role)

    def prepare(self) -> Step:
        return self._step

    def fetch(self, live: Live) -> dict[str, np.ndarray]:
        for name in self._unwritten:
            self._views[name].copy_(torch.as_tensor(live(name)))
        self._pinned.copy_(self._block)
        fresh = self._arrived.copy()
        return {name: fresh[place].view(dtype).reshape(shape) for name, (place, shape, dtype) in self._places.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of}  # a copy has memory of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])


def settle(env: VectorEnv | MultiAgentEnv) -> None:
    """Lets the work of torch's current stream be done before CuPy's goes on, and the other way round.

    An environment with CuPy output works on CuPy's stream, and results are fetched on torch's; with all others the
    two are one.
    """
    if env.output == "cupy":
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
        torch.cuda.current_stream(env.device).synchronize()


def results_for(env: VectorEnv | MultiAgentEnv, role: str | None) -> Results:
    """What suits the environment's device."""
    shapes = shapes_of(env, role)
    return HostResults(shapes) if env.device == "cpu" else DeviceResults(shapes, role, env.device)


def _step(arrays: Mapping[str, Any], role: str | None) -> Step:
    return Step(**(arrays if role is None else {name: {role: array} for name, array in arrays.items()}))
