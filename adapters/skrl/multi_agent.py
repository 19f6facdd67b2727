"""A skrl ``MultiAgentEnvWrapper`` for teams."""

from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
import torch
from skrl.envs.wrappers.torch import MultiAgentEnvWrapper

from gpu_envs.adapters.opening import open_env
from gpu_envs.adapters.skrl.wrapper import BaseWrapper, InitialState, from_zero
from gpu_envs.engine.results import Step
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seed
from gpu_envs.specs.base import Spec

Tensors = dict[str, torch.Tensor]
"""Tensors by agent or by role."""


@final
class MultiAgentWrapper(BaseWrapper, MultiAgentEnvWrapper):
    """A skrl multi-agent environment for a team, with dicts by agent in the order of ``possible_agents``.

    A step writes to one new tensor per role, returned as views per agent, and does not wait for the device.

    An inactive agent observes zeros, gets no reward, and stays ``terminated`` until its replica is reset. skrl stores a
    row per agent and step; with ``terminated`` set, rows of an inactive agent are episodes of one step with return 0,
    so that no advantage leaks into them from the next episode, or from them into the agent's episode. They do count
    in skrl's normalisation of advantages. skrl counts episodes by the flags of the first agent, and would count each of
    these rows; ``IPPO`` and ``MAPPO`` of this package count the episodes of replicas.

    An agent that terminates at the time limit is not marked as truncated. Infos contain ``alive`` by agent,
    ``[num_envs]``; ``final_obs`` by agent, valid in replicas whose episode ended; and ``_final_obs``, the mask of these
    replicas, ``[num_envs]``. All are in the simulator's memory, valid until the next step.

    skrl does not use action masks: invalid actions are passed to the environment, and its rules decide what they do.
    """

    _env: MultiAgentEnv

    def __init__(
        self,
        env: str | Spec | MultiAgentEnv,
        num_envs: int | None = None,
        *,
        seed: Seed | None = None,
        stagger: bool = False,
        shared_state: bool = False,
        **options: Any,
    ) -> None:
        """Create the environment, or wrap an existing one.

        Args:
            env: An id such as ``TagGridWorld-v0``, a path such as ``my_env.py:MY_ENV``, a spec, or an environment with
                torch output in SameStep mode.
            num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
            seed: Seed of the first reset; replica *i* uses ``seed + i``. None: derived from the seed of
                ``skrl.utils.set_seed``, or random without one.
            stagger: Truncate the first episodes at random steps, so that replicas do not all reach the time limit
                at once. For training only.
            shared_state: Provide a state for MAPPO's critics, the concatenated observations of all agents. False: the
                states are None.
            **options: Arguments of ``gpu_envs.make``, such as ``device``, and parameters of the environment.
        """
        wrapped = open_env(env, num_envs, "SameStep", options, output="torch")
        if not isinstance(wrapped, MultiAgentEnv):
            raise ValueError(f"{wrapped!r} has one agent: use gpu_envs.adapters.skrl.Wrapper")
        super().__init__(wrapped)
        self._initial_state = InitialState(wrapped, seed, stagger=stagger)
        self._by_role = by_role = RoleInterface(wrapped)
        self._role_of = {agent: role for role in by_role.roles.values() for agent in role.agents}
        self._shapes = {
            name: (by_role.batch_shape(name), (*by_role.batch_shape(name), *(role.observation.shape or ())))
            for name, role in by_role.roles.items()
        }
        self._actions = {name: from_zero(role.action, self._device) for name, role in by_role.roles.items()}
        self._reward_dtype = getattr(torch, wrapped.precision)
        self._state_space = _joint_observation_space(by_role) if shared_state else None
        self._state: torch.Tensor | None = None
        self._agent_infos: dict[str, Any] = {}

    @property
    def agents(self) -> list[str]:
        """All agents, always, because replicas are reset automatically."""
        return self.possible_agents

    @property
    def possible_agents(self) -> list[str]:
        """The names of all agents."""
        return list(self._env.possible_agents)

    @property
    def max_num_agents(self) -> int:
        """The number of agents."""
        return int(self._env.num_agents)

    @property
    def observation_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """The observation space of each agent."""
        return {agent: role.observation for agent, role in self._role_of.items()}

    @property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """The action space of each agent; discrete actions start at 0, as skrl's policies require."""
        return {agent: self._actions[role.name][0] for agent, role in self._role_of.items()}

    @property
    def state_spaces(self) -> dict[str, gymnasium.Space[Any] | None]:
        """The space of the shared state, or None, for each agent."""
        return dict.fromkeys(self._role_of, self._state_space)

    def state(self) -> dict[str, torch.Tensor | None]:
        """Return the shared state ``[num_envs, features of all agents]``, or None, for each agent."""
        return dict.fromkeys(self._role_of, self._state)

    def reset(self) -> tuple[Tensors, dict[str, Any]]:
        """Start new episodes, in later calls only where steps were taken; return observations by agent and {}."""
        observations = {role: array.clone() for role, array in self._initial_state.reset().items()}
        self._share(observations)
        return self._by_agent(observations), {}

    def step(self, actions: Mapping[str, torch.Tensor]) -> tuple[Tensors, Tensors, Tensors, Tensors, dict[str, Any]]:
        """Step all replicas.

        Args:
            actions: By agent, ``[num_envs, size]``; for a discrete space numbers from 0, ``[num_envs, 1]``. Actions of
                inactive agents are ignored.

        Returns:
            By agent, observations ``[num_envs, features]``, rewards, terminated and truncated ``[num_envs, 1]``; infos.
        """
        env, device = self._env, self._device
        observations, rewards, terminated = {}, {}, {}
        for role, (rows, shape) in self._shapes.items():
            observations[role] = torch.empty(shape, dtype=torch.float32, device=device)
            rewards[role] = torch.empty(rows, dtype=self._reward_dtype, device=device)
            terminated[role] = torch.empty(rows, dtype=torch.bool, device=device)
        out = Step(observations=observations, rewards=rewards, terminations=terminated)
        _, _, _, truncations, infos = env.step(self._stack_actions(actions), out=out)
        self._share(observations)
        return (
            self._by_agent(observations),
            self._by_agent({role: array.float() for role, array in rewards.items()}),
            self._by_agent(terminated),
            self._by_agent({role: torch.gt(array, terminated[role]) for role, array in truncations.items()}),
            self._infos_by_agent(infos),
        )

    def _share(self, observations: Tensors) -> None:
        if self._state_space is not None:
            self._state = torch.cat([array.flatten(1) for array in observations.values()], 1)

    def _stack_actions(self, actions: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the actions of each role, ``[num_envs, agents, ...]``, with the offset of the role's action space."""
        stacked_actions = {}
        for role, arrays in self._by_role.group_actions(actions).items():
            space, first = self._actions[role]
            stacked = torch.stack(arrays, 1) if space.shape else torch.cat(arrays, 1)
            if space.shape and len(space.shape) > 1:
                stacked = stacked.reshape(*stacked.shape[:2], *space.shape)
            stacked_actions[role] = stacked if first is None else stacked + first
        return stacked_actions

    def _by_agent(self, by_role: Mapping[str, torch.Tensor]) -> Tensors:
        """Return for each agent a view, ``[num_envs, features]``, of its role's array, ``[num_envs, agents, ...]``."""
        views: Tensors = {}
        for name, role in self._by_role.roles.items():
            array = by_role[name]
            views.update(zip(role.agents, array.reshape(*array.shape[:2], -1).unbind(1), strict=True))
        return views

    def _infos_by_agent(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return infos by agent; views are created once while the infos stay in the same memory."""
        if self._agent_infos.get("_final_obs") is not infos["_final_obs"]:
            alive = {name: view.squeeze(1) for name, view in self._by_agent(infos["alive"]).items()}
            final_obs = self._by_agent(infos["final_obs"])
            self._agent_infos = {"alive": alive, "final_obs": final_obs, "_final_obs": infos["_final_obs"]}
        return dict(self._agent_infos)


def _joint_observation_space(by_role: RoleInterface) -> gymnasium.spaces.Box:
    """Return the space of all agents' observations, concatenated; raise a ValueError unless all are Boxes."""
    bounds = []
    for space in (role.observation for role in by_role.roles.values() for _ in role.agents):
        if not isinstance(space, gymnasium.spaces.Box):
            raise ValueError(f"shared_state needs Box observations, but one is {space}: leave shared_state out")
        bounds.append((space.low.ravel(), space.high.ravel()))
    low, high = (np.concatenate(bound) for bound in zip(*bounds, strict=True))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)
