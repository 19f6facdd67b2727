"""Results of steps and rollouts, and steps that write into the user's arrays."""

import bisect
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, dtype_name, library_of
from gpu_envs.backend.base import Backend
from gpu_envs.codegen import RESULTS, Layout, SimulationConfig, layout_of
from gpu_envs.documented import documented
from gpu_envs.engine.actions import Actions
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.team import TeamSpec


@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Arrays of torch, CuPy or NumPy on the environment's device, into which one step writes; all are optional.

    A row of a larger array is possible: ``storage[t]`` of ``[T, num_envs, ...]``, with any alignment. With several
    agents each field is a mapping from some or all roles to arrays ``[num_envs, agents, ...]``; for Dict observations,
    from some or all keys.
    """

    observations: Array = None
    """``[num_envs, *observation]``, of the observation space's dtype."""
    rewards: Array = None
    """``[num_envs]``, of the environment's precision."""
    terminations: Array = None
    """``[num_envs]``, bool."""
    truncations: Array = None
    """``[num_envs]``, bool."""
    final_obs: Array = None
    """``[num_envs, *observation]``, like ``observations``; SameStep writes the rows of replicas whose episode ended."""
    episode_return: Array = None
    """``[num_envs]``, of the environment's precision; written for replicas whose episode ended."""
    episode_length: Array = None
    """``[num_envs]``, int32; written for replicas whose episode ended."""
    action_mask: Array = None
    """``[num_envs, choices]``, int8; only for environments with action masks."""
    episode_metrics: Array = None
    """``[num_envs, metrics]``, of the environment's precision, in the spec's order; written for replicas whose episode
    ended."""
    shared_observations: Array = None
    """Several agents with ``shared_observations=True``: ``[num_envs, features]`` for each role, float32."""
    final_shared: Array = None
    """Shared final observations, like ``shared_observations``; SameStep writes the rows of replicas whose episode
    ended."""


@documented
class Rollout(NamedTuple):
    """The results of a rollout.

    With several agents all fields but ``episodes`` are mappings from roles to arrays ``[..., num_envs, agents]``. The
    termination of an agent is counted when it becomes inactive, its return and length when the
    replica's episode ends.
    """

    observations: Array
    """Per step ``[steps, num_envs, *observation]``; otherwise the last, ``[num_envs, *observation]``.

    For a Dict space, a dict of such arrays."""
    rewards: Array
    """Per step ``[steps, num_envs]``; otherwise their sums, ``[num_envs]``."""
    terminations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    truncations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    actions: Array
    """Per step, if they were drawn at random: ``[steps, num_envs, ...]``; otherwise None."""
    episodes: Array
    """Number of episodes that ended, ``[num_envs]`` int32."""
    episode_returns: Array
    """Sum of their returns, ``[num_envs]``; None with ``statistics=False``."""
    episode_lengths: Array
    """Sum of their lengths, ``[num_envs]`` int32; None with ``statistics=False``."""


def array_for_key(user_arrays: Any, key: str) -> Array | None:
    """The user's array for one role or one key of a Dict; ``user_arrays`` itself if ``key`` is empty."""
    return user_arrays.get(key) if key and user_arrays is not None else user_arrays


def zero_unfinished(finished: np.ndarray, values: Any, user_arrays: Any = None) -> Any:
    """A copy of a result, with zeros for replicas whose episode did not end; the user's array, unchanged, if given.

    Args:
        finished: Indices of the replicas whose episode has ended.
        values: A NumPy array, or a mapping to NumPy arrays.
        user_arrays: The user's array or mapping that the step wrote into.
    """
    if isinstance(values, Mapping):
        return {key: zero_unfinished(finished, array, array_for_key(user_arrays, key)) for key, array in values.items()}
    if user_arrays is not None:
        return user_arrays
    result = np.zeros(values.shape, values.dtype)
    if not values.size:
        return result
    row = np.dtype((np.void, values.nbytes // len(values)))  # indexing elements of a row's size is faster
    result.reshape(len(result), -1).view(row)[finished] = values.reshape(len(values), -1).view(row)[finished]
    return result


def warm_up_allocator(results: Iterable[Array]) -> None:
    """Make the C library's allocator keep freed memory for the copies that each step returns.

    Otherwise glibc returns freed blocks to the operating system, and page faults cost each step more than the copies.
    Freeing one large block raises its threshold to that size, up to 32 MiB.
    """
    np.empty(2 * sum(int(array.nbytes) for array in results), np.uint8)


def metrics_by_name(names: Iterable[str], values: Array | None, finished: np.ndarray | None = None) -> dict[str, Array]:
    """Metrics by name from ``[num_envs, metrics]`` (None: no metrics), with zeros for all but ``finished`` replicas."""
    if values is not None and finished is not None:
        values = zero_unfinished(finished, values)
    return dict(zip(names, () if values is None else values.T, strict=True))


_READ_AT_ONCE = (
    "observations rewards terminations truncations finished alive action_mask shared_observations".split(),
    "records final_obs final_shared episode_return episode_length episode_metrics".split(),
)
"""Results read after each step, and results read after the end of an episode: each group is one transfer to NumPy."""


def allocate(arrays: Arrays, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
    """Allocate a simulation's buffers, zeroed, by name; buffers that are read together are adjacent in memory."""
    buffers: dict[str, Array] = {}
    for names in _READ_AT_ONCE:
        if together := {name: shapes[name] for name in shapes if name.partition(".")[0] in names}:
            buffers |= arrays.zeros_by_name(together)
    return {name: buffers[name] if name in buffers else arrays.zeros(*shapes[name]) for name in shapes}


def check_memory(layout: Layout, backend: Backend, tables: Collection[np.ndarray] = ()) -> str:
    """Raise a MemoryError if a simulation needs more memory than the device has; return the message otherwise.

    Called before anything is allocated; the caller needs the message if an allocation fails all the same.

    Args:
        layout: Layout of the simulation.
        backend: Backend of the device.
        tables: Tables of the simulation, on the host.
    """
    count, spec = layout.config.num_envs, layout.config.spec
    needed = sum(values.nbytes for values in tables) + sum(
        int(np.prod(shape, dtype=np.float64)) * np.dtype(dtype).itemsize for shape, dtype in layout.buffers().values()
    )
    available = backend.memory()
    lower = ["num_envs"] * (count > 1)
    lower += [role.count for role in spec.roles if isinstance(role.count, str)] if isinstance(spec, TeamSpec) else []
    advice = [f"lower {' or '.join(lower)}"] * bool(lower) + ["make the tables smaller"] * bool(tables)
    need = f"1 replica of {spec.id} needs" if count == 1 else f"{count:,} replicas of {spec.id} need"
    refusal = (
        f"{need} {needed / 2**30:,.1f} GiB on {backend.device}, which has {available / 2**30:,.1f} GiB; "
        f"{' or '.join(advice) or 'use another device'}"
    )
    if needed > available:
        raise MemoryError(refusal)
    return refusal


def check_replica_memory(config: SimulationConfig, backend: Backend) -> None:
    """Raise a MemoryError if a single replica, without tables, needs more memory than the device has."""
    settings, single = config.spec.settings, dataclasses.replace(config, num_envs=1)
    per_replica = frozenset(name for name, value in config.params.items() if settings[name].is_per_replica(value))
    check_memory(layout_of(single, backend.traits, per_replica), backend)


def as_step(out: object) -> Step:
    """Return ``out``, or raise a TypeError if it is not a ``Step``."""
    if not isinstance(out, Step):
        raise TypeError(f"out is {type(out).__name__}; give a gpu_envs.Step of arrays to write into, or None")
    return out


Span: TypeAlias = tuple[int, int, str]
"""A range of memory: first address, end address, and a name for messages."""

_IF_SHARED = "by environments with several agents and shared_observations=True"

_IF_STATISTICS = "by environments without statistics=False"

_CONDITIONS = {
    "final_obs": "in autoreset_mode='SameStep'",
    "episode_return": _IF_STATISTICS,
    "episode_length": _IF_STATISTICS,
    "action_mask": "by environments whose spec has action_mask=True",
    "episode_metrics": "by environments whose spec has metrics, without statistics=False",
    "shared_observations": _IF_SHARED,
    "final_shared": f"in autoreset_mode='SameStep' {_IF_SHARED}",
}
"""When results are written that not all environments have, for messages."""

_MAX_CHECKED = 4096
"""Limit of remembered sets of addresses that were checked for overlaps."""


@final
class OutReader:
    """Checks the arrays of a ``Step`` and returns their addresses."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], str]],
        affixes: Sequence[str],
        device: str,
        key_kind: str = "role",
        memory: Callable[[], Sequence[Span]] = tuple,
    ) -> None:
        """Expect arrays of these shapes.

        Args:
            shapes: Shape and dtype of every result.
            affixes: Suffix of the names of results for each part of the kernel's arguments: ``""``, or a dot and the
                name of a role or of a Dict's key.
            device: ``cpu`` or ``cuda:N``.
            key_kind: ``role`` or ``key``, for messages.
            memory: Function that returns the memory ranges of the simulation, sorted.
        """
        self._get_memory, self._memory = memory, memory()
        self._checked: set[Any] = set()
        self._expected = [
            (part, name, affix[1:], f"out.{name}[{affix[1:]!r}]" if affix else f"out.{name}", *shapes[name + affix])
            for part, affix in enumerate(affixes)
            for name in RESULTS
            if name + affix in shapes
        ]
        self._key_kind = key_kind
        self._keys = {name: [key for _, result, key, *_ in self._expected if result == name] for name in RESULTS}
        self._results_by_key = [name for name, keys in self._keys.items() if keys not in ([], [""])]
        self._device = device
        self._tensor: Any = None
        self._torch_dtypes: dict[str, Any] = {}
        self._torch_device: Any = None

    def read(self, out: Step, actions: Sequence[Actions] = ()) -> list[tuple[int, str, int]]:
        """Return part, name and address of each array in ``out``, or raise an error if one does not fit or overlaps.

        Args:
            out: The arrays.
            actions: The actions of the step, which must not overlap the arrays.
        """
        as_step(out)
        for name, condition in _CONDITIONS.items():
            if getattr(out, name) is not None and not self._keys[name]:
                raise ValueError(f"out.{name} is written {condition} only")
        if self._results_by_key:
            self._check_keys(out)
        outputs = []
        for part, name, key, label, shape, dtype in self._expected:
            array = array_for_key(getattr(out, name), key)
            if array is not None:
                outputs.append((part, name, self._address(label, array, shape, dtype)))
        addresses = (*outputs, *[read[:2] for read in actions])
        if self._memory is not self._get_memory() or addresses not in self._checked:
            self._check_overlaps({(part, name): address for part, name, address in outputs}, actions)
            self._checked.add(addresses)
        return outputs

    def _check_overlaps(self, outputs: Mapping[tuple[int, str], int], actions: Sequence[Actions]) -> None:
        """Raise an error if arrays overlap one another, the actions, or other buffers of the simulation."""
        if self._memory is not self._get_memory() or len(self._checked) >= _MAX_CHECKED:
            self._memory = self._get_memory()
            self._checked.clear()
        spans = [(read.address, read.address + read.owner.nbytes, "the actions") for read in actions]
        for part, name, key, label, shape, dtype in self._expected:
            low = outputs.get((part, name))
            if low is None:
                continue
            high = low + math.prod(shape) * np.dtype(dtype).itemsize
            index = bisect.bisect_left(self._memory, (high,)) - 1
            if index >= 0 and self._memory[index][1] > low:
                buffer = self._memory[index]
                if buffer != (low, high, f"{name}.{key}" if key else name):
                    raise ValueError(f"{label} overlaps the environment's {buffer[2]!r}; give another array")
            spans.append((low, high, label))
        for first, second in itertools.pairwise(sorted(spans)):
            if second[0] < first[1]:
                raise ValueError(f"{first[2]} and {second[2]} overlap; give arrays that share no memory")

    def _check_keys(self, out: Step) -> None:
        """Raise an error if a result by role or key is no mapping, or has unknown keys; keys may be missing."""
        for name in self._results_by_key:
            arrays, keys = getattr(out, name), self._keys[name]
            if arrays is None:
                continue
            if not isinstance(arrays, Mapping):
                raise TypeError(
                    f"out.{name} is {type(arrays).__name__}; give a mapping from {self._key_kind}s to arrays"
                )
            for key in arrays:
                if key not in keys:
                    raise ValueError(
                        f"out.{name} has no {self._key_kind} {key!r}{did_you_mean(str(key), keys)} "
                        f"There are: {', '.join(keys)}"
                    )

    def _address(self, label: str, array: Any, shape: tuple[int, ...], dtype: str) -> int:
        """The address of a user's array; an error that starts with ``label`` if the array does not fit."""
        if (
            array.__class__ is self._tensor  # fast path for the most common case
            and array.dtype is self._torch_dtypes[dtype]
            and array.shape == shape
            and array.device == self._torch_device
            and array.is_contiguous()
        ):
            return int(array.data_ptr())
        library = library_of(array)
        if library == "torch" and self._tensor is None:
            torch = sys.modules["torch"]
            self._tensor, self._torch_device = torch.Tensor, torch.device(self._device)
            self._torch_dtypes = {d: getattr(torch, d) for *_, d in self._expected}
        if library == "torch":
            device = "cpu" if array.device.type == "cpu" else f"cuda:{array.device.index}"
            contiguous = array.is_contiguous()
        elif library == "cupy":
            device, contiguous = f"cuda:{array.device.id}", array.flags.c_contiguous
        elif library == "numpy":
            device, contiguous = "cpu", array.flags.carray
        else:
            raise TypeError(f"{label} is {type(array).__name__}; give an array of torch, CuPy or NumPy")
        if device != self._device:
            raise ValueError(f"{label} is on {device}; this environment is on {self._device}: give an array there")
        if tuple(array.shape) != shape:
            raise ValueError(f"{label} has shape {tuple(array.shape)}; expected {shape}")
        if dtype_name(array) != dtype:
            raise TypeError(f"{label} has dtype {dtype_name(array)}; expected {dtype}")
        if not contiguous:
            raise ValueError(f"{label} is not contiguous, aligned and writable; give an array that is")
        if library == "torch":
            return int(array.data_ptr())
        return int(array.data.ptr) if library == "cupy" else int(array.__array_interface__["data"][0])
