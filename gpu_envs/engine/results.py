"""What stepping gives back, and memory of the user's own to step into."""

import bisect
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, library_of
from gpu_envs.backend.base import Backend
from gpu_envs.codegen import RESULTS, Layout, SimulationConfig, layout_of
from gpu_envs.documented import documented
from gpu_envs.engine.actions import Actions
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.team import TeamSpec


@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Arrays that one step writes straight into, any of them: torch, CuPy or NumPy, on the environment's device.

    A row of a larger array will do: ``storage[t]`` of ``[T, num_envs, ...]``, whatever its alignment. Of a team,
    each is a mapping from roles, any of them, to arrays of ``[num_envs, agents, ...]``. Observations that are a Dict
    are a mapping from its keys, any of them.
    """

    observations: Array = None
    """``[num_envs, *observation]``, of the observation space's type."""
    rewards: Array = None
    """``[num_envs]``, of the environment's precision."""
    terminations: Array = None
    """``[num_envs]``, bool."""
    truncations: Array = None
    """``[num_envs]``, bool."""
    final_obs: Array = None
    """``[num_envs, *observation]``, of the same; rows are written where an episode ended (SameStep)."""
    episode_return: Array = None
    """``[num_envs]``, of the environment's precision; written where an episode ended."""
    episode_length: Array = None
    """``[num_envs]``, int32; written where an episode ended."""
    action_mask: Array = None
    """``[num_envs, choices]``, int8; of environments whose rules say what is possible."""
    episode_metrics: Array = None
    """``[num_envs, metrics]``, of the environment's precision, in the spec's order; written where an episode ended."""
    shared_observations: Array = None
    """Of a team made with ``shared_observations=True``, by role: ``[num_envs, numbers]``, float32."""
    final_shared: Array = None
    """The same of last observations; rows are written where an episode ended (SameStep)."""


@documented
class Rollout(NamedTuple):
    """What many steps at once give back.

    Of a team all but ``episodes`` are mappings from roles, in whose arrays agents follow replicas. An agent's ends are
    counted in the step in which it goes out, and its returns and lengths where the replica's episode ends.
    """

    observations: Array
    """Per step ``[steps, num_envs, *observation]``; otherwise the last, ``[num_envs, *observation]``.

    Of a Dict, a dict of them."""
    rewards: Array
    """Per step ``[steps, num_envs]``; otherwise their sums, ``[num_envs]``."""
    terminations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    truncations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    actions: Array
    """Per step, where they were drawn: ``[steps, num_envs, ...]``; otherwise None."""
    episodes: Array
    """How many episodes ended, ``[num_envs]`` int32."""
    episode_returns: Array
    """The sum of their returns, ``[num_envs]``; None with ``statistics=False``."""
    episode_lengths: Array
    """The sum of their lengths, ``[num_envs]`` int32; None likewise."""


def given_for(given: Any, key: str) -> Array | None:
    """The array of a role or of a Dict's key among those a user gave for one result; with neither, what was given."""
    return given.get(key) if key and given is not None else given


def only_finished(finished: np.ndarray, values: Any, given: Any = None) -> Any:
    """What the user gave; where that is nothing, a copy with zeros but for the replicas whose episode has ended.

    Args:
        finished: The numbers of those replicas.
        values: A NumPy array, or a mapping of them.
        given: The user's, likewise.
    """
    if isinstance(values, Mapping):
        return {key: only_finished(finished, array, given_for(given, key)) for key, array in values.items()}
    if given is not None:
        return given
    kept = np.zeros(values.shape, values.dtype)
    if not values.size:
        return kept
    row = np.dtype((np.void, values.nbytes // len(values)))  # whole rows, which are quicker to index
    kept.reshape(len(kept), -1).view(row)[finished] = values.reshape(len(values), -1).view(row)[finished]
    return kept


def keep_memory(results: Iterable[Array]) -> None:
    """Lets the C library keep, from one step to the next, memory for the copies of these.

    It hands what is freed back to the operating system, whose pages cost a step more than the copies, unless something
    as large has come and gone before; up to 32 MiB.
    """
    np.empty(2 * sum(int(array.nbytes) for array in results), np.uint8)


def by_metric(names: Iterable[str], values: Array, finished: np.ndarray | None = None) -> dict[str, Array]:
    """Metrics by name, of ``[num_envs, metrics]``; of those replicas alone that ``finished`` names, if it does."""
    if values is not None and finished is not None:
        values = only_finished(finished, values)
    return dict(zip(names, () if values is None else values.T, strict=True))


_READ_TOGETHER = (
    (
        "observations",
        "rewards",
        "terminations",
        "truncations",
        "finished",
        "alive",
        "action_mask",
        "shared_observations",
    ),
    ("records", "final_obs", "final_shared", "episode_return", "episode_length", "episode_metrics"),
)
"""What is read after each step, and what where an episode has ended: of each, NumPy output reads all or nothing."""


def allocated(arrays: Arrays, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
    """A simulation's memory, by name: what is read at the same time stands together."""
    made: dict[str, Array] = {}
    for names in _READ_TOGETHER:
        if together := {name: shapes[name] for name in shapes if name.partition(".")[0] in names}:
            made |= arrays.zeros_by_name(together)
    return {name: made[name] if name in made else arrays.zeros(*shapes[name]) for name in shapes}


def check_memory(layout: Layout, backend: Backend, tables: Collection[np.ndarray] = ()) -> str:
    """Refuses a simulation whose arrays are larger than the device's memory, before anything is allocated there.

    Args:
        layout: Of the simulation.
        backend: Its device.
        tables: Its tables, on the host.

    Returns:
        The refusal, for arrays that are smaller and cannot be allocated all the same.
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


def check_replica(config: SimulationConfig, backend: Backend) -> None:
    """Refuses a simulation of which a single replica, without tables, is larger than the device's memory."""
    per_replica = frozenset(
        name for name, value in config.params.items() if config.spec.settings[name].is_per_replica(value)
    )
    check_memory(layout_of(dataclasses.replace(config, num_envs=1), backend.traits, per_replica), backend)


def as_step(out: object) -> Step:
    """What was given as ``out``, once it is a ``Step``."""
    if not isinstance(out, Step):
        raise TypeError(f"out is {type(out).__name__}; give a gpu_envs.Step of arrays to write into, or None")
    return out


Span: TypeAlias = tuple[int, int, str]
"""Memory: its first address, the one after its last, and whose it is."""

_APART = "by teams that are made with shared_observations=True"

_KEPT = "by environments that were not made with statistics=False"

_WHERE = {
    "final_obs": "in autoreset_mode='SameStep'",
    "episode_return": _KEPT,
    "episode_length": _KEPT,
    "action_mask": "by environments whose spec has action_mask=True",
    "episode_metrics": f"by environments whose spec names metrics, and {_KEPT.removeprefix('by environments ')}",
    "shared_observations": _APART,
    "final_shared": f"in autoreset_mode='SameStep' {_APART}",
}
"""Results that not all environments have."""

_MOST_KNOWN = 4096
"""Sets of arrays that are known to lie apart."""


@final
class OutReader:
    """Turns a ``Step`` of the user's arrays into addresses, after a look at each."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], str]],
        affixes: Sequence[str],
        device: str,
        kind: str = "role",
        memory: Callable[[], Sequence[Span]] = tuple,
    ) -> None:
        """Keeps what each array must be.

        Args:
            shapes: Shape and dtype of every result.
            affixes: What ends the names of each place's results: ``""``, or a point and the place's name.
            device: ``cpu`` or ``cuda:N``.
            kind: What such a name is, for messages.
            memory: The simulation's own, in order.
        """
        self._memory, self._own = memory, memory()
        self._apart: set[Any] = set()
        self._known = [
            (place, name, affix[1:], *shapes[name + affix])
            for place, affix in enumerate(affixes)
            for name in RESULTS
            if name + affix in shapes
        ]
        self._kind = kind
        self._keys: dict[str, list[str]] = {name: [k for _, n, k, *_ in self._known if n == name] for name in RESULTS}
        self._divided = [name for name, keys in self._keys.items() if keys not in ([], [""])]
        self._device = device
        self._tensor: Any = None
        self._torch_dtypes: dict[str, Any] = {}
        self._torch_device: Any = None

    def read(self, out: Step, actions: Sequence[Actions] = ()) -> list[tuple[int, str, int]]:
        """Returns place, name and address of each array given, or raises what is wrong with one.

        Args:
            out: The arrays.
            actions: Those of the step, which are read while results are written.
        """
        as_step(out)
        for name, where in _WHERE.items():
            if getattr(out, name) is not None and not self._keys[name]:
                raise ValueError(f"out.{name} is written {where} only")
        if self._divided:
            self._check_keys(out)
        found = []
        for place, name, key, shape, dtype in self._known:
            array = given_for(getattr(out, name), key)
            if array is not None:
                label = f"{name}[{key!r}]" if key else name
                found.append((place, name, self._address(label, array, shape, dtype)))
        known = (*found, *[part[:2] for part in actions])
        if self._own is not self._memory() or known not in self._apart:
            self._check_apart({(place, name): address for place, name, address in found}, actions)
            self._apart.add(known)
        return found

    def _check_apart(self, found: Mapping[tuple[int, str], int], actions: Sequence[Actions]) -> None:
        """Refuses arrays that overlap: one another, the actions, or memory of the simulation's that is not theirs."""
        if self._own is not self._memory() or len(self._apart) >= _MOST_KNOWN:
            self._own = self._memory()
            self._apart.clear()
        spans = [(part.address, part.address + part.owner.nbytes, "the actions") for part in actions]
        for place, name, key, shape, dtype in self._known:
            low = found.get((place, name))
            if low is None:
                continue
            high = low + math.prod(shape) * np.dtype(dtype).itemsize
            label = f"out.{name}[{key!r}]" if key else f"out.{name}"
            at = bisect.bisect_left(self._own, (high,)) - 1
            if at >= 0 and self._own[at][1] > low and self._own[at] != (low, high, f"{name}.{key}" if key else name):
                raise ValueError(f"{label} overlaps the environment's own {self._own[at][2]!r}; give other memory")
            spans.append((low, high, label))
        for one, other in itertools.pairwise(sorted(spans)):
            if other[0] < one[1]:
                raise ValueError(f"{one[2]} and {other[2]} overlap; give each memory of its own")

    def _check_keys(self, out: Step) -> None:
        for name in self._divided:
            given, keys = getattr(out, name), self._keys[name]
            if given is None:
                continue
            if not isinstance(given, Mapping):
                raise TypeError(f"out.{name} is {type(given).__name__}; give a mapping from {self._kind}s to arrays")
            for key in given:
                if key not in keys:
                    raise ValueError(
                        f"out.{name} names the {self._kind} {key!r}{did_you_mean(str(key), keys)} "
                        f"There are: {', '.join(keys)}"
                    )

    def _address(self, name: str, array: Any, shape: tuple[int, ...], dtype: str) -> int:
        if (
            array.__class__ is self._tensor  # the quickest way for the most frequent case
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
            self._torch_dtypes = {d: getattr(torch, d) for *_, d in self._known}
        if library == "torch":
            device = "cpu" if array.device.type == "cpu" else f"cuda:{array.device.index}"
            contiguous, given = array.is_contiguous(), str(array.dtype).rpartition(".")[2]
        elif library == "cupy":
            device, contiguous, given = f"cuda:{array.device.id}", array.flags.c_contiguous, array.dtype.name
        elif library == "numpy":
            device, contiguous, given = "cpu", array.flags.carray, str(array.dtype)
        else:
            raise TypeError(f"out.{name} is {type(array).__name__}; give an array of torch, CuPy or NumPy")
        if device != self._device:
            raise ValueError(f"out.{name} is on {device}; this environment is on {self._device}")
        if tuple(array.shape) != shape:
            raise ValueError(f"out.{name} has shape {tuple(array.shape)}; expected {shape}")
        if given != dtype:
            raise TypeError(f"out.{name} has dtype {given}; expected {dtype}")
        if not contiguous:
            raise ValueError(f"out.{name} must be contiguous, aligned and writable")
        if library == "torch":
            return int(array.data_ptr())
        return int(array.data.ptr) if library == "cupy" else int(array.__array_interface__["data"][0])
