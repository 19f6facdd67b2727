"""PPO in a single file, in the style of CleanRL, with Gymnasium, NumPy and torch.

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
    """Command-line arguments."""

    env_id: str = "gpu_envs/CartPole-v1"
    """An environment with discrete actions."""
    device: str = "auto"
    """The device of the environment; the networks are on the CPU."""
    seed: int = 1
    total_steps: int = 160_000
    """Total steps over all replicas."""
    num_envs: int = 32
    num_steps: int = 64
    """Steps of each replica per update."""
    learning_rate: float = 3e-3
    """Initial learning rate; it falls linearly to zero."""
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
        """Return the distribution of the actions."""
        return torch.distributions.Categorical(logits=self.actor(observations))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the estimated values."""
        values: torch.Tensor = self.critic(observations)
        return values.squeeze(-1)


def network(inputs: int, outputs: int, scale: float) -> nn.Sequential:
    """Return a network with orthogonal weights; ``scale``: the gain of the last layer."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def compute_advantages(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, dones: np.ndarray, args: Args
) -> np.ndarray:
    """Return generalised advantage estimates; all arrays are ``[num_steps, num_envs]``.

    ``next_values`` is 0 after termination and the value of the final observation after truncation; ``dones`` is both.
    """
    deltas: np.ndarray = rewards + args.gamma * next_values - values
    advantages = np.zeros_like(deltas)
    next_advantages = np.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        next_advantages = deltas[t] + args.gamma * args.gae_lambda * ~dones[t] * next_advantages
        advantages[t] = next_advantages
    return advantages


def train(args: Args) -> tuple[Agent, list[float]]:
    """Train an agent; return it, and the returns of all episodes of training."""
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

    shape = (args.num_steps, args.num_envs)
    observations = np.zeros((*shape, *inputs), np.float32)
    actions = np.zeros(shape, np.int64)
    log_probs, rewards, values, next_values = (np.zeros(shape, np.float32) for _ in range(4))
    dones = np.zeros(shape, np.bool_)
    returns: list[float] = []

    observation, _ = env.reset(seed=args.seed)
    updates = max(args.total_steps // (args.num_steps * args.num_envs), 1)
    for update in range(updates):
        optimiser.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)
        for t in range(args.num_steps):
            observations[t] = observation
            with torch.no_grad():
                policy = agent.policy(torch.from_numpy(observation))
                action = policy.sample()
                log_probs[t] = policy.log_prob(action)
                values[t] = agent.value(torch.from_numpy(observation))
            actions[t] = action
            observation, rewards[t], terminations, truncations, infos = env.step(actions[t])
            dones[t] = terminations | truncations
            with torch.no_grad():
                next_values[t] = agent.value(torch.from_numpy(observation))
            if dones[t].any():  # the observation is from the next episode: use the value of the final observation
                with torch.no_grad():
                    final = agent.value(torch.from_numpy(infos["final_obs"])).numpy()
                next_values[t] = np.where(dones[t], final * ~terminations, next_values[t])
                returns += infos["episode"]["r"][dones[t]].tolist()

        advantages = compute_advantages(rewards, values, next_values, dones, args)
        batch = [
            torch.from_numpy(array.reshape(-1, *array.shape[2:]))
            for array in (observations, actions, log_probs, advantages, advantages + values)
        ]
        update_agent(agent, optimiser, batch, rng, args)
    env.close()
    return agent, returns


def update_agent(
    agent: Agent, optimiser: torch.optim.Optimizer, batch: list[torch.Tensor], rng: np.random.Generator, args: Args
) -> None:
    """Take the epochs of an update with PPO's clipped loss."""
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
    """Return the returns of one complete episode per replica, with the most likely actions."""
    env = gymnasium.make_vec(args.env_id, num_envs=episodes, device=args.device, autoreset_mode="SameStep")
    totals, active = np.zeros(episodes), np.ones(episodes, np.bool_)
    observation, _ = env.reset(seed=args.seed + 1_000_000)
    while active.any():
        with torch.no_grad():
            action = agent.policy(torch.from_numpy(observation)).probs.argmax(-1).numpy()
        observation, rewards, terminations, truncations, _ = env.step(action)
        totals += rewards * active
        active &= ~(terminations | truncations)
    env.close()
    return totals


def main() -> None:
    """Train, and print the mean return of an evaluation."""
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
