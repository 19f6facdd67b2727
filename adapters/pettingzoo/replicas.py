"""Many replicas, agent by agent."""

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
    columns,
    element_type,
    given_limit,
    metadata,
)
from gpu_envs.backend.arrays import Array, library_of, to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.results import Step
from gpu_envs.engine.state import LiveState
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.known import team_spec
from gpu_envs.seeds import Seeds

_MADE_ANEW = ("_by_role", "_scratch", "_views")
"""Attributes that pickles leave out."""


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
        limit = given_limit(max_cycles, max_episode_steps)
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
        """What is made anew after unpickling."""
        self._by_role = ByRole(self.unwrapped)
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
        return dict(zip(self.possible_agents, columns(in_game), strict=True))

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
        return {name: value for name, value in vars(self).items() if name not in _MADE_ANEW}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __repr__(self) -> str:
        return f"TeamVectorEnv({self.unwrapped!r})"

    # --- helpers ---

    def _is_by_role(self, actions: Mapping[str, Any]) -> bool:
        """Whether to hand the actions on as they are, which includes whatever is no mapping, and is refused there."""
        return not isinstance(actions, Mapping) or any(role in actions for role in self._by_role.roles)

    def _stacked(self, actions: Mapping[str, Any]) -> dict[str, Array]:
        """The agents' actions as the roles'."""
        return {role: self._stack(role, arrays) for role, arrays in self._by_role.gathered(actions).items()}

    def _stack(self, role: str, arrays: Sequence[Any]) -> Array:
        """Puts the arrays of a role's agents together, where they are."""
        try:
            library = library_of(arrays[0])
            if library in ("torch", "cupy"):
                if len(arrays) == 1:  # which no other could differ from
                    self._check_shapes(role, arrays)
                return sys.modules[library].stack(arrays, 1)
            return np.stack(arrays, 1, out=self._scratch_for(role), casting="same_kind")
        except (TypeError, ValueError, RuntimeError):
            self._check_shapes(role, arrays)
            raise

    def _scratch_for(self, role: str) -> np.ndarray:
        if role not in self._scratch:
            space = self._by_role.roles[role].action
            shape = (*self._by_role.rows(role), *(space.shape or ()))
            self._scratch[role] = np.empty(shape, element_type(space, self.unwrapped.precision))
        return self._scratch[role]

    def _check_shapes(self, role: str, arrays: Sequence[Any]) -> None:
        own = self._by_role.roles[role]
        expected = (self.num_envs, *(own.action.shape or ()))
        for name, array in zip(own.agents, arrays, strict=True):
            shape = tuple(array.shape) if library_of(array) else np.shape(array)
            if shape != expected:
                raise ValueError(f"the actions of {name!r} have shape {shape}; expected {expected}")

    def _by_agent(self, what: str, by_role: Mapping[str, Array]) -> ByAgent:
        """Each agent's view of the arrays of the roles. Views of an array that comes again are kept."""
        views: ByAgent = {}
        for name, role in self._by_role.roles.items():
            array = by_role[name]
            kept = self._views.get((what, name))
            if kept is None or kept[0] is not array:
                kept = self._views[what, name] = array, columns(array)
            views.update(zip(role.agents, kept[1], strict=True))
        return views

    def _handed_out(self, what: str, value: Any) -> dict[str, Any]:
        """What each agent gets of infos: its view where there is an array for each role; a mask of replicas whole."""
        if not isinstance(value, Mapping):
            return dict.fromkeys(self.possible_agents, value)
        if value.keys() == self._by_role.roles.keys():
            return self._by_agent(what, value)
        parts = {key: self._handed_out(f"{what}.{key}", part) for key, part in value.items()}
        return {name: {key: part[name] for key, part in parts.items()} for name in self.possible_agents}
