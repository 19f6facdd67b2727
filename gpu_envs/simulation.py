"""The replicas of one environment on one device: their memory, their kernels, and the launches. Knows no Gymnasium."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.arrays import Array, Arrays, to_numpy
from gpu_envs.backend.base import Backend, Launch
from gpu_envs.codegen import Layout, baked_values, generate, param_values, record_words
from gpu_envs.errors import ActionError
from gpu_envs.spec import EnvSpec, Value

NO_LIMIT = 2**31 - 1
"""Stands for no time limit: the step counter's greatest value."""

RESULTS = ("observations", "rewards", "terminations", "truncations", "final_obs", "episode_return", "episode_length")
"""What a step writes."""

OPTIONAL = ("final_obs", "episode_return", "episode_length")
"""Those that have their place in the records, and are written elsewhere too only where the user says so."""

_NO_OFFENCE = np.array([0, -1], np.int64)
EPISODE_OVER = 3
"""A replica was stepped whose episode is over: ``Offence`` in ``actions.cuh``."""

_OFFENCES = {
    1: "an action is out of range{given}: allowed are {allowed}",
    2: "an action is not a number (NaN)",
    EPISODE_OVER: "the episode is over and autoreset_mode is 'Disabled': reset it with options={{'reset_mask': ...}}",
}


@final
class LiveState(Mapping[str, Array]):
    """The state, field by field: the simulation's own memory. Assigning to a field writes into it."""

    def __init__(self, fields: Mapping[str, Array], arrays: Arrays) -> None:
        """Keeps the fields."""
        self._fields = dict(fields)
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        """The array of one field, ``[num_envs]``."""
        return self._fields[name]

    def __setitem__(self, name: str, values: Any) -> None:
        """Writes a field: one value for all replicas, or one for each."""
        write_field(self._arrays, self._fields[name], values, name)

    def __iter__(self) -> Iterator[str]:
        """The names of the fields, in the spec's order."""
        return iter(self._fields)

    def __len__(self) -> int:
        """The number of fields."""
        return len(self._fields)

    def __repr__(self) -> str:
        """Shows the fields."""
        return f"LiveState({self._fields!r})"


def write_field(arrays: Arrays, array: Array, values: Any, name: str) -> None:
    """Copies values of any library into one of the simulation's arrays, after a look at their shape."""
    given = to_numpy(values)
    shape = tuple(array.shape)
    if given.shape not in ((), shape):
        raise ValueError(f"{name!r} got values of shape {given.shape}; expected {shape}, or one value for all")
    if given.dtype.kind not in "biuf":
        raise TypeError(f"{name!r} got values of dtype {given.dtype}; expected numbers")
    arrays.write(array, np.broadcast_to(given, shape).astype(str(array.dtype).rpartition(".")[2]))


def seed_bits(seed: int) -> int:
    """A seed as 64 bits: itself where it fits, a hash of it where it is longer."""
    if seed < 2**64:
        return seed
    digest = hashlib.sha256(seed.to_bytes((seed.bit_length() + 7) // 8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


@dataclasses.dataclass(frozen=True)
class Config:
    """What a simulation is made of."""

    spec: EnvSpec
    num_envs: int
    autoreset_mode: str
    precision: str
    limit: int
    """The step at which an episode is truncated, or ``NO_LIMIT``."""
    params: Mapping[str, Value]
    """Every parameter and reset option, checked."""


@final
class Simulation:
    """Buffers, kernels and launches."""

    def __init__(self, config: Config, backend: Backend, library: str) -> None:
        """Allocates the buffers and compiles the kernels.

        Args:
            config: What to simulate.
            backend: Where.
            library: The array library whose arrays the buffers are.
        """
        self.config = config
        self.backend = backend
        self.arrays = backend.arrays(library)
        self.observation_space = config.spec.observation_space(config.params)
        self.action_space = config.spec.action_space(config.params)
        self.ready = False
        self._launches = 0
        self._per_replica: frozenset[str] = frozenset()
        self._baked: dict[str, float | int] = {}
        self._calls: dict[str, Any] = {}
        self._flags = {"report_frozen": 0, "clear_final": 0}
        self._allocate()
        self.set_params(config.params)

    # --- memory ---

    def _shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        n, real = self.config.num_envs, self.config.precision
        rows = (n, *(self.observation_space.shape or ()))
        fields = {f"state.{name}": ((n,), real) for name in self.config.spec.state}
        return fields | {
            "running_return": ((n,), real),
            "elapsed": ((n,), "int32"),
            "ended": ((n,), "bool"),
            "finished": ((n,), "bool"),
            "records": ((n, record_words(self._layout())), "int32"),
            "offence": ((2,), "int64"),
            "observations": (rows, "float32"),
            "rewards": ((n,), real),
            "terminations": ((n,), "bool"),
            "truncations": ((n,), "bool"),
        }

    def _allocate(self) -> None:
        shapes = self._shapes()
        needed = sum(
            int(np.prod(shape, dtype=np.float64)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()
        )
        available = self.backend.memory()
        refusal = (
            f"{self.config.num_envs:,} replicas of {self.config.spec.id} need {needed / 2**30:,.1f} GiB on "
            f"{self.backend.device}, which has {available / 2**30:,.1f} GiB; lower num_envs"
        )
        if needed > available:
            raise MemoryError(refusal)
        try:
            self.buffers: dict[str, Array] = {
                n: self.arrays.zeros(shape, dtype) for n, (shape, dtype) in shapes.items()
            }
        except (MemoryError, RuntimeError) as error:  # torch and CuPy raise RuntimeErrors of their own
            raise MemoryError(f"{refusal} ({error})") from error
        self.arrays.write(self.buffers["offence"], _NO_OFFENCE)
        self.state = LiveState({f: self.buffers[f"state.{f}"] for f in self.config.spec.state}, self.arrays)
        self._view_records()
        episode: dict[str, tuple[tuple[int, ...], str]] = {
            "episode_return": ((self.config.num_envs,), self.config.precision)
        }
        episode |= {"episode_length": ((self.config.num_envs,), "int32")}
        if "final_obs" in self.buffers:
            episode |= {"final_obs": shapes["observations"]}
        self.shapes = {n: (shapes | episode)[n] for n in RESULTS if n in shapes or n in episode}

    def _view_records(self) -> None:
        """Names the columns of the records: ``struct Record``."""
        records, viewed = self.buffers["records"], self.arrays.viewed
        real = self.config.precision
        wide = real == "float64"
        self.buffers["seeds"] = viewed(records, "int64")[:, 0]  # the bits of an unsigned seed
        self.buffers["episodes"] = records[:, 2]  # the bits of an unsigned counter
        self.buffers["episode_return"] = viewed(records, real)[:, 2 if wide else 4]
        self.buffers["episode_length"] = records[:, 6 if wide else 5]
        if records.shape[1] > 8:
            shape = self.observation_space.shape or ()
            self.buffers["final_obs"] = viewed(records, "float32")[:, 8 : 8 + shape[0]]

    def program_source(self) -> str:
        """The C++ that the kernels of a single step were compiled from."""
        return generate(self._layout()).source

    def direct_step(self) -> Callable[[int, int], None]:
        """A step without a look at anything, for one who steps a single replica on the host."""
        call, launch = self._step_call, self._launch_step

        def step(actions: int, kind: int) -> None:
            call.actions, call.action_kind = actions, kind
            launch(0)

        return step

    def clear_offence(self) -> None:
        """Forgets the offence on record."""
        self.arrays.write(self.buffers["offence"], _NO_OFFENCE)

    # --- parameters and program ---

    def set_params(self, params: Mapping[str, Value]) -> None:
        """Takes over parameters; compiles anew where one becomes per replica or shared, or one compiled in changes."""
        spec, values = self.config.spec, param_values(self.config.spec, params)
        per_replica = frozenset(n for n, v in values.items() if isinstance(v, np.ndarray))
        held: dict[str, Array] = {}
        for name in per_replica:
            dtype = self.config.precision if spec.settings[name].kind == "real" else "int32"
            held[name] = self.arrays.full_of(np.asarray(values[name]).astype(dtype))
        baked = baked_values(spec, values)
        if per_replica != self._per_replica or baked != self._baked or not self._calls:
            self._per_replica, self._baked = per_replica, baked
            self._compile()
        self.params = dict(params)
        self.param_arrays = held
        for call in self._calls.values():
            self._write_params(call, values, held)

    def _compile(self) -> None:
        self._calls = {}
        self._launch: dict[str, Launch] = {}
        self._load("vector_env")
        self._step_call, self._launch_step = self._calls["step"], self._launch["step"]

    def _layout(self) -> Layout:
        config = self.config
        spaces = self.observation_space, self.action_space
        return Layout(config.spec, config.autoreset_mode, config.precision, *spaces, self._per_replica, self._baked)

    def _load(self, module: str) -> None:
        """Compiles a driver and prepares its launches."""
        config = self.config
        program = generate(self._layout(), module)
        kernels = self.backend.load(program)
        for name, struct in program.calls.items():
            call = struct()
            self._write_buffers(call)
            self._write_flags(call)
            if hasattr(call, "limit"):
                call.limit = config.limit
            self._calls[name] = call
            self._launch[name] = kernels.bind(name, call, config.num_envs)

    def _write_buffers(self, call: Any) -> None:
        address = self.arrays.address
        call.buffers.count = self.config.num_envs
        for field in self.config.spec.state:
            setattr(call.buffers.state, field, address(self.buffers[f"state.{field}"]))
        for target in (call.buffers, call):
            for name, _ in target._fields_:
                if name in self.buffers and name not in OPTIONAL:
                    setattr(target, name, address(self.buffers[name]))

    def _write_params(self, call: Any, values: Mapping[str, Any], held: Mapping[str, Array]) -> None:
        for name, value in values.items():
            setattr(call.params, name, self.arrays.address(held[name]) if name in held else value)

    # --- launches ---

    def reset(
        self,
        seeds: int | Sequence[int | None] | None,
        mask: Array | None,
        options: Mapping[str, Value],
        observations: Array,
    ) -> None:
        """Begins new episodes.

        Args:
            seeds: The first replica's seed, the others' counting up; or one for each, None to keep its own; or None.
            mask: Which replicas, as bools in this simulation's memory; None: all.
            options: The parameters of this reset.
            observations: Receives the observations of all replicas.
        """
        call = self._calls["reset"]
        values = param_values(self.config.spec, options)
        held = dict(self.param_arrays)
        for name in self._per_replica:
            if not isinstance(values[name], np.ndarray):  # an option of this reset alone, where replicas have their own
                held[name] = self.arrays.full_of(np.full(self.config.num_envs, values[name], self.config.precision))
        self._write_params(call, values, held)
        call.mask = None if mask is None else self.arrays.address(mask)
        call.reseed, call.new_seeds, call.reseed_all = None, None, 0
        chosen, bits = None, None  # what is freed here is used again by later work of the same stream only
        if isinstance(seeds, int):
            call.first_seed, call.reseed_all = seed_bits(seeds), 1
        elif seeds is not None:
            chosen = self.arrays.full_of(np.array([s is not None for s in seeds]))
            known = np.array([0 if s is None else seed_bits(s) for s in seeds], np.uint64)
            bits = self.arrays.full_of(known.view(np.int64))
            call.reseed, call.new_seeds = self.arrays.address(chosen), self.arrays.address(bits)
        call.observations = self.arrays.address(observations)
        self._launch["reset"](self.arrays.stream())
        # the options hold for this reset alone, and so do arrays made for them
        self._write_params(call, param_values(self.config.spec, self.params), self.param_arrays)
        self.ready = True

    def observe(self, observations: Array) -> None:
        """Writes the observations of the state as it stands."""
        call = self._calls["reset"]
        call.observations, call.observe_only = self.arrays.address(observations), 1
        self._launch["reset"](self.arrays.stream())
        call.observe_only = 0

    def step(self, actions: int, kind: int, out: Sequence[tuple[str, int]] = ()) -> None:
        """Steps every replica once.

        Args:
            actions: Where the actions are.
            kind: Their element type, an ``ActionKind``.
            out: Results to write elsewhere than into the buffers: name and address.
        """
        call = self._step_call
        call.actions, call.action_kind = actions, kind
        self._launches += 1
        call.launch = self._launches
        for name, address in out:
            setattr(call, name, address)
        try:
            self._launch_step(self.arrays.stream())
        finally:
            for name, _ in out:
                setattr(call, name, None if name in OPTIONAL else self.arrays.address(self.buffers[name]))

    def set_step_flags(self, *, report_frozen: bool, clear_final: bool) -> None:
        """Chooses what a step does besides.

        Args:
            report_frozen: Put on record when a replica is stepped whose episode is over.
            clear_final: Keep ``final_obs`` zero where no episode has just ended.
        """
        self._flags = {"report_frozen": int(report_frozen), "clear_final": int(clear_final)}
        for call in self._calls.values():
            self._write_flags(call)

    def _write_flags(self, call: Any) -> None:
        for name, value in self._flags.items():
            if hasattr(call, name):
                setattr(call, name, value)

    def inspect(self, actions: int, kind: int, host: np.ndarray, steps: int | None = None) -> None:
        """Raises an ActionError if a step with these actions would offend. Nothing has changed then. Host memory only.

        Args:
            actions: Where the actions are.
            kind: Their element type.
            host: The same actions, for the message.
            steps: How many steps' actions follow one another; None: one step's.
        """
        call = self._calls["inspect"]
        call.action_kind = kind
        for step in range(steps or 1):
            call.actions = actions + step * (host.nbytes // (steps or 1))
            self._launches += 1
            call.launch = self._launches
            self._launch["inspect"](0)
            if self.buffers["offence"][0] != 0:
                self.check(
                    host if steps is None else host[step], "" if steps is None else f"step {step} of the block, "
                )

    def rollout(self, steps: int, actions: int | None, kind: int, per_step: bool, results: Mapping[str, Array]) -> None:
        """Takes many steps in one launch; ``results`` are written."""
        if "rollout" not in self._calls:
            self._load("rollout")
            self._write_params(self._calls["rollout"], param_values(self.config.spec, self.params), self.param_arrays)
        call = self._calls["rollout"]
        call.steps, call.per_step = steps, int(per_step)
        call.actions, call.action_kind = actions, kind
        self._launches += 1
        call.launch = self._launches
        call.random_actions = None
        for name, array in results.items():
            setattr(call, name, self.arrays.address(array))
        self._launch["rollout"](self.arrays.stream())

    def check(self, host: np.ndarray | None = None, where: str = "") -> None:
        """Raises an ActionError if a step has offended since the last check; waits for the device.

        Args:
            host: The actions of that step, where they are known.
            where: Begins the message.
        """
        record = self.arrays.read(self.buffers["offence"])
        if record[0] == 0:
            return
        self.clear_offence()
        replica, step = divmod(int(record[1]), 2**31)
        given = "" if host is None else f" ({host[replica]})"
        raise self._offence(int(record[0]) & 3, replica, step, where, given)

    def offence(self, kind: int, replica: int) -> ActionError:
        """The error for an offence that the host has found itself."""
        return self._offence(kind, replica, int(self.arrays.read(self.buffers["elapsed"])[replica]))

    def _offence(self, kind: int, replica: int, step: int, where: str = "", given: str = "") -> ActionError:
        what = _OFFENCES[kind].format(given=given, allowed=self._allowed())
        return ActionError(f"{where}replica {replica}, step {step} of its episode: {what}")

    def _allowed(self) -> str:
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return f"{space.start} to {space.start + space.n - 1}"
        return str(space)

    # --- snapshots ---

    SNAPSHOT = (
        "running_return",
        "elapsed",
        "ended",
        "finished",
        "episodes",
        "seeds",
        "episode_return",
        "episode_length",
    )

    def snapshot(self) -> dict[str, Any]:
        """Copies out everything a trajectory depends on."""

        def copied(array: Array) -> Array:
            twin = self.arrays.empty(tuple(array.shape), str(array.dtype).rpartition(".")[2])
            twin[...] = array
            return twin  # contiguous, whatever the array was

        return {
            "state": {name: copied(array) for name, array in self.state.items()},
            "episode": {name: copied(self.buffers[name]) for name in self.SNAPSHOT},
            "params": {
                n: copied(self.param_arrays[n]) if n in self.param_arrays else v for n, v in self.params.items()
            },
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Copies a snapshot back in, or raises a ValueError that says what does not fit, with nothing changed."""
        n = self.config.num_envs
        expected = {"state": tuple(self.state), "episode": self.SNAPSHOT, "params": tuple(self.params)}
        for part, names in expected.items():
            given = snapshot.get(part)
            if not isinstance(given, Mapping) or set(given) != set(names):
                found = sorted(given) if isinstance(given, Mapping) else given
                raise ValueError(f"the state's part {part!r} must have {sorted(names)}; got {found}")
        values: dict[str, np.ndarray] = {}
        for part in ("state", "episode"):
            for name in expected[part]:
                array = to_numpy(snapshot[part][name])
                if array.shape != (n,):
                    raise ValueError(f"the state's {name!r} has shape {array.shape}; this environment needs ({n},)")
                values[f"state.{name}" if part == "state" else name] = array
        settings = self.config.spec.settings
        params: dict[str, Value] = {}
        for name, value in snapshot["params"].items():
            if np.ndim(to_numpy(value)) == 0:
                params[name] = settings[name].check(name, value, n)
            else:
                array = to_numpy(value)
                if array.shape != (n,):
                    raise ValueError(f"the parameter {name!r} has shape {array.shape}; this environment needs ({n},)")
                params[name] = array
        self.set_params(params)
        for name, array in values.items():
            write_field(self.arrays, self.buffers[name], array, name)
        self.ready = True
