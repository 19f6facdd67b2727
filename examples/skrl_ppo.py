"""skrl's PPO on an environment with discrete actions, with skrl's models, memory and trainer.

python examples/skrl_ppo.py --env-id CartPole-v1 --device cpu
"""

import argparse
import dataclasses
import time
from typing import Any, final

import torch
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

from gpu_envs.adapters.skrl import PPO, Wrapper
from gpu_envs.seeds import derived_seed


@dataclasses.dataclass(frozen=True)
class Args:
    """Command-line arguments."""

    env_id: str = "CartPole-v1"
    """An environment with discrete actions."""
    device: str = "auto"
    """The device of environment and networks."""
    seed: int = 1
    num_envs: int = 64
    updates: int = 60
    num_steps: int = 32
    """Steps of each replica per update."""
    learning_rate: float = 3e-3
    gamma: float = 0.98
    gae_lambda: float = 0.9
    epochs: int = 6
    minibatches: int = 4


def network(inputs: int, outputs: int, scale: float) -> nn.Sequential:
    """Return a network with orthogonal weights; ``scale``: the gain of the last layer."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@final
class Policy(CategoricalMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """The policy."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self, unnormalized_log_prob=True)
        self.net = network(self.num_observations, self.num_actions, 0.01)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:  # noqa: ARG002
        """Return the logits of the actions."""
        return self.net(inputs["observations"]), {}


@final
class Value(DeterministicMixin, Model):  # type: ignore[misc]  # skrl's types are not followed
    """The value function, of the global state if the environment has one."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_states or self.num_observations, 1, 1.0)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:  # noqa: ARG002
        """Return the value."""
        features = inputs["observations"] if inputs["states"] is None else inputs["states"]
        return self.net(features), {}


def train(args: Args) -> Any:
    """Train an agent, and return it."""
    set_seed(args.seed)
    env = Wrapper(args.env_id, args.num_envs, device=args.device)
    spaces = {
        "observation_space": env.observation_space,
        "state_space": env.state_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    agent = PPO(
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=args.num_steps, num_envs=env.num_envs, device=env.device),
        cfg={
            "rollouts": args.num_steps,
            "learning_epochs": args.epochs,
            "mini_batches": args.minibatches,
            "discount_factor": args.gamma,
            "gae_lambda": args.gae_lambda,
            "learning_rate": args.learning_rate,
            "value_clip": 0.0,
            "value_loss_scale": 0.5,
            "time_limit_bootstrap": True,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
        **spaces,
    )
    trainer = SequentialTrainer(
        env=env,
        agents=agent,
        cfg={
            "timesteps": args.updates * args.num_steps,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        },
    )
    trainer.train()
    env.close()
    return agent


def evaluate(agent: Any, args: Args, episodes: int = 100) -> torch.Tensor:
    """Return the returns of one complete episode per replica, with the most likely actions."""
    env = Wrapper(args.env_id, episodes, seed=derived_seed(args.seed, "evaluation"), device=args.device)
    totals = torch.zeros(episodes, 1, device=env.device)
    active = torch.ones(episodes, 1, dtype=torch.bool, device=env.device)
    observations, _ = env.reset()
    while active.any():
        with torch.no_grad():
            _, outputs = agent.policy.act({"observations": observations, "states": None}, role="policy")
        actions = outputs["net_output"].argmax(1, keepdim=True)
        observations, rewards, terminated, truncated, _ = env.step(actions)
        totals += rewards * active
        active &= ~(terminated | truncated)
    env.close()
    return totals


def main() -> None:
    """Train, and print the mean return of an evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    start = time.perf_counter()
    agent = train(args)
    seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s, {args.updates * args.num_steps * args.num_envs / seconds:,.0f} steps/s")
    print(f"mean return {evaluate(agent, args).mean():.1f}")


if __name__ == "__main__":
    main()
