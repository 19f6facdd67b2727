"""One Gymnasium ``VectorEnv`` that drives any single-agent spec."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from gpu_envs.actions import ActionReader, Actions
from gpu_envs.arrays import Array, library_of, to_numpy
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS
from gpu_envs.errors import did_you_mean
from gpu_envs.results import OutReader, Rollout, Step
from gpu_envs.simulation import EPISODE_OVER, NO_LIMIT, RESULTS, Config, LiveState, Simulation
from gpu_envs.spec import EnvSpec, Value

OUTPUTS = ("numpy", "torch", "cupy")

Seeds: TypeAlias = int | Sequence[int | None] | None


def _choice(what: str, given: object, allowed: Sequence[str]) -> str:
    if given not in allowed:
        hint = did_you_mean(str(given), allowed)
        raise ValueError(f"{what} is {given!r}{hint} Allowed: {', '.join(repr(a) for a in allowed)}")
    return str(given)


def _check_limit(given: int | None, default: int | None) -> int:
    if given is None:
        return default or NO_LIMIT
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or (given < 1 and given != -1):
        raise ValueError(f"max_episode_steps is {given!r}; a whole number from 1 up, -1 for none, None for the default")
    return NO_LIMIT if given == -1 else min(int(given), NO_LIMIT)


def _check_seed(seed: object) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed must be a whole number or None; got {seed!r}")
    if seed < 0:
        raise ValueError(f"a seed must not be negative; got {seed}")
    return int(seed)


@final
class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many replicas of one environment, stepped by one launch.

    With ``output="numpy"`` (the default) a step returns fresh arrays. With ``"torch"`` and ``"cupy"``, and with
    ``copy=False``, it returns the simulator's own memory, which the next step overwrites.

    Attributes:
        num_envs: The number of replicas.
        device: ``cpu`` or ``cuda:N``.
        autoreset_mode: Gymnasium's enum; in ``metadata`` too.
        state: The live state, field by field. Assigning into it works.
        episode_return: The return of each replica's last finished episode.
        episode_length: Its length.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int = 1,
        *,
        device: str = "auto",
        output: str = "numpy",
        autoreset_mode: str | AutoresetMode = "NextStep",
        precision: str = "float32",
        max_episode_steps: int | None = None,
        copy: bool | None = None,
        statistics: bool | None = None,
        threads: int | None = None,
        block_size: int | None = None,
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Makes the replicas; ``gpu_envs.make`` is the usual way.

        Args:
            spec: What the environment is.
            num_envs: How many replicas.
            device: ``auto`` (CUDA where there is a CUDA device), ``cpu``, ``cuda`` or ``cuda:N``.
            output: The arrays that come out: ``numpy``, ``torch`` or ``cupy``.
            autoreset_mode: ``NextStep``, ``SameStep`` or ``Disabled``.
            precision: Of state and reward: ``float32`` or ``float64``. Observations are float32 in both.
            max_episode_steps: Truncates at this step; -1: never; None: the environment's default.
            copy: Return fresh arrays. None: for NumPy only.
            statistics: Give ``infos["episode"]`` where an episode ends. None: not for NumPy, where Gymnasium's
                RecordEpisodeStatistics gives it.
            threads: On the CPU: the most threads to use; None: one for each core.
            block_size: On CUDA: threads per block; None: the default.
            render_mode: None.
            **params: The environment's own parameters, each one value or an array with one for each replica.
        """
        if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise ValueError(f"num_envs is {num_envs!r}; a whole number from 1 up")
        if render_mode is not None:
            raise ValueError(f"render_mode is {render_mode!r}; {spec.id} can be made with None only")
        self._env_spec = spec
        self._arguments: dict[str, Any] = {
            "num_envs": int(num_envs),
            "device": str(device),
            "output": output,
            "autoreset_mode": autoreset_mode,
            "precision": precision,
            "max_episode_steps": max_episode_steps,
            "copy": copy,
            "statistics": statistics,
            "threads": threads,
            "block_size": block_size,
        }
        mode = _choice("autoreset_mode", getattr(autoreset_mode, "value", autoreset_mode), AUTORESET_MODES)
        self.num_envs = int(num_envs)
        self.device = resolve_device(device)
        self.output = _choice("output", output, OUTPUTS)
        self.precision = _choice("precision", precision, PRECISIONS)
        self.autoreset_mode = AutoresetMode(mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self.render_mode = None
        on_cpu = self.device == "cpu"
        if on_cpu and output == "cupy":
            raise ValueError("output='cupy' needs device='cuda'; on the CPU use output='numpy' or 'torch'")
        self._copy = output == "numpy" if copy is None else bool(copy)
        if output == "numpy" and not self._copy and not on_cpu:
            raise ValueError("copy=False with output='numpy' cannot be on CUDA: use output='torch' or 'cupy'")
        self._statistics = output != "numpy" if statistics is None else bool(statistics)
        checked = spec.check_params(params, self.num_envs)
        limit = _check_limit(max_episode_steps, spec.max_episode_steps)
        self._sim = Simulation(
            Config(spec, self.num_envs, mode, precision, limit, checked),
            open_backend(self.device, threads, block_size),
            ("numpy" if on_cpu else "cupy") if output == "numpy" else output,
        )
        self._same_step = mode == "SameStep"
        self._disabled = mode == "Disabled"
        self._strict = self._disabled
        self._on_cpu = on_cpu
        self._sim.set_step_flags(
            report_frozen=self._disabled, clear_final=output == "numpy" and on_cpu and not self._copy
        )
        self.single_observation_space = self._sim.observation_space
        self.single_action_space = self._sim.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._reader = ActionReader(self.single_action_space, self.num_envs, self.device, self._sim.arrays, precision)
        self._out = OutReader(self._sim.shapes, self.device)
        self._device_infos = self._live_infos()

    # --- Gymnasium's interface ---

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``; or a list with one seed, or None, for each. A seed begins a replica's
                episodes anew; without one the next episode follows.
            options: ``reset_mask`` (bools, ``[num_envs]``, NumPy, torch or CuPy), and the environment's own, which hold
                for this reset alone. It is not changed.

        Returns:
            The observations of all replicas, and an empty dict.
        """
        self._check_open()
        sim = self._sim
        given = dict(options or {})
        mask = self._read_mask(given.pop("reset_mask", None))
        values = sim.config.spec.check_options(given, sim.params)
        seeds = self._read_seeds(seed)
        if not sim.ready:
            if mask is not None and seeds is None:
                raise gymnasium.error.ResetNeeded("the first reset must be of all replicas: leave out 'reset_mask'")
            if seeds is None:
                seeds = secrets.randbits(63)
        if isinstance(seeds, int) and (seed is not None or self._np_random is None):
            super().reset(seed=seeds)
        observations = sim.buffers["observations"]
        sim.reset(seeds, mask, values, observations)
        return self._given_out("observations"), {}

    def step(self, actions: Any, *, out: Step | None = None) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: One for each replica: any array of the right shape, of any library.
            out: Arrays of your own to write into; they are returned in place of the simulator's.

        Returns:
            Observations, rewards, terminations, truncations and infos.

        Raises:
            ActionError: An action is out of range or not a number, and came from the host: nothing has changed.
                Those of the device are kept for ``check``.
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._check_open()
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        read = self._reader.read(actions)
        if read.host is not None:
            self._inspect(read)
        addresses = self._out.read(out) if out is not None else ()
        sim.step(read.address, read.kind, addresses)
        if self.output != "numpy" and not self._copy and out is None:
            b = sim.buffers
            return b["observations"], b["rewards"], b["terminations"], b["truncations"], dict(self._device_infos)
        if self.output == "numpy" and read.host is None:
            sim.check()
        observations, rewards, terminations, truncations = (self._result(n, out) for n in RESULTS[:4])
        return observations, rewards, terminations, truncations, self._infos(out)

    def rollout(self, steps: int, actions: Any = None, *, per_step: bool = False) -> Rollout:
        """Takes many steps in one launch. An episode that ends is followed at once by the next (SameStep).

        Args:
            steps: How many.
            actions: ``[steps, num_envs, ...]``; None: drawn uniformly in the kernel, from seed, episode and step.
            per_step: Give every step's results instead of their sums.

        Returns:
            The results. Only steps of the environments are counted: an episode that ended in an earlier step is
            restarted first.
        """
        sim = self._sim
        self._check_open()
        if not sim.ready:
            raise gymnasium.error.ResetNeeded("call reset() before rollout()")
        if self._disabled:
            raise ValueError("rollout restarts episodes by itself, which autoreset_mode='Disabled' forbids")
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise ValueError(f"steps is {steps!r}; a whole number from 1 up")
        address, kind, read = None, 0, None
        if actions is not None:
            read = self._reader.read(actions, int(steps))
            self._inspect_block(read, int(steps))
            address, kind = read.address, read.kind
        results = self._rollout_arrays(int(steps), per_step, drawn=actions is None)
        sim.rollout(int(steps), address, kind, per_step, results)
        if self.output == "numpy" and read is not None and read.host is None:
            sim.check()
        named = (
            ("observations", "rewards", "terminations", "truncations", "random_actions")
            if per_step
            else ("observations", "reward_sum", "terminated", "truncated", "random_actions")
        )
        totals = ("episodes", "return_sum", "length_sum")
        given = (results.get(name) for name in (*named, *totals))
        return Rollout(*(self._to_output(array) if array is not None else None for array in given))

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing is held that the garbage collector does not free."""

    def render(self) -> None:
        """There is no picture of this environment."""
        raise gymnasium.error.Error(f"{self._env_spec.id} was made with render_mode=None: there is no picture")

    @property
    def np_random_seed(self) -> tuple[int, ...] | None:  # type: ignore[override]  # a tuple, as SyncVectorEnv gives
        """Each replica's seed, or None before the first reset."""
        if not self._sim.ready:
            return None
        return tuple(int(s) for s in self._sim.arrays.read(self._sim.buffers["seeds"]).view(np.uint64))

    # --- beyond Gymnasium's interface ---

    @property
    def state(self) -> LiveState:
        """The live state, field by field."""
        return self._sim.state

    @property
    def episode_return(self) -> Array:
        """The return of each replica's last finished episode: live, or with NumPy output on CUDA a copy."""
        return self._to_output(self._sim.buffers["episode_return"])

    @property
    def episode_length(self) -> Array:
        """The length of each replica's last finished episode: live, or with NumPy output on CUDA a copy."""
        return self._to_output(self._sim.buffers["episode_length"])

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; those that replicas have their own of as live arrays."""
        return {**self._sim.params, **self._sim.param_arrays}

    def check(self) -> None:
        """Raises the first offence of the steps whose actions came from the device, if there was any."""
        self._sim.check()

    def direct_step(self) -> tuple[Callable[[int, int], None], tuple[Array, Array, Array]]:
        """A step that looks at nothing, and the arrays it writes: observations, rewards, terminations. Host only."""
        b = self._sim.buffers
        return self._sim.direct_step(), (b["observations"], b["rewards"], b["terminations"])

    def locate_action(self, actions: Array) -> tuple[int, int]:
        """Address and element type of actions, as ``direct_step`` takes them."""
        return self._reader.read(actions)[:2]

    def allow_frozen_steps(self) -> None:
        """In Disabled mode: stepping a replica whose episode is over is no offence, and changes nothing."""
        self._strict = False
        self._sim.set_step_flags(report_frozen=False, clear_final=False)

    def get_state(self) -> dict[str, Any]:
        """Copies out everything a trajectory depends on: state, episodes, seeds and parameters."""
        self._check_open()
        snapshot = self._sim.snapshot()
        if self.output != "numpy":
            return snapshot
        return {
            part: {n: v if library_of(v) == "" else to_numpy(v) for n, v in values.items()}
            for part, values in snapshot.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``get_state`` gave, here or in another environment of the same kind and size."""
        self._check_open()
        self._sim.restore(state)

    def observe(self) -> Array:
        """The observations of the state as it stands, after assigning into ``state``."""
        self._check_open()
        self._sim.observe(self._sim.buffers["observations"])
        return self._given_out("observations")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A parameter, a state field, or an attribute, as a tuple of one for each replica."""
        if name in self._sim.params:
            return self._per_replica(self._sim.params[name])
        if name in self._sim.state:
            return tuple(self._sim.arrays.read(self._sim.state[name]).tolist())
        return self._per_replica(getattr(self, name))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter or a state field, to one value or to one for each replica.

        A CUDA graph keeps the value that all replicas share as it was; values of each replica's own stay live.
        """
        if name in self._sim.state:
            self._sim.state[name] = values
            return
        if name not in self._sim.params:
            known = [*self._sim.params, *self._sim.state]
            raise ValueError(f"{self._env_spec.id} has no attribute {name!r} to set{did_you_mean(name, known)} "
                             f"There are: {', '.join(known)}.")  # fmt: skip
        checked = self._env_spec.settings[name].check(name, values, self.num_envs)
        params = {**self._sim.params, name: checked}
        self._env_spec.check_order(params)
        self._sim.set_params(params)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method, or reads an attribute: a tuple of one result for each replica."""
        if name in self._sim.params or name in self._sim.state:
            return self.get_attr(name)
        member = getattr(self, name)
        return self._per_replica(member(*args, **kwargs) if callable(member) else member)

    # --- pickling ---

    def __getstate__(self) -> dict[str, Any]:
        """The arguments that made it, and where its trajectories are."""
        ready = self._sim.ready and not self.closed
        params = {n: _as_given(self._env_spec, n, v) for n, v in self._host_params().items()}
        snapshot = self._sim.snapshot() if ready else None
        if snapshot is not None:
            snapshot = {
                part: {n: v if library_of(v) == "" else to_numpy(v) for n, v in values.items()}
                for part, values in snapshot.items()
            }
        return {
            "id": self._env_spec.id,
            "arguments": self._arguments,
            "params": params,
            "snapshot": snapshot,
            "closed": self.closed,
            "gymnasium": (self.spec, self._np_random, self._np_random_seed),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes an equal environment, on this machine, that goes on where the other was."""
        from gpu_envs.registry import spec

        VectorEnv.__init__(self, spec(state["id"]), **state["arguments"], **state["params"])
        self.spec, self._np_random, self._np_random_seed = state["gymnasium"]
        if state["snapshot"] is not None:
            self._sim.restore(state["snapshot"])
        self.closed = state["closed"]

    def __repr__(self) -> str:
        """Says what it is and where."""
        return (
            f"VectorEnv({self._env_spec.id!r}, num_envs={self.num_envs}, device={self.device!r}, "
            f"output={self.output!r}, autoreset_mode={self.autoreset_mode.value!r})"
        )

    # --- helpers ---

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self._env_spec.id} is closed; make another")

    def _host_params(self) -> dict[str, Value]:
        sim = self._sim
        return {n: sim.arrays.read(sim.param_arrays[n]) if n in sim.param_arrays else v for n, v in sim.params.items()}

    def _per_replica(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, np.ndarray) and value.shape[:1] == (self.num_envs,):
            return tuple(value.tolist())
        if isinstance(value, tuple | list) and len(value) == self.num_envs:
            return tuple(value)
        return (value,) * self.num_envs

    def _read_mask(self, mask: Any) -> Array | None:
        if mask is None:
            return None
        library = library_of(mask)
        if library not in OUTPUTS:
            raise TypeError(f"options['reset_mask'] is {type(mask).__name__}; give an array of NumPy, torch or CuPy")
        if tuple(mask.shape) != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] has shape {tuple(mask.shape)}; expected ({self.num_envs},)")
        if str(mask.dtype).rpartition(".")[2] != "bool":
            raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}; expected bool")
        on_host = library == "numpy" or (library == "torch" and mask.device.type == "cpu")
        if on_host and not mask.any():
            raise ValueError("options['reset_mask'] is False everywhere: it must name at least one replica")
        if library == self._sim.arrays.name and (self._on_cpu or not on_host):
            return (
                self._sim.arrays.full_of(to_numpy(mask))
                if self._on_cpu
                else mask.copy()
                if library == "cupy"
                else mask.clone()
            )
        return self._sim.arrays.full_of(to_numpy(mask))

    def _read_seeds(self, seed: Seeds) -> int | list[int | None] | None:
        if seed is None or isinstance(seed, int | np.integer):
            return _check_seed(seed)
        if isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray):
            raise TypeError(f"seed is {seed!r}; a whole number, or a list of {self.num_envs} (or None)")
        if len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} entries; expected {self.num_envs}, one for each replica")
        seeds = [_check_seed(s) for s in seed]
        if not self._sim.ready:
            return [secrets.randbits(63) if s is None else s for s in seeds]
        return seeds

    def _inspect(self, read: Actions) -> None:
        """Looks at actions that came from the host, before anything changes."""
        assert read.host is not None
        if self._on_cpu:
            self._sim.inspect(read.address, read.kind, read.host)
            return
        self._reader.check_values(read.host)
        if self._strict:
            ended = self._sim.arrays.read(self._sim.buffers["ended"])
            if ended.any():
                raise self._sim.offence(EPISODE_OVER, int(np.argmax(ended)))

    def _inspect_block(self, read: Actions, steps: int) -> None:
        if read.host is None:
            return
        if self._on_cpu:
            self._sim.inspect(read.address, read.kind, read.host, steps)
        else:
            self._reader.check_values(read.host)

    def _to_output(self, array: Array) -> Array:
        return to_numpy(array) if self.output == "numpy" else array

    def _given_out(self, name: str) -> Array:
        """One of the simulator's buffers as the user gets it: itself, or a copy."""
        array = self._sim.buffers[name]
        if not self._copy:
            return array
        if self.output == "numpy":
            return self._sim.arrays.read(array)
        return array.clone() if self.output == "torch" else array.copy()

    def _result(self, name: str, out: Step | None) -> Array:
        given = getattr(out, name) if out is not None else None
        return given if given is not None else self._given_out(name)

    def _live_infos(self) -> dict[str, Any]:
        """The infos of a step that returns the simulator's own memory: the same arrays every time."""
        b = self._sim.buffers
        finished = b["finished"]
        infos: dict[str, Any] = {}
        episode = {"r": b["episode_return"], "l": b["episode_length"]}
        if self._statistics:
            infos |= {"episode": episode, "_episode": finished}
        if self._same_step:
            final_info = {"episode": episode, "_episode": finished} if self._statistics else {}
            infos |= {
                "final_obs": b["final_obs"],
                "_final_obs": finished,
                "final_info": final_info,
                "_final_info": finished,
            }
        return infos

    def _infos(self, out: Step | None) -> dict[str, Any]:
        if not (self._statistics or self._same_step):
            return {}
        finished = self._given_out("finished")
        if self.output == "numpy" and not finished.any():
            return {}
        infos: dict[str, Any] = {}
        final_info: dict[str, Any] = {}
        if self._statistics:
            episode = {"r": self._result("episode_return", out), "l": self._result("episode_length", out)}
            if self.output == "numpy":
                episode = {k: np.where(finished, to_numpy(v), 0) for k, v in episode.items()}
            infos = {"episode": episode, "_episode": finished}
            final_info = dict(infos)
        if self._same_step:
            final_obs = self._result("final_obs", out)
            if self.output == "numpy" and self._copy and (out is None or out.final_obs is None):
                final_obs = np.where(finished.reshape(-1, *(1,) * (final_obs.ndim - 1)), final_obs, np.float32(0))
            infos |= {"final_obs": final_obs, "_final_obs": finished, "final_info": final_info, "_final_info": finished}
        return infos

    def _rollout_arrays(self, steps: int, per_step: bool, *, drawn: bool) -> dict[str, Array]:
        """Allocates what a rollout writes."""
        n, real = self.num_envs, self.precision
        row, action = self.single_observation_space.shape or (), self.single_action_space.shape or ()
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "observations": ((steps, n, *row) if per_step else (n, *row), "float32"),
            "reward_sum": ((n,), real),
            "terminated": ((n,), "int32"),
            "truncated": ((n,), "int32"),
            "episodes": ((n,), "int32"),
            "return_sum": ((n,), real),
            "length_sum": ((n,), "int32"),
        }
        if per_step:
            shapes |= {
                "rewards": ((steps, n), real),
                "terminations": ((steps, n), "bool"),
                "truncations": ((steps, n), "bool"),
            }
            if drawn:
                kind = "int64" if isinstance(self.single_action_space, gymnasium.spaces.Discrete) else "float32"
                shapes["random_actions"] = ((steps, n, *action), kind)
        needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
        refusal = f"the results of {steps:,} steps of {n:,} replicas need {needed / 2**30:,.1f} GiB; take fewer steps"
        if needed > self._sim.backend.memory():
            raise MemoryError(refusal)
        try:
            return {name: self._sim.arrays.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        except (MemoryError, RuntimeError) as error:
            raise MemoryError(f"{refusal} ({error})") from error


def _as_given(spec: EnvSpec, name: str, value: Value) -> Any:
    """A parameter as a user would give it: choices by their words."""
    param = spec.settings[name]
    if isinstance(value, np.ndarray) and param.kind != "real":
        return [param.choices[i] if param.choices else bool(i) for i in value.tolist()]
    return value
