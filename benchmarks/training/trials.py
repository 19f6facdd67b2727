"""Trials of the planning example: their paths by iteration, and returns by the number of trials."""

import contextlib
import io
import statistics
from typing import Any, final

import gpu_envs
from benchmarks.training.plan import TrainingPlan
from benchmarks.training.planning import load_example

TRIALS = (4, 16, 64, 256, 1024)
EPISODES = 20
ITERATIONS = {"mppi": (1, 4), "cem": (1, 4)}

NUM_PATHS, STRIDE = 14, 2
"""Number of saved paths per iteration, and steps between points of a path."""

SEED = 3
"""Seed of an episode that starts near the bottom."""

WARM_UP = 32
"""Steps before the shown moment."""


@final
class _RecordedTrials:
    """Trials that record their rollouts."""

    def __init__(self, trials: Any) -> None:
        self.trials, self.rollouts = trials, []  # type: ignore[var-annotated]  # of Rollouts

    def set_state(self, moment: Any) -> None:
        self.moment = moment
        self.trials.set_state(moment)

    def rollout(self, steps: int, actions: Any) -> Any:
        self.rollouts.append(self.trials.rollout(steps, actions, per_step=True))
        return self.rollouts[-1]._replace(rewards=self.rollouts[-1].rewards.sum(0))


def trials(plan: TrainingPlan) -> dict[str, Any]:
    """Record paths of trials by iteration, from one state of Pendulum, and returns by the number of trials."""
    return {"fan": _record_paths(plan), "returns": _returns(plan)}


def _record_paths(plan: TrainingPlan) -> dict[str, Any]:
    import torch

    planner = load_example()
    args = planner.Args(method="cem", device=plan.device, trials=1024, iterations=4, seed=SEED)
    real: Any = gpu_envs.make(args.env_id, 1, device=plan.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=SEED)
    agent = planner.Planner(args, real)
    for _ in range(WARM_UP):
        first = real.step(agent.decide())[0]
    agent.reset()
    agent.trials = recorded = _RecordedTrials(agent.trials)
    action = agent.decide()  # the plan now starts after this action
    chosen = torch.cat((action, agent.actions(agent.plan[:-1])))[:, None].expand(-1, args.trials, -1).contiguous()
    recorded.set_state(recorded.moment)
    recorded.rollout(args.horizon, chosen)
    start = first.expand(args.trials, -1)

    def paths(result: Any, count: int) -> list[dict[str, Any]]:
        observations = torch.cat((start[None], result.observations))[::STRIDE, :count].double()
        angles = torch.atan2(observations[..., 1], observations[..., 0])
        turns = torch.round((angles[1:] - angles[:-1]) / (2 * torch.pi)).cumsum(0)
        angles[1:] -= 2 * torch.pi * turns  # unwrap
        sums = result.rewards.sum(0)
        return [
            {"return": round(float(sums[i]), 1), "degrees": [round(float(a)) for a in torch.rad2deg(angles[:, i])]}
            for i in range(count)
        ]

    *iterations, last = recorded.rollouts
    upright = 360 * round(paths(last, 1)[0]["degrees"][-1] / 360)
    return {
        "settings": vars(args),
        "seconds": [round(float(t * real.params["dt"]), 3) for t in range(0, args.horizon + 1, STRIDE)],
        "iterations": [paths(result, NUM_PATHS) for result in iterations],
        "chosen": paths(last, 1)[0],
        "upright": upright,
    }


def _returns(plan: TrainingPlan) -> list[dict[str, Any]]:
    planner, rows = load_example(), []
    for method, iterations in ITERATIONS.items():
        for times in iterations:
            for trials in TRIALS:
                args = planner.Args(
                    method=method, device=plan.device, trials=trials, iterations=times, episodes=EPISODES
                )
                with contextlib.redirect_stdout(io.StringIO()):
                    returns = planner.run(args)
                mean = statistics.mean(returns)
                plan.log(f"Pendulum-v1, {method}, {times} x {trials:,} x {args.horizon}: mean return {mean:.1f}")
                rows.append(
                    {
                        "method": method,
                        "iterations": times,
                        "trials": trials,
                        "horizon": args.horizon,
                        "mean": round(mean, 2),
                        "worst": round(min(returns), 1),
                        "episodes": EPISODES,
                    }
                )
    return rows
