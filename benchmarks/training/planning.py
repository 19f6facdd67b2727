"""Copies of a state into thousands of replicas: the time per call, and the returns of the planning example."""

import contextlib
import importlib.util
import io
import statistics
import sys
from pathlib import Path
from typing import Any

import gpu_envs
from benchmarks.timing import seconds_per_call, wait_function
from benchmarks.training.plan import TrainingPlan

STATE_COPIES = {"CartPole-v1": 65_536, "TagContinuous-v0": 5_000}
"""Number of replicas that get a copy of one state and take a step."""

PLANNED = ("Pendulum-v1", "CartPole-v1")
EPISODES, DECISIONS = 100, 200


def planning(plan: TrainingPlan) -> dict[str, Any]:
    """Measure ``set_state`` with a step, the time of a decision, and returns of complete episodes."""
    results: dict[str, Any] = {"moments": {}, "planner": {}}
    for env_id, replicas in STATE_COPIES.items():
        seconds = _seconds_of_copy(plan, env_id, replicas)
        results["moments"][env_id] = {"replicas": replicas, "set_state_and_step_us": 1e6 * seconds}
        plan.log(f"{env_id}: set_state of {replicas:,} replicas, and a step: {1e6 * seconds:,.0f} us")
    planner = load_example()
    for env_id in PLANNED:
        args = planner.Args(env_id=env_id, device=plan.device, trials=4096, horizon=30, iterations=4, episodes=EPISODES)
        seconds = _seconds_of_decision(plan, planner, args)
        with contextlib.redirect_stdout(io.StringIO()):
            returns = planner.run(args)
        results["planner"][env_id] = {"settings": vars(args), "decision_ms": 1e3 * seconds, "returns": returns}
        plan.log(
            f"{env_id}, MPPI, {args.iterations} x {args.trials:,} x {args.horizon}: {1e3 * seconds:.2f} ms/decision; "
            f"{EPISODES} episodes return {statistics.mean(returns):.1f}, minimum {min(returns):.1f}"
        )
    return results


def _seconds_of_copy(plan: TrainingPlan, env_id: str, replicas: int) -> float:
    one, many = (gpu_envs.make(env_id, count, device=plan.device, output="torch") for count in (1, replicas))
    one.reset(seed=0)
    many.reset(seed=1)
    state, actions = one.get_state(replicas=[0]), _no_actions(many)

    def call(number: int) -> None:
        del number
        many.set_state(state)
        many.step(actions)

    return seconds_per_call(call, wait_function(plan.device))


def _no_actions(env: Any) -> Any:
    """Return action 0 of each agent, on the environment's device."""
    import torch

    def zeros(space: Any) -> Any:
        dtype = torch.int64 if space.dtype.kind in "iu" else torch.float32
        return torch.zeros(space.shape, dtype=dtype, device=env.device)

    spaces = getattr(env, "action_spaces", None)
    return zeros(env.action_space) if spaces is None else {role: zeros(space) for role, space in spaces.items()}


def load_example() -> Any:
    """Import ``examples/planner.py``."""
    file = Path(__file__).parents[2] / "examples" / "planner.py"
    spec = importlib.util.spec_from_file_location("planner", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seconds_of_decision(plan: TrainingPlan, planner: Any, args: Any) -> float:
    """Return the seconds of a decision and its step, without synchronisation between decisions."""
    real: Any = gpu_envs.make(args.env_id, 1, device=args.device, output="torch", autoreset_mode="Disabled")
    real.reset(seed=0)
    real.allow_frozen_steps()
    agent = planner.Planner(args, real)

    def decisions(number: int) -> None:
        del number
        for _ in range(DECISIONS):
            real.step(agent.act())

    return (
        seconds_per_call(decisions, wait_function(plan.device), seconds=2 if plan.on_gpu else 0.1, warm_up=1)
        / DECISIONS
    )
