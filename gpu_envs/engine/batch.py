"""The common base of ``VectorEnv`` and ``MultiAgentEnv``: construction, state, parameters and attributes."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from gpu_envs.backend import Backend, open_backend, resolve_device
from gpu_envs.backend.arrays import Array
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.attributes import broadcast_params, param_per_replica, set_param, tuple_per_replica
from gpu_envs.engine.finite_check import FiniteCheck
from gpu_envs.engine.locking import synchronized
from gpu_envs.engine.options import Options, check_num_envs, config_of
from gpu_envs.engine.replica_selection import check_replicas
from gpu_envs.engine.resets import ResetRequest, read_offsets, reset_replicas
from gpu_envs.engine.results import Step, metrics_by_name, warm_up_allocator, zero_unfinished
from gpu_envs.engine.simulation import NO_LIMIT, Simulation
from gpu_envs.engine.snapshot_methods import SnapshotMethods
from gpu_envs.engine.state import LiveParams, LiveState
from gpu_envs.rendering.renderer import Renderer
from gpu_envs.seeds import Seed, Seeds
from gpu_envs.specs.base import Spec
from gpu_envs.specs.distributions import Distribution

SpecT = TypeVar("SpecT", bound=Spec)
ResultT = TypeVar("ResultT")
"""A result: an array, or with several agents arrays by role."""


class Batch(SnapshotMethods, Generic[SpecT, ResultT]):
    """The common base of ``VectorEnv`` and ``MultiAgentEnv``, which add spaces, ``reset`` and ``step``.

    Values that each step reads are attributes of the environment itself, because nested attributes cost time.

    Attributes:
        num_envs: Number of replicas.
        device: ``cpu`` or ``cuda:N``.
        output: Library of the returned arrays.
        precision: Precision of states and rewards.
        returns_copies: Whether results are fresh arrays instead of views of the simulation's memory.
        autoreset_mode: Gymnasium's enum; also in ``metadata``.
        max_episode_steps: Step at which an episode is truncated; None if never.
        keeps_statistics: Whether returns, lengths and metrics of episodes are recorded; not with ``statistics=False``.
        metadata: Gymnasium's metadata.
        render_mode: The constructor's ``render_mode``.
        closed: Whether ``close`` was called.
    """

    _env_spec: SpecT

    def __init__(
        self,
        spec: SpecT,
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
        first_replica: int = 0,
        shared_observations: bool = False,
        active_heads: bool = False,
        observe_params: Sequence[str] | str | None = None,
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Create the replicas; use ``gpu_envs.make``, which describes the arguments."""
        self.num_envs = check_num_envs(num_envs)
        for name in params:
            if name not in spec.settings:
                arguments = ("num_envs", *(field.name for field in dataclasses.fields(Options)), "render_mode")
                raise ValueError(f"{spec.id} has no {spec.unknown(name, arguments)}")
        self._options = options = Options(
            str(device),
            output,
            autoreset_mode,
            precision,
            max_episode_steps,
            copy,
            statistics,
            threads,
            block_size,
            checking,
            first_replica,
            shared_observations,
            active_heads,
            observe_params,
        )
        self.device = resolve_device(device)  # called here, so that a warning shows the caller's line
        options.check(self.device)
        self.output, self.precision, self.returns_copies = output, precision, options.returns_copies
        self.autoreset_mode, self.keeps_statistics = AutoresetMode(options.mode), options.keeps_statistics
        config = config_of(spec, self.num_envs, options, params)
        self._env_spec = spec.with_observed_params(observe_params).with_rules_text(None)
        backend = open_backend(self.device, threads, block_size)
        self._sim = sim = Simulation(config, backend, output)
        self._lock = sim.lock
        self._params = LiveParams(lambda: sim.params, lambda name, value: set_param(sim, name, value))
        self._finite_check = FiniteCheck(sim) if checking else None
        self._renderer = Renderer(spec.id, spec.drawing, render_mode, self.device)
        self.max_episode_steps = None if config.limit == NO_LIMIT else config.limit
        self.metadata: dict[str, Any] = {"autoreset_mode": self.autoreset_mode, **self._renderer.metadata}
        self.render_mode, self.closed = render_mode, False
        self._has_post_step = checking or render_mode == "human"
        self._returns_views = output != "numpy" and not self.returns_copies
        self._statistics, self._masked = options.returns_statistics, spec.masked
        self._has_metrics = bool(config.metrics)
        self._same_step, self._report_frozen = options.mode == "SameStep", options.mode == "Disabled"
        sim.set_step_flags(report_frozen=self._report_frozen, clear_final=output == "numpy" and not self.returns_copies)
        if output == "numpy" and self.returns_copies:
            warm_up_allocator(sim.buffers.values())
        self._prepare()

    # --- methods of each kind of environment ---

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Create the spaces and the readers of actions; the constructor calls this after it made the simulation."""

    @abc.abstractmethod
    def _result(self, name: str, out: Step | None = None) -> ResultT:
        """A result to return: a view or a copy of the buffer, or the user's array if the step wrote into one."""

    @abc.abstractmethod
    def _latest(self, name: str) -> ResultT:
        """The current content of a result's buffer: live, or with NumPy output on CUDA a copy."""

    # --- description ---

    @property
    def env_spec(self) -> SpecT:
        """The environment's spec; the attribute ``spec`` of a ``VectorEnv`` is Gymnasium's."""
        return self._env_spec

    @property
    def rules(self) -> str:
        """The rules in C++: the author's header, or the translation of rules in Python."""
        return rules_part(self._sim.program.layout.config)[1]

    @property
    def backend(self) -> Backend:
        """The backend, which compiles and launches kernels on the environment's device."""
        return self._sim.backend

    @property
    def simulation(self) -> Simulation:
        """The simulation of the replicas, for other kernels that step them."""
        return self._sim

    @property
    def kernels(self) -> dict[str, Any]:
        """The compiled kernels by name, such as ``"step"``; ``"rollout"`` exists after the first ``rollout``.

        On CUDA a kernel is a ``cupy.RawKernel``, which has its numbers of registers and bytes of shared memory and can
        be launched; on the CPU it is a function of the compiled library.
        """
        return {name: kernels.function(name) for name, kernels in self._sim.program.kernels.items()}

    def kernel_arguments(self, name: str) -> dict[str, Any]:
        """The arguments of a kernel's last launch over all replicas.

        On CUDA ``env.kernels[name](**env.kernel_arguments(name))`` launches the kernel on CuPy's current stream. On the
        CPU the dict only has ``"args"``. The arguments are valid until the next call of this environment. If a replica
        with several agents needs several blocks, a step is one launch for each phase: ``args[0]["phase"]``.
        """
        program = self._sim.program
        if name not in program.kernels:
            raise ValueError(f"there is no kernel {name!r}; there are {', '.join(sorted(program.kernels))}")
        return program.kernels[name].arguments(name, program.args[name], self.num_envs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._env_spec.id!r}, num_envs={self.num_envs}, device={self.device!r}, "
            f"output={self.output!r}, autoreset_mode={self._options.mode!r})"
        )

    # --- state and parameters ---

    @property
    def state(self) -> LiveState:
        """The live state by field: ``[num_envs]``, for fields of agents ``[num_envs, num_agents]``.

        Fields that are arrays have their elements last: ``[num_envs, length]``, ``[num_envs, num_agents, length]``.
        """
        return self._sim.state

    @property
    def params(self) -> LiveParams:
        """The parameters by name; arrays and values per replica are live, so that writing into them takes effect.

        Assigning to a parameter is ``set_attr``. An invalid value in an array raises a ValueError: on the CPU at the
        next call that uses the array; on CUDA, and for parameters drawn from distributions, in ``check``, ``get_state``
        and ``set_attr``. A value written over a drawn one lasts until the replica's next episode.
        """
        return self._params

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions of parameters that are drawn at the start of each episode, by name.

        ``params`` has the drawn values. Assigning a number to a parameter in ``params`` stops the draws; assigning a
        distribution, or its text, starts them.
        """
        return dict(self._sim.drawn)

    @property
    def params_by_replica(self) -> dict[str, Any]:
        """The parameters; every array has a row for each replica, also if all replicas share its value."""
        return broadcast_params(self._sim)

    @property
    def elapsed(self) -> Array:
        """The number of steps since the start of each replica's episode, int32: live, or with NumPy on CUDA a copy."""
        return self._to_output(self._sim.elapsed)

    @property
    def offset(self) -> Array:
        """The number of steps that ``stagger`` took off each replica's current episode, int32."""
        return self._to_output(self._sim.buffers["offset"])

    @property
    def action_mask(self) -> ResultT | None:
        """The action mask of the last observed state, int8 ``[num_envs, choices]``: 1 allowed, 0 forbidden.

        With several agents, by role ``[num_envs, agents, choices]``; the masks of inactive agents are all ones. The
        masks of a MultiDiscrete action's elements are concatenated. Live, or with NumPy output on CUDA a copy. None for
        environments without masks, whose rules define no ``allow``.
        """
        return self._latest("action_mask") if self._masked else None

    @property
    def finished(self) -> Array:
        """Whether each replica's episode ended in the last step, bool ``[num_envs]``: live, or a copy."""
        return self._to_output(self._sim.buffers["finished"])

    @property
    def episode_return(self) -> ResultT:
        """The return of each replica's last finished episode, or of each agent by role: live, or a copy."""
        return self._latest(self._options.require_statistics("episode_return"))

    @property
    def episode_length(self) -> ResultT:
        """The length of each replica's last finished episode, or of each agent by role: live, or a copy."""
        return self._latest(self._options.require_statistics("episode_length"))

    @property
    def episode_metrics(self) -> dict[str, Array]:
        """The metrics of each replica's last finished episode by name, ``[num_envs]``: live, or a copy."""
        name = self._options.require_statistics("episode_metrics")
        values = self._to_output(self._sim.buffers[name]) if self._has_metrics else None
        return metrics_by_name(self._env_spec.metrics, values)

    def live_metrics(self) -> AbstractContextManager[Array | None]:
        """Context whose steps write the metrics of running episodes; see ``Simulation.live_metrics``."""
        return self._sim.live_metrics()

    @synchronized
    def observe(self) -> ResultT:
        """Recompute observations and action masks, such as after writes into ``state``; return the observations."""
        self._check_open()
        self._sim.observe()
        if self._finite_check is not None:
            self._finite_check.check(stepped=False)
        return self._result("observations")

    @synchronized
    def stagger(self, seed: Seed | None = None, *, offsets: Any = None) -> ResultT:
        """Shorten the current episodes by random numbers of steps, so that not all replicas reach the limit at once.

        States and ``elapsed`` do not change, and rules do not see the offsets. Do not evaluate on shortened episodes.

        Args:
            seed: Seed of the random numbers of steps.
            offsets: Numbers of steps for each replica, instead of random ones.

        Returns:
            The observations.
        """
        self._check_ready("stagger")
        self._sim.stagger(read_offsets(self._sim, seed, offsets))
        return self.observe()

    @synchronized
    def check(self) -> None:
        """Raise the error of invalid device-side actions, replica indices or values in ``params``, if there is one."""
        self._sim.host_params()
        check_replicas(self._sim)
        self._sim.check()

    @synchronized
    def render(self) -> Any:
        """Render the current state.

        Returns:
            With ``rgb_array`` a sequence with a frame ``[height, width, 3]`` for each replica, painted on access; with
            ``tiled`` one frame of at most 64 replicas; with ``human`` None, since a window shows the frame.
        """
        self._renderer.check()
        self._check_ready("render")
        return self._renderer.render(self._sim.state, self.params_by_replica)

    # --- attributes by name ---

    @synchronized
    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return a parameter, state field or attribute, as a tuple with a value for each replica."""
        if name in self._sim.params:
            return param_per_replica(self._sim, name)
        if name in self._sim.state:
            return tuple(self._sim.arrays.read(self._sim.state[name]).tolist())
        return tuple_per_replica(getattr(self, name), self.num_envs)

    @synchronized
    def set_attr(self, name: str, values: Any) -> None:
        """Set a parameter or a state field, to one value for all replicas or to one for each.

        A parameter with values per replica keeps its array, which one value for all replicas fills. A captured CUDA
        graph contains the value of a parameter that all replicas share; values per replica stay live.

        Example:
            >>> env = gpu_envs.make("CartPole-v1", num_envs=2)
            >>> env.set_attr("length", 0.7)
            >>> env.get_attr("length")
            (0.7, 0.7)
        """
        if name in self._sim.state:
            self._sim.state[name] = values
        else:
            set_param(self._sim, name, values)

    @synchronized
    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method or read an attribute: a tuple with a result for each replica."""
        if name in self._sim.params or name in self._sim.state:
            return self.get_attr(name)
        member = getattr(self, name)
        result = member(*args, **kwargs) if callable(member) else member
        return result if name in ("get_attr", "call") else tuple_per_replica(result, self.num_envs)

    def _reset(self, seed: Seeds, options: Mapping[str, Any] | None) -> ResetRequest:
        """Check the arguments of ``reset``, start new episodes, and return the checked arguments."""
        self._check_open()
        request = reset_replicas(self._sim, seed, options)
        if self._has_post_step:
            self._post_step(stepped=False)
        return request

    def _post_step(self, *, stepped: bool, out: Step | None = None) -> None:
        """Check that results are finite, in checking mode, and update the window, if there is one."""
        if self._finite_check is not None:
            self._finite_check.check(stepped=stepped, out=out)
        if self.render_mode == "human":
            self.render()

    def _episode(self, ended: np.ndarray | None, out: Step | None) -> dict[str, Any]:
        """``infos["episode"]``: returns, lengths and metrics of the episodes that ended; see ``_of_ended``."""
        values = user_array = out.episode_metrics if out is not None else None
        if user_array is None and self._has_metrics:
            values = (self._returned if ended is None else self._to_output)(self._sim.buffers["episode_metrics"])
        episode = {"r": self._of_ended("episode_return", ended, out), "l": self._of_ended("episode_length", ended, out)}
        return episode | metrics_by_name(self._env_spec.metrics, values, ended if user_array is None else None)

    def _of_ended(self, name: str, ended: np.ndarray | None, out: Step | None) -> Any:
        """A result with zeros for all replicas but ``ended``; the full result if that is None."""
        if ended is None:
            return self._result(name, out)
        return zero_unfinished(ended, self._latest(name), getattr(out, name) if out is not None else None)

    def _to_output(self, array: Array) -> Array:
        """Return an array of the simulation for the output: itself, or for NumPy on a GPU a copy on the host."""
        if self.output != "numpy" or self.device == "cpu":
            return array
        with self._lock:  # threads share the buffer for copies to the host
            return self._sim.arrays.read(array)

    def _returned(self, array: Array) -> Array:
        """An array of the simulation to return to the user: the array itself, or a copy if ``returns_copies``."""
        if not self.returns_copies or (self.output == "numpy" and self.device != "cpu"):
            return self._to_output(array)
        return array.clone() if self.output == "torch" else array.copy()
