"""One class that drives any environment with a team of agents, many replicas at a time, role by role."""

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from gpu_envs.actions import ActionReader, Actions
from gpu_envs.arrays import Array, to_numpy
from gpu_envs.backend import resolve_device
from gpu_envs.codegen import RESULTS, TeamLayout
from gpu_envs.errors import did_you_mean
from gpu_envs.options import Options, check_num_envs
from gpu_envs.rendering import Renderer
from gpu_envs.replicas import Replicas
from gpu_envs.resets import Seeds
from gpu_envs.results import OutReader, Step, given_for
from gpu_envs.simulation import NO_LIMIT, LiveState
from gpu_envs.spec import TeamSpec

ByRole: TypeAlias = dict[str, Array]
"""An array for each role, ``[num_envs, agents of the role, ...]``."""

StepResult: TypeAlias = tuple[ByRole, ByRole, ByRole, ByRole, dict[str, Any]]


@final
class MultiAgentEnv:
    """Many replicas of an environment with a team of agents, stepped by one launch.

    Observations, actions, rewards and ends of episodes are mappings from roles to arrays of all replicas and all agents
    of the role. With ``output="numpy"`` (the default) a step returns fresh arrays; with ``"torch"`` and ``"cupy"``, and
    with ``copy=False``, the simulator's own memory, which the next step overwrites.

    An agent that goes out is terminated in that step and sees that step's outcome; from then on it observes zeros, gets
    no reward, and what it does is ignored. A replica's episode is over when all its agents are terminated or truncated.

    Attributes:
        num_envs: The number of replicas.
        device: ``cpu`` or ``cuda:N``.
        roles: The kinds of agents, in order.
        counts: How many agents each role has.
        possible_agents: The names of a replica's agents, role after role: ``tagger_0``, ...
        single_observation_spaces: By role, the observation space of one agent.
        single_action_spaces: By role, the action space of one agent.
        observation_spaces: By role, that of all replicas and agents of the role.
        action_spaces: By role, that of all replicas and agents of the role.
        autoreset_mode: Gymnasium's enum; in ``metadata`` too.
        max_episode_steps: The step at which an episode is truncated; None: never.
        closed: Whether ``close`` was called.
    """

    def __init__(
        self,
        spec: TeamSpec,
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
            statistics: Give ``infos["episode"]`` where an episode ends. None: not for NumPy.
            threads: On the CPU: the most threads to use; None: one for each core.
            block_size: On CUDA: threads per block, or the most; None: the default.
            checking: Look at every number after every call, and raise a NotFiniteError for what is NaN or infinite. It
                waits for the device, so it is for finding mistakes, and never within a CUDA graph.
            render_mode: ``rgb_array`` (``render`` gives a frame for each replica, painted when looked at), ``tiled``
                (many replicas in one), ``human`` (that in a window, at each step), or None.
            **params: The environment's own parameters: one value, or an array with one for each replica, but for those
                on which shapes depend.
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
        replicas = Replicas(spec, count, options, resolve_device(device), params)
        sim = replicas.sim
        layout = sim.layout
        assert isinstance(layout, TeamLayout)
        self._spec, self._replicas, self._sim = spec, replicas, sim
        self.num_envs, self.device, self.output = count, replicas.device, replicas.output
        self.precision = replicas.precision
        self.autoreset_mode = AutoresetMode(replicas.mode)
        self._renderer = Renderer(spec.id, spec.drawing, render_mode, replicas.device)
        self.metadata: dict[str, Any] = {
            "autoreset_mode": self.autoreset_mode,
            "name": spec.id,
            **self._renderer.metadata,
        }
        self.render_mode = render_mode
        self._shown = render_mode == "human"
        self._followed = self._shown or checking  # so that a step looks at one attribute
        self._masked = spec.masked
        self.closed = False
        self.max_episode_steps = None if sim.config.limit == NO_LIMIT else sim.config.limit
        self.roles = tuple(role.name for role in layout.roles)
        self.counts = {role.name: role.size for role in layout.roles}
        self.num_agents = layout.agents
        self.possible_agents = spec.agents(sim.config.params)
        self.single_observation_spaces: dict[str, gymnasium.Space[Any]] = {r.name: r.observation for r in layout.roles}
        self.single_action_spaces: dict[str, gymnasium.Space[Any]] = {r.name: r.action for r in layout.roles}
        self._readers = [
            ActionReader(r.action, (count, r.size), self.device, sim.arrays, precision) for r in layout.roles
        ]
        self._out = OutReader(sim.shapes, [f".{role}" for role in self.roles], self.device)
        self._same_step = replicas.mode == "SameStep"
        self._live = self.output != "numpy" and not replicas.copy
        self._buffers = {
            name: {role: sim.buffers[f"{name}.{role}"] for role in self.roles}
            for name in (*RESULTS, "alive")
            if f"{name}.{self.roles[0]}" in sim.buffers
        }

    @functools.cached_property
    def observation_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """By role, the space of all replicas and agents: made when asked for, being as large as what it bounds."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_observation_spaces.items()}

    @functools.cached_property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """By role, the space of the actions of all replicas and agents."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_action_spaces.items()}

    # --- stepping ---

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[ByRole, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``; or a list with one seed, or None, for each. A seed begins a replica's
                episodes anew; without one the next episode follows.
            options: ``reset_mask`` (bools, ``[num_envs]``); fields of the state to begin with, such as ``x``
                (``[num_agents]`` or ``[num_envs, num_agents]``); and the environment's own options. They hold for this
                reset alone.

        Returns:
            The observations of all replicas by role, and infos: ``alive`` by role, and ``action_mask`` by role where
            the rules say what is possible.
        """
        self._replicas.check_open(self.closed)
        self._replicas.reset(self._replicas.read_reset(seed, options))
        if self._followed:
            self._follow(stepped=False)
        infos = {"alive": self._given_out("alive")}
        if self._masked:
            infos["action_mask"] = self._given_out("action_mask")
        return self._given_out("observations"), infos

    def step(self, actions: Mapping[str, Any], *, out: Step | None = None) -> StepResult:
        """Steps every replica once.

        Args:
            actions: By role, one for each replica and agent: any array of the right shape, of any library.
            out: Arrays of your own to write into, by role; they are returned in place of the simulator's.

        Returns:
            Observations, rewards, terminations and truncations by role, and infos: ``alive`` by role; where the rules
            say what is possible, ``action_mask`` by role, of the state that is observed; in SameStep ``final_obs`` by
            role with the mask ``_final_obs``; with statistics ``episode`` (``r`` and ``l`` by role) with the mask
            ``_episode``. Masks of ends are of replicas.

        Raises:
            ActionError: The action of an agent in the game is a whole number out of range, or not a number, and came
                from the host: nothing has changed. Those of the device are kept for ``check``.
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._replicas.check_ready(self.closed, "step")
        read = self._read(actions)
        places = [(part.address, part.kind) for part in read]
        hosts = [part.host for part in read if part.host is not None]
        if hosts:  # some may be the device's: then the message leaves out what was given
            sim.inspect(places, hosts if len(hosts) == len(read) else ())
        sim.step(places, self._out.read(out) if out is not None else ())
        if self._followed:
            self._follow(stepped=True, out=out)
        if self.output == "numpy" and not hosts:
            sim.check()
        observations, rewards, terminations, truncations = (
            self._result(name, out) for name in ("observations", "rewards", "terminations", "truncations")
        )
        return observations, rewards, terminations, truncations, self._infos(out)

    def _read(self, actions: Mapping[str, Any]) -> list[Actions]:
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions are {type(actions).__name__}; give a mapping from roles to arrays: {self.roles}")
        found = []
        for role, reader in zip(self.roles, self._readers, strict=True):
            if role not in actions:
                raise ValueError(f"actions of the role {role!r} are missing; got {sorted(actions)}")
            try:
                found.append(reader.read(actions[role]))
            except (TypeError, ValueError) as error:
                raise type(error)(f"role {role!r}: {error}") from None
        if len(actions) > len(found):
            unknown = next(role for role in actions if role not in self.roles)
            hint = did_you_mean(str(unknown), self.roles)
            raise ValueError(f"there is no role {unknown!r}{hint} There are: {', '.join(self.roles)}")
        return found

    def observe(self) -> ByRole:
        """The observations of the state as it stands, after assigning into ``state``."""
        self._replicas.check_open(self.closed)
        self._sim.observe()
        if self._replicas.numbers is not None:
            self._replicas.numbers.look(stepped=False)
        return self._given_out("observations")

    def check(self) -> None:
        """Raises the first offence of the steps whose actions came from the device, if there was any."""
        self._sim.check()

    def allow_frozen_steps(self, allow: bool = True) -> None:
        """In Disabled mode: stepping a replica whose episode is over is no offence, and changes nothing.

        Args:
            allow: False: it is an offence again.
        """
        self._replicas.allow_frozen_steps(allow)

    def close(self) -> None:
        """Ends its use: closes the window, if there is one; the garbage collector frees all else."""
        self.closed = True
        self._renderer.close()

    # --- state and parameters ---

    @property
    def spec(self) -> TeamSpec:
        """What the environment is."""
        return self._spec

    @property
    def state(self) -> LiveState:
        """The live state, field by field: agents' ``[num_envs, num_agents]``, replicas' ``[num_envs]``.

        Of arrays the elements come last: ``[num_envs, num_agents, length]``, ``[num_envs, length]``.
        """
        return self._sim.state

    @property
    def elapsed(self) -> Array:
        """How many steps each replica's episode has had, int32: live, to be assigned into (``env.elapsed[:] = 0``).

        With NumPy output on CUDA it is a copy.
        """
        return self._replicas.to_output(self._sim.elapsed)

    def stagger(self, seed: int) -> ByRole:
        """Moves each replica's episode to a random step of the time limit, so that not all reach it at once.

        The states stay as they are: these episodes are only cut shorter, so do not evaluate on them.

        Args:
            seed: Of the random steps.

        Returns:
            The observations by role.
        """
        self._replicas.stagger(seed, self.closed)
        return self._given_out("observations")

    @property
    def action_mask(self) -> ByRole | None:
        """What is possible in the state last observed, int8 ``[num_envs, agents, choices]``: 1, or 0 for what is not.

        By role; live, or with NumPy output on CUDA a copy. Of MultiDiscrete actions the choices of all elements, one
        after another. Agents that are out have ones only. None where the rules forbid nothing: see ``allow``.
        """
        if not self._masked:
            return None
        return {role: self._replicas.to_output(mask) for role, mask in self._buffers["action_mask"].items()}

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; those that replicas have their own of as live arrays."""
        return self._replicas.params

    @property
    def episode_return(self) -> ByRole:
        """The return of each agent's last finished episode: live, or with NumPy output on CUDA a copy."""
        return {r: self._replicas.to_output(self._sim.buffers[f"episode_return.{r}"]) for r in self.roles}

    @property
    def episode_length(self) -> ByRole:
        """The length of each agent's last finished episode: live, or with NumPy output on CUDA a copy."""
        return {r: self._replicas.to_output(self._sim.buffers[f"episode_length.{r}"]) for r in self.roles}

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

    def get_state(self) -> dict[str, Any]:
        """Copies out everything a trajectory depends on: state, episodes, seeds and parameters."""
        self._replicas.check_open(self.closed)
        return self._replicas.snapshot()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``get_state`` gave, here or in another environment of the same kind and size."""
        self._replicas.check_open(self.closed)
        self._sim.restore(state)

    def render(self) -> Any:
        """What the replicas look like now.

        Returns:
            With ``rgb_array`` a sequence of a frame ``[height, width, 3]`` for each replica, painted when it is looked
            at; with ``tiled`` one such array, of at most 64 replicas; with ``human`` None: a window shows it.
        """
        self._renderer.check()
        self._replicas.check_ready(self.closed, "render")
        return self._renderer.render(self._sim.state, self._replicas.params)

    # --- pickling ---

    def __getstate__(self) -> dict[str, Any]:
        """The arguments that made it, and where its trajectories are."""
        return {**self._replicas.pickled(closed=self.closed), "render_mode": self.render_mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes an equal environment, on this machine, that goes on where the other was."""
        from gpu_envs.registry import again

        spec = again(state["id"], state.get("place", state["id"]))
        assert isinstance(spec, TeamSpec)
        MultiAgentEnv.__init__(self, spec, **state["arguments"], render_mode=state["render_mode"], **state["params"])
        if state["snapshot"] is not None:
            self._sim.restore(state["snapshot"])
        self.closed = state["closed"]

    def __repr__(self) -> str:
        """Says what it is and where."""
        return self._replicas.describe("MultiAgentEnv")

    # --- helpers ---

    def _follow(self, *, stepped: bool, out: Step | None = None) -> None:
        """In checking mode looks at the numbers; shows the window, if there is one."""
        if self._replicas.numbers is not None:
            self._replicas.numbers.look(stepped=stepped, out=out)
        if self._shown:
            self.render()

    def _given_out(self, name: str) -> ByRole:
        if self._live:
            return dict(self._buffers[name])
        return {role: self._replicas.given_out(f"{name}.{role}") for role in self.roles}

    def _result(self, name: str, out: Step | None) -> ByRole:
        given = getattr(out, name) if out is not None else None
        if given is None:
            return self._given_out(name)
        own = {role: given_for(given, role) for role in self.roles}
        return {r: v if v is not None else self._replicas.given_out(f"{name}.{r}") for r, v in own.items()}

    def _infos(self, out: Step | None) -> dict[str, Any]:
        infos: dict[str, Any] = {"alive": self._given_out("alive")}
        if self._masked:
            infos["action_mask"] = self._result("action_mask", out)
        if not (self._replicas.statistics or self._same_step):
            return infos
        finished = self._replicas.given_out("finished")
        if self.output == "numpy" and not finished.any():
            return infos
        if self._replicas.statistics:
            episode = {key: self._result(name, out) for key, name in (("r", "episode_return"), ("l", "episode_length"))}
            if self.output == "numpy":
                given = {"r": out.episode_return, "l": out.episode_length} if out is not None else {}
                episode = {key: self._only(finished, by_role, given.get(key)) for key, by_role in episode.items()}
            infos |= {"episode": episode, "_episode": finished}
        if self._same_step:
            final = self._result("final_obs", out)
            if self.output == "numpy" and self._replicas.copy:
                final = self._only(finished, final, out.final_obs if out is not None else None)
            infos |= {"final_obs": final, "_final_obs": finished}
        return infos

    def _only(self, finished: np.ndarray, by_role: ByRole, given: Mapping[str, Array] | None) -> ByRole:
        """Zeroes the replicas whose episode goes on, in NumPy arrays that the user did not give."""
        masked = {}
        for role, values in by_role.items():
            mask = finished.reshape(-1, *(1,) * (np.ndim(values) - 1))
            own = given is None or given.get(role) is None
            masked[role] = np.where(mask, to_numpy(values), values.dtype.type(0)) if own else values
        return masked


def _batched(space: gymnasium.Space[Any], num_envs: int, count: int) -> gymnasium.Space[Any]:
    """The space of all replicas and all agents of a role."""
    return batch_space(batch_space(space, count), num_envs)
