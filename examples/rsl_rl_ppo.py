"""rsl_rl's PPO and runner on an environment with continuous actions.

python examples/rsl_rl_ppo.py --env-id Pendulum-v1 --device cpu
"""

import argparse
import dataclasses
import time
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from gpu_envs.adapters.rsl_rl import VecEnv
from gpu_envs.seeds import derived_seed


@dataclasses.dataclass(frozen=True)
class Args:
    """Command-line arguments."""

    env_id: str = "Pendulum-v1"
    """An environment with continuous actions."""
    device: str = "auto"
    """The device of environment and networks."""
    seed: int = 1
    num_envs: int = 64
    updates: int = 100
    num_steps: int = 32
    """Steps of each replica per update."""
    learning_rate: float = 1e-3
    gamma: float = 0.95
    gae_lambda: float = 0.95
    epochs: int = 10
    minibatches: int = 8


def settings(args: Args) -> dict[str, Any]:
    """Return the runner's configuration."""
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    return {
        "num_steps_per_env": args.num_steps,
        "save_interval": args.updates,
        "check_for_nan": False,  # it would wait for the device three times per step
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": dict(network),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": args.epochs,
            "num_mini_batches": args.minibatches,
            "learning_rate": args.learning_rate,
            "schedule": "fixed",
            "gamma": args.gamma,
            "lam": args.gae_lambda,
            "entropy_coef": 0.0,
            "value_loss_coef": 0.5,
            "use_clipped_value_loss": False,
            "max_grad_norm": 0.5,
        },
    }


def train(args: Args, log_dir: str | None = None) -> Any:
    """Train, and return the runner."""
    torch.manual_seed(args.seed)
    env = VecEnv(args.env_id, args.num_envs, seed=args.seed, device=args.device)
    runner = OnPolicyRunner(env, settings(args), log_dir, str(env.device))
    runner.learn(args.updates, init_at_random_ep_len=True)
    env.close()
    return runner


def evaluate(runner: Any, args: Args, episodes: int = 256) -> torch.Tensor:
    """Return the returns of one complete episode per replica, with the mean actions."""
    env = VecEnv(args.env_id, episodes, seed=derived_seed(args.seed, "evaluation"), device=args.device)
    policy = runner.get_inference_policy()
    totals = torch.zeros(episodes, device=env.device)
    active = torch.ones(episodes, dtype=torch.bool, device=env.device)
    with torch.inference_mode():
        observations = env.get_observations()
        while active.any():
            observations, rewards, dones, _ = env.step(policy(observations))
            totals += rewards * active
            active &= ~dones
    env.close()
    return totals


def main() -> None:
    """Train, and print the mean return of an evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    start = time.perf_counter()
    runner = train(args)
    seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s, {args.updates * args.num_steps * args.num_envs / seconds:,.0f} steps/s")
    print(f"mean return {evaluate(runner, args).mean():.1f}")


if __name__ == "__main__":
    main()
