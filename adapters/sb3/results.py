"""Conversion of step results to NumPy, with a single copy from the GPU."""

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
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface

Shapes: TypeAlias = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each result by name."""

ReadResult: TypeAlias = Callable[[str], Any]
"""A function from the name of a result to the environment's array of it."""

STEP_ARRAYS = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length"),
)
"""Arrays that ``step(..., out=)`` can write."""

EPISODE_ARRAYS = ("final_obs", "episode_return", "episode_length", "episode_metrics")
"""Arrays that a step writes only where an episode ended."""

OBSERVATION_ARRAYS = ("observations", "final_obs")
"""Arrays that are dicts for a Dict space; their parts are named ``name.key``."""

_ALIGNMENT = 256
"""Alignment in bytes of each result in the block, as in CUDA's allocator."""


def result_shapes(env: VectorEnv | MultiAgentEnv, role: str | None) -> Shapes:
    """Return shape and dtype of each result of a step, for one role of a team."""
    by_role = RoleInterface(env)
    rows, space = by_role.batch_shape(role or SINGLE_ROLE), by_role.roles[role or SINGLE_ROLE].observation
    shapes: Shapes = {
        **_observation_shapes("observations", rows, space),
        "rewards": (rows, env.precision),
        "terminations": (rows, "bool"),
        "truncations": (rows, "bool"),
        **_observation_shapes("final_obs", rows, space),
        "episode_return": (rows, env.precision),
        "episode_length": (rows, "int32"),
        **{f"episode_metrics.{name}": (rows[:1], env.precision) for name in env.env_spec.metrics},
    }
    return shapes if by_role.single_agent else shapes | {"alive": (rows, "bool"), "finished": (rows[:1], "bool")}


def _observation_shapes(name: str, rows: tuple[int, ...], space: gymnasium.Space[Any]) -> Shapes:
    """Return shape and dtype of observations by ``name``, or by ``name.key`` for each key of a Dict space."""
    parts = {f"{name}.{key}": part for key, part in space.items()} if isinstance(space, Dict) else {name: space}
    shapes = {}
    for label, part in parts.items():
        assert part.dtype is not None
        shapes[label] = ((*rows, *(part.shape or ())), part.dtype.name)
    return shapes


def dict_keys(space: gymnasium.Space[Any]) -> tuple[str, ...]:
    """Return the keys of a Dict space, and an empty tuple for other spaces."""
    return tuple(space) if isinstance(space, Dict) else ()


def result_or_dict(results: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> Any:
    """Return a result by name, as a dict of arrays if ``keys`` is not empty."""
    return {key: results[f"{name}.{key}"] for key in keys} if keys else results[name]


class Results(ABC):
    """Memory for the results of a step."""

    @abstractmethod
    def out(self) -> Step | None:
        """Return the ``out`` argument of the next step; None: the environment writes to its own memory."""

    @abstractmethod
    def fetch(self, read: ReadResult) -> dict[str, np.ndarray]:
        """Return the results of the last step as NumPy arrays by name.

        Later steps change only ``EPISODE_ARRAYS``, which are valid only in rows of episodes that ended: copy these rows
        before the next step. ``read`` returns the environment's array of a result.
        """


@final
class HostResults(Results):
    """Copies of the environment's memory, which on the CPU is cheaper than ``step(..., out=)``."""

    def __init__(self, shapes: Shapes) -> None:
        self._names = list(shapes)
        self._kept = [name for name in shapes if name.partition(".")[0] not in EPISODE_ARRAYS]
        self._first: Any = None
        self._views: dict[str, np.ndarray] = {}

    def out(self) -> None:
        """Return None: the environment writes to its own memory."""

    def fetch(self, read: ReadResult) -> dict[str, np.ndarray]:
        first = read(self._names[0])
        if first is not self._first:  # otherwise all results are still in the same memory
            self._first = first
            self._views = {name: to_numpy(read(name)) for name in self._names}
        return self._views | {name: self._views[name].copy() for name in self._kept}


@final
class DeviceResults(Results):
    """One block of GPU memory for all results, copied to pinned memory once per step."""

    def __init__(self, shapes: Shapes, role: str | None, device: str) -> None:
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
        self._unwritten = [name for name in shapes if name.partition(".")[0] not in STEP_ARRAYS]
        keys = tuple(name.partition(".")[2] for name in shapes if name.startswith("observations."))
        arrays = {n: result_or_dict(self._views, n, keys if n in OBSERVATION_ARRAYS else ()) for n in STEP_ARRAYS}
        self._step = Step(**(arrays if role is None else {name: {role: array} for name, array in arrays.items()}))

    def out(self) -> Step:
        return self._step

    def fetch(self, read: ReadResult) -> dict[str, np.ndarray]:
        for name in self._unwritten:
            self._views[name].copy_(torch.as_tensor(read(name)))
        self._pinned.copy_(self._block)
        fresh = self._arrived.copy()
        return {name: fresh[place].view(dtype).reshape(shape) for name, (place, shape, dtype) in self._places.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of}  # a copy allocates its own memory

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])


def sync_streams(env: VectorEnv | MultiAgentEnv) -> None:
    """Synchronize CuPy's and torch's current streams if the environment has CuPy output.

    Such an environment runs on CuPy's stream, but results are fetched on torch's. Other environments use one stream.
    """
    if env.output == "cupy":
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
        torch.cuda.current_stream(env.device).synchronize()


def make_results(env: VectorEnv | MultiAgentEnv, role: str | None) -> Results:
    """Return memory for the results of a step, of one role of a team: ``HostResults`` or ``DeviceResults``."""
    shapes = result_shapes(env, role)
    return HostResults(shapes) if env.device == "cpu" else DeviceResults(shapes, role, env.device)
