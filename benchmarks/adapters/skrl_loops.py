"""The loop of skrl's trainers without updates: act, step, record."""

from collections.abc import Callable
from typing import Any

import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model

from benchmarks.adapters.loops import Loops, Pair
from benchmarks.peers.skrl_constant import ConstantWrapper
from gpu_envs.adapters import skrl as adapter

ENV = "CartPole-v1"
HIDDEN = 64


def loops(num_envs: int, device: str, steps: int) -> Loops:
    """Return the loop with skrl's PPO, and with the adapter's PPO, which uses final observations too."""
    envs = [adapter.Wrapper(ENV, num_envs, device=device, seed=0) for _ in range(2)]
    constant = interaction(ConstantWrapper(num_envs, envs[0].device), PPO, steps)
    pairs = {
        "skrl_ppo": Pair(interaction(envs[0], PPO, steps), constant),
        "gpu_envs_ppo": Pair(interaction(envs[1], adapter.PPO, steps), constant),
    }

    def close() -> None:
        for env in envs:
            env.close()

    return Loops(ENV, pairs, close)


def network(inputs: int, outputs: int) -> torch.nn.Module:
    """Return a small network."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(inputs, HIDDEN), torch.nn.Tanh()),
        *(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh()),
        torch.nn.Linear(HIDDEN, outputs),
    )


class Actor(CategoricalMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """The policy."""

    def __init__(self, env: Any) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, device=env.device, **spaces)
        CategoricalMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the logits of the actions."""
        del role
        return self.net(inputs["observations"]), {}


class Critic(DeterministicMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """The value function."""

    def __init__(self, env: Any) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, device=env.device, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the value."""
        del role
        return self.net(inputs["observations"]), {}


def interaction(env: Any, algorithm: Callable[..., Any], steps: int) -> Callable[[], object]:
    """Return the loop, with bootstrapping at time limits and without logs; its memory holds the steps of one call."""
    agent = algorithm(
        models={"policy": Actor(env), "value": Critic(env)},
        memory=RandomMemory(memory_size=steps, num_envs=env.num_envs, device=env.device),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
        cfg=PPO_CFG(
            rollouts=steps, time_limit_bootstrap=True, experiment={"write_interval": 0, "checkpoint_interval": 0}
        ),
    )
    agent.init()
    agent.enable_training_mode(True)
    observations, _ = env.reset()

    def run() -> None:
        nonlocal observations
        with torch.no_grad():
            for timestep in range(steps):
                counters = {"timestep": timestep, "timesteps": steps}
                actions, _ = agent.act(observations, None, **counters)
                next_observations, rewards, terminated, truncated, infos = env.step(actions)
                agent.record_transition(
                    observations=observations,
                    states=None,
                    actions=actions,
                    rewards=rewards,
                    next_observations=next_observations,
                    next_states=None,
                    terminated=terminated,
                    truncated=truncated,
                    infos=infos,
                    **counters,
                )
                observations = next_observations

    return run
