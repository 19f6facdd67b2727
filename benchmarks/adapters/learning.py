"""Training with the PPO of each library, followed by an evaluation of the policy in complete episodes."""

import contextlib
import functools
import importlib.util
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.adapters.plan import AdapterPlan, check_minimum
from gpu_envs.training.process.device import torch_threads

EXAMPLES = Path(__file__).parents[2] / "examples"
"""The folder of the programs that train with each library."""

CARTPOLE, PENDULUM = 475.0, -172.2
"""Target returns: the environment's ``reward_threshold``; for Pendulum, which has none, the return of PPO in RL-Zoo's
table of trained agents."""

THREADS = 1
"""Number of torch threads on the CPU, where the small networks run."""


def learning(plan: AdapterPlan) -> dict[str, Any]:
    """Train with every library."""
    runs: dict[str, Callable[[AdapterPlan], dict[str, Any]]] = {
        "sb3": train_with_sb3,
        "torchrl": train_with_torchrl,
        "skrl": functools.partial(train_with_example, "skrl", CARTPOLE),
        "rsl_rl": functools.partial(train_with_example, "rsl_rl", PENDULUM),
    }
    results = {}
    for library, train in runs.items():
        with torch_threads("cpu", THREADS):
            run = results[library] = plan.part(f"learning, {library}", functools.partial(train, plan))
        if "evaluated" in run:
            met = check_minimum(run["evaluated"], run["target"])
            plan.log(
                f"learning, {library}, {run['env']}, {run['num_envs']:,} replicas: mean return {run['evaluated']:.1f} "
                f"after {run['seconds']:.1f} s and {run['steps']:,} steps ({met})"
            )
    return {"torch_threads": THREADS, "libraries": results}


def train_with_sb3(plan: AdapterPlan) -> dict[str, Any]:
    """Train CartPole until the last episodes reach the target."""
    from benchmarks.adapters import sb3_learning

    return sb3_learning.learn(plan, CARTPOLE)


def train_with_torchrl(plan: AdapterPlan) -> dict[str, Any]:
    """Train CartPole with the settings of the TorchRL example."""
    example = load_example("torchrl_ppo")
    tiny = {"num_envs": 8, "updates": 1} if plan.quick else {}
    args = example.Args(device=plan.device, **tiny)
    result = example.train(args)
    return {
        "env": example.ENV_ID,
        "num_envs": args.num_envs,
        "settings": vars(args),
        "seconds": result.seconds,
        "steps": result.steps,
        "evaluated": float(result.returns.mean()),
        "episodes": len(result.returns),
        "actions": "sampled",
        "target": CARTPOLE,
    }


def train_with_example(library: str, target: float, plan: AdapterPlan) -> dict[str, Any]:
    """Train with the settings of a library's example.

    Args:
        library: The library's name.
        target: The target return.
        plan: The device and the sizes.
    """
    example = load_example(f"{library}_ppo")
    tiny = {"num_envs": 8, "updates": 1} if plan.quick else {}
    args = example.Args(device=plan.device, **tiny)
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints its networks
        trained = example.train(args)
    seconds = time.perf_counter() - start
    episodes = plan.size(1000, 8)
    return {
        "env": args.env_id,
        "num_envs": args.num_envs,
        "settings": vars(args),
        "seconds": seconds,
        "steps": args.num_envs * args.num_steps * args.updates,
        "evaluated": float(example.evaluate(trained, args, episodes).mean()),
        "episodes": episodes,
        "actions": "most likely",
        "target": target,
    }


def load_example(name: str) -> ModuleType:
    """Import an example by its path: the examples are no package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
