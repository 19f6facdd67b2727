"""Helpers for all tests: devices and output libraries of this machine, recorded trajectories, bitwise comparison."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np

import gpu_envs
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.driver import device_count
from gpu_envs.envs import PARTICLES
from gpu_envs.registry import catalog as registry
from gpu_envs.registry.catalog import env_spec

Array: TypeAlias = Any
"""An array of NumPy, torch or CuPy."""

IDS = [name for name in gpu_envs.ids() if isinstance(gpu_envs.spec(name), gpu_envs.EnvSpec)]
"""Ids of single-agent environments."""

SIMILAR_PARTICLES = [spec.id for spec in PARTICLES if spec.id not in ("SimpleTag-v3", "SimpleSpeakerListener-v4")]
"""Particle environments that ``TEAM_IDS`` leaves out: only their rules differ, which ``test_particles.py`` tests."""

TEAM_IDS = [name for name in gpu_envs.ids() if name not in IDS and name not in SIMILAR_PARTICLES]
"""Ids of team environments."""

SMALL_PARAMS: dict[str, dict[str, Any]] = {
    "RiceN-v0": {"num_regions": 3},
    "TagContinuous-v0": {"num_taggers": 3, "num_runners": 12, "grid_length": 4.0},
}
"""Default parameters of the fixture ``make``: full-size environments would be slow, without testing more."""

MODES = ("NextStep", "SameStep", "Disabled")

UNOPTIMISED = str(Path(__file__).with_name("unoptimised-c++"))
"""A compiler that does not optimise, for ``CXX``."""

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_CUDA = device_count() > 0 and importlib.util.find_spec("cupy") is not None
DEVICES = ("cpu", "cuda") if HAS_CUDA else ("cpu",)

MULTITHREADED_COUNT = 20_000
"""A number of replicas that a step divides between two threads."""


class Place(NamedTuple):
    """The device of an environment and the library of its arrays."""

    device: str
    output: str


PLACES = [
    Place(device, output)
    for device in DEVICES
    for output in ("numpy", "torch", "cupy")
    if (output != "cupy" or device == "cuda") and (output != "torch" or HAS_TORCH)
]

Make: TypeAlias = Callable[..., gpu_envs.VectorEnv]


class Trajectory(NamedTuple):
    """Results of many steps, each a NumPy array ``[steps, num_envs, ...]``."""

    observations: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


def subprocess_env(**settings: str) -> dict[str, str]:
    """Returns environment variables with which a new process can import this package and this process's modules."""
    paths = [str(Path(gpu_envs.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **settings}


def run_python(script: str, cwd: Path | None = None, **settings: str) -> str:
    """Runs a script in a new process; returns its output."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=cwd, env=subprocess_env(**settings), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numpy_of(array: Array) -> np.ndarray:
    """Copies an array of any library and device to NumPy."""
    return np.array(to_numpy(array))


def on_host(value: Any) -> Any:
    """Copies all arrays in nested mappings and sequences to NumPy."""
    if isinstance(value, Mapping):
        return {name: on_host(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [on_host(each) for each in value]
    return value if value is None or isinstance(value, str | bool | int | float) else numpy_of(value)


def is_discrete(env_id: str) -> bool:
    """Whether the action space is Discrete."""
    return isinstance(env_spec(env_id).action_space(defaults(env_id)), gymnasium.spaces.Discrete)


def defaults(env_id: str) -> dict[str, Any]:
    """Returns the default parameters of an environment."""
    return dict(gpu_envs.spec(env_id).check_params({}, 1))


def random_actions(env_id: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Returns uniformly random actions, ``[*shape, ...]``; for a Box, some are out of bounds."""
    rng = np.random.default_rng(seed)
    space = env_spec(env_id).action_space(defaults(env_id))
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, shape)
    assert isinstance(space, gymnasium.spaces.Box)
    return rng.uniform(1.2 * space.low, 1.2 * space.high, (*shape, *space.shape)).astype(np.float32)


def to_place(array: np.ndarray, place: Place) -> Array:
    """Converts an array to a place's library and device."""
    if place.output == "torch":
        import torch

        return torch.from_numpy(array).to(place.device)
    if place.output == "cupy":
        import cupy

        return cupy.asarray(array)
    return array


def sentinel_array(place: Place, shape: tuple[int, ...], dtype: str) -> Array:
    """Returns an array of a place's library and device, filled with 77, which no step writes."""
    return to_place(np.full(shape, 77).astype(dtype), place)


def address(array: Array) -> int:
    """Returns the address of an array's first element."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data_ptr()) if hasattr(array, "data_ptr") else int(array.data.ptr)


def record(env: gpu_envs.VectorEnv, actions: Iterable[Array]) -> Trajectory:
    """Takes a step with each of the actions and returns the results."""
    steps = [[numpy_of(part) for part in env.step(action)[:4]] for action in actions]
    return Trajectory(*(np.stack(column) for column in zip(*steps, strict=True)))


def assert_same_bits(one: Any, other: Any, what: str = "") -> None:
    """Fails unless two arrays, or sequences or mappings of arrays, agree in every bit."""
    if isinstance(one, Mapping):
        assert set(one) == set(other), what
        for name in one:
            assert_same_bits(one[name], other[name], f"{what}.{name}")
        return
    if isinstance(one, tuple | list):
        assert len(one) == len(other), what
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            fields = getattr(one, "_fields", None)
            assert_same_bits(left, right, f"{what}.{fields[i]}" if fields else f"{what}[{i}]")
        return
    if one is None or isinstance(one, str | bool):
        assert one == other, what
        return
    left, right = np.ascontiguousarray(to_numpy(one)), np.ascontiguousarray(to_numpy(other))
    assert (left.shape, left.dtype) == (right.shape, right.dtype), what
    if left.tobytes() != right.tobytes():
        wrong = np.argwhere(left != right)
        first = tuple(wrong[0]) if len(wrong) else "zeros of other signs, or NaN"
        detail = f"{left[first]!r} and {right[first]!r}" if len(wrong) else ""
        raise AssertionError(f"{what} differs in {len(wrong)} of {left.size} elements, first at {first}: {detail}")


def assert_all_same(results: Iterable[Any], what: str = "") -> None:
    """Fails unless all results agree with the first in every bit."""
    first, *others = results
    assert others
    for other in others:
        assert_same_bits(first, other, what)


def assert_unchanged(env: gpu_envs.VectorEnv, act: Callable[[], object]) -> None:
    """Runs a function that should change nothing, and fails if the environment's state changes."""
    before = env.get_state()
    try:
        act()
    finally:
        assert_same_bits(before, env.get_state(), "state")


@contextlib.contextmanager
def restored_registry() -> Iterator[None]:
    """Context that restores the registries on exit."""
    tables: list[dict[Any, Any]] = [
        registry.SPECS,
        registry.ORIGINS,
        registry.CONFLICTS,
        gymnasium.registry,
    ]
    before = [table.copy() for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
