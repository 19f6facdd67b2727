"""PPO in a single file, in the manner of CleanRL: Gymnasium, NumPy and torch, and of this package no more than its ids.

python examples/cleanrl_ppo.py --env-id gpu_envs/CartPole-v1 --total-steps 200000
"""

import argparse
import dataclasses
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

import gpu_envs  # noqa: F401  # registers the ids


@dataclasses.dataclass(frozen=True)
class Args:
    """What can be chosen on the command line."""

    env_id: str = "gpu_envs/CartPole-v1"
    """Of an environment with discrete actions."""
    device: str = "auto"
    """Where the environment lives; the networks are on the CPU."""
    seed: int = 1
    total_steps: int = 160_000
    """Of all replicas together."""
    num_envs: int = 32
    num_steps: int = 64
    """Of each replica between two updates."""
    learning_rate: float = 3e-3
    """At the beginning; it falls to zero."""
    gamma: float = 0.98
    gae_lambda: float = 0.9
    epochs: int = 6
    minibatches: int = 4
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    """An actor and a critic of two hidden layers each."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor = network(inputs, actions, 0.01)
        self.critic = network(inputs, 1, 1.0)

    def policy(self, observations: torch.Tensor) -> Any:
        """The distribution of the actions: torch's, whose methods have no types."""
        return torch.distributions.Categorical(logits=self.actor(observations))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """The return that is expected."""
        values: torch.Tensor = self.critic(observations)
        return values.squeeze(-1)


def network(inputs: int, outputs: int, scale: float) -> nn.Sequential:
    """Orthogonal layers, the last of another scale."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages_of(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, dones: np.ndarray, args: Args
) -> np.ndarray:
    """Generalised advantage estimates, each ``[num_steps, num_envs]``.

    ``next_values`` is 0 where the episode terminated and the value of its last observation where it was truncated;
    ``dones`` cuts the sum at both.
    """
    deltas: np.ndarray = rewards + args.gamma * next_values - values
    advantages = np.zeros_like(deltas)
    following = np.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = deltas[t] + args.gamma * args.gae_lambda * ~dones[t] * following
        advantages[t] = following
    return advantages


def train(args: Args) -> tuple[Agent, list[float]]:
    """Trains an agent; returns it, and the returns of all episodes that finished on the way."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = RecordEpisodeStatistics(
        gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep"),
        buffer_length=1,
    )
    inputs, space = env.single_observation_space.shape, env.single_action_space
    assert inputs is not None
    assert isinstance(space, gymnasium.spaces.Discrete)
    agent = Agent(inputs[0], int(space.n))
    optimiser = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    block = (args.num_steps, args.num_envs)
    observations = np.zeros((*block, *inputs), np.float32)
    actions = np.zeros(block, np.int64)
    log_probs, rewards, values, next_values = (np.zeros(block, np.float32) for _ in range(4))
    dones = np.zeros(block, np.bool_)
    returns: list[float] = []

    now, _ = env.reset(seed=args.seed)
    updates = max(args.total_steps // (args.num_steps * args.num_envs), 1)
    for update in range(updates):
        optimiser.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)
        for t in range(args.num_steps):
            observations[t] = now
            with torch.no_grad():
                policy = agent.policy(torch.from_numpy(now))
                chosen = policy.sample()
                log_probs[t] = policy.log_prob(chosen)
                values[t] = agent.value(torch.from_numpy(now))
            actions[t] = chosen
            now, rewards[t], terminations, truncations, infos = env.step(actions[t])
            dones[t] = terminations | truncations
            with torch.no_grad():
                next_values[t] = agent.value(torch.from_numpy(now))
            if dones[t].any():  # what follows is the next episode: value what this one ended with
                with torch.no_grad():
                    final = agent.value(torch.from_numpy(infos["final_obs"])).numpy()
                next_values[t] = np.where(dones[t], final * ~terminations, next_values[t])
                returns += infos["episode"]["r"][dones[t]].tolist()

        advantages = advantages_of(rewards, values, next_values, dones, args)
        batch = [
            torch.from_numpy(array.reshape(-1, *array.shape[2:]))
            for array in (observations, actions, log_probs, advantages, advantages + values)
        ]
        learn(agent, optimiser, batch, rng, args)
    env.close()
    return agent, returns


def learn(
    agent: Agent, optimiser: torch.optim.Optimizer, batch: list[torch.Tensor], rng: np.random.Generator, args: Args
) -> None:
    """Some epochs of PPO's clipped loss over what was collected."""
    for _ in range(args.epochs):
        for rows in np.array_split(rng.permutation(len(batch[0])), args.minibatches):
            observations, actions, log_probs, advantages, targets = (part[torch.from_numpy(rows)] for part in batch)
            policy = agent.policy(observations)
            ratio = (policy.log_prob(actions) - log_probs).exp()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            value_loss = 0.5 * (agent.value(observations) - targets).square().mean()
            loss = policy_loss + args.value_weight * value_loss - args.entropy * policy.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimiser.step()


def evaluate(agent: Agent, args: Args, episodes: int = 100) -> np.ndarray:
    """The returns of the likeliest actions: one whole episode of each of so many replicas."""
    env = gymnasium.make_vec(args.env_id, num_envs=episodes, device=args.device, autoreset_mode="SameStep")
    totals, running = np.zeros(episodes), np.ones(episodes, np.bool_)
    now, _ = env.reset(seed=args.seed + 1_000_000)
    while running.any():
        with torch.no_grad():
            chosen = agent.policy(torch.from_numpy(now)).probs.argmax(-1).numpy()
        now, rewards, terminations, truncations, _ = env.step(chosen)
        totals += rewards * running
        running &= ~(terminations | truncations)
    env.close()
    return totals


def main() -> None:
    """Trains, and prints how well the agent does afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    start = time.perf_counter()
    agent, _ = train(args)
    seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s, {args.total_steps / seconds:,.0f} steps/s")
    print(f"mean return {evaluate(agent, args).mean():.1f}")


if __name__ == "__main__":
    main()
