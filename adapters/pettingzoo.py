"""Teams behind PettingZoo's interfaces: one replica for its tests and tools, and many as dicts of agents.

Importing registers every team with PettingZoo as ``gpu_envs/<id>``, and gives each a namespace here, such as
``tag_continuous_v0``, with ``env``, ``raw_env``, ``parallel_env`` and ``vector_env``.
"""

import copy
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

import gpu_envs
from gpu_envs.arrays import Array, library_of, to_numpy
from gpu_envs.backend import device_of_one_replica
from gpu_envs.errors import ActionError, did_you_mean
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry import NAMESPACE, lasting, registered, team_spec
from gpu_envs.resets import Seeds
from gpu_envs.results import Step
from gpu_envs.simulation import LiveState
from gpu_envs.spec import TeamSpec

try:
    from pettingzoo import AECEnv, ParallelEnv, aec_registry, parallel_registry
    from pettingzoo import register as register_with_pettingzoo
    from pettingzoo.utils.conversions import parallel_to_aec, parallel_to_aec_wrapper
except ImportError as error:
    raise ImportError(
        "gpu_envs.adapters.pettingzoo needs PettingZoo 1.27 or newer: pip install 'gpu_envs[pettingzoo]'"
    ) from error

Space: TypeAlias = gymnasium.Space[Any]
ByAgent: TypeAlias = dict[str, Array]
"""An array for each agent, ``[num_envs, ...]``."""

Infos: TypeAlias = dict[str, dict[str, Any]]


# --- making them ---


def parallel_env(id: str, **kwargs: Any) -> "TeamEnv":
    """Makes one replica in which all agents act at once.

    Args:
        id: The environment, such as ``TagContinuous-v0``.
        **kwargs: What ``TeamEnv`` takes.

    Returns:
        A PettingZoo ``ParallelEnv``.
    """
    return TeamEnv(id, **kwargs)


def env(id: str, **kwargs: Any) -> AECEnv:
    """The same with agents that act one after another: PettingZoo's ``AECEnv``."""
    return parallel_to_aec(parallel_env(id, **kwargs))


def raw_env(id: str, **kwargs: Any) -> AECEnv:
    """The same as ``env``, without the wrapper that enforces the order of calls."""
    return parallel_to_aec_wrapper(parallel_env(id, **kwargs))


def vector_env(id: str, num_envs: int = 1, **kwargs: Any) -> "TeamVectorEnv":
    """Makes many replicas whose arrays are handed out agent by agent.

    Args:
        id: The environment, such as ``TagContinuous-v0``.
        num_envs: How many replicas.
        **kwargs: What ``TeamVectorEnv`` takes.
    """
    return TeamVectorEnv(id, num_envs, **kwargs)


_MAKERS: dict[str, Callable[..., Any]] = {
    "env": env,
    "raw_env": raw_env,
    "parallel_env": parallel_env,
    "vector_env": vector_env,
}


def publish() -> None:
    """Tells PettingZoo of all registered teams, and names them here. Those that were known stay as they are."""
    for spec in registered():
        if isinstance(spec, TeamSpec):
            _publish(spec)


def _publish(spec: TeamSpec) -> None:
    name, short = f"{NAMESPACE}/{spec.id}", _short_name(spec.id)
    for kind, known, maker in (("aec", aec_registry, "env"), ("parallel", parallel_registry, "parallel_env")):
        if name not in known:
            # without max_cycles: PettingZoo would hand that on even where the user gives an episode_length
            register_with_pettingzoo(kind, name, entry_point=f"{__name__}:{maker}", kwargs={"id": lasting(spec.id)})
    if short not in globals():
        module = types.ModuleType(f"{__name__}.{short}", spec.description)
        for maker, function in _MAKERS.items():
            setattr(module, maker, functools.partial(function, spec.id))
        sys.modules[module.__name__] = module  # so that an import statement finds it too
        globals()[short] = module


def withdraw(id: str) -> None:
    """Takes back what was told of a team."""
    name, short = f"{NAMESPACE}/{id}", _short_name(id)
    for known in (aec_registry, parallel_registry):
        known.pop(name, None)
    if sys.modules.pop(f"{__name__}.{short}", None) is not None:
        globals().pop(short, None)


def __getattr__(name: str) -> Any:
    """The namespace of a team that was registered later than this module was imported."""
    gpu_envs.ids()  # those of other distributions too
    publish()
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _short_name(id: str) -> str:
    """An id as PettingZoo writes them: ``tag_continuous_v0``."""
    return re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", id)).lower()


def _metadata(spec: TeamSpec) -> dict[str, Any]:
    drawing = spec.drawing
    shown = {"render_modes": ["rgb_array", "human"], "render_fps": drawing.frames_a_second} if drawing else {}
    return {"name": _short_name(spec.id), "render_modes": [], "is_parallelizable": True, **shown}


def _limit(max_cycles: int | None, max_episode_steps: int | None) -> int | None:
    """The one of the two that is given."""
    if max_cycles is not None and max_episode_steps not in (None, max_cycles):
        raise ValueError(
            f"max_cycles is {max_cycles}, and max_episode_steps, which means the same, {max_episode_steps}"
        )
    return max_episode_steps if max_cycles is None else max_cycles


def _agents_by_role(batch: MultiAgentEnv) -> dict[str, list[str]]:
    names = iter(batch.possible_agents)
    return {role: [next(names) for _ in range(count)] for role, count in batch.counts.items()}


def _element_type(space: Space, precision: str) -> np.dtype[Any]:
    """The type in which actions lose nothing that the environment would keep."""
    return np.dtype(precision) if isinstance(space, gymnasium.spaces.Box) else np.dtype(np.int64)


@final
class _Spaces:
    """A space of each agent's own, made when asked for, so that each is seeded apart from the others."""

    def __init__(
        self, by_role: Mapping[str, Space], agents: Mapping[str, Sequence[str]], make: Callable[[Space], Space]
    ) -> None:
        """Keeps what the spaces are made of.

        Args:
            by_role: The space of one agent of each role.
            agents: The agents of each role.
            make: Makes an agent's space from its role's.
        """
        self._by_role = dict(by_role)
        self._roles = {agent: role for role, names in agents.items() for agent in names}
        self._make = make
        self._made: dict[str, Space] = {}

    def __getitem__(self, agent: str) -> Space:
        """The same object each time."""
        if agent not in self._made:
            if agent not in self._roles:
                raise KeyError(f"there is no agent {agent!r}{did_you_mean(str(agent), self._roles)}")
            self._made[agent] = self._make(self._by_role[self._roles[agent]])
        return self._made[agent]


# --- one replica ---


@final
class _RoleActions:
    """Gathers what the agents of a role do into the array that the step reads."""

    def __init__(self, space: Space, agents: Sequence[str], dtype: np.dtype[Any]) -> None:
        """Allocates the array.

        Args:
            space: The action space of one agent.
            agents: The role's agents.
            dtype: The element type of the array.
        """
        shape = space.shape or ()
        self.array = np.zeros((1, len(agents), *shape), dtype)
        self._space = space
        self._agents = agents
        self._scalar = shape == ()
        self._width = int(np.prod(shape))
        self._flat = self.array.reshape(-1)
        self._packed = np.zeros_like(self._flat)
        self.keep(range(len(agents)))

    def keep(self, live: Sequence[int]) -> None:
        """Asks for the actions of these agents only, from now on."""
        self.live = list(live)
        self.names = [self._agents[i] for i in live]
        self.all = len(live) == len(self._agents)
        self.at: Any = slice(None) if self.all else np.array(live, np.intp)

    def mask(self, row: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """An agent's action mask as its space takes it."""
        if isinstance(self._space, gymnasium.spaces.MultiDiscrete):
            return tuple(np.split(row, np.cumsum(self._space.nvec)[:-1]))
        return row

    def write(self, actions: Mapping[str, Any]) -> None:
        """Copies the actions of those in the game, or raises an ActionError that names the agent."""
        try:
            given = [actions[name] for name in self.names]
            if self._scalar:
                self.array[0, self.at] = [operator.index(action) for action in given]
            elif given:
                self._write_rows(given)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._explain(actions) from None

    def _write_rows(self, given: Sequence[Any]) -> None:
        if {len(action) for action in given} != {self._width}:
            raise ValueError
        packed = self._flat if self.all else self._packed[: len(given) * self._width]
        np.concatenate(given, out=packed, casting="same_kind")
        if not self.all:
            self.array[0, self.at] = packed.reshape(len(given), self._width)

    def _explain(self, actions: Mapping[str, Any]) -> ActionError:
        """Finds the first action that is missing or unfit."""
        for name in self.names:
            if name not in actions:
                return ActionError(f"there is no action for {name!r}, which is in the game")
            if not self._fits(actions[name]):
                return ActionError(f"the action {actions[name]!r} of {name!r} is not of its space {self._space}")
        return ActionError(f"the actions of {', '.join(self.names)} are not of the space {self._space}")

    def _fits(self, action: Any) -> bool:
        try:
            array = np.asarray(operator.index(action) if self._scalar else action)
        except (TypeError, ValueError, OverflowError):
            return False
        return array.shape == self._space.shape and np.can_cast(array.dtype, self.array.dtype, "same_kind")


@final
class TeamEnv(ParallelEnv):
    """One replica of a team as a PettingZoo ``ParallelEnv``.

    Attributes:
        possible_agents: All agents, role after role.
        agents: Those in the game; one leaves in the step that reports its end.
        state_space: What ``state`` returns.
        max_cycles: The step that truncates an episode; None: none does. PettingZoo's tests assign it, to no effect.
        batch: The ``MultiAgentEnv`` of this one replica: its live state, its parameters.
        metadata: PettingZoo's: the name among others.
        render_mode: ``rgb_array``, ``human`` or None.
    """

    def __init__(
        self,
        env_id: str,
        *,
        max_cycles: int | None = None,
        max_episode_steps: int | None = None,
        device: str | None = None,
        precision: str = "float32",
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Makes the replica.

        Args:
            env_id: The environment, such as ``TagContinuous-v0``.
            max_cycles: Truncates at this step; -1: never; None: the environment's default.
            max_episode_steps: The same.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU where it has a compiler.
            precision: Of state and reward.
            render_mode: ``rgb_array`` (``render`` gives a frame), ``human`` (a window shows each step), or None.
            **params: The environment's own parameters.
        """
        spec = team_spec(env_id)
        device = device or device_of_one_replica()
        self.metadata = _metadata(spec)
        self.render_mode = render_mode
        self.batch = MultiAgentEnv(
            spec,
            1,
            device=device,
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=_limit(max_cycles, max_episode_steps),
            copy=False if device == "cpu" else None,
            threads=1,
            render_mode=render_mode,
            **params,
        )
        self.possible_agents = list(self.batch.possible_agents)
        self.agents: list[str] = []
        self.max_cycles = self.batch.max_episode_steps
        self.state_space = _state_space(self.batch.state)
        self._started = False
        agents = _agents_by_role(self.batch)
        self._observation_spaces = _Spaces(self.batch.single_observation_spaces, agents, copy.deepcopy)
        self._action_spaces = _Spaces(self.batch.single_action_spaces, agents, copy.deepcopy)
        self._gather()

    def _gather(self) -> None:
        """Allocates the arrays of actions."""
        spaces, precision = self.batch.single_action_spaces, self.batch.precision
        self._roles = {
            role: _RoleActions(spaces[role], names, _element_type(spaces[role], precision))
            for role, names in _agents_by_role(self.batch).items()
        }
        self._actions = {role: actions.array for role, actions in self._roles.items()}

    def observation_space(self, agent: str) -> Space:
        """What the agent sees."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """What the agent may do."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], Infos]:
        """Begins a new episode.

        Args:
            seed: Begins the episodes anew; without one the next follows.
            options: As ``MultiAgentEnv.reset`` takes them, such as a layout ``x``, ``[num_agents]``.

        Returns:
            Observations, and infos: where the rules say what is possible, ``action_mask`` as the agent's action space
            takes it to sample: int8 ``[choices]``, of MultiDiscrete actions a tuple of such, one for each element.
        """
        # PettingZoo's tests give {"options": 1}. Any other option that there is not is somebody's mistake.
        given = {name: value for name, value in (options or {}).items() if name != "options"}
        observations, infos = self.batch.reset(seed=seed, options=given)
        self._started = True
        self.agents = list(self.possible_agents)
        rows: list[np.ndarray] = []
        for name, role in self._roles.items():
            role.keep(range(len(observations[name][0])))
            rows.extend(observations[name][0].copy())
        told = self._told(infos)
        return dict(zip(self.agents, rows, strict=True)), dict(zip(self.agents, told, strict=True))

    def _told(self, infos: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The infos of everybody in the game."""
        masks = infos.get("action_mask")
        if masks is None:
            return [{} for role in self._roles.values() for _ in role.names]
        return [
            {"action_mask": role.mask(row)}
            for name, role in self._roles.items()
            for row in masks[name][0][role.at].copy()
        ]

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Takes a step with everybody in the game. When nobody is left, it gives empty dicts.

        Args:
            actions: One for each agent in the game; those of others are ignored.

        Returns:
            Observations, rewards, terminations, truncations and infos, as of ``reset``, of those who were in the game.

        Raises:
            ActionError: One is missing, out of range or not a number; nothing has changed.
        """
        self._check_ready()
        names = [name for role in self._roles.values() for name in role.names]
        if not names:
            return {}, {}, {}, {}, {}
        for role in self._roles.values():
            role.write(actions)
        results = self.batch.step(self._actions)
        told = self._told(results[4])
        rows: list[np.ndarray] = []
        rewards: list[float] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        over = False
        for name, role in self._roles.items():
            observed, rewarded, terminated, truncated = (result[name][0][role.at] for result in results[:4])
            rows.extend(observed.copy())  # of the simulator's own memory
            rewards.extend(rewarded.tolist())
            terminations.extend(terminated.tolist())
            truncations.extend(truncated.tolist())
            ended = terminated | truncated
            if ended.any():
                over = True
                role.keep([i for i, end in zip(role.live, ended.tolist(), strict=True) if not end])
        if over:
            self.agents = [name for role in self._roles.values() for name in role.names]
        return (
            dict(zip(names, rows, strict=True)),
            dict(zip(names, rewards, strict=True)),
            dict(zip(names, terminations, strict=True)),
            dict(zip(names, truncations, strict=True)),
            dict(zip(names, told, strict=True)),
        )

    def state(self) -> np.ndarray:
        """The whole state as float32, field after field in the order of ``batch.state``."""
        self._check_ready()
        return np.concatenate([to_numpy(field).ravel() for field in self.batch.state.values()], dtype=np.float32)

    def render(self) -> Any:
        """A frame, ``[height, width, 3]``; None where a window shows it."""
        rendered = self.batch.render()
        return rendered[0] if self.render_mode == "rgb_array" else rendered

    def close(self) -> None:
        """Closes the replica."""
        self.batch.close()

    def _check_ready(self) -> None:
        if self.batch.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self.batch.spec.id} is closed; make another")
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() first")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the arrays of actions, of which some are views of others."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_roles", "_actions")}
        return kept | {"live": {name: role.live for name, role in self._roles.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Goes on where the other was."""
        live = state.pop("live")
        self.__dict__.update(state)
        self._gather()
        for name, role in self._roles.items():
            role.keep(live[name])


def _state_space(state: LiveState) -> gymnasium.spaces.Box:
    """All finite numbers that a state of these fields may hold."""
    highs = {"b": 1.0, "u": 255.0, "i": 2.0**31, "f": float(np.finfo(np.float32).max)}
    lows: list[float] = []
    tops: list[float] = []
    for field in state.values():
        kind = np.dtype(str(field.dtype).rpartition(".")[2]).kind
        count = int(np.prod(field.shape))
        tops += [highs[kind]] * count
        lows += [0.0 if kind in "bu" else -highs[kind]] * count
    return gymnasium.spaces.Box(np.array(lows, np.float32), np.array(tops, np.float32), dtype=np.float32)


# --- many replicas ---


@final
class TeamVectorEnv:
    """Many replicas whose arrays are handed out agent by agent, as views of the arrays of the roles.

    The agents are always the same: who is in the game differs from replica to replica, and ``alive`` says so. Ends of
    episodes and restarts are those of ``MultiAgentEnv``.

    Attributes:
        unwrapped: The ``MultiAgentEnv``.
        num_envs: The number of replicas.
        possible_agents: All agents, role after role.
        agents: The same list.
        metadata: PettingZoo's and Gymnasium's: the name, the auto-reset mode.
        render_mode: As of ``MultiAgentEnv``.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        max_cycles: int | None = None,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the replicas.

        Args:
            env_id: The environment, such as ``TagContinuous-v0``.
            num_envs: How many replicas.
            max_cycles: Truncates at this step; -1: never; None: the environment's default.
            max_episode_steps: The same.
            **kwargs: What ``gpu_envs.make`` takes.
        """
        spec = team_spec(env_id)
        limit = _limit(max_cycles, max_episode_steps)
        self.unwrapped = MultiAgentEnv(spec, num_envs, max_episode_steps=limit, **kwargs)
        self.num_envs = self.unwrapped.num_envs
        self.possible_agents = list(self.unwrapped.possible_agents)
        self.agents = self.possible_agents
        self.metadata = _metadata(spec) | {n: v for n, v in self.unwrapped.metadata.items() if n != "name"}
        self.render_mode = self.unwrapped.render_mode
        self._roles = _agents_by_role(self.unwrapped)
        batch = functools.partial(batch_space, n=self.num_envs)
        seen, done = self.unwrapped.single_observation_spaces, self.unwrapped.single_action_spaces
        self._single_observation_spaces = _Spaces(seen, self._roles, copy.deepcopy)
        self._single_action_spaces = _Spaces(done, self._roles, copy.deepcopy)
        self._observation_spaces = _Spaces(seen, self._roles, batch)
        self._action_spaces = _Spaces(done, self._roles, batch)
        self._prepare()

    def _prepare(self) -> None:
        """What is made anew after unpickling."""
        self._scratch: dict[str, np.ndarray] = {}
        self._views: dict[tuple[str, str], tuple[Array, Sequence[Array]]] = {}

    @property
    def num_agents(self) -> int:
        """How many agents a replica has."""
        return len(self.possible_agents)

    @property
    def max_num_agents(self) -> int:
        """The same, by PettingZoo's name."""
        return len(self.possible_agents)

    @property
    def state(self) -> LiveState:
        """The live state, field by field: agents' ``[num_envs, num_agents]``, replicas' ``[num_envs]``."""
        return self.unwrapped.state

    @property
    def alive(self) -> ByAgent:
        """Who is in the game, bool ``[num_envs]``: live, or with NumPy output on CUDA a copy."""
        in_game = self.unwrapped.state["in_game"]
        if self.unwrapped.output == "numpy":
            in_game = to_numpy(in_game)
        return dict(zip(self.possible_agents, _columns(in_game), strict=True))

    def observation_space(self, agent: str) -> Space:
        """What the agent sees in all replicas."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """What the agent may do in all replicas."""
        return self._action_spaces[agent]

    def single_observation_space(self, agent: str) -> Space:
        """What the agent sees in one replica."""
        return self._single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> Space:
        """What the agent may do in one replica."""
        return self._single_action_spaces[agent]

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[ByAgent, Infos]:
        """Begins new episodes; see ``MultiAgentEnv.reset``."""
        observations, infos = self.unwrapped.reset(seed=seed, options=options)
        return self._by_agent("observations", observations), self._handed_out("infos", infos)

    def step(
        self, actions: Mapping[str, Any], *, out: Step | None = None
    ) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """Steps every replica once.

        Args:
            actions: One array for each agent, ``[num_envs, ...]``; or one for each role, ``[num_envs, agents, ...]``,
                which is not copied.
            out: Arrays of your own to write into, by role; the results are views of them.

        Returns:
            Observations, rewards, terminations, truncations and infos, all by agent. An agent's infos hold ``alive``,
            and where ``MultiAgentEnv`` gives them ``action_mask``, ``final_obs`` and ``episode``, and which replicas
            the last two are of.
        """
        given = actions if self._is_by_role(actions) else self._stacked(actions)
        *results, infos = self.unwrapped.step(given, out=out)
        names = ("observations", "rewards", "terminations", "truncations")
        observations, rewards, terminations, truncations = map(self._by_agent, names, results)
        return observations, rewards, terminations, truncations, self._handed_out("infos", infos)

    def render(self) -> Any:
        """What the replicas look like; see ``MultiAgentEnv.render``."""
        return self.unwrapped.render()

    def close(self) -> None:
        """Closes the replicas."""
        self.unwrapped.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but views and scratch memory."""
        return {name: value for name, value in vars(self).items() if name not in ("_scratch", "_views")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Goes on where the other was."""
        self.__dict__.update(state)
        self._prepare()

    def __repr__(self) -> str:
        """Says what it is and where."""
        return f"TeamVectorEnv({self.unwrapped!r})"

    # --- helpers ---

    def _is_by_role(self, actions: Mapping[str, Any]) -> bool:
        """Whether to hand the actions on as they are, which includes whatever is no mapping, and is refused there."""
        return not isinstance(actions, Mapping) or any(role in actions for role in self._roles)

    def _stacked(self, actions: Mapping[str, Any]) -> dict[str, Array]:
        """The agents' actions as the roles'."""
        try:
            given = {role: [actions[name] for name in names] for role, names in self._roles.items()}
        except KeyError as error:
            raise ActionError(f"there is no action for {error}; every agent needs one, in the game or not") from None
        if len(actions) > self.num_agents:
            unknown = str(next(name for name in actions if name not in self.possible_agents))
            raise ValueError(f"there is no agent {unknown!r}{did_you_mean(unknown, self.possible_agents)}")
        return {role: self._stack(role, arrays) for role, arrays in given.items()}

    def _stack(self, role: str, arrays: Sequence[Any]) -> Array:
        """Puts the arrays of a role's agents together, where they are."""
        try:
            library = library_of(arrays[0])
            if library == "torch":
                return sys.modules["torch"].stack(arrays, 1)
            if library == "cupy":
                return sys.modules["cupy"].stack(arrays, 1)
            return np.stack(arrays, 1, out=self._scratch_for(role), casting="same_kind")
        except (TypeError, ValueError, RuntimeError):
            self._check_shapes(role, arrays)
            raise

    def _scratch_for(self, role: str) -> np.ndarray:
        if role not in self._scratch:
            space = self.unwrapped.single_action_spaces[role]
            shape = (self.num_envs, len(self._roles[role]), *(space.shape or ()))
            self._scratch[role] = np.empty(shape, _element_type(space, self.unwrapped.precision))
        return self._scratch[role]

    def _check_shapes(self, role: str, arrays: Sequence[Any]) -> None:
        expected = (self.num_envs, *(self.unwrapped.single_action_spaces[role].shape or ()))
        for name, array in zip(self._roles[role], arrays, strict=True):
            shape = tuple(array.shape) if library_of(array) else np.shape(array)
            if shape != expected:
                raise ValueError(f"the actions of {name!r} have shape {shape}; expected {expected}")

    def _by_agent(self, what: str, by_role: Mapping[str, Array]) -> ByAgent:
        """Each agent's view of the arrays of the roles. Views of an array that comes again are kept."""
        views: ByAgent = {}
        for role, names in self._roles.items():
            array = by_role[role]
            kept = self._views.get((what, role))
            if kept is None or kept[0] is not array:
                kept = self._views[what, role] = array, _columns(array)
            views.update(zip(names, kept[1], strict=True))
        return views

    def _handed_out(self, what: str, value: Any) -> dict[str, Any]:
        """What each agent gets of infos: its view where there is an array for each role; a mask of replicas whole."""
        if not isinstance(value, Mapping):
            return dict.fromkeys(self.possible_agents, value)
        if value.keys() == self._roles.keys():
            return self._by_agent(what, value)
        parts = {key: self._handed_out(f"{what}.{key}", part) for key, part in value.items()}
        return {name: {key: part[name] for key, part in parts.items()} for name in self.possible_agents}


def _columns(array: Array) -> Sequence[Array]:
    """Views of the array at each index of its second dimension."""
    return array.unbind(1) if library_of(array) == "torch" else list(array.swapaxes(0, 1))


publish()
