"""What a batch of replicas is to its user, with one agent or with a team: its making, state, parameters and pickles."""

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
from gpu_envs.engine.attributes import param_of_each, params_by_replica, per_replica, set_param
from gpu_envs.engine.number_check import NumberCheck
from gpu_envs.engine.options import Options, check_num_envs, config_of
from gpu_envs.engine.resets import Reset, begin, read_offsets
from gpu_envs.engine.results import Step, by_metric, keep_memory, only_finished
from gpu_envs.engine.saving import Saving
from gpu_envs.engine.simulation import NO_LIMIT, Simulation
from gpu_envs.engine.some_replicas import check_replicas
from gpu_envs.engine.state import LiveParams, LiveState
from gpu_envs.engine.turns import in_turn
from gpu_envs.rendering.renderer import Renderer
from gpu_envs.seeds import Seed, Seeds
from gpu_envs.specs.base import Spec
from gpu_envs.specs.distributions import Distribution

SpecT = TypeVar("SpecT", bound=Spec)
ResultT = TypeVar("ResultT")
"""What a result is: an array or, with a team, arrays by role."""


class Batch(Saving, Generic[SpecT, ResultT]):
    """What ``VectorEnv`` and ``MultiAgentEnv`` share; each adds its spaces, ``reset`` and ``step``.

    A step looks at attributes of the environment itself: an attribute of an attribute costs time.

    Attributes:
        num_envs: The number of replicas.
        device: ``cpu`` or ``cuda:N``.
        output: The library of the arrays that come out.
        precision: Of state and reward.
        gives_copies: Whether fresh arrays are returned.
        autoreset_mode: Gymnasium's enum; in ``metadata`` too.
        max_episode_steps: The step at which an episode is truncated; None: never.
        keeps_statistics: Whether there are returns, lengths and metrics of episodes: not with ``statistics=False``.
        metadata: What Gymnasium wants to know.
        render_mode: As given.
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
            statistics: Give ``infos["episode"]`` where an episode ends. None: not for NumPy; Gymnasium has a wrapper.
                False: keep no returns, lengths and metrics at all, so that steps need not read and write them.
            threads: On the CPU: the most threads to use; None: one for each core.
            block_size: On CUDA: threads per block, at most; None: the default.
            checking: Look at every number after every call, and raise a NotFiniteError for what is NaN or infinite. It
                waits for the device, so it is for finding mistakes, and never within a CUDA graph.
            first_replica: The number of the first in a larger batch, as part of which these are seeded and named.
            shared_observations: Of a team: give what all agents of a role see alike once a replica, not in each row.
            active_heads: Of a team: masks leave elements of actions that mean nothing in the step to come one choice.
            observe_params: Names of parameters whose values observations end with. None: the environment's default.
            render_mode: ``rgb_array`` (``render`` gives a frame for each replica, painted when looked at), ``tiled``
                (many replicas in one), ``human`` (that in a window, at each step), or None.
            **params: The environment's own: one value or, but for those on which shapes depend, one for each replica.
        """
        self.num_envs = check_num_envs(num_envs)
        for name in params:
            if name not in spec.settings:
                known = ("num_envs", *(field.name for field in dataclasses.fields(Options)), "render_mode")
                raise ValueError(f"{spec.id} has no {spec.unknown(name, known)}")
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
        self.device = resolve_device(device)  # called right here, so that a warning names the line of the caller
        options.check(self.device)
        self.output, self.precision, self.gives_copies = output, precision, options.gives_copies
        self.autoreset_mode, self.keeps_statistics = AutoresetMode(options.mode), options.keeps_statistics
        config = config_of(spec, self.num_envs, options, params)
        self._env_spec = spec.with_observed_params(observe_params).with_rules_text(None)
        backend = open_backend(self.device, threads, block_size)
        self._sim = sim = Simulation(config, backend, output)
        self._turn = sim.turn
        self._params = LiveParams(lambda: sim.params, lambda name, value: set_param(sim, name, value))
        self._numbers = NumberCheck(sim) if checking else None
        self._renderer = Renderer(spec.id, spec.drawing, render_mode, self.device)
        self.max_episode_steps = None if config.limit == NO_LIMIT else config.limit
        self.metadata: dict[str, Any] = {"autoreset_mode": self.autoreset_mode, **self._renderer.metadata}
        self.render_mode, self.closed = render_mode, False
        self._followed = checking or render_mode == "human"  # so that a step looks at one attribute
        self._live = output != "numpy" and not self.gives_copies
        self._statistics, self._masked, self._measured = options.gives_statistics, spec.masked, bool(config.metrics)
        self._same_step, self._report_frozen = options.mode == "SameStep", options.mode == "Disabled"
        sim.set_step_flags(report_frozen=self._report_frozen, clear_final=output == "numpy" and not self.gives_copies)
        if output == "numpy" and self.gives_copies:
            keep_memory(sim.buffers.values())
        self._prepare()

    # --- what each kind of environment adds ---

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Makes the spaces and what reads actions, once the simulation is there."""

    @abc.abstractmethod
    def _result(self, name: str, out: Step | None = None) -> ResultT:
        """A result as the user gets it: itself, a copy, or the arrays of the user's that it was written into."""

    @abc.abstractmethod
    def _last(self, name: str) -> ResultT:
        """A result as it stands: live, or with NumPy output on CUDA a copy."""

    # --- what it is ---

    @property
    def env_spec(self) -> SpecT:
        """What the environment is; ``spec`` of a ``VectorEnv`` is Gymnasium's."""
        return self._env_spec

    @property
    def rules(self) -> str:
        """Its rules in C++: the author's header, or the translation of rules in Python."""
        return rules_part(self._sim.program.layout.config)[1]

    @property
    def backend(self) -> Backend:
        """What compiles and launches kernels on the environment's device."""
        return self._sim.backend

    @property
    def simulation(self) -> Simulation:
        """The replicas, for kernels of others that step them."""
        return self._sim

    @property
    def kernels(self) -> dict[str, Any]:
        """The compiled kernels by name, ``"step"`` and so on; ``"rollout"`` from the first ``rollout`` on.

        On CUDA each is a ``cupy.RawKernel``, which shows its registers and shared memory and can be launched; on the
        CPU a function of the compiled library.
        """
        return {name: kernels.function(name) for name, kernels in self._sim.program.kernels.items()}

    def kernel_arguments(self, name: str) -> dict[str, Any]:
        """The arguments with which a kernel runs over all replicas, those of the last call where they change.

        On CUDA ``env.kernels[name](**env.kernel_arguments(name))`` launches the kernel on CuPy's current stream. On the
        CPU there are only ``"args"``. They are valid until the next call of this environment. The step of a team that
        needs several blocks is a launch for each phase: ``args[0]["phase"]``.
        """
        program = self._sim.program
        if name not in program.kernels:
            raise ValueError(f"no kernel is called {name!r}; there are {', '.join(sorted(program.kernels))}")
        return program.kernels[name].arguments(name, program.calls[name], self.num_envs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._env_spec.id!r}, num_envs={self.num_envs}, device={self.device!r}, "
            f"output={self.output!r}, autoreset_mode={self._options.mode!r})"
        )

    # --- state and parameters ---

    @property
    def state(self) -> LiveState:
        """The live state, field by field: ``[num_envs]``, of a team's agents ``[num_envs, num_agents]``.

        Of arrays the elements come last: ``[num_envs, length]``, ``[num_envs, num_agents, length]``.
        """
        return self._sim.state

    @property
    def params(self) -> LiveParams:
        """The parameters; arrays, and those that replicas have their own of, are live and may be written.

        Assigning to one is ``set_attr``. What is written into an array and must not be raises a ValueError: on the CPU
        at the next call that uses it; on CUDA, and in an array whose numbers are drawn, in ``check``, ``get_state`` and
        ``set_attr``. An edit of what is drawn holds until that replica's next episode.
        """
        return self._params

    @property
    def distributions(self) -> dict[str, Distribution]:
        """Of parameters that each replica draws when its episode begins, by name; ``params`` has what was drawn.

        Assigning a number to ``params`` ends that, and assigning a distribution, or its text, begins it.
        """
        return dict(self._sim.drawn)

    @property
    def drawn_params(self) -> dict[str, Any]:
        """The parameters as drawings take them: arrays have a row for each replica."""
        return params_by_replica(self._sim)

    @property
    def elapsed(self) -> Array:
        """How many steps each replica's episode has had, int32: live, or with NumPy output on CUDA a copy."""
        return self._to_output(self._sim.elapsed)

    @property
    def offset(self) -> Array:
        """By how many steps each replica's time limit is nearer in this episode, int32: ``stagger`` sets it."""
        return self._to_output(self._sim.buffers["offset"])

    @property
    def action_mask(self) -> ResultT | None:
        """Which choices are possible in the state last observed, int8 ``[num_envs, choices]``: 1, or 0 for what is not.

        With a team by role, ``[num_envs, agents, choices]``; agents that are out have ones only. Of MultiDiscrete
        actions the choices of all elements, one after another. Live, or with NumPy output on CUDA a copy. None where
        the rules forbid nothing: see ``allow``.
        """
        return self._last("action_mask") if self._masked else None

    @property
    def episode_return(self) -> ResultT:
        """The return of each replica's last finished episode, with a team of each agent's, by role: live, or a copy."""
        return self._last(self._options.kept("episode_return"))

    @property
    def episode_length(self) -> ResultT:
        """The length of each replica's last finished episode, with a team of each agent's, by role: live, or a copy."""
        return self._last(self._options.kept("episode_length"))

    @property
    def episode_metrics(self) -> dict[str, Array]:
        """The metrics of each replica's last finished episode by name, ``[num_envs]``: live, or a copy likewise."""
        name = self._options.kept("episode_metrics")
        values = self._to_output(self._sim.buffers[name]) if self._measured else None
        return by_metric(self._env_spec.metrics, values)

    def measured(self) -> AbstractContextManager[Array | None]:
        """While it lasts, each step measures; see ``Simulation.measured``."""
        return self._sim.measured()

    @in_turn
    def observe(self) -> ResultT:
        """The observations of the state as it stands, after assigning into ``state``."""
        self._check_open()
        self._sim.observe()
        if self._numbers is not None:
            self._numbers.look(stepped=False)
        return self._result("observations")

    @in_turn
    def stagger(self, seed: Seed | None = None, *, offsets: Any = None) -> ResultT:
        """Brings each replica's time limit nearer by random steps, for this episode, so that not all reach it at once.

        States and ``elapsed`` stay as they are, and rules know nothing of it: these episodes are only cut short, so do
        not evaluate on them.

        Args:
            seed: Of the random steps.
            offsets: In their place, how many steps for each replica.

        Returns:
            The observations.
        """
        self._check_ready("stagger")
        self._sim.stagger(read_offsets(self._sim, seed, offsets))
        return self.observe()

    @in_turn
    def check(self) -> None:
        """Raises the first ActionError of steps whose actions came from the device, and what is wrong in ``params``."""
        self._sim.host_params()
        check_replicas(self._sim)
        self._sim.check()

    @in_turn
    def render(self) -> Any:
        """What the replicas look like now.

        Returns:
            With ``rgb_array`` a sequence of a frame ``[height, width, 3]`` for each replica, painted when it is looked
            at; with ``tiled`` one such array, of at most 64 replicas; with ``human`` None: a window shows it.
        """
        self._renderer.check()
        self._check_ready("render")
        return self._renderer.render(self._sim.state, self.drawn_params)

    # --- by name ---

    @in_turn
    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A parameter, a state field, or an attribute, as a tuple of one for each replica."""
        if name in self._sim.params:
            return param_of_each(self._sim, name)
        if name in self._sim.state:
            return tuple(self._sim.arrays.read(self._sim.state[name]).tolist())
        return per_replica(getattr(self, name), self.num_envs)

    @in_turn
    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter or a state field, to one value or to one for each replica.

        Replicas that have their own values of a parameter keep having them: one value for all fills their array. A CUDA
        graph keeps the value that all replicas share as it was; values of each replica's own stay live.
        """
        if name in self._sim.state:
            self._sim.state[name] = values
        else:
            set_param(self._sim, name, values)

    @in_turn
    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method, or reads an attribute: a tuple of one result for each replica."""
        if name in self._sim.params or name in self._sim.state:
            return self.get_attr(name)
        member = getattr(self, name)
        made = member(*args, **kwargs) if callable(member) else member
        return made if name in ("get_attr", "call") else per_replica(made, self.num_envs)

    def _begin(self, seed: Seeds, options: Mapping[str, Any] | None) -> Reset:
        """Begins new episodes at the starts asked for, or raises what is wrong with what ``reset`` was given."""
        self._check_open()
        asked = begin(self._sim, seed, options)
        if self._followed:
            self._follow(stepped=False)
        return asked

    def _follow(self, *, stepped: bool, out: Step | None = None) -> None:
        """In checking mode looks at the numbers; shows the window, if there is one."""
        if self._numbers is not None:
            self._numbers.look(stepped=stepped, out=out)
        if self.render_mode == "human":
            self.render()

    def _episode(self, ended: np.ndarray | None, out: Step | None) -> dict[str, Any]:
        """Returns, lengths and metrics of the episodes that ended, as infos give them; see ``_ended``."""
        values = given = out.episode_metrics if out is not None else None
        if given is None and self._measured:
            values = (self._given_out if ended is None else self._to_output)(self._sim.buffers["episode_metrics"])
        episode = {"r": self._ended("episode_return", ended, out), "l": self._ended("episode_length", ended, out)}
        return episode | by_metric(self._env_spec.metrics, values, ended if given is None else None)

    def _ended(self, name: str, ended: np.ndarray | None, out: Step | None) -> Any:
        """A result of the episodes that ended, of these replicas; None: as the environment keeps it."""
        if ended is None:
            return self._result(name, out)
        return only_finished(ended, self._last(name), getattr(out, name) if out is not None else None)

    def _to_output(self, array: Array) -> Array:
        """One of the simulation's arrays in the output's library: itself, or a copy from the device."""
        if self.output != "numpy" or self.device == "cpu":
            return array
        with self._turn:  # threads share what brings it to the host
            return self._sim.arrays.read(array)

    def _given_out(self, array: Array) -> Array:
        """One of the simulation's arrays as the user gets it: itself, or a copy."""
        if not self.gives_copies or (self.output == "numpy" and self.device != "cpu"):
            return self._to_output(array)
        return array.clone() if self.output == "torch" else array.copy()
