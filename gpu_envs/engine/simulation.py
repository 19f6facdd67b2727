"""The replicas of one environment on one device: memory, kernels and launches, without Gymnasium's interface."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, dtype_name, to_numpy
from gpu_envs.backend.base import Backend, Launch
from gpu_envs.codegen import (
    NUMBERS,
    Layout,
    SimulationConfig,
    baked_values,
    distribution_numbers,
    generate,
    kinds_of,
    layout_of,
    param_values,
    tables,
)
from gpu_envs.engine.program import EnvProgram
from gpu_envs.engine.results import allocate, check_memory
from gpu_envs.engine.state import LiveState
from gpu_envs.errors import ActionError
from gpu_envs.seeds import seed_bits
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.params import ParamValue

NO_LIMIT = 2**31 - 1
"""No time limit: the largest value of the step counter."""

_NO_ERROR = np.array([0, -1], np.int64)
OUT_OF_RANGE, NOT_A_NUMBER, EPISODE_OVER = 1, 2, 3
"""Kinds of invalid actions, as in ``actions.cuh``."""

_ACTION_ERRORS = {
    OUT_OF_RANGE: "an action is out of range{value}: allowed are {allowed}",
    NOT_A_NUMBER: "an action is not a number (NaN)",
    EPISODE_OVER: "the episode is over and autoreset_mode is 'Disabled': reset it with options={{'reset_mask': ...}}, "
    "or call env.allow_frozen_steps() first to step until the episodes of all replicas are over",
}


@final
class Simulation:
    """Buffers, kernels and launches.

    Attributes:
        known_params: The parameters as last set, on the host: without what kernels or users have written into arrays.
    """

    def __init__(self, config: SimulationConfig, backend: Backend, output: str) -> None:
        """Allocate the buffers and compile the kernels.

        Args:
            config: Spec, parameters and options of the simulation.
            backend: Backend of the device.
            output: Library of the returned arrays, ``numpy``, ``torch`` or ``cupy``.
        """
        self.config = config
        self.backend = backend
        self.arrays = backend.arrays(output)
        self.lock = threading.RLock()
        self.ready, self.launches = False, 0
        self.randomness = {"seed": 0, "calls": 0}  # source of fresh random numbers
        self.copy_cache: dict[Any, Any] = {}  # compiled copies and buffers of snapshots.py
        self._flags = {"report_frozen": 0, "clear_final": 0}
        self._shared: dict[str, ParamValue] = {}
        self._per_replica: frozenset[str] = frozenset()
        self.drawn: Mapping[str, Distribution] = config.drawn
        self.param_arrays: dict[str, Array] = {}
        self._numbers: Array | None = None  # of distributions
        self.known_params: dict[str, ParamValue] = {}
        self._checked_params: list[tuple[np.ndarray, bytes]] = []
        settings = config.spec.settings
        per_replica = frozenset(name for name, value in config.params.items() if settings[name].is_per_replica(value))
        layout = self._allocate(per_replica)
        self.program = EnvProgram(layout, self.buffers, self.arrays, backend)
        self.set_params(config.params)

    # --- memory ---

    def _allocate(self, per_replica: frozenset[str]) -> Layout:
        """Allocate buffers, tables and state; return the layout. A MemoryError if the device is too small."""
        host_tables = tables(self.config)  # called once: large tables take time, and as much memory of the host
        shapes = {name: values.shape for name, values in host_tables.items()}
        self.config = dataclasses.replace(self.config, table_shapes=shapes)
        layout = layout_of(self.config, self.backend.traits, per_replica)
        refusal = check_memory(layout, self.backend, host_tables.values())
        try:
            self.buffers = allocate(self.arrays, layout.buffers())
            self._tables = {name: self.arrays.from_numpy(values) for name, values in host_tables.items()}
        except (MemoryError, RuntimeError) as error:  # torch and CuPy raise RuntimeError
            raise MemoryError(f"{refusal} ({error})") from error
        self.arrays.write(self.buffers["offence"], _NO_ERROR)
        self._allocated = {**self.buffers, **self._tables}
        layout.add_views(self.buffers, self.arrays)
        fields = {f: self.buffers[f"state.{f}"] for f in self.config.spec.fields}
        self.state = LiveState(fields, self.arrays)
        self.elapsed: Array = self.buffers["elapsed"]
        self.shapes = layout.results()
        return layout

    def memory(self) -> tuple[tuple[int, int, str], ...]:
        """The memory ranges of the simulation's arrays, sorted: first address, end address, name."""
        return self._memory

    def program_source(self) -> str:
        """The C++ source of the kernels of single steps and resets."""
        return generate(self.layout, self.layout.modules[0]).source

    def direct_step(self) -> Callable[[int, int], None]:
        """A function that steps without checking actions, for fast steps of a single replica on the host."""

        def step_unchecked(actions: int, kind: int) -> None:
            if self._checked_params:
                self._check_live_params()
            program = self.program  # not bound earlier: changed parameters may have replaced it
            program.step_args.actions, program.step_args.action_kind = actions, kind
            program.launch_step(0)

        return step_unchecked

    def forget_action_error(self) -> None:
        """Clear the record of an invalid action."""
        self.arrays.write(self.buffers["offence"], _NO_ERROR)

    # --- parameters and program ---

    @property
    def layout(self) -> Layout:
        """The layout of the current program."""
        return self.program.layout

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; values per replica are live arrays."""
        return {name: self.param_arrays.get(name, self._shared.get(name)) for name in self.config.spec.settings}

    def host_params(self, unchecked: str = "") -> dict[str, ParamValue]:
        """Return the current parameters on the host, with copies of live arrays; raise an error if one is invalid.

        Args:
            unchecked: Name of a parameter that is about to be replaced.
        """
        spec, n, precision = self.config.spec, self.config.num_envs, self.config.precision
        host_arrays = {name: self.arrays.read(array) for name, array in self.param_arrays.items()}
        params: dict[str, ParamValue] = {**self.params, **host_arrays}
        for name in host_arrays.keys() - {unchecked}:
            spec.settings[name].check_array(name, host_arrays[name], n, precision, self.sizes_of(name))
        checked = {name: value for name, value in params.items() if name != unchecked}
        spec.check_order(checked, precision, drawn=self.drawn)
        if not unchecked:
            spec.check_derived(checked, n, precision)
        return params

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """The shape of one value of a parameter; ``()`` for scalars."""
        rank = self.config.spec.settings[name].rank
        return tuple(self.param_arrays[name].shape[-rank:]) if rank else ()

    def _check_live_params(self) -> None:
        """On the CPU, raise a ValueError if the user has written invalid values into a live array."""
        if any(live.tobytes() != checked for live, checked in self._checked_params):
            self.host_params()
            self._remember_checked()

    def _remember_checked(self) -> None:
        """On the CPU, store the checked bytes of the live arrays, except for drawn parameters, which kernels write."""
        if self.backend.device == "cpu":
            live_arrays = [to_numpy(array) for name, array in self.param_arrays.items() if name not in self.drawn]
            self._checked_params = [(live, live.tobytes()) for live in live_arrays]

    def set_params(self, changed: Mapping[str, ParamValue], drawn: Mapping[str, Distribution] | None = None) -> None:
        """Set checked parameters, all or none.

        Recompiles if one gets values per replica, is a compiled-in constant, or changes to another distribution. Other
        numbers of a distribution are written to the device, in stream order.

        Args:
            changed: The new values. A parameter with values per replica keeps its array, which one value for all fills.
            drawn: All distributions from now on; None keeps the current ones.
        """
        drawn = self.drawn if drawn is None else drawn
        config, arrays, n = self.config, self.arrays, self.config.num_envs
        spec, values = config.spec, param_values(config.spec, changed)
        per_replica = {n for n, value in values.items() if spec.settings[n].is_per_replica(value)}
        per_replica |= self._per_replica | drawn.keys()
        shared = {name: value for name, value in {**self._shared, **changed}.items() if name not in per_replica}
        baked = baked_values(spec, param_values(spec, shared))
        program, before = self.program, self.layout
        compiled = (frozenset(per_replica), baked, kinds_of(spec, drawn))
        if (before.per_replica, before.baked, before.drawn) != compiled:
            layout = layout_of(config, self.backend.traits, frozenset(per_replica), baked, drawn)
            program = EnvProgram(layout, self.buffers, arrays, self.backend)
        new_values = {}
        for name, param in spec.settings.items():
            if name in values and (name in per_replica or param.rank):
                shape = np.shape(values[name])[-param.rank :] if param.rank else ()
                rows = np.broadcast_to(values[name], (*[n] * (name in per_replica), *shape))
                new_values[name] = rows.astype(config.precision if param.kind == "real" else "int32")
        numbers = self._numbers_of(drawn)
        same_size = self._numbers is not None and self._numbers.shape == numbers.shape
        stored_numbers = self._numbers if same_size else arrays.from_numpy(numbers) if drawn else None
        shapes = {name: tuple(array.shape) for name, array in self.param_arrays.items()}
        fresh = {name: arrays.from_numpy(v) for name, v in new_values.items() if shapes.get(name) != v.shape}
        for name in new_values.keys() - fresh.keys():  # nothing raises an error from here on
            arrays.write(self.param_arrays[name], new_values[name])
        if same_size:
            arrays.write(self._numbers, numbers)
        self._per_replica, self._shared, self.drawn, self.program = frozenset(per_replica), shared, drawn, program
        self._numbers, self.param_arrays = stored_numbers, {**self.param_arrays, **fresh}
        self.known_params = {**self.known_params, **changed}
        sim_arrays = {**self._allocated, **self.param_arrays}
        addresses = {name: arrays.address(array) for name, array in sim_arrays.items()}
        self._memory = tuple(sorted((at, at + sim_arrays[name].nbytes, name) for name, at in addresses.items()))
        self._remember_checked()
        self.prepare(program.args.values())

    def write_distributions(self, drawn: Mapping[str, Distribution]) -> None:
        """Write other numbers of the same distributions to the device, in stream order."""
        self.arrays.write(self._numbers, self._numbers_of(drawn))
        self.drawn = drawn

    def _numbers_of(self, drawn: Mapping[str, Distribution]) -> np.ndarray:
        rows = distribution_numbers(self.config, drawn).values()
        return np.array([number for row in rows for number in row], self.config.precision)

    def write_params(self, changed: Mapping[str, ParamValue]) -> None:
        """Write checked values of parameters that have values per replica to the device, in stream order."""
        for name, value in param_values(self.config.spec, changed).items():
            array = self.param_arrays[name]
            if isinstance(value, np.ndarray):
                self.arrays.write(array, np.ascontiguousarray(np.broadcast_to(value, array.shape), dtype_name(array)))
            else:
                self.arrays.fill(array, value)
        self._remember_checked()

    @contextlib.contextmanager
    def live_metrics(self) -> Iterator[Array | None]:
        """Context whose steps write the current metrics of running episodes.

        Yields:
            ``[num_envs, metrics]``, NaN until a replica is stepped; None if there are no metrics or statistics are off.
        """
        if not self.config.metrics:
            yield None
            return
        shape, dtype = self.shapes["episode_metrics"]
        metrics = self.buffers["running_metrics"] = self.arrays.from_numpy(np.full(shape, np.nan, dtype))
        self._compile(running_metrics=True)
        try:
            yield metrics
        finally:
            self._compile(running_metrics=False)

    def _compile(self, *, running_metrics: bool) -> None:
        """Compile and switch to a program that writes ``running_metrics`` at each step, or back."""
        with self.lock:
            config, before = dataclasses.replace(self.config, running_metrics=running_metrics), self.layout
            layout = layout_of(config, self.backend.traits, before.per_replica, before.baked, self.drawn)
            self.program, self.config = EnvProgram(layout, self.buffers, self.arrays, self.backend), config
            self.prepare(self.program.args.values())

    def prepare(self, args: Iterable[Any]) -> None:
        """Write parameters, the addresses of tables, and flags into the argument structs of kernels."""
        values = param_values(self.config.spec, self._shared)
        for kernel_args in args:
            for name in self.config.spec.settings:
                array = self.param_arrays.get(name)
                setattr(kernel_args.params, name, values[name] if array is None else self.arrays.address(array))
            for name, table in self._tables.items():
                setattr(kernel_args.params, name, self.arrays.address(table))
            if self._numbers is not None:
                setattr(kernel_args.params, NUMBERS, self.arrays.address(self._numbers))
            self._write_flags(kernel_args)

    # --- launches ---

    def reset(
        self,
        seeds: int | Sequence[int | None] | None,
        mask: Array | None,
        options: Mapping[str, ParamValue],
        out: Sequence[tuple[int, str, int]] = (),
    ) -> None:
        """Start new episodes in all replicas, or only where ``mask`` is set, and write their observations.

        Args:
            seeds: The first replica's seed, with the others counting up; or a seed for each replica. None keeps seeds.
            mask: The replicas to reset, as nonzero bytes in this simulation's memory; None for all.
            options: Parameters that apply to this reset only.
            out: Results to write to other addresses than the buffers, as in ``step``.
        """
        self._check_live_params()
        args = self.program.args["reset"]
        option_arrays = []
        for name, value in param_values(self.config.spec, options).items():
            if name in self.param_arrays:  # the kernel expects values per replica
                array = self.param_arrays[name]
                option_arrays.append(self.arrays.from_numpy(np.full(array.shape, value, dtype_name(array))))
                value = self.arrays.address(option_arrays[-1])
            setattr(args.params, name, value)
        args.mask = None if mask is None else self.arrays.address(mask)
        args.reseed, args.new_seeds, args.reseed_all = None, None, 0
        if mask is None and seeds is not None and (isinstance(seeds, int) or None not in seeds):
            self.randomness = {"seed": seeds if isinstance(seeds, int) else int(seeds[0] or 0), "calls": 0}
        if isinstance(seeds, int):
            args.first_seed, args.reseed_all = (seed_bits(seeds) + self.config.first_replica) % 2**64, 1
        elif seeds is not None:
            # The arrays may be freed before the launch ends: only later work of the stream reuses their memory.
            reseed = self.arrays.from_numpy(np.array([s is not None for s in seeds]))
            values = np.array([0 if s is None else seed_bits(s) for s in seeds], np.uint64)
            bits = self.arrays.from_numpy(values.view(np.int64))
            args.reseed, args.new_seeds = self.arrays.address(reseed), self.arrays.address(bits)
        self._launch_into(self.program.launch["reset"], self.program.reset_parts, out)
        if options:  # restore the parameters: options apply to this reset only
            self.prepare([args])
        self.ready = True

    def observe(self) -> None:
        """Write the observations and action masks of the current state into the buffers."""
        self._check_live_params()
        args = self.program.args["reset"]
        args.observe_only = 1
        self.program.launch["reset"](self.arrays.stream())
        args.observe_only = 0

    def step(self, actions: Sequence[tuple[int, int]], out: Sequence[tuple[int, str, int]] = ()) -> None:
        """Launch one step of every replica; ``check`` waits for it and raises an error if an action was invalid.

        Args:
            actions: Address and element type, an ``ActionKind``, of the actions for each of the step's action parts.
            out: Results to write to other addresses than the buffers: index of the part, name, address.
        """
        if self._checked_params:
            self._check_live_params()
        program, args = self.program, self.program.step_args
        for part, (address, kind) in zip(program.step_action_parts, actions, strict=True):
            part.actions, part.action_kind = address, kind
        self.launches += 1
        args.launch = self.launches
        if out:
            self._launch_into(program.launch_step, program.step_parts, out)
        else:
            program.launch_step(self.arrays.stream())

    def _launch_into(self, launch: Launch, parts: Sequence[Any], out: Sequence[tuple[int, str, int]]) -> None:
        """Launch a kernel that writes the results in ``out`` to these addresses instead of the buffers."""
        for part, name, address in out:
            setattr(parts[part], name, address)
        try:
            launch(self.arrays.stream())
        finally:
            for part, name, _ in out:
                setattr(parts[part], name, self.program.buffer_addresses[part, name])

    def set_step_flags(self, **flags: bool) -> None:
        """Set flags of steps; flags that are not passed keep their values.

        Args:
            **flags: ``report_frozen``: record an error if a replica is stepped whose episode is over; ``clear_final``:
                write zeros to ``final_obs`` of replicas whose episode has not just ended.
        """
        self._flags |= {name: int(flag) for name, flag in flags.items()}
        for args in self.program.args.values():
            self._write_flags(args)

    def _write_flags(self, args: Any) -> None:
        for name, value in self._flags.items():
            if hasattr(args, name):
                setattr(args, name, value)

    def inspect(self, actions: Sequence[tuple[int, int]], hosts: Sequence[np.ndarray]) -> None:
        """Raise an ActionError if an action is invalid, without a step; waits for the device.

        Args:
            actions: Address and element type of the actions for each action part.
            hosts: The same actions on the host, for the message.
        """
        program, args = self.program, self.program.args["inspect"]
        for part, (address, kind) in zip(program.inspect_action_parts, actions, strict=True):
            part.actions, part.action_kind = address, kind
        self.launches += 1
        args.launch = self.launches
        program.launch["inspect"](self.arrays.stream())
        self.check(hosts)

    def rollout(self, steps: int, actions: int | None, kind: int, per_step: bool, results: Mapping[str, Array]) -> None:
        """Take ``steps`` steps in one launch and write into ``results``; ``actions``: their address, or None."""
        program = self.program
        if "rollout" not in program.args:
            self.prepare(program.load("rollout"))
        self._check_live_params()
        args = program.args["rollout"]
        args.steps, args.per_step, args.actions, args.action_kind = steps, int(per_step), actions, kind
        self.launches += 1
        args.launch = self.launches
        args.random_actions = None
        for affix, part in program.parts["rollout"]:
            for name, *_ in part._fields_:
                if name + affix in results:
                    setattr(part, name, self.arrays.address(results[name + affix]))
        program.launch["rollout"](self.arrays.stream())

    def check(self, hosts: Sequence[np.ndarray] = ()) -> None:
        """Raise an ActionError if an action was invalid since the last check; waits for the device.

        Args:
            hosts: The step's actions on the host, for the message; empty if they are on the device.
        """
        record = self.arrays.read(self.buffers["offence"])
        if record[0] == 0:
            return
        self.forget_action_error()
        replica, agent, step = self.layout.decode_location(int(record[1]))
        kind = int(record[0]) & 3
        who = self.layout.agent_label(agent) if kind != EPISODE_OVER else ""
        where = f"{self.config.replica_name(replica)}, {who}step {step} of its episode"
        raise self.action_error(kind, where, hosts, replica, agent)

    def action_error(
        self, kind: int, where: str, hosts: Sequence[np.ndarray], replica: int, agent: int = 0
    ) -> ActionError:
        """Return the error for an invalid action; ``where`` starts the message, and ``hosts`` may be empty."""
        value, allowed = self.layout.invalid_action(hosts, replica, agent), self.layout.allowed_actions(agent)
        return ActionError(f"{where}: {_ACTION_ERRORS[kind].format(value=value, allowed=allowed)}")

    def stagger(self, offsets: np.ndarray) -> None:
        """Shorten the current episode of each replica, and no later one, by ``offsets`` steps."""
        self.arrays.write(self.buffers["offset"], offsets.astype(np.int32))
        self.arrays.write(self.buffers["staggered"], np.array([np.count_nonzero(offsets)], np.int32))
