"""The replicas of one environment on one device: their memory, their kernels, and the launches. Knows no Gymnasium."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, dtype_name, to_numpy
from gpu_envs.backend.base import Backend, Launch
from gpu_envs.codegen import Layout, SimulationConfig, baked_values, generate, layout_of, param_values, tables
from gpu_envs.engine.program import EnvProgram
from gpu_envs.engine.results import allocated, check_memory
from gpu_envs.engine.state import LiveState
from gpu_envs.errors import ActionError
from gpu_envs.seeds import seed_bits
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.params import ParamValue

NO_LIMIT = 2**31 - 1
"""Stands for no time limit: the step counter's greatest value."""

_NO_ERROR = np.array([0, -1], np.int64)
OUT_OF_RANGE, NOT_A_NUMBER, EPISODE_OVER = 1, 2, 3
"""What can be wrong with an action: ``Offence`` in ``actions.cuh``."""

_ACTION_ERRORS = {
    OUT_OF_RANGE: "an action is out of range{given}: allowed are {allowed}",
    NOT_A_NUMBER: "an action is not a number (NaN)",
    EPISODE_OVER: "the episode is over and autoreset_mode is 'Disabled': reset it with options={{'reset_mask': ...}}, "
    "or call env.allow_frozen_steps() first to step until the episodes of all replicas are over",
}


@final
class Simulation:
    """Buffers, kernels and launches."""

    def __init__(self, config: SimulationConfig, backend: Backend, output: str) -> None:
        """Allocates the buffers and compiles the kernels.

        Args:
            config: What to simulate.
            backend: Where.
            output: The library of the arrays that are given out, ``numpy``, ``torch`` or ``cupy``.
        """
        self.config = config
        self.backend = backend
        self.arrays = backend.arrays(output)
        self.turn = threading.RLock()
        self.ready, self.launches = False, 0
        self.randomness = {"seed": 0, "calls": 0}  # what fresh numbers follow from
        self.copying: dict[Any, Any] = {}  # what snapshots.py keeps
        self._flags = {"report_frozen": 0, "clear_final": 0}
        self._shared: dict[str, ParamValue] = {}
        self._own: frozenset[str] = frozenset()
        self.drawn: Mapping[str, Distribution] = config.drawn
        self.param_arrays: dict[str, Array] = {}
        self._watched: list[tuple[np.ndarray, bytes]] = []
        settings = config.spec.settings
        own = frozenset(name for name, value in config.params.items() if settings[name].is_per_replica(value))
        layout = self._allocate(own)
        self.program = EnvProgram(layout, self.buffers, self.arrays, backend)
        self.set_params(config.params)

    # --- memory ---

    def _allocate(self, per_replica: frozenset[str]) -> Layout:
        read = tables(self.config)  # large ones take time, and as much memory of the host
        shapes = {name: values.shape for name, values in read.items()}
        self.config = dataclasses.replace(self.config, table_shapes=shapes)
        layout = layout_of(self.config, self.backend.traits, per_replica)
        refusal = check_memory(layout, self.backend, read.values())
        try:
            self.buffers = allocated(self.arrays, layout.buffers())
            self._tables = {name: self.arrays.from_numpy(values) for name, values in read.items()}
        except (MemoryError, RuntimeError) as error:  # torch and CuPy raise RuntimeErrors of their own
            raise MemoryError(f"{refusal} ({error})") from error
        self.arrays.write(self.buffers["offence"], _NO_ERROR)
        self._allocated = {**self.buffers, **self._tables}
        layout.view(self.buffers, self.arrays)
        fields = {f: self.buffers[f"state.{f}"] for f in self.config.spec.fields}
        self.state = LiveState(fields, self.arrays)
        self.elapsed: Array = self.buffers["elapsed"]
        self.shapes = layout.results()
        return layout

    def memory(self) -> tuple[tuple[int, int, str], ...]:
        """Its own memory, in order: where each array begins and ends, and its name."""
        return self._memory

    def program_source(self) -> str:
        """The C++ that the kernels of a single step were compiled from."""
        return generate(self.layout, self.layout.modules[0]).source

    def direct_step(self) -> Callable[[int, int], None]:
        """A step without a look at actions, for one who steps a single replica on the host."""

        def step(actions: int, kind: int) -> None:
            if self._watched:
                self._look_at_params()
            program = self.program  # parameters may have called for another
            program.step_call.actions, program.step_call.action_kind = actions, kind
            program.launch_step(0)

        return step

    def forget_action_error(self) -> None:
        """Forgets the invalid action on record."""
        self.arrays.write(self.buffers["offence"], _NO_ERROR)

    # --- parameters and program ---

    @property
    def layout(self) -> Layout:
        """What the generated code depends on now."""
        return self.program.layout

    @property
    def params(self) -> dict[str, Any]:
        """The parameters: those that replicas have their own of as live arrays."""
        return {name: self.param_arrays.get(name, self._shared.get(name)) for name in self.config.spec.settings}

    def host_params(self, without: str = "") -> dict[str, ParamValue]:
        """The parameters as they stand, live arrays read and checked.

        Args:
            without: The one that is about to be replaced, which need not be what it must.
        """
        spec, n, precision = self.config.spec, self.config.num_envs, self.config.precision
        held = {name: self.arrays.read(array) for name, array in self.param_arrays.items()}
        found: dict[str, ParamValue] = {**self.params, **held}
        for name in held.keys() - {without}:
            spec.settings[name].check_array(name, held[name], n, precision, self.sizes_of(name))
        known = {name: value for name, value in found.items() if name != without}
        spec.check_order(known, precision, drawn=self.drawn)
        if not without:
            spec.check_derived(known, n, precision)
        return found

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter that is an array; of another ``()``."""
        rank = self.config.spec.settings[name].rank
        return tuple(self.param_arrays[name].shape[-rank:]) if rank else ()

    def _look_at_params(self) -> None:
        """On the host: raises a ValueError for what was written into a live array and must not be."""
        if any(live.tobytes() != seen for live, seen in self._watched):
            self.host_params()
            self._watch()

    def _watch(self) -> None:
        """On the host: notes what stands in the live arrays that kernels do not write; it has been checked."""
        if self.backend.device == "cpu":
            lives = [to_numpy(array) for name, array in self.param_arrays.items() if name not in self.drawn]
            self._watched = [(live, live.tobytes()) for live in lives]

    def set_params(self, changed: Mapping[str, ParamValue], drawn: Mapping[str, Distribution] | None = None) -> None:
        """Takes over checked parameters, all or none; compiles anew where one becomes per replica or is compiled in.

        One that replicas have their own of keeps its array: a value for all fills it. ``drawn``, where given, are all
        that are drawn from now on.
        """
        drawn = self.drawn if drawn is None else drawn
        config, arrays, n = self.config, self.arrays, self.config.num_envs
        spec, values = config.spec, param_values(config.spec, changed)
        own = {n for n, value in values.items() if spec.settings[n].is_per_replica(value)} | self._own | drawn.keys()
        shared = {name: value for name, value in {**self._shared, **changed}.items() if name not in own}
        baked = baked_values(spec, param_values(spec, shared))
        program = self.program
        before = program.layout
        if (before.per_replica, before.baked, before.drawn) != (frozenset(own), baked, drawn):
            layout = layout_of(config, self.backend.traits, frozenset(own), baked, drawn)
            program = EnvProgram(layout, self.buffers, arrays, self.backend)
        held = {
            name: np.broadcast_to(values[name], (*([n] * (name in own)), *np.shape(values[name])[-param.rank :]))
            if param.rank
            else np.broadcast_to(values[name], n)
            for name, param in spec.settings.items()
            if name in values and (name in own or param.rank)
        }
        held = {n: v.astype(config.precision if spec.settings[n].kind == "real" else "int32") for n, v in held.items()}
        shapes = {name: tuple(array.shape) for name, array in self.param_arrays.items()}
        fresh = {name: arrays.from_numpy(v) for name, v in held.items() if shapes.get(name) != v.shape}
        for name in held.keys() - fresh.keys():  # from here on nothing can fail
            arrays.write(self.param_arrays[name], held[name])
        self._own, self._shared, self.drawn, self.program = frozenset(own), shared, drawn, program
        self.param_arrays = {**self.param_arrays, **fresh}
        own_arrays = {**self._allocated, **self.param_arrays}
        places = {name: arrays.address(array) for name, array in own_arrays.items()}
        self._memory = tuple(sorted((at, at + own_arrays[name].nbytes, name) for name, at in places.items()))
        self._watch()
        self.prepare(program.calls.values())

    @contextlib.contextmanager
    def measured(self) -> Iterator[Array | None]:
        """While it lasts, each step writes what the metrics come to so far.

        Yields:
            ``[num_envs, metrics]``, NaN where no step was taken; None: there are no metrics, or they are not kept.
        """
        if not self.config.metrics:
            yield None
            return
        shape, dtype = self.shapes["episode_metrics"]
        found = self.buffers["so_far"] = self.arrays.from_numpy(np.full(shape, np.nan, dtype))
        self._compile(measured=True)
        try:
            yield found
        finally:
            self._compile(measured=False)

    def _compile(self, *, measured: bool) -> None:
        """Takes a program that measures each step, or the one that does not."""
        with self.turn:
            config, before = dataclasses.replace(self.config, measured=measured), self.layout
            layout = layout_of(config, self.backend.traits, before.per_replica, before.baked, before.drawn)
            self.program, self.config = EnvProgram(layout, self.buffers, self.arrays, self.backend), config
            self.prepare(self.program.calls.values())

    def prepare(self, calls: Iterable[Any]) -> None:
        """Writes parameters and flags into what kernels are called with."""
        values = param_values(self.config.spec, self._shared)
        for call in calls:
            for name in self.config.spec.settings:
                array = self.param_arrays.get(name)
                setattr(call.params, name, values[name] if array is None else self.arrays.address(array))
            for name, table in self._tables.items():
                setattr(call.params, name, self.arrays.address(table))
            self._write_flags(call)

    # --- launches ---

    def reset(
        self,
        seeds: int | Sequence[int | None] | None,
        mask: Array | None,
        options: Mapping[str, ParamValue],
        out: Sequence[tuple[int, str, int]] = (),
    ) -> None:
        """Begins new episodes.

        Args:
            seeds: The first replica's seed, the others' counting up; or one for each, None to keep its own; or None.
            mask: Which replicas, as bytes that are not zero, in this simulation's memory; None: all.
            options: Parameters of this reset alone.
            out: Results to write elsewhere, as of ``step``.
        """
        if self._watched:
            self._look_at_params()
        call = self.program.calls["reset"]
        kept = []
        for name, value in param_values(self.config.spec, options).items():
            if name in self.param_arrays:  # an option of this reset alone, where replicas have their own
                array = self.param_arrays[name]
                kept.append(self.arrays.from_numpy(np.full(array.shape, value, dtype_name(array))))
                value = self.arrays.address(kept[-1])
            setattr(call.params, name, value)
        call.mask = None if mask is None else self.arrays.address(mask)
        call.reseed, call.new_seeds, call.reseed_all = None, None, 0
        chosen, bits = None, None  # what is freed here is used again by later work of the same stream only
        if mask is None and seeds is not None and (isinstance(seeds, int) or None not in seeds):
            self.randomness = {"seed": seeds if isinstance(seeds, int) else int(seeds[0] or 0), "calls": 0}
        if isinstance(seeds, int):
            call.first_seed, call.reseed_all = (seed_bits(seeds) + self.config.first_replica) % 2**64, 1
        elif seeds is not None:
            chosen = self.arrays.from_numpy(np.array([s is not None for s in seeds]))
            known = np.array([0 if s is None else seed_bits(s) for s in seeds], np.uint64)
            bits = self.arrays.from_numpy(known.view(np.int64))
            call.reseed, call.new_seeds = self.arrays.address(chosen), self.arrays.address(bits)
        self._launch_into(self.program.launch["reset"], self.program.reset_places, out)
        if options:  # they hold for this reset alone, and so do arrays made for them
            self.prepare([call])
        self.ready = True

    def observe(self) -> None:
        """Writes the observations of the state as it stands."""
        if self._watched:
            self._look_at_params()
        call = self.program.calls["reset"]
        call.observe_only = 1
        self.program.launch["reset"](self.arrays.stream())
        call.observe_only = 0

    def step(self, actions: Sequence[tuple[int, int]], out: Sequence[tuple[int, str, int]] = ()) -> None:
        """Steps every replica once.

        Args:
            actions: For each place that takes some, where the actions are, and their element type, an ``ActionKind``.
            out: Results to write elsewhere than into the buffers: number of the place, name, address.
        """
        if self._watched:
            self._look_at_params()
        program, call = self.program, self.program.step_call
        for place, (address, kind) in zip(program.acting, actions, strict=True):
            place.actions, place.action_kind = address, kind
        self.launches += 1
        call.launch = self.launches
        if not out:
            program.launch_step(self.arrays.stream())
            return
        self._launch_into(program.launch_step, program.step_places, out)

    def _launch_into(self, launch: Launch, places: Sequence[Any], out: Sequence[tuple[int, str, int]]) -> None:
        """Launches a kernel that writes these results elsewhere than into the buffers."""
        for place, name, address in out:
            setattr(places[place], name, address)
        try:
            launch(self.arrays.stream())
        finally:
            for place, name, _ in out:
                setattr(places[place], name, self.program.own_places[place, name])

    def set_step_flags(self, **flags: bool) -> None:
        """Chooses what a step does besides; what is not named stays.

        Args:
            **flags: ``report_frozen``: put on record when a replica is stepped whose episode is over; ``clear_final``:
                keep ``final_obs`` zero where no episode has just ended.
        """
        self._flags |= {name: int(flag) for name, flag in flags.items()}
        for call in self.program.calls.values():
            self._write_flags(call)

    def _write_flags(self, call: Any) -> None:
        for name, value in self._flags.items():
            if hasattr(call, name):
                setattr(call, name, value)

    def inspect(self, actions: Sequence[tuple[int, int]], hosts: Sequence[np.ndarray]) -> None:
        """Raises an ActionError if one of these actions is invalid. Nothing has changed then.

        Args:
            actions: For each place, where the actions are, and their element type.
            hosts: The same actions, for the message.
        """
        program = self.program
        call = program.calls["inspect"]
        for place, (address, kind) in zip(program.inspected, actions, strict=True):
            place.actions, place.action_kind = address, kind
        self.launches += 1
        call.launch = self.launches
        program.launch["inspect"](self.arrays.stream())
        self.check(hosts)

    def rollout(self, steps: int, actions: int | None, kind: int, per_step: bool, results: Mapping[str, Array]) -> None:
        """Takes many steps in one launch; ``results`` are written."""
        program = self.program
        if "rollout" not in program.calls:
            self.prepare(program.load("rollout"))
        if self._watched:
            self._look_at_params()
        call = program.calls["rollout"]
        call.steps, call.per_step = steps, int(per_step)
        call.actions, call.action_kind = actions, kind
        self.launches += 1
        call.launch = self.launches
        call.random_actions = None
        for affix, place in program.places["rollout"]:
            for name, *_ in place._fields_:
                if name + affix in results:
                    setattr(place, name, self.arrays.address(results[name + affix]))
        program.launch["rollout"](self.arrays.stream())

    def check(self, hosts: Sequence[np.ndarray] = ()) -> None:
        """Raises an ActionError if an action was invalid since the last check; waits for the device.

        Args:
            hosts: The actions of that step, where they are known.
        """
        record = self.arrays.read(self.buffers["offence"])
        if record[0] == 0:
            return
        self.forget_action_error()
        layout = self.layout
        replica, agent, step = layout.where(int(record[1]))
        kind = int(record[0]) & 3
        who = layout.who(agent) if kind != EPISODE_OVER else ""
        where = f"{self.config.name_of(replica)}, {who}step {step} of its episode"
        raise self.action_error(kind, where, hosts, replica, agent)

    def action_error(
        self, kind: int, where: str, hosts: Sequence[np.ndarray], replica: int, agent: int = 0
    ) -> ActionError:
        """The error for one of a step's actions, which are told where they are known; ``where`` begins the message."""
        given, allowed = self.layout.given(hosts, replica, agent), self.layout.allowed(agent)
        return ActionError(f"{where}: {_ACTION_ERRORS[kind].format(given=given, allowed=allowed)}")

    def stagger(self, offsets: np.ndarray) -> None:
        """Cuts the episode of each replica short by so many steps, and by none of those that follow."""
        self.arrays.write(self.buffers["offset"], offsets.astype(np.int32))
        self.arrays.write(self.buffers["staggered"], np.array([np.count_nonzero(offsets)], np.int32))
