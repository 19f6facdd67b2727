"""skrl agents that use the final observation of an episode instead of the first of the next one."""

from collections.abc import Mapping
from typing import Any, final

import torch
from skrl.agents.torch import Agent, ppo
from skrl.multi_agents.torch import MultiAgent, ippo, mappo


class FinalObservations(Agent):
    """Mixin that replaces next observations by final observations at the end of episodes.

    List it before the agent's class: ``class Agent(FinalObservations, SAC): ...``.
    """

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Record a transition with final observations as ``next_observations`` where an episode ended."""
        final_obs, next_obs = infos["final_obs"], transition["next_observations"]
        if final_obs.shape != next_obs.shape:
            raise ValueError(
                f"next_observations have shape {tuple(next_obs.shape)}, but final_obs {tuple(final_obs.shape)}: agents "
                "with scopes (parts of the replicas) cannot use final observations: use skrl's classes"
            )
        transition["next_observations"] = torch.where(infos["_final_obs"].unsqueeze(1), final_obs, next_obs)
        super().record_transition(infos=infos, **transition)


class FinalObservationsByAgent(MultiAgent):
    """Mixin for multi-agent classes that replaces next observations and states by final ones at ends of episodes."""

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Record a transition with final observations and states as the next ones where an episode ended."""
        ended, final_obs = infos["_final_obs"].unsqueeze(1), infos["final_obs"]
        next_obs, states = transition["next_observations"], transition["next_states"]
        replaced = {name: torch.where(ended, final_obs[name], array) for name, array in next_obs.items()}
        transition["next_observations"] = replaced
        if any(state is not None for state in states.values()):
            shared = torch.cat([replaced[name] for name in final_obs], 1)
            transition["next_states"] = dict.fromkeys(states, shared)
        super().record_transition(infos=infos, **transition)


class CountsReplicas(MultiAgent):
    """Mixin after an agent's class that counts the episodes of replicas instead of the first agent's."""

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Record a transition whose ``terminated`` and ``truncated`` are True for all agents of replicas that ended."""
        ended = infos["_final_obs"].unsqueeze(1)
        for flags in ("terminated", "truncated"):
            transition[flags] = dict.fromkeys(transition[flags], ended)
        super().record_transition(infos=infos, **transition)


@final
class PPO(FinalObservations, ppo.PPO):
    """skrl's PPO for ``Wrapper``; with ``time_limit_bootstrap`` it bootstraps from final observations."""


@final
class IPPO(FinalObservationsByAgent, ippo.IPPO, CountsReplicas):
    """skrl's IPPO for ``MultiAgentWrapper``; with ``time_limit_bootstrap`` it bootstraps from final observations.

    skrl 2.1 rejects its own defaults of four settings: pass ``learning_rate_scheduler_kwargs`` and the
    ``*_preprocessor_kwargs`` of observations, states and values as ``{agent: {} for agent in ...}``.
    """


@final
class MAPPO(FinalObservationsByAgent, mappo.MAPPO, CountsReplicas):
    """skrl's MAPPO for ``MultiAgentWrapper``; with ``time_limit_bootstrap`` it bootstraps from final observations.

    Create the wrapper with ``shared_state=True`` so that critics observe all agents. For settings see ``IPPO``.
    """
