"""The replicas of an environment of either kind as its user meets them: what is no business of spaces or agents."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.arrays import Array, library_of, to_numpy
from gpu_envs.backend import open_backend
from gpu_envs.checking import NumberCheck
from gpu_envs.codegen import Config
from gpu_envs.errors import did_you_mean
from gpu_envs.options import Options
from gpu_envs.params import Value
from gpu_envs.resets import Reset, Seeds, check_seed, random_seed, read_mask, read_seeds
from gpu_envs.simulation import EPISODE_OVER, NO_LIMIT, Simulation
from gpu_envs.spec import Spec


@final
class Replicas:
    """A simulation, the choices it was made with, and what users read and write of it.

    Attributes:
        sim: The simulation.
        num_envs: The number of replicas.
        device: ``cpu`` or ``cuda:N``.
        on_cpu: Whether that is the host.
        output: The library of the arrays that come out.
        precision: Of state and reward.
        mode: ``NextStep``, ``SameStep`` or ``Disabled``.
        copy: Whether fresh arrays are returned.
        statistics: Whether ``infos["episode"]`` is given.
        numbers: In checking mode, what looks at every number; otherwise None.
    """

    def __init__(self, spec: Spec, num_envs: int, options: Options, device: str, params: Mapping[str, Any]) -> None:
        """Checks what was given, and allocates and compiles.

        Args:
            spec: What the environment is.
            num_envs: How many replicas, out of ``check_num_envs``.
            options: The constructor's other arguments.
            device: ``options.device``, resolved. The environment's constructor does that itself, so that a warning
                names the line of its caller.
            params: The environment's own parameters, as the user gave them.
        """
        options.check(device)
        self._options = options
        self._spec = spec
        self.num_envs = num_envs
        self.device = device
        self.on_cpu = device == "cpu"
        self.output = options.output
        self.precision = options.precision
        self.mode = options.mode
        self.copy = options.gives_copies
        self.statistics = options.gives_statistics
        self.sim = Simulation(
            config_of(spec, num_envs, options, params),
            open_backend(device, options.threads, options.block_size),
            options.library(device),
        )
        self.numbers = NumberCheck(self.sim) if options.checking else None
        self._strict = self.mode == "Disabled"
        self.sim.set_step_flags(
            report_frozen=self._strict, clear_final=self.output == "numpy" and self.on_cpu and not self.copy
        )

    def describe(self, kind: str) -> str:
        """What ``repr`` gives for an environment of a class of this name."""
        return (
            f"{kind}({self._spec.id!r}, num_envs={self.num_envs}, device={self.device!r}, "
            f"output={self.output!r}, autoreset_mode={self.mode!r})"
        )

    # --- before a call ---

    def check_open(self, closed: bool) -> None:
        """Raises an error if the environment is closed."""
        if closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self._spec.id} is closed; make another")

    def check_ready(self, closed: bool, method: str) -> None:
        """Raises an error if the environment is closed, or was never reset."""
        self.check_open(closed)
        if not self.sim.ready:
            raise gymnasium.error.ResetNeeded(f"call reset() before {method}()")

    def check_ended(self) -> None:
        """Raises an ActionError if a replica's episode is over and stepping it is an offence; waits for the device."""
        if not self._strict:
            return
        ended = self.sim.arrays.read(self.sim.buffers["ended"])
        if ended.any():
            raise self.sim.offence(EPISODE_OVER, int(np.argmax(ended)))

    def allow_frozen_steps(self, allow: bool) -> None:
        """In Disabled mode: whether stepping a replica whose episode is over is no offence, and changes nothing."""
        self._strict = self.mode == "Disabled" and not allow
        self.sim.set_step_flags(report_frozen=self._strict, clear_final=False)

    def read_reset(self, seed: Seeds, options: Mapping[str, Any] | None) -> Reset:
        """Returns what the simulation is to reset, or raises what is wrong with it.

        Args:
            seed: As given to ``reset``. Where there must be a seed and none is given, it is a random one.
            options: As given to ``reset``; not changed.
        """
        sim = self.sim
        given = dict(options or {})
        mask = read_mask(given.pop("reset_mask", None), self.num_envs, sim.arrays, on_cpu=self.on_cpu)
        layout = {name: given.pop(name) for name in self._spec.layouts if name in given}
        values = self._spec.check_options(given, sim.params)
        seeds = read_seeds(seed, self.num_envs, ready=sim.ready)
        if not sim.ready and seeds is None:
            if mask is not None:
                raise gymnasium.error.ResetNeeded("the first reset must be of all replicas: leave out 'reset_mask'")
            seeds = random_seed()
        return Reset(seeds, mask, values, self._read_layout(layout))

    def _read_layout(self, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Explicit values of the state's fields, of all replicas, or raises what is wrong with them."""
        found = {}
        for name, values in given.items():
            array, field = to_numpy(values), self.sim.state[name]
            shape, boolean = tuple(field.shape), str(field.dtype).endswith("bool")
            if array.shape not in (shape, shape[1:]):
                raise ValueError(
                    f"options[{name!r}] has shape {array.shape}; expected {shape[1:]} for all replicas, or {shape}"
                )
            if array.dtype.kind not in ("biuf" if boolean else "iuf"):
                raise TypeError(f"options[{name!r}] has dtype {array.dtype}; expected numbers")
            wrong = self._spec.check_layout(name, array, self.sim.params)
            if wrong:
                raise ValueError(f"options[{name!r}]: {wrong}")
            found[name] = np.broadcast_to(array, shape)
        return found

    def reset(self, asked: Reset) -> None:
        """Begins new episodes, and lays them out as asked."""
        sim = self.sim
        sim.reset(asked.seeds, asked.mask, asked.values)
        for name, values in asked.layout.items():
            mask = True if asked.mask is None else sim.arrays.read(asked.mask).reshape(-1, *(1,) * (values.ndim - 1))
            sim.state[name] = np.where(mask, values, sim.arrays.read(sim.state[name]))
        if asked.layout:
            sim.observe()

    def stagger(self, seed: int, closed: bool) -> None:
        """Moves each replica's episode to a random step of the time limit, and observes anew."""
        self.check_ready(closed, "stagger")
        limit = self.sim.config.limit
        if limit == NO_LIMIT:
            raise ValueError(
                f"stagger cuts first episodes short of the time limit, and this {self._spec.id} has none; leave it out"
            )
        if check_seed(seed) is None:
            raise TypeError("stagger needs a seed: a whole number")
        steps = np.random.default_rng(seed).integers(0, limit, self.num_envs)
        self.sim.arrays.write(self.sim.elapsed, steps.astype(np.int32))
        self.sim.observe()

    # --- what comes out ---

    def to_output(self, array: Array) -> Array:
        """One of the simulation's arrays in the output's library: itself, or a copy from the device."""
        return to_numpy(array) if self.output == "numpy" else array

    def given_out(self, name: str) -> Array:
        """One of the simulation's buffers as the user gets it: itself, or a copy."""
        array = self.sim.buffers[name]
        if not self.copy:
            return array
        if self.output == "numpy":
            return self.sim.arrays.read(array)
        return array.clone() if self.output == "torch" else array.copy()

    # --- parameters, state fields and attributes ---

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; those that replicas have their own of as live arrays."""
        return {**self.sim.params, **self.sim.param_arrays}

    def get_attr(self, owner: object, name: str) -> tuple[Any, ...]:
        """A parameter, a state field, or an attribute of ``owner``, as a tuple of one for each replica."""
        if name in self.sim.params:
            return self._per_replica(self._as_given(name, self.sim.params[name]))
        if name in self.sim.state:
            return tuple(self.sim.arrays.read(self.sim.state[name]).tolist())
        return self._per_replica(getattr(owner, name))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter or a state field, to one value or to one for each replica."""
        sim, spec = self.sim, self._spec
        if name in sim.state:
            sim.state[name] = values
            return
        if name not in sim.params:
            known = [*sim.params, *sim.state]
            raise ValueError(
                f"{spec.id} has no attribute {name!r} to set{did_you_mean(name, known)} There are: {', '.join(known)}."
            )
        if spec.settings[name].fixed:
            raise ValueError(f"shapes depend on {name!r}: it stays as it was when {spec.id} was made; make another")
        checked = spec.settings[name].check(name, values, self.num_envs)
        params = {**sim.params, name: checked}
        spec.check_order(params)
        spec.check_shapes(sim.params, params)
        sim.set_params(params)

    def call(self, owner: object, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of ``owner``, or reads what ``get_attr`` does: a tuple of one result for each replica."""
        if name in self.sim.params or name in self.sim.state:
            return self.get_attr(owner, name)
        member = getattr(owner, name)
        return self._per_replica(member(*args, **kwargs) if callable(member) else member)

    def _per_replica(self, value: Any) -> tuple[Any, ...]:
        if library_of(value) and tuple(value.shape[:1]) == (self.num_envs,):
            rows = np.array(to_numpy(value))
            return tuple(rows.tolist() if rows.ndim == 1 else rows)
        if isinstance(value, tuple | list) and len(value) == self.num_envs:
            return tuple(value)
        return (value,) * self.num_envs

    # --- snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Everything a trajectory depends on, copied, in the output's library; ``sim.restore`` takes it."""
        snapshot = self.sim.snapshot()
        return _on_host(snapshot) if self.output == "numpy" else snapshot

    def pickled(self, *, closed: bool) -> dict[str, Any]:
        """What makes an equal environment that goes on where this one is: ids, numbers and NumPy's arrays only.

        Args:
            closed: The environment is closed; its trajectories are left out.

        Returns:
            ``id`` of the spec, and ``place``, which names it in any process; ``arguments`` and ``params``, the
            constructor's; ``snapshot``, None before the first reset; ``closed``.
        """
        from gpu_envs.registry import lasting

        ready = self.sim.ready and not closed
        return {
            "id": self._spec.id,
            "place": lasting(self._spec.id),
            "arguments": {"num_envs": self.num_envs, **dataclasses.asdict(self._options)},
            "params": {name: self._as_given(name, value) for name, value in self._host_params().items()},
            "snapshot": _on_host(self.sim.snapshot()) if ready else None,
            "closed": closed,
        }

    def _host_params(self) -> dict[str, Value]:
        sim = self.sim
        return {n: sim.arrays.read(sim.param_arrays[n]) if n in sim.param_arrays else v for n, v in sim.params.items()}

    def _as_given(self, name: str, value: Value) -> Any:
        """A parameter as a user would give it: choices by their words."""
        param = self._spec.settings[name]
        if isinstance(value, np.ndarray) and param.kind != "real":
            kinds: dict[str, Callable[[int], Any]] = {"choice": param.choices.__getitem__, "bool": bool, "int": int}
            return [kinds[param.kind](i) for i in value.tolist()]
        return value


def config_of(spec: Spec, num_envs: int, options: Options, params: Mapping[str, Any]) -> Config:
    """What is to be simulated, of what a user gave."""
    named, limit = with_limit(spec, options, params)
    return Config(spec, num_envs, options.mode, options.precision, limit, spec.check_params(named, num_envs))


def with_limit(spec: Spec, options: Options, params: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The parameters and the step at which episodes are truncated, where a parameter may be another name for it."""
    named = dict(params)
    given, name = options.max_episode_steps, spec.limit
    if name is None:
        return named, options.limit(spec.max_episode_steps)
    if given is None:
        checked = spec.params[name].check(name, named.get(name, spec.params[name].default), 1)
        return named, int(checked)
    limit = options.limit(None)
    if given != -1 and named.setdefault(name, limit) != limit:
        raise ValueError(
            f"max_episode_steps is {given}, and {name}, which means the same, is {named[name]!r}; give one of them"
        )
    return named, limit


def _on_host(snapshot: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A snapshot whose arrays are NumPy's."""
    return {
        part: {n: v if library_of(v) == "" else to_numpy(v) for n, v in values.items()}
        for part, values in snapshot.items()
    }
