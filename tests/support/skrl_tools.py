"""Helpers for tests of the skrl adapter."""

from collections.abc import Callable
from typing import Any

import torch

QUIET = {"write_interval": 0, "checkpoint_interval": 0}
"""Settings of an agent without logs and checkpoints."""


def reverse_agents(flags: Any) -> Any:
    """Reverses the agents in a team's flags; returns a single agent's flags unchanged."""
    return dict(reversed(flags.items())) if isinstance(flags, dict) else flags


def interact(agent: Any, wrapper: Any, steps: int, watch: Callable[[Any], None] = lambda _: None) -> None:
    """Runs the loop of skrl's trainers, without updates."""
    agent.init()
    agent.enable_training_mode(True)
    observations, _ = wrapper.reset()
    states = wrapper.state()
    with torch.no_grad():
        for timestep in range(steps):
            when = {"timestep": timestep, "timesteps": steps}
            actions, _ = agent.act(observations, states, **when)
            followed, rewards, terminated, truncated, infos = wrapper.step(actions)
            next_states = wrapper.state()
            watch(infos)
            agent.record_transition(
                observations=observations,
                states=states,
                actions=actions,
                rewards=rewards,
                next_observations=followed,
                next_states=next_states,
                # skrl counts episodes by a team's first agent; the last agent becomes inactive within an episode
                terminated=reverse_agents(terminated),
                truncated=reverse_agents(truncated),
                infos=infos,
                **when,
            )
            observations, states = followed, next_states
