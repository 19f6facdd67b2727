"""The replicas of one environment on one device: their memory, their kernels, and the launches. Knows no Gymnasium."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from gpu_envs.arrays import Array, Arrays, to_numpy
from gpu_envs.backend.base import Backend, Launch
from gpu_envs.codegen import RESULTS, Config, Layout, baked_values, layout_of, param_values, tables
from gpu_envs.errors import ActionError
from gpu_envs.params import Value

NO_LIMIT = 2**31 - 1
"""Stands for no time limit: the step counter's greatest value."""

OPTIONAL = ("final_obs", "episode_return", "episode_length")
"""Those that have a place of their own, and are written elsewhere too only where the user says so."""

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
        """One field: ``[num_envs]``, of a team's agents ``[num_envs, num_agents]``; of arrays ``[..., length]``."""
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
    if given.shape not in ((), shape[1:], shape):
        each = f", {shape[1:]} for all replicas" if shape[1:] else ""
        raise ValueError(f"{name!r} got values of shape {given.shape}; expected {shape}{each}, or one value for all")
    if given.dtype.kind not in "biuf":
        raise TypeError(f"{name!r} got values of dtype {given.dtype}; expected numbers")
    arrays.write(array, np.broadcast_to(given, shape).astype(str(array.dtype).rpartition(".")[2]))


def seed_bits(seed: int) -> int:
    """A seed as 64 bits: itself where it fits, a hash of it where it is longer."""
    if seed < 2**64:
        return seed
    digest = hashlib.sha256(seed.to_bytes((seed.bit_length() + 7) // 8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


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
        self.ready = False
        self._launches = 0
        self._per_replica: frozenset[str] = frozenset()
        self._baked: dict[str, float | int] = baked_values(config.spec, param_values(config.spec, config.params))
        self._calls: dict[str, Any] = {}
        self._always = frozenset(self.layout.buffers())  # those that are no views
        self._flags = {"report_frozen": 0, "clear_final": 0}
        self._allocate()
        self.set_params(config.params)

    # --- memory ---

    def _allocate(self) -> None:
        layout = self.layout
        shapes, read = layout.buffers(), tables(self.config)
        needed = sum(values.nbytes for values in read.values()) + sum(
            int(np.prod(shape, dtype=np.float64)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()
        )
        available = self.backend.memory()
        refusal = (
            f"{self.config.num_envs:,} replicas of {self.config.spec.id} need {needed / 2**30:,.1f} GiB on "
            f"{self.backend.device}, which has {available / 2**30:,.1f} GiB; lower num_envs"
            f"{' or make the tables smaller' if read else ''}"
        )
        if needed > available:
            raise MemoryError(refusal)
        try:
            self.buffers: dict[str, Array] = {
                n: self.arrays.zeros(shape, dtype) for n, (shape, dtype) in shapes.items()
            }
            self._tables = {name: self.arrays.full_of(values) for name, values in read.items()}
        except (MemoryError, RuntimeError) as error:  # torch and CuPy raise RuntimeErrors of their own
            raise MemoryError(f"{refusal} ({error})") from error
        self.arrays.write(self.buffers["offence"], _NO_OFFENCE)
        layout.view(self.buffers, self.arrays)
        fields = {f: self.buffers[f"state.{f}"] for f in self.config.spec.fields}
        self.state = LiveState(fields, self.arrays)
        self.elapsed: Array = self.buffers["elapsed" if "elapsed" in self.buffers else "state.elapsed"]
        self.shapes = layout.results()

    def program_source(self) -> str:
        """The C++ that the kernels of a single step were compiled from."""
        return self.layout.generate(self.layout.modules[0]).source

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
        self._places: dict[str, list[tuple[str, Any]]] = {}
        self._load(self.layout.modules[0])
        self._step_call, self._launch_step = self._calls["step"], self._launch["step"]
        self._step_places = [place for _, place in self._places["step"]]
        self._acting = [place for place in self._step_places if hasattr(place, "actions")]
        self._own_places = {  # where a step writes what is not asked for elsewhere
            (i, name): getattr(place, name)
            for i, place in enumerate(self._step_places)
            for name in RESULTS
            if hasattr(place, name)
        }
        self._inspected = [place for _, place in self._places["inspect"] if hasattr(place, "actions")]

    @property
    def layout(self) -> Layout:
        """What the generated code depends on now."""
        return layout_of(self.config, self.backend.traits, self._per_replica, self._baked)

    def _load(self, module: str) -> None:
        """Compiles a driver and prepares its launches."""
        layout, config = self.layout, self.config
        program = layout.generate(module)
        kernels = self.backend.load(program)
        for name, struct in program.calls.items():
            call = struct()
            self._write_buffers(call, layout)
            self._write_flags(call)
            if hasattr(call, "limit"):
                call.limit = config.limit
            self._calls[name], self._places[name] = call, layout.places(call)
            self._launch[name] = kernels.bind(name, call, config.num_envs)

    def _write_buffers(self, call: Any, layout: Layout) -> None:
        call.buffers.count = self.config.num_envs
        targets = [("", call.buffers), *layout.places(call)]
        targets += [
            (f"{name}.", getattr(call.buffers, name)) for name in ("state", "scratch") if hasattr(call.buffers, name)
        ]
        for affix, target in targets:
            for name, *_ in target._fields_:
                self._write_address(target, name, affix)

    def _write_address(self, target: Any, name: str, affix: str) -> None:
        """Points a struct's member to the buffer of that name, where there is one of its own."""
        buffer = affix + name if affix.endswith(".") else name + affix
        if buffer in self.buffers and (name not in OPTIONAL or buffer in self._always):
            setattr(target, name, self.arrays.address(self.buffers[buffer]))

    def _write_params(self, call: Any, values: Mapping[str, Any], held: Mapping[str, Array]) -> None:
        for name, value in values.items():
            setattr(call.params, name, self.arrays.address(held[name]) if name in held else value)
        for name, table in self._tables.items():
            setattr(call.params, name, self.arrays.address(table))

    # --- launches ---

    def reset(
        self,
        seeds: int | Sequence[int | None] | None,
        mask: Array | None,
        options: Mapping[str, Value],
    ) -> None:
        """Begins new episodes.

        Args:
            seeds: The first replica's seed, the others' counting up; or one for each, None to keep its own; or None.
            mask: Which replicas, as bools in this simulation's memory; None: all.
            options: The parameters of this reset.
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
        self._launch["reset"](self.arrays.stream())
        # the options hold for this reset alone, and so do arrays made for them
        self._write_params(call, param_values(self.config.spec, self.params), self.param_arrays)
        self.ready = True

    def observe(self) -> None:
        """Writes the observations of the state as it stands."""
        call = self._calls["reset"]
        call.observe_only = 1
        self._launch["reset"](self.arrays.stream())
        call.observe_only = 0

    def step(self, actions: Sequence[tuple[int, int]], out: Sequence[tuple[int, str, int]] = ()) -> None:
        """Steps every replica once.

        Args:
            actions: For each place that takes some, where the actions are, and their element type, an ``ActionKind``.
            out: Results to write elsewhere than into the buffers: number of the place, name, address.
        """
        call, places = self._step_call, self._step_places
        for place, (address, kind) in zip(self._acting, actions, strict=True):
            place.actions, place.action_kind = address, kind
        self._launches += 1
        call.launch = self._launches
        if not out:
            self._launch_step(self.arrays.stream())
            return
        for place, name, address in out:
            setattr(places[place], name, address)
        try:
            self._launch_step(self.arrays.stream())
        finally:
            for place, name, _ in out:
                setattr(places[place], name, self._own_places[place, name])

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

    def inspect(self, actions: Sequence[tuple[int, int]], hosts: Sequence[np.ndarray], where: str = "") -> None:
        """Raises an ActionError if a step with these actions would offend. Nothing has changed then.

        Args:
            actions: For each place, where the actions are, and their element type.
            hosts: The same actions, for the message.
            where: Begins the message.
        """
        call = self._calls["inspect"]
        for place, (address, kind) in zip(self._inspected, actions, strict=True):
            place.actions, place.action_kind = address, kind
        self._launches += 1
        call.launch = self._launches
        self._launch["inspect"](self.arrays.stream())
        self.check(hosts, where)

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
        for affix, place in self._places["rollout"]:
            for name, *_ in place._fields_:
                if name + affix in results:
                    setattr(place, name, self.arrays.address(results[name + affix]))
        self._launch["rollout"](self.arrays.stream())

    def check(self, hosts: Sequence[np.ndarray] = (), where: str = "") -> None:
        """Raises an ActionError if a step has offended since the last check; waits for the device.

        Args:
            hosts: The actions of that step, where they are known.
            where: Begins the message.
        """
        record = self.arrays.read(self.buffers["offence"])
        if record[0] == 0:
            return
        self.clear_offence()
        layout = self.layout
        replica, agent, step = layout.where(int(record[1]))
        raise self._offence(int(record[0]) & 3, replica, step, agent, where, layout.given(hosts, replica, agent))

    def offence(self, kind: int, replica: int) -> ActionError:
        """The error for an offence that the host has found itself."""
        return self._offence(kind, replica, int(self.arrays.read(self.elapsed)[replica]))

    def _offence(
        self, kind: int, replica: int, step: int, agent: int = 0, where: str = "", given: str = ""
    ) -> ActionError:
        layout = self.layout
        what = _OFFENCES[kind].format(given=given, allowed=layout.allowed(agent))
        who = layout.who(agent) if kind != EPISODE_OVER else ""
        return ActionError(f"{where}replica {replica}, {who}step {step} of its episode: {what}")

    # --- snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Copies out everything a trajectory depends on."""

        def copied(array: Array) -> Array:
            twin = self.arrays.empty(tuple(array.shape), str(array.dtype).rpartition(".")[2])
            twin[...] = array
            return twin  # contiguous, whatever the array was

        return {
            "state": {name: copied(array) for name, array in self.state.items()},
            "episode": {name: copied(self.buffers[name]) for name in self.layout.episode},
            "params": {
                n: copied(self.param_arrays[n]) if n in self.param_arrays else v for n, v in self.params.items()
            },
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Copies a snapshot back in, or raises a ValueError that says what does not fit, with nothing changed."""
        n = self.config.num_envs
        expected = {"state": tuple(self.state), "episode": self.layout.episode, "params": tuple(self.params)}
        for part, names in expected.items():
            given = snapshot.get(part)
            if not isinstance(given, Mapping) or set(given) != set(names):
                found = sorted(given) if isinstance(given, Mapping) else given
                raise ValueError(f"the state's part {part!r} must have {sorted(names)}; got {found}")
        values: dict[str, np.ndarray] = {}
        for part in ("state", "episode"):
            for name in expected[part]:
                buffer = f"state.{name}" if part == "state" else name
                array, shape = to_numpy(snapshot[part][name]), tuple(self.buffers[buffer].shape)
                if array.shape != shape:
                    raise ValueError(f"the state's {name!r} has shape {array.shape}; this environment needs {shape}")
                values[buffer] = array
        settings = self.config.spec.settings
        params: dict[str, Value] = {}
        for name, value in snapshot["params"].items():
            if settings[name].fixed and value != self.params[name]:
                raise ValueError(
                    f"the state's parameter {name!r} is {value!r}, and this environment's is {self.params[name]!r}: "
                    "shapes depend on it, so make an environment with the same"
                )
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
        if self.config.spec.masked:
            self.observe()  # what is possible follows from the state
