"""Spaces, array shapes and array names by role, for both kinds of environments: a single agent has a role too."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, final

import gymnasium

from gpu_envs.backend.arrays import Array
from gpu_envs.errors import ActionError, did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.spaces import RoleObservation, space_of
from gpu_envs.specs.team import TeamSpec

SINGLE_ROLE = "agent"
"""The role's name in environments with a single agent."""


@final
@dataclasses.dataclass(frozen=True)
class RoleInfo:
    """One role: the names of its agents, and the spaces of each agent."""

    name: str
    agents: tuple[str, ...]
    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]
    single_agent: bool = False
    """Whether the environment has a single agent: arrays then have no dimension of agents, and names no role."""
    observation_parts: RoleObservation | None = None
    """With several agents: the local and shared parts of the observation."""

    def batch_shape(self, num_envs: int) -> tuple[int, ...]:
        """The first dimensions of the role's arrays: ``(num_envs,)``, with several agents ``(num_envs, agents)``."""
        return (num_envs,) if self.single_agent else (num_envs, len(self.agents))

    def array_name(self, result: str) -> str:
        """The name of the role's array of a result: ``rewards``, with several agents ``rewards.tagger``."""
        return result if self.single_agent else f"{result}.{self.name}"


def roles_of(spec: Spec, params: Mapping[str, Any]) -> tuple[RoleInfo, ...]:
    """The roles of a spec of either kind, with their spaces, for these parameters: all of the spec's, checked."""
    if isinstance(spec, EnvSpec):
        return (RoleInfo(SINGLE_ROLE, (SINGLE_ROLE,), spec.observation_space(params), spec.action_space(params), True),)
    assert isinstance(spec, TeamSpec)
    return tuple(
        RoleInfo(
            role.name,
            spec.role_agents(role, params),
            parts.full,
            space_of(role.action, params, f"{spec.id}: the role {role.name!r}: action"),
            observation_parts=parts,
        )
        for role, parts in ((role, spec.role_observation(role, params)) for role in spec.roles)
    )


@final
class RoleInterface:
    """Access by role to an environment of either kind.

    Attributes:
        env: The ``VectorEnv`` or ``MultiAgentEnv``.
        single_agent: Whether the environment has a single agent: arrays then have no dimension of agents.
        roles: The roles by name, in order.
    """

    def __init__(self, env: Any) -> None:
        """Read the roles of an environment, which may not be reset yet."""
        self.env = env
        self.single_agent = not env.env_spec.has_team
        self.roles: dict[str, RoleInfo] = {}
        if self.single_agent:
            spaces = env.single_observation_space, env.single_action_space
            self.roles[SINGLE_ROLE] = RoleInfo(SINGLE_ROLE, (SINGLE_ROLE,), *spaces, True)
            return
        names = iter(env.possible_agents)
        for role in env.env_spec.roles:
            name = role.name
            agents = tuple(itertools.islice(names, env.counts[name]))
            spaces = env.single_observation_spaces[name], env.single_action_spaces[name]
            self.roles[name] = RoleInfo(name, agents, *spaces, observation_parts=env._observation_parts[name])

    def batch_shape(self, role: str) -> tuple[int, ...]:
        """The first dimensions of a role's arrays: ``(num_envs,)``, with several agents ``(num_envs, agents)``."""
        return self.roles[role].batch_shape(self.env.num_envs)

    def split(self, values: Any) -> dict[str, Any]:
        """Results of the environment by role; a single agent has the role ``agent``."""
        return {SINGLE_ROLE: values} if self.single_agent else dict(values)

    def join(self, by_role: Mapping[str, Any]) -> Any:
        """An argument for the environment, such as actions, from values by role: the reverse of ``split``."""
        return by_role[SINGLE_ROLE] if self.single_agent else dict(by_role)

    def group_actions(self, actions: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Lists of actions by role, in its agents' order, of all agents' actions; an ActionError if one is missing."""
        try:
            grouped = {name: [actions[agent] for agent in role.agents] for name, role in self.roles.items()}
        except KeyError as error:
            raise ActionError(f"the action of {error} is missing; every agent needs one, active or not") from None
        if len(actions) > len(self.env.possible_agents):
            agents = self.env.possible_agents
            unknown = str(next(name for name in actions if name not in agents))
            raise ValueError(f"there is no agent {unknown!r}{did_you_mean(unknown, agents)}")
        return grouped

    @property
    def action_masks(self) -> dict[str, Array]:
        """The current action masks by role; empty for environments without masks."""
        masks = self.env.action_mask
        return {} if masks is None else self.split(masks)
