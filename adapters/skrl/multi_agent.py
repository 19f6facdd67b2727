"""Replicas of a team as a multi-agent environment of skrl's."""

from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
import torch
from skrl.envs.wrappers.torch import MultiAgentEnvWrapper

from gpu_envs.adapters.opening import open_env
from gpu_envs.adapters.skrl.wrapper import Beginning, Underneath, from_zero
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.results import Step
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seed
from gpu_envs.specs.base import Spec

Tensors = dict[str, torch.Tensor]
"""A tensor for each agent, or for each role."""


@final
class MultiAgentWrapper(Underneath, MultiAgentEnvWrapper):
    """Replicas of a team as a multi-agent environment of skrl's: dicts by agent, in the order of ``possible_agents``.

    A step writes straight into fresh tensors, one for each role, of which agents get views; it waits for nothing.

    An agent that is out before its replica's episode ends sees zeros, gets no reward, and stays ``terminated`` until
    the replica restarts. skrl stores a row for each agent at each step. So marked, the rows of one that is out are
    episodes of one step and of return 0, and no advantage runs through them: not into the agent's own life, nor out of
    the next episode. Were they not marked, a share of the next episode's value would come into them. They do count
    among the advantages that skrl normalises. skrl counts episodes by its first agent's flags, and would find one in
    each such row; ``IPPO`` and ``MAPPO`` of this package count the replicas' episodes.

    Where an agent is terminated at the time limit it is not truncated too. Infos hold ``alive``, by agent,
    ``[num_envs]``; ``final_obs``, by agent, written where a replica's episode ended; and ``_final_obs``, their mask of
    replicas, ``[num_envs]``: the simulator's own memory, until the next step.

    Which actions are possible skrl does not ask: where rules say so, what is forbidden is done nevertheless, as they
    have it.
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
        """Makes the environment, or takes one.

        Args:
            env: An id, such as ``TagGridWorld-v0``; a place, ``my_env.py:MY_ENV``; or an environment with torch output
                in SameStep mode.
            num_envs: With an id: how many replicas; None: one.
            seed: Of the first reset; replica *i* gets ``seed + i``. None: one that
                follows from what ``skrl.utils.set_seed`` was told, or a random one.
            stagger: First episodes are cut short at random steps, so that not all replicas reach the limit at once.
                For training, not for evaluation.
            shared_state: There is a state, the same for all agents: all their observations side by side. MAPPO's
                critics look at it. False: the states are None.
            **options: With an id: what ``gpu_envs.make`` takes, such as ``device``, and the environment's parameters.
        """
        made = open_env(env, num_envs, "SameStep", options, output="torch")
        if not isinstance(made, MultiAgentEnv):
            raise ValueError(f"{made!r} has one agent: use gpu_envs.adapters.skrl.Wrapper")
        super().__init__(made)
        self._beginning = Beginning(made, seed, stagger=stagger)
        self._by_role = by_role = ByRole(made)
        self._role_of = {agent: role for role in by_role.roles.values() for agent in role.agents}
        self._shapes = {
            name: (by_role.rows(name), (*by_role.rows(name), *(role.observation.shape or ())))
            for name, role in by_role.roles.items()
        }
        self._actions = {name: from_zero(role.action, self._device) for name, role in by_role.roles.items()}
        self._real = getattr(torch, made.precision)
        self._state_space = _side_by_side(by_role) if shared_state else None
        self._state: torch.Tensor | None = None
        self._live: dict[str, Any] = {}

    @property
    def agents(self) -> list[str]:
        """All agents, always: replicas restart by themselves, so there is never nobody left."""
        return self.possible_agents

    @property
    def possible_agents(self) -> list[str]:
        return list(self._env.possible_agents)

    @property
    def max_num_agents(self) -> int:
        return int(self._env.num_agents)

    @property
    def observation_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        return {agent: role.observation for agent, role in self._role_of.items()}

    @property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """What each agent may do: whole numbers from 0 up, as skrl's policies give them."""
        return {agent: self._actions[role.name][0] for agent, role in self._role_of.items()}

    @property
    def state_spaces(self) -> dict[str, gymnasium.Space[Any] | None]:
        """The space of the shared state, or None, for each agent."""
        return dict.fromkeys(self._role_of, self._state_space)

    def state(self) -> dict[str, torch.Tensor | None]:
        """The shared state ``[num_envs, features of all]``, or None, for each agent."""
        return dict.fromkeys(self._role_of, self._state)

    def reset(self) -> tuple[Tensors, dict[str, Any]]:
        """Begins new episodes.

        Returns:
            Observations ``[num_envs, features]`` by agent, and an empty dict.
        """
        observations = {role: array.clone() for role, array in self._beginning.observations().items()}
        self._share(observations)
        return self._by_agent(observations), {}

    def step(self, actions: Mapping[str, torch.Tensor]) -> tuple[Tensors, Tensors, Tensors, Tensors, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: By agent, ``[num_envs, size]``; of a discrete space numbers from 0 up, ``[num_envs, 1]``. Those of
                agents that are out are ignored.

        Returns:
            By agent: observations ``[num_envs, features]``; rewards, terminated and truncated ``[num_envs, 1]``. Infos.
        """
        env, device = self._env, self._device
        observations, rewards, terminated = {}, {}, {}
        for role, (rows, seen) in self._shapes.items():
            observations[role] = torch.empty(seen, dtype=torch.float32, device=device)
            rewards[role] = torch.empty(rows, dtype=self._real, device=device)
            terminated[role] = torch.empty(rows, dtype=torch.bool, device=device)
        out = Step(observations=observations, rewards=rewards, terminations=terminated)
        _, _, _, truncations, infos = env.step(self._gathered(actions), out=out)
        self._share(observations)
        return (
            self._by_agent(observations),
            self._by_agent({role: array.float() for role, array in rewards.items()}),
            self._by_agent(terminated),
            self._by_agent({role: torch.gt(array, terminated[role]) for role, array in truncations.items()}),
            self._described(infos),
        )

    def _share(self, observations: Tensors) -> None:
        if self._state_space is not None:
            self._state = torch.cat([array.flatten(1) for array in observations.values()], 1)

    def _gathered(self, actions: Mapping[str, torch.Tensor]) -> Tensors:
        """The actions of the agents as those of the roles."""
        gathered = {}
        for role, arrays in self._by_role.gathered(actions).items():
            space, first = self._actions[role]
            together = torch.stack(arrays, 1) if space.shape else torch.cat(arrays, 1)
            if space.shape and len(space.shape) > 1:
                together = together.reshape(*together.shape[:2], *space.shape)
            gathered[role] = together if first is None else together + first
        return gathered

    def _by_agent(self, by_role: Mapping[str, torch.Tensor]) -> Tensors:
        """Views of the roles' ``[num_envs, agents, ...]`` for their agents, ``[num_envs, features]``."""
        views: Tensors = {}
        for name, role in self._by_role.roles.items():
            array = by_role[name]
            views.update(zip(role.agents, array.reshape(*array.shape[:2], -1).unbind(1), strict=True))
        return views

    def _described(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """The infos by agent. Where they are the same memory each step, the views are made once."""
        if self._live.get("_final_obs") is not infos["_final_obs"]:
            alive = {name: view.squeeze(1) for name, view in self._by_agent(infos["alive"]).items()}
            final_obs = self._by_agent(infos["final_obs"])
            self._live = {"alive": alive, "final_obs": final_obs, "_final_obs": infos["_final_obs"]}
        return dict(self._live)


def _side_by_side(by_role: ByRole) -> gymnasium.spaces.Box:
    """The space of all agents' observations, one after another."""
    bounds = []
    for space in (role.observation for role in by_role.roles.values() for _ in role.agents):
        if not isinstance(space, gymnasium.spaces.Box):
            raise ValueError(f"shared_state needs observations that are Boxes; this one is {space}: leave it out")
        bounds.append((space.low.ravel(), space.high.ravel()))
    low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)
