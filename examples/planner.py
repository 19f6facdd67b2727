"""Plans with the simulator itself: MPPI, or the cross-entropy method, over thousands of continuations of one moment.

python examples/planner.py --env-id Pendulum-v1 --method mppi

Nothing is learnt. Before each step the moment of the real replica goes into all trials, which try sequences of actions
around the best so far; what they return says how to change it. Its first action is taken, and the rest begins the next
plan. Trials see the random numbers that the real replica will see; where steps are random,
``set_state(moment, randomness="fresh")`` is the fair way.
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
    """What can be chosen on the command line."""

    env_id: str = "Pendulum-v1"
    """Of an environment of one agent, whose actions are a Box or Discrete."""
    method: str = "mppi"
    """mppi: all trials count, by their returns; cem: the best of them, and where they agree the next are nearer."""
    device: str = "auto"
    seed: int = 1
    episodes: int = 5
    trials: int = 1024
    """Continuations at a time."""
    horizon: int = 30
    """Steps of each."""
    iterations: int = 4
    """Times that a plan is improved before its first action is taken."""
    spread: float = 0.6
    """Deviation of what is tried, where actions reach from -1 to 1."""
    temperature: float = 0.05
    """Of mppi: how much worse a trial may be to count 1/e, as a share of the deviation of returns."""
    elites: float = 0.1
    """Of cem: the share of trials that count."""


class Planner:
    """Improves sequences of actions by trying them."""

    def __init__(self, args: Args, real: Any) -> None:
        """Makes the trials of the replica of ``real``, which stay where an episode ends."""
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
                torch.as_tensor(each, device=self.device) for each in (self.space.low, self.space.high)
            )
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        self.first = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.plan = torch.zeros(args.horizon, 1 if self.discrete else self.space.shape[0], device=self.device)
        self.graph: Any = None

    def begin(self) -> None:
        """Forgets the plan."""
        self.plan.zero_()

    def act(self) -> torch.Tensor:
        """The next action of the real replica; on a GPU the launches of a decision are one graph."""
        if self.device.type == "cpu":
            return self.decide()
        if self.graph is None:
            self.decide()  # all that it needs is compiled and allocated now
            self.begin()
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.device(self.device), torch.cuda.graph(self.graph):
                self.action = self.decide()
        self.graph.replay()
        return self.action

    def decide(self) -> torch.Tensor:
        """Improves the plan from where the real replica is, and takes its first action off."""
        args, plan, deviation = self.args, self.plan, torch.full_like(self.plan, self.args.spread)
        moment = self.real.get_state(replicas=self.first)
        for _ in range(args.iterations):
            shape = (args.horizon, args.trials, plan.shape[1])
            noise = torch.randn(shape, generator=self.generator, device=self.device)
            tried = (plan[:, None] + deviation[:, None] * noise).clamp(-1, 1)
            self.trials.set_state(moment)
            returns = self.trials.rollout(args.horizon, self.actions(tried)).rewards.float()
            if args.method == "cem":
                best = returns.topk(max(2, round(args.elites * args.trials))).indices
                plan, deviation = tried[:, best].mean(1), tried[:, best].std(1)
            else:
                scale = args.temperature * returns.std() + 1e-6
                weights = torch.softmax((returns - returns.max()) / scale, 0)
                plan = (weights[:, None] * tried).sum(1)
        action = self.actions(plan[:1])
        self.plan.copy_(torch.cat((plan[1:], torch.zeros_like(plan[:1]))))
        return action

    def actions(self, units: torch.Tensor) -> torch.Tensor:
        """Actions of numbers from -1 to 1: of a Box between its bounds, of choices one after another."""
        if self.discrete:
            choice = ((units[..., 0] + 1) / 2 * self.space.n).long().clamp(0, int(self.space.n) - 1)
            started: torch.Tensor = choice + int(self.space.start)
            return started
        within: torch.Tensor = self.low + (units + 1) / 2 * (self.high - self.low)
        return within


def run(args: Args) -> list[float]:
    """Plays some episodes, and returns what they came to."""
    real: Any = gpu_envs.make(args.env_id, 1, device=args.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=args.seed)
    planner, found = Planner(args, real), []
    for episode in range(args.episodes):
        real.reset(seed=args.seed + episode)
        planner.begin()
        begin, steps, over = time.perf_counter(), 0, False
        while not over:
            _, _, terminated, truncated, _ = real.step(planner.act())
            over, steps = bool(terminated | truncated), steps + 1
        found.append(float(real.episode_return))
        spent = (time.perf_counter() - begin) / steps
        print(f"episode {episode}: return {found[-1]:.1f} in {steps} steps, {1000 * spent:.2f} ms a step", flush=True)
    return found


def main() -> None:
    """Reads the options, and plays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        kind: Any = type(field.default)
        choices = ("mppi", "cem") if field.name == "method" else None
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, choices=choices)
    returns = run(Args(**vars(parser.parse_args())))
    print(f"mean return {sum(returns) / len(returns):.1f}")


if __name__ == "__main__":
    main()
