"""One Gymnasium ``VectorEnv`` that drives any single-agent spec."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from gpu_envs.actions import ActionReader, Actions
from gpu_envs.arrays import Array, to_numpy
from gpu_envs.backend import resolve_device
from gpu_envs.codegen import RESULTS, SingleLayout
from gpu_envs.options import Options, check_num_envs
from gpu_envs.rendering import Renderer
from gpu_envs.replicas import Replicas
from gpu_envs.resets import Seeds
from gpu_envs.results import OutReader, Rollout, Step, given_for
from gpu_envs.simulation import NO_LIMIT, LiveState
from gpu_envs.spec import EnvSpec

_OBSERVED = ("observations", "final_obs")
"""Results that are dicts where the observation space is a Dict."""


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
        max_episode_steps: The step at which an episode is truncated; None: never.
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
        checking: bool = False,
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
            checking: Look at every number after every call, and raise a NotFiniteError for what is NaN or infinite. It
                waits for the device, so it is for finding mistakes, and never within a CUDA graph.
            render_mode: ``rgb_array`` (``render`` gives a frame for each replica, painted when looked at), ``tiled``
                (many replicas in one), ``human`` (that in a window, at each step), or None.
            **params: The environment's own parameters, each one value or an array with one for each replica.
        """
        count = check_num_envs(num_envs)
        options = Options(
            device=str(device),
            output=output,
            autoreset_mode=autoreset_mode,
            precision=precision,
            max_episode_steps=max_episode_steps,
            copy=copy,
            statistics=statistics,
            threads=threads,
            block_size=block_size,
            checking=checking,
        )
        self._replicas = replicas = Replicas(spec, count, options, resolve_device(device), params)
        self._env_spec = spec
        self._renderer = Renderer(spec.id, spec.drawing, render_mode, replicas.device)
        self.num_envs = count
        self.device = replicas.device
        self.output = replicas.output
        self.precision = replicas.precision
        self.autoreset_mode = AutoresetMode(replicas.mode)
        self.max_episode_steps = None if replicas.sim.config.limit == NO_LIMIT else replicas.sim.config.limit
        self.metadata = {"autoreset_mode": self.autoreset_mode, **self._renderer.metadata}
        self.render_mode = render_mode
        self._shown = render_mode == "human"
        self._followed = self._shown or checking  # so that a step looks at one attribute
        # kept here too, because a step looks at them: an attribute of an attribute costs time
        self._sim = replicas.sim
        self._copy = replicas.copy
        self._statistics = replicas.statistics
        self._same_step = replicas.mode == "SameStep"
        self._disabled = replicas.mode == "Disabled"
        self._on_cpu = replicas.on_cpu
        self.single_observation_space = spec.observation_space(self._sim.config.params)
        self.single_action_space = spec.action_space(self._sim.config.params)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._reader = ActionReader(
            self.single_action_space, (self.num_envs,), self.device, self._sim.arrays, precision
        )
        layout = self._sim.layout
        assert isinstance(layout, SingleLayout)
        self._parts, self._keys = layout.parts, layout.keys
        self._out = OutReader(self._sim.shapes, ("", *(f".{key}" for key in self._keys)), self.device, "key")
        self._masked = spec.masked
        self._everywhere = self._sim.arrays.full_of(np.ones(count, bool)) if self._masked else None
        self._device_infos = {} if self._keys else self._live_infos()

    # --- Gymnasium's interface ---

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``; or a list with one seed, or None, for each. A seed begins a replica's
                episodes anew; without one the next episode follows.
            options: ``reset_mask`` (bools, ``[num_envs]``, NumPy, torch or CuPy), and the environment's own, which hold
                for this reset alone. It is not changed.

        Returns:
            The observations of all replicas, and infos: ``action_mask`` where the rules say what is possible.
        """
        replicas = self._replicas
        replicas.check_open(self.closed)
        asked = replicas.read_reset(seed, options)
        if isinstance(asked.seeds, int) and (seed is not None or self._np_random is None):
            super().reset(seed=asked.seeds)
        self._replicas.reset(asked)
        if self._followed:
            self._follow(stepped=False)
        return self._given("observations"), self._masks(None)

    def step(self, actions: Any, *, out: Step | None = None) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: One for each replica: any array of the right shape, of any library.
            out: Arrays of your own to write into; they are returned in place of the simulator's.

        Returns:
            Observations, rewards, terminations, truncations and infos. Of a Dict the observations are a dict of arrays.

        Raises:
            ActionError: An action is out of range or not a number, and came from the host: nothing has changed.
                Those of the device are kept for ``check``.
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._replicas.check_ready(self.closed, "step")
        read = self._reader.read(actions)
        if read.host is not None:
            self._inspect(read)
        sim.step((read[:2],), self._out.read(out) if out is not None else ())
        if self._followed:
            self._follow(stepped=True, out=out)
        if self.output != "numpy" and not self._copy and not self._keys:
            b, infos = sim.buffers, dict(self._device_infos)
            if out is None:
                return b["observations"], b["rewards"], b["terminations"], b["truncations"], infos
            if out.final_obs is None and out.episode_return is None and out.episode_length is None:
                given = ((n, getattr(out, n)) for n in RESULTS[:4])
                observations, rewards, terminations, truncations = (b[n] if a is None else a for n, a in given)
                if out.action_mask is not None:
                    infos["action_mask"] = out.action_mask
                return observations, rewards, terminations, truncations, infos
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
        self._replicas.check_ready(self.closed, "rollout")
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
        numbers = self._replicas.numbers
        before = numbers.elapsed() if numbers is not None else None
        sim.rollout(int(steps), address, kind, per_step, results)
        if numbers is not None and before is not None:
            numbers.look_at_rollout(results, before)
        if self.output == "numpy" and read is not None and read.host is None:
            sim.check()
        named = (
            ("observations", "rewards", "terminations", "truncations", "random_actions")
            if per_step
            else ("observations", "reward_sum", "terminated", "truncated", "random_actions")
        )
        totals = ("episodes", "return_sum", "length_sum")
        given = {n: self._replicas.to_output(array) for n, array in results.items()}
        if self._keys:
            given["observations"] = {key: given.pop(f"observations.{key}") for key in self._keys}
        return Rollout(*(given.get(name) for name in (*named, *totals)))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the window, if there is one; the garbage collector frees all else."""
        del kwargs
        self._renderer.close()

    def render(self) -> Any:
        """What the replicas look like now.

        Returns:
            With ``rgb_array`` a sequence of a frame ``[height, width, 3]`` for each replica, painted when it is looked
            at; with ``tiled`` one such array, of at most 64 replicas; with ``human`` None: a window shows it.
        """
        self._renderer.check()
        self._replicas.check_ready(self.closed, "render")
        return self._renderer.render(self._sim.state, self._replicas.params)

    @property
    def np_random_seed(self) -> tuple[int, ...] | None:  # type: ignore[override]  # a tuple, as SyncVectorEnv gives
        """Each replica's seed, or None before the first reset."""
        if not self._sim.ready:
            return None
        return tuple(int(s) for s in self._sim.arrays.read(self._sim.buffers["seeds"]).view(np.uint64))

    # --- beyond Gymnasium's interface ---

    @property
    def state(self) -> LiveState:
        """The live state, field by field: ``[num_envs]``, of arrays ``[num_envs, length]``."""
        return self._sim.state

    @property
    def action_mask(self) -> Array | None:
        """Which choices are possible in the state last observed, int8 ``[num_envs, choices]``: 1, or 0 for what is not.

        Live, or with NumPy output on CUDA a copy. None where the rules forbid nothing.
        """
        return self._replicas.to_output(self._sim.buffers["action_mask"]) if self._masked else None

    @property
    def episode_return(self) -> Array:
        """The return of each replica's last finished episode: live, or with NumPy output on CUDA a copy."""
        return self._replicas.to_output(self._sim.buffers["episode_return"])

    @property
    def episode_length(self) -> Array:
        """The length of each replica's last finished episode: live, or with NumPy output on CUDA a copy."""
        return self._replicas.to_output(self._sim.buffers["episode_length"])

    @property
    def elapsed(self) -> Array:
        """How many steps each replica's episode has had, int32: live, to be assigned into (``env.elapsed[:] = 0``).

        With NumPy output on CUDA it is a copy.
        """
        return self._replicas.to_output(self._sim.elapsed)

    def stagger(self, seed: int) -> Array:
        """Moves each replica's episode to a random step of the time limit, so that not all reach it at once.

        The states stay as they are: these episodes are only cut shorter, so do not evaluate on them.

        Args:
            seed: Of the random steps.

        Returns:
            The observations.
        """
        self._replicas.stagger(seed, self.closed)
        return self._given("observations")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; those that replicas have their own of as live arrays."""
        return self._replicas.params

    def check(self) -> None:
        """Raises the first offence of the steps whose actions came from the device, if there was any."""
        self._sim.check()

    def direct_step(self) -> tuple[Callable[[int, int], None], tuple[Any, Array, Array]]:
        """A step that looks at nothing, and the arrays it writes: observations, rewards, terminations. Host only."""
        b, step, numbers = self._sim.buffers, self._sim.direct_step(), self._replicas.numbers
        seen = {key: b[f"observations.{key}"] for key in self._keys} if self._keys else b["observations"]
        results = seen, b["rewards"], b["terminations"]
        if numbers is None:
            return step, results

        def followed(actions: int, kind: int) -> None:
            step(actions, kind)
            numbers.look(stepped=True)

        return followed, results

    def locate_action(self, actions: Array) -> tuple[int, int]:
        """Address and element type of actions, as ``direct_step`` takes them."""
        return self._reader.read(actions)[:2]

    def allow_frozen_steps(self, allow: bool = True) -> None:
        """In Disabled mode: stepping a replica whose episode is over is no offence, and changes nothing.

        Args:
            allow: False: it is an offence again.
        """
        self._replicas.allow_frozen_steps(allow)

    def get_state(self) -> dict[str, Any]:
        """Copies out everything a trajectory depends on: state, episodes, seeds and parameters."""
        self._replicas.check_open(self.closed)
        return self._replicas.snapshot()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``get_state`` gave, here or in another environment of the same kind and size."""
        self._replicas.check_open(self.closed)
        self._sim.restore(state)

    def observe(self) -> Array:
        """The observations of the state as it stands, after assigning into ``state``."""
        self._replicas.check_open(self.closed)
        self._sim.observe()
        if self._replicas.numbers is not None:
            self._replicas.numbers.look(stepped=False)
        return self._given("observations")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A parameter, a state field, or an attribute, as a tuple of one for each replica."""
        return self._replicas.get_attr(self, name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter or a state field, to one value or to one for each replica.

        A CUDA graph keeps the value that all replicas share as it was; values of each replica's own stay live.
        """
        self._replicas.set_attr(name, values)

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method, or reads an attribute: a tuple of one result for each replica."""
        return self._replicas.call(self, name, *args, **kwargs)

    # --- pickling ---

    def __getstate__(self) -> dict[str, Any]:
        """The arguments that made it, and where its trajectories are."""
        return {
            **self._replicas.pickled(closed=self.closed),
            "gymnasium": (self.spec, self._np_random, self._np_random_seed),
            "render_mode": self.render_mode,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes an equal environment, on this machine, that goes on where the other was."""
        from gpu_envs.registry import again

        spec = again(state["id"], state.get("place", state["id"]))
        assert isinstance(spec, EnvSpec)
        VectorEnv.__init__(self, spec, **state["arguments"], render_mode=state["render_mode"], **state["params"])
        self.spec, self._np_random, self._np_random_seed = state["gymnasium"]
        if state["snapshot"] is not None:
            self._sim.restore(state["snapshot"])
        self.closed = state["closed"]

    def __repr__(self) -> str:
        """Says what it is and where."""
        return self._replicas.describe("VectorEnv")

    # --- helpers ---

    def _follow(self, *, stepped: bool, out: Step | None = None) -> None:
        """In checking mode looks at the numbers; shows the window, if there is one."""
        if self._replicas.numbers is not None:
            self._replicas.numbers.look(stepped=stepped, out=out)
        if self._shown:
            self.render()

    def _inspect(self, read: Actions) -> None:
        """Looks at actions that came from the host, before anything changes."""
        assert read.host is not None
        if self._on_cpu:
            self._sim.inspect((read[:2],), (read.host,))
            return
        self._reader.check_values(read.host)
        self._replicas.check_ended()

    def _inspect_block(self, read: Actions, steps: int) -> None:
        if read.host is None:
            return
        if self._on_cpu:
            each = read.host.nbytes // steps
            for step in range(steps):
                actions = ((read.address + step * each, read.kind),)
                self._sim.inspect(actions, (read.host[step],), f"step {step} of the block, ")
        else:
            self._reader.check_values(read.host)

    def _given(self, name: str, given: Any = None) -> Any:
        """A result as the user gets it, but for arrays that he gave; of a Dict a dict of arrays."""
        if self._keys and name in _OBSERVED:
            own = {key: given_for(given, key) for key in self._keys}
            return {k: self._replicas.given_out(f"{name}.{k}") if a is None else a for k, a in own.items()}
        return self._replicas.given_out(name) if given is None else given

    def _result(self, name: str, out: Step | None) -> Any:
        return self._given(name, getattr(out, name) if out is not None else None)

    def _masks(self, out: Step | None) -> dict[str, Any]:
        """What is possible, where the rules say so: of every replica."""
        if not self._masked:
            return {}
        everywhere = self._replicas.to_output(self._everywhere)
        return {
            "action_mask": self._result("action_mask", out),
            "_action_mask": everywhere.copy() if self.output == "numpy" else everywhere,
        }

    def _live_infos(self) -> dict[str, Any]:
        """The infos of a step that returns the simulator's own memory: the same arrays every time."""
        b = self._sim.buffers
        finished = b["finished"]
        infos = {"action_mask": b["action_mask"], "_action_mask": self._everywhere} if self._masked else {}
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
        infos = self._masks(out)
        if not (self._statistics or self._same_step):
            return infos
        finished = self._replicas.given_out("finished")
        if self.output == "numpy" and not finished.any():
            return infos
        final_info: dict[str, Any] = {}
        if self._statistics:
            episode = {"r": self._result("episode_return", out), "l": self._result("episode_length", out)}
            if self.output == "numpy":
                episode = {k: np.where(finished, to_numpy(v), 0) for k, v in episode.items()}
            final_info = {"episode": episode, "_episode": finished}
            infos |= final_info
        if self._same_step:
            final_obs = self._result("final_obs", out)
            if self.output == "numpy" and self._copy:
                final_obs = self._only(finished, final_obs, out.final_obs if out is not None else None)
            infos |= {"final_obs": final_obs, "_final_obs": finished, "final_info": final_info, "_final_info": finished}
        return infos

    def _only(self, finished: np.ndarray, values: Any, given: Any) -> Any:
        """Zeroes the replicas whose episode goes on, in NumPy arrays that the user did not give."""
        if self._keys:
            return {key: self._zeroed(finished, values[key], given_for(given, key)) for key in self._keys}
        return self._zeroed(finished, values, given)

    def _zeroed(self, finished: np.ndarray, values: np.ndarray, given: Array | None) -> np.ndarray:
        if given is not None:
            return values
        return np.where(finished.reshape(-1, *(1,) * (values.ndim - 1)), values, values.dtype.type(0))

    def _rollout_arrays(self, steps: int, per_step: bool, *, drawn: bool) -> dict[str, Array]:
        """Allocates what a rollout writes."""
        n, real = self.num_envs, self.precision
        rows, action = (steps, n) if per_step else (n,), self.single_action_space.shape or ()
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            **{f"observations{part.affix}": ((*rows, *part.space.shape), part.dtype) for part in self._parts},
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
