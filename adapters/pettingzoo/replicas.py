"""Many replicas of a team with dicts by agent."""

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from gymnasium.vector.utils import batch_space

from gpu_envs.adapters.opening import check_full_rows
from gpu_envs.adapters.pettingzoo.agents import (
    ByAgent,
    Infos,
    Space,
    Spaces,
    action_dtype,
    columns,
    metadata,
    time_limit,
)
from gpu_envs.backend.arrays import Array, library_of, to_numpy
from gpu_envs.engine.results import Step
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.engine.state import LiveState
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.catalog import team_spec
from gpu_envs.seeds import Seeds

_NOT_PICKLED = ("_by_role", "_scratch", "_views")
"""Attributes that are not pickled."""


@final
class TeamVectorEnv:
    """Many replicas of a team, whose results are dicts of views by agent.

    The list of agents is constant, because replicas have different active agents: see ``alive``. Episodes end and are
    reset as in ``MultiAgentEnv``.

    Attributes:
        unwrapped: The ``MultiAgentEnv``.
        num_envs: Number of replicas.
        possible_agents: All agents, ordered by role.
        agents: The same list.
        metadata: Metadata of PettingZoo and Gymnasium, such as the name and the autoreset mode.
        render_mode: Render mode of the ``MultiAgentEnv``.
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
        """Create the replicas.

        Args:
            env_id: The id of the environment, such as ``TagContinuous-v0``.
            num_envs: Number of replicas.
            max_cycles: Time limit in steps; -1: no limit; None: the environment's default.
            max_episode_steps: Another name of ``max_cycles``.
            **kwargs: Arguments of ``gpu_envs.make``.
        """
        spec = team_spec(env_id)
        limit = time_limit(max_cycles, max_episode_steps)
        self.unwrapped = check_full_rows(MultiAgentEnv(spec, num_envs, max_episode_steps=limit, **kwargs))
        self.num_envs = self.unwrapped.num_envs
        self.possible_agents = list(self.unwrapped.possible_agents)
        self.agents = self.possible_agents
        self.metadata = metadata(spec) | {n: v for n, v in self.unwrapped.metadata.items() if n != "name"}
        self.render_mode = self.unwrapped.render_mode
        self._prepare()
        batch = functools.partial(batch_space, n=self.num_envs)
        self._single_observation_spaces = Spaces(self._by_role, "observation", copy.deepcopy)
        self._single_action_spaces = Spaces(self._by_role, "action", copy.deepcopy)
        self._observation_spaces = Spaces(self._by_role, "observation", batch)
        self._action_spaces = Spaces(self._by_role, "action", batch)

    def _prepare(self) -> None:
        """Create the attributes that are not pickled."""
        self._by_role = RoleInterface(self.unwrapped)
        self._scratch: dict[str, np.ndarray] = {}
        self._views: dict[tuple[str, str], tuple[Array, Sequence[Array]]] = {}

    @property
    def num_agents(self) -> int:
        """Number of agents in a replica."""
        return len(self.possible_agents)

    @property
    def max_num_agents(self) -> int:
        """The same as ``num_agents``; PettingZoo's name."""
        return len(self.possible_agents)

    @property
    def state(self) -> LiveState:
        """The live state: fields of agents ``[num_envs, num_agents]`` and of replicas ``[num_envs]``."""
        return self.unwrapped.state

    @property
    def alive(self) -> ByAgent:
        """Active agents, bool ``[num_envs]`` by agent; live, but a copy for NumPy output on CUDA."""
        in_game = self.unwrapped.state["in_game"]
        if self.unwrapped.output == "numpy":
            in_game = to_numpy(in_game)
        return dict(zip(self.possible_agents, columns(in_game), strict=True))

    def observation_space(self, agent: str) -> Space:
        """Return the batched observation space of an agent."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """Return the batched action space of an agent."""
        return self._action_spaces[agent]

    def single_observation_space(self, agent: str) -> Space:
        """Return the observation space of an agent in one replica."""
        return self._single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> Space:
        """Return the action space of an agent in one replica."""
        return self._single_action_spaces[agent]

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[ByAgent, Infos]:
        """Start new episodes; see ``MultiAgentEnv.reset``."""
        observations, infos = self.unwrapped.reset(seed=seed, options=options)
        return self._by_agent("observations", observations), self._infos_by_agent("infos", infos)

    def step(
        self, actions: Mapping[str, Any], *, out: Step | None = None
    ) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """Step all replicas.

        Args:
            actions: Arrays ``[num_envs, ...]`` by agent, or arrays ``[num_envs, agents, ...]`` by role, which are not
                copied.
            out: Arrays by role to write the results to; the results are views of them.

        Returns:
            Observations, rewards, terminations, truncations and infos, all by agent. Infos contain ``alive`` and, if
            ``MultiAgentEnv`` returns them, ``action_mask``, ``final_obs`` and ``episode`` with their masks of replicas.
        """
        role_actions = actions if self._is_by_role(actions) else self._stack_by_role(actions)
        *results, infos = self.unwrapped.step(role_actions, out=out)
        names = ("observations", "rewards", "terminations", "truncations")
        observations, rewards, terminations, truncations = map(self._by_agent, names, results)
        return observations, rewards, terminations, truncations, self._infos_by_agent("infos", infos)

    def render(self) -> Any:
        """Return frames of the replicas; see ``MultiAgentEnv.render``."""
        return self.unwrapped.render()

    def close(self) -> None:
        """Close the replicas."""
        self.unwrapped.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __repr__(self) -> str:
        return f"TeamVectorEnv({self.unwrapped!r})"

    # --- helpers ---

    def _is_by_role(self, actions: Mapping[str, Any]) -> bool:
        """Return whether to pass the actions on unchanged; ``MultiAgentEnv`` refuses other types than mappings."""
        return not isinstance(actions, Mapping) or any(role in actions for role in self._by_role.roles)

    def _stack_by_role(self, actions: Mapping[str, Any]) -> dict[str, Array]:
        return {role: self._stack(role, arrays) for role, arrays in self._by_role.group_actions(actions).items()}

    def _stack(self, role: str, arrays: Sequence[Any]) -> Array:
        """Return the agents' arrays stacked to ``[num_envs, agents, ...]``, on the host in a buffer that is reused."""
        try:
            library = library_of(arrays[0])
            if library in ("torch", "cupy"):
                if len(arrays) == 1:  # ``stack`` only finds arrays with different shapes
                    self._check_shapes(role, arrays)
                return sys.modules[library].stack(arrays, 1)
            return np.stack(arrays, 1, out=self._scratch_for(role), casting="same_kind")
        except (TypeError, ValueError, RuntimeError):
            self._check_shapes(role, arrays)
            raise

    def _scratch_for(self, role: str) -> np.ndarray:
        """Return the buffer for a role's stacked actions on the host, allocated in the first call."""
        if role not in self._scratch:
            space = self._by_role.roles[role].action
            shape = (*self._by_role.batch_shape(role), *(space.shape or ()))
            self._scratch[role] = np.empty(shape, action_dtype(space, self.unwrapped.precision))
        return self._scratch[role]

    def _check_shapes(self, role: str, arrays: Sequence[Any]) -> None:
        """Raise a ValueError that names the first agent whose actions have a wrong shape."""
        role_view = self._by_role.roles[role]
        expected = (self.num_envs, *(role_view.action.shape or ()))
        for name, array in zip(role_view.agents, arrays, strict=True):
            shape = tuple(array.shape) if library_of(array) else np.shape(array)
            if shape != expected:
                raise ValueError(f"the actions of {name!r} have shape {shape}: give {expected}, one row per replica")

    def _by_agent(self, what: str, by_role: Mapping[str, Array]) -> ByAgent:
        """Return each agent's view of the roles' arrays; views of the same array are reused."""
        views: ByAgent = {}
        for name, role in self._by_role.roles.items():
            array = by_role[name]
            cached = self._views.get((what, name))
            if cached is None or cached[0] is not array:
                cached = self._views[what, name] = array, columns(array)
            views.update(zip(role.agents, cached[1], strict=True))
        return views

    def _infos_by_agent(self, what: str, value: Any) -> dict[str, Any]:
        """Return the info ``what`` by agent: views of arrays by role; arrays of replicas are passed to each agent."""
        if not isinstance(value, Mapping):
            return dict.fromkeys(self.possible_agents, value)
        if value.keys() == self._by_role.roles.keys():
            return self._by_agent(what, value)
        parts = {key: self._infos_by_agent(f"{what}.{key}", part) for key, part in value.items()}
        return {name: {key: part[name] for key, part in parts.items()} for name in self.possible_agents}
