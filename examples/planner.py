"""Plan with the simulator as the model: MPPI or the cross-entropy method, with thousands of rollouts from one state.

python examples/planner.py --env-id Pendulum-v1 --method mppi

There is no training. Before each step, all trials are set to the state of the real replica and try sequences of actions
around the current plan; their returns improve the plan. The real replica takes the first action, and the rest is the
start of the next plan. Trials use the random numbers that the real replica will use; in environments with random steps,
``set_state(state, randomness="fresh")`` avoids this look-ahead.
"""

import argparse
import dataclasses
import time
from typing import Any

import gymnasium
import torch

import gpu_envs


@dataclasses.dataclass(frozen=True)
class Args:
    """Command-line arguments."""

    env_id: str = "Pendulum-v1"
    """A single-agent environment with Box or Discrete actions."""
    method: str = "mppi"
    """mppi: average all trials, weighted by their returns; cem: fit mean and standard deviation to the best trials."""
    device: str = "auto"
    seed: int = 1
    episodes: int = 5
    trials: int = 1024
    """Number of trials per iteration."""
    horizon: int = 30
    """Steps of a trial."""
    iterations: int = 4
    """Iterations of improvement per decision."""
    spread: float = 0.6
    """Standard deviation of the noise, for actions scaled to -1 to 1."""
    temperature: float = 0.05
    """mppi: temperature of the weights, in standard deviations of the returns."""
    elites: float = 0.1
    """cem: fraction of the trials to fit."""


class Planner:
    """Plans a sequence of actions by trying variations of it."""

    def __init__(self, args: Args, real: Any) -> None:
        """Make the trials; in ``Disabled`` mode they stay in the final state after the end of an episode."""
        self.args, self.real = args, real
        self.trials: Any = gpu_envs.make(
            args.env_id, args.trials, device=args.device, output="torch", autoreset_mode="Disabled"
        )
        self.trials.reset(seed=args.seed)
        self.space = self.trials.single_action_space
        self.discrete = isinstance(self.space, gymnasium.spaces.Discrete)
        self.device = self.trials.episode_return.device
        if not self.discrete:
            self.low, self.high = (
                torch.as_tensor(bound, device=self.device) for bound in (self.space.low, self.space.high)
            )
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        self.replica = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.plan = torch.zeros(args.horizon, 1 if self.discrete else self.space.shape[0], device=self.device)
        self.graph: Any = None

    def reset(self) -> None:
        """Reset the plan to zero."""
        self.plan.zero_()

    def act(self) -> torch.Tensor:
        """Return the next action of the real replica; on a GPU a decision is a CUDA graph."""
        if self.device.type == "cpu":
            return self.decide()
        if self.graph is None:
            self.decide()  # compile and allocate before the capture
            self.reset()
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.device(self.device), torch.cuda.graph(self.graph):
                self.action = self.decide()
        self.graph.replay()
        return self.action

    def decide(self) -> torch.Tensor:
        """Improve the plan from the state of the real replica, and remove its first action."""
        args, plan, std = self.args, self.plan, torch.full_like(self.plan, self.args.spread)
        state = self.real.get_state(replicas=self.replica)
        for _ in range(args.iterations):
            shape = (args.horizon, args.trials, plan.shape[1])
            noise = torch.randn(shape, generator=self.generator, device=self.device)
            candidates = (plan[:, None] + std[:, None] * noise).clamp(-1, 1)
            self.trials.set_state(state)
            returns = self.trials.rollout(args.horizon, self.actions(candidates)).rewards.float()
            if args.method == "cem":
                best = returns.topk(max(2, round(args.elites * args.trials))).indices
                plan, std = candidates[:, best].mean(1), candidates[:, best].std(1)
            else:
                scale = args.temperature * returns.std() + 1e-6
                weights = torch.softmax((returns - returns.max()) / scale, 0)
                plan = (weights[:, None] * candidates).sum(1)
        action = self.actions(plan[:1])
        self.plan.copy_(torch.cat((plan[1:], torch.zeros_like(plan[:1]))))
        return action

    def actions(self, units: torch.Tensor) -> torch.Tensor:
        """Map numbers from -1 to 1 to actions: linearly to the bounds of a Box, in equal parts to discrete actions."""
        if self.discrete:
            choice = ((units[..., 0] + 1) / 2 * self.space.n).long().clamp(0, int(self.space.n) - 1)
            discrete: torch.Tensor = choice + int(self.space.start)
            return discrete
        continuous: torch.Tensor = self.low + (units + 1) / 2 * (self.high - self.low)
        return continuous


def run(args: Args) -> list[float]:
    """Play episodes; return their returns."""
    real: Any = gpu_envs.make(args.env_id, 1, device=args.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=args.seed)
    planner, returns = Planner(args, real), []
    for episode in range(args.episodes):
        real.reset(seed=args.seed + episode)
        planner.reset()
        start, steps, done = time.perf_counter(), 0, False
        while not done:
            _, _, terminated, truncated, _ = real.step(planner.act())
            done, steps = bool(terminated | truncated), steps + 1
        returns.append(float(real.episode_return))
        seconds = (time.perf_counter() - start) / steps
        print(f"episode {episode}: return {returns[-1]:.1f} in {steps} steps, {1000 * seconds:.2f} ms/step", flush=True)
    return returns


def main() -> None:
    """Parse the command line, and play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        kind: Any = type(field.default)
        choices = ("mppi", "cem") if field.name == "method" else None
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, choices=choices)
    returns = run(Args(**vars(parser.parse_args())))
    print(f"mean return {sum(returns) / len(returns):.1f}")


if __name__ == "__main__":
    main()
