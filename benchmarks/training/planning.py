"""One moment in thousands of replicas: what a call costs, and what the example that plans so comes to."""

import contextlib
import importlib.util
import io
import statistics
import sys
from pathlib import Path
from typing import Any

import gpu_envs
from benchmarks.timing import seconds_per_call, waiting
from benchmarks.training.plan import TrainingPlan

MOMENTS = {"CartPole-v1": 65_536, "TagContinuous-v0": 5_000}
"""Into so many replicas goes one, and all take a step."""

PLANNED = ("Pendulum-v1", "CartPole-v1")
EPISODES, DECISIONS = 100, 200


def planning(plan: TrainingPlan) -> dict[str, Any]:
    """Microseconds of ``set_state`` and a step, milliseconds of a decision, and returns of whole episodes."""
    found: dict[str, Any] = {"moments": {}, "planner": {}}
    for env_id, replicas in MOMENTS.items():
        spent = _moment(plan, env_id, replicas)
        found["moments"][env_id] = {"replicas": replicas, "set_state_and_step_us": 1e6 * spent}
        plan.log(f"{env_id}: one replica into {replicas:,}, and a step: {1e6 * spent:,.0f} us")
    planner = example()
    for env_id in PLANNED:
        args = planner.Args(env_id=env_id, device=plan.device, trials=4096, horizon=30, iterations=4, episodes=EPISODES)
        spent = _decision(plan, planner, args)
        with contextlib.redirect_stdout(io.StringIO()):
            returns = planner.run(args)
        found["planner"][env_id] = {"settings": vars(args), "decision_ms": 1e3 * spent, "returns": returns}
        plan.log(
            f"{env_id}, MPPI, {args.iterations} x {args.trials:,} x {args.horizon}: {1e3 * spent:.2f} ms a decision; "
            f"{EPISODES} episodes return {statistics.mean(returns):.1f}, the worst {min(returns):.1f}"
        )
    return found


def _moment(plan: TrainingPlan, env_id: str, replicas: int) -> float:
    one, many = (gpu_envs.make(env_id, count, device=plan.device, output="torch") for count in (1, replicas))
    one.reset(seed=0)
    many.reset(seed=1)
    moment, actions = one.get_state(replicas=[0]), _no_actions(many)

    def call(number: int) -> None:
        del number
        many.set_state(moment)
        many.step(actions)

    return seconds_per_call(call, waiting(plan.device))


def _no_actions(env: Any) -> Any:
    """The first action of each agent, in the environment's memory."""
    import torch

    def zeros(space: Any) -> Any:
        dtype = torch.int64 if space.dtype.kind in "iu" else torch.float32
        return torch.zeros(space.shape, dtype=dtype, device=env.device)

    spaces = getattr(env, "action_spaces", None)
    return zeros(env.action_space) if spaces is None else {role: zeros(space) for role, space in spaces.items()}


def example() -> Any:
    """The module ``examples/planner.py``."""
    file = Path(__file__).parents[2] / "examples" / "planner.py"
    spec = importlib.util.spec_from_file_location("planner", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _decision(plan: TrainingPlan, planner: Any, args: Any) -> float:
    """Seconds of a decision and its step, of some in a row of which the host reads nothing."""
    real: Any = gpu_envs.make(args.env_id, 1, device=args.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=0)
    real.allow_frozen_steps()
    mind = planner.Planner(args, real)

    def decisions(number: int) -> None:
        del number
        for _ in range(DECISIONS):
            real.step(mind.act())

    return seconds_per_call(decisions, waiting(plan.device), seconds=2 if plan.on_gpu else 0.1, warm_up=1) / DECISIONS
