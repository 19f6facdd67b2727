"""Agents of skrl's that look at the last observation of an episode where skrl's own look at the next one's first."""

from collections.abc import Mapping
from typing import Any, final

import torch
from skrl.agents.torch import Agent, ppo
from skrl.multi_agents.torch import MultiAgent, ippo, mappo


class FinalObservations(Agent):
    """Shows an agent what followed the last action of an episode, and not the next one's beginning.

    Put it before the agent's class: ``class Agent(FinalObservations, SAC): ...``.
    """

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Records a transition, whose ``next_observations`` are the last ones where an episode ended."""
        final_obs, seen = infos["final_obs"], transition["next_observations"]
        if final_obs.shape != seen.shape:
            raise ValueError(
                f"the observations have shape {tuple(seen.shape)}, the infos {tuple(final_obs.shape)}: agents that "
                "share the replicas among them (scopes) cannot look at last observations; use skrl's own"
            )
        transition["next_observations"] = torch.where(infos["_final_obs"].unsqueeze(1), final_obs, seen)
        super().record_transition(infos=infos, **transition)


class FinalObservationsByAgent(MultiAgent):
    """The same for the agents of a team."""

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Records a transition, whose ``next_observations`` and states are the last ones where an episode ended."""
        ended, final_obs = infos["_final_obs"].unsqueeze(1), infos["final_obs"]
        seen, states = transition["next_observations"], transition["next_states"]
        followed = {name: torch.where(ended, final_obs[name], array) for name, array in seen.items()}
        transition["next_observations"] = followed
        if any(state is not None for state in states.values()):
            shared = torch.cat([followed[name] for name in final_obs], 1)
            transition["next_states"] = dict.fromkeys(states, shared)
        super().record_transition(infos=infos, **transition)


class CountsReplicas(MultiAgent):
    """Put after an agent's class, it has the episodes of replicas counted instead of those of the first agent."""

    def record_transition(self, *, infos: Mapping[str, Any], **transition: Any) -> None:
        """Counts episodes and their rewards."""
        over = infos["_final_obs"].unsqueeze(1)
        for flags in ("terminated", "truncated"):
            transition[flags] = dict.fromkeys(transition[flags], over)
        super().record_transition(infos=infos, **transition)


@final
class PPO(FinalObservations, ppo.PPO):
    """skrl's PPO, for ``Wrapper``: with ``time_limit_bootstrap`` it values the last observation of an episode."""


@final
class IPPO(FinalObservationsByAgent, ippo.IPPO, CountsReplicas):
    """skrl's IPPO, for ``MultiAgentWrapper``: with ``time_limit_bootstrap`` it values the last observations.

    skrl 2.1 refuses its own defaults of four settings: give ``learning_rate_scheduler_kwargs`` and the
    ``*_preprocessor_kwargs`` of observations, states and values by agent, as ``{agent: {} for agent in ...}``.
    """


@final
class MAPPO(FinalObservationsByAgent, mappo.MAPPO, CountsReplicas):
    """skrl's MAPPO, for ``MultiAgentWrapper``: with ``time_limit_bootstrap`` it values the last observations.

    Its critics look at more than IPPO's where the wrapper is made with ``shared_state=True``. Settings: as for IPPO.
    """
