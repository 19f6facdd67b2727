"""What trials look like while a plan gets better, and what more of them are good for, with the example that plans."""

import contextlib
import io
import statistics
from typing import Any, final

import gpu_envs
from benchmarks.training.plan import TrainingPlan
from benchmarks.training.planning import example

TRIALS = (4, 16, 64, 256, 1024)
EPISODES = 20
ITERATIONS = {"mppi": (1, 4), "cem": (1, 4)}

SHOWN, EVERY = 14, 2
"""Trials whose paths are kept, and steps from one point of a path to the next."""

SEED = 3
"""Of an episode that begins near the bottom."""

BEFORE = 32
"""Steps before the moment that is shown."""


@final
class _Watched:
    """Trials whose paths are kept."""

    def __init__(self, trials: Any) -> None:
        self.trials, self.tried = trials, []  # type: ignore[var-annotated]  # of Rollouts

    def set_state(self, moment: Any) -> None:
        self.moment = moment
        self.trials.set_state(moment)

    def rollout(self, steps: int, actions: Any) -> Any:
        self.tried.append(self.trials.rollout(steps, actions, per_step=True))
        return self.tried[-1]._replace(rewards=self.tried[-1].rewards.sum(0))


def trials(plan: TrainingPlan) -> dict[str, Any]:
    """Paths of trials by iteration, from one moment of Pendulum; and returns of episodes by the number of trials."""
    return {"fan": _fan(plan), "returns": _returns(plan)}


def _fan(plan: TrainingPlan) -> dict[str, Any]:
    import torch

    planner = example()
    args = planner.Args(method="cem", device=plan.device, trials=1024, iterations=4, seed=SEED)
    real: Any = gpu_envs.make(args.env_id, 1, device=plan.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=SEED)
    mind = planner.Planner(args, real)
    for _ in range(BEFORE):
        first = real.step(mind.decide())[0]
    mind.begin()
    mind.trials = watched = _Watched(mind.trials)
    action = mind.decide()  # its plan begins with what comes after this action now
    chosen = torch.cat((action, mind.actions(mind.plan[:-1])))[:, None].expand(-1, args.trials, -1).contiguous()
    watched.set_state(watched.moment)
    watched.rollout(args.horizon, chosen)
    start = first.expand(args.trials, -1)

    def paths(result: Any, count: int) -> list[dict[str, Any]]:
        seen = torch.cat((start[None], result.observations))[::EVERY, :count].double()
        angles = torch.atan2(seen[..., 1], seen[..., 0])
        turns = torch.round((angles[1:] - angles[:-1]) / (2 * torch.pi)).cumsum(0)
        angles[1:] -= 2 * torch.pi * turns  # without leaps
        sums = result.rewards.sum(0)
        return [
            {"return": round(float(sums[i]), 1), "degrees": [round(float(a)) for a in torch.rad2deg(angles[:, i])]}
            for i in range(count)
        ]

    *tried, last = watched.tried
    upright = 360 * round(paths(last, 1)[0]["degrees"][-1] / 360)
    return {
        "settings": vars(args),
        "seconds": [round(float(t * real.params["dt"]), 3) for t in range(0, args.horizon + 1, EVERY)],
        "iterations": [paths(result, SHOWN) for result in tried],
        "chosen": paths(last, 1)[0],
        "upright": upright,
    }


def _returns(plan: TrainingPlan) -> list[dict[str, Any]]:
    planner, found = example(), []
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
                found.append(
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
    return found
