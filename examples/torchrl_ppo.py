"""PPO on CartPole with TorchRL's collector, advantages, loss and replay buffer.

python examples/torchrl_ppo.py --device cpu
"""

import argparse
import dataclasses
import time
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from gpu_envs.adapters.torchrl import Env

ENV_ID = "CartPole-v1"


@dataclasses.dataclass(frozen=True)
class Args:
    """Command-line arguments."""

    device: str = "cpu"
    """The device of environment and networks."""
    num_envs: int = 64
    """Number of replicas."""
    horizon: int = 32
    """Steps of each replica per update."""
    updates: int = 100
    """Number of rollouts, each followed by ``epochs`` epochs."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatch: int = 512
    """Batch size of a gradient step."""
    learning_rate: float = 4e-3
    """Initial learning rate; it falls linearly to zero."""
    gamma: float = 0.98
    """Discount factor."""
    gae_lambda: float = 0.95
    """GAE lambda."""
    seed: int = 1
    """Seed of networks, actions and training episodes."""
    evaluation_seed: int = 927_301
    """Seed of the evaluation episodes."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of training."""

    returns: torch.Tensor
    """Returns of one complete evaluation episode per replica, with sampled actions."""
    steps: int
    """Total training steps over all replicas."""
    seconds: float
    """Seconds of training."""


def networks(env: TransformedEnv, device: torch.device) -> tuple[ProbabilisticActor, ValueOperator]:
    """Create an actor and a critic with two hidden layers each."""
    features = env.observation_spec["observation"].shape[-1]
    shape: dict[str, Any] = {"num_cells": [64, 64], "activation_class": nn.Tanh, "device": device}
    logits = MLP(features, env.action_spec.space.n, **shape)
    actor = ProbabilisticActor(
        TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )
    return actor, ValueOperator(MLP(features, 1, **shape), in_keys=["observation"])


def evaluate(actor: ProbabilisticActor, args: Args, replicas: int = 64) -> torch.Tensor:
    """Return the return of the first episode of each replica."""
    env = TransformedEnv(Env(ENV_ID, replicas, seed=args.evaluation_seed, device=args.device), RewardSum())
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        episodes = env.rollout(500, actor, break_when_any_done=False, break_when_all_done=True)
    last = episodes["next"][:, -1]
    assert bool(last["done"].all())
    returns: torch.Tensor = last["episode_reward"]
    return returns.squeeze(-1)


def train(args: Args) -> Result:
    """Train, and evaluate the policy in other episodes."""
    torch.manual_seed(args.seed)
    env = TransformedEnv(Env(ENV_ID, args.num_envs, seed=args.seed, device=args.device), RewardSum())
    actor, critic = networks(env, env.device)
    advantage = GAE(gamma=args.gamma, lmbda=args.gae_lambda, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5)
    optimiser = torch.optim.Adam(loss.parameters(), lr=args.learning_rate)
    batch = args.num_envs * args.horizon
    frames = batch * args.updates
    collector = Collector(
        env, actor, frames_per_batch=batch, total_frames=frames, auto_register_policy_transforms=False
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(batch, device=env.device),
        sampler=SamplerWithoutReplacement(),
        batch_size=args.minibatch,
    )
    steps, start = 0, time.perf_counter()
    for update, data in enumerate(collector):
        optimiser.param_groups[0]["lr"] = args.learning_rate * (1 - update / args.updates)
        with torch.no_grad():
            advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(args.epochs):
            for minibatch in buffer:
                losses = loss(minibatch)
                optimiser.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
        buffer.empty()
        steps += batch
    seconds = time.perf_counter() - start
    collector.shutdown()
    return Result(evaluate(actor, args), steps, seconds)


def main() -> None:
    """Parse the command line, train, and print the result."""
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    result = train(Args(**vars(parser.parse_args())))
    print(f"mean return {result.returns.mean():.1f} after {result.steps:,} steps in {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
