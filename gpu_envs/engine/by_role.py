"""Either kind of environment, seen by role: one with a single agent has one role, of one agent."""

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

ALONE = "agent"
"""The role's name where there is one agent."""


@final
@dataclasses.dataclass(frozen=True)
class RoleView:
    """The agents of one role, under some parameters."""

    name: str
    agents: tuple[str, ...]
    """Their names."""
    observation: gymnasium.Space[Any]
    """What one of them sees."""
    action: gymnasium.Space[Any]
    """What one of them may do."""
    alone: bool = False
    """It is the only agent: arrays have no dimension of agents, and names of arrays no role."""
    seen: RoleObservation | None = None
    """Of a team's, in parts."""

    def rows(self, num_envs: int) -> tuple[int, ...]:
        """The first dimensions of the role's arrays: replicas, of a team also agents."""
        return (num_envs,) if self.alone else (num_envs, len(self.agents))

    def named(self, result: str) -> str:
        """The name of the role's array of a result: ``rewards``, or of a team ``rewards.tagger``."""
        return result if self.alone else f"{result}.{self.name}"


def roles_of(spec: Spec, params: Mapping[str, Any]) -> tuple[RoleView, ...]:
    """The roles of an environment of either kind, with these parameters: all of them, checked."""
    if isinstance(spec, EnvSpec):
        return (RoleView(ALONE, (ALONE,), spec.observation_space(params), spec.action_space(params), True),)
    assert isinstance(spec, TeamSpec)
    return tuple(
        RoleView(
            role.name,
            spec.role_agents(role, params),
            seen.full,
            space_of(role.action, params, f"{spec.id}: the role {role.name!r}: action"),
            seen=seen,
        )
        for role, seen in ((role, spec.role_observation(role, params)) for role in spec.roles)
    )


@final
class ByRole:
    """An environment of either kind, whose arrays are told and taken by role.

    Attributes:
        env: The ``VectorEnv`` or ``MultiAgentEnv``.
        alone: Whether it has a single agent: then its arrays have no dimension of agents.
        roles: Its roles, by their names, in order.
    """

    def __init__(self, env: Any) -> None:
        """Looks at an environment; it need not be reset yet."""
        self.env = env
        self.alone = not env.env_spec.has_team
        self.roles: dict[str, RoleView] = {}
        if self.alone:
            self.roles[ALONE] = RoleView(ALONE, (ALONE,), env.single_observation_space, env.single_action_space, True)
            return
        names = iter(env.possible_agents)
        for role in env.env_spec.roles:
            name = role.name
            spaces, agents = (env.single_observation_spaces[name], env.single_action_spaces[name]), env.counts[name]
            self.roles[name] = RoleView(name, tuple(itertools.islice(names, agents)), *spaces, seen=env._seen[name])

    def rows(self, role: str) -> tuple[int, ...]:
        """The first dimensions of a role's arrays: replicas, of a team also agents."""
        return self.roles[role].rows(self.env.num_envs)

    def split(self, given: Any) -> dict[str, Any]:
        """What the environment gives, by role."""
        return {ALONE: given} if self.alone else dict(given)

    def join(self, by_role: Mapping[str, Any]) -> Any:
        """What the environment takes, from what there is by role."""
        return by_role[ALONE] if self.alone else dict(by_role)

    def gathered(self, actions: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The actions of a team's agents, given by their names, in the order of the roles."""
        try:
            given = {name: [actions[agent] for agent in role.agents] for name, role in self.roles.items()}
        except KeyError as error:
            raise ActionError(f"there is no action for {error}; every agent needs one, in the game or not") from None
        if len(actions) > len(self.env.possible_agents):
            known = self.env.possible_agents
            unknown = str(next(name for name in actions if name not in known))
            raise ValueError(f"there is no agent {unknown!r}{did_you_mean(unknown, known)}")
        return given

    @property
    def action_masks(self) -> dict[str, Array]:
        """What is possible now, by role; empty where the rules forbid nothing."""
        masks = self.env.action_mask
        return {} if masks is None else self.split(masks)
