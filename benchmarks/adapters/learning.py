"""What is learnt through each library: a run of its PPO, then whole episodes of the policy that came of it."""

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

from benchmarks.adapters.plan import AdapterPlan, reached
from gpu_envs.training.process.device import torch_threads

EXAMPLES = Path(__file__).parents[2] / "examples"
"""Where the programs are that train by each library; their tests run them too."""

CARTPOLE, PENDULUM = 475.0, -172.2
"""Returns that count as learnt: the environment's own ``reward_threshold``; for Pendulum, which has none, what
RL-Zoo's table of trained agents says of its PPO."""

THREADS = 1
"""Of torch, on the CPU: the networks are small."""


def learning(plan: AdapterPlan) -> dict[str, Any]:
    """Every library's run."""
    runs: dict[str, Callable[[AdapterPlan], dict[str, Any]]] = {
        "sb3": by_sb3,
        "torchrl": by_torchrl,
        "skrl": functools.partial(by_example, "skrl", CARTPOLE),
        "rsl_rl": functools.partial(by_example, "rsl_rl", PENDULUM),
    }
    found = {}
    for library, train in runs.items():
        with torch_threads("cpu", THREADS):
            run = found[library] = plan.part(f"learning, {library}", functools.partial(train, plan))
        if "evaluated" in run:
            plan.log(
                f"learning, {library}, {run['env']}, {run['num_envs']:,} replicas: mean return {run['evaluated']:.1f} "
                f"after {run['seconds']:.1f} s, {run['steps']:,} steps ({reached(run['evaluated'], run['target'])})"
            )
    return {"torch_threads": THREADS, "libraries": found}


def by_sb3(plan: AdapterPlan) -> dict[str, Any]:
    """Cart-pole, until the last episodes reach the target."""
    from benchmarks.adapters import sb3_learning

    return sb3_learning.learn(plan, CARTPOLE)


def by_torchrl(plan: AdapterPlan) -> dict[str, Any]:
    """Cart-pole, as long as the example trains by its own settings."""
    example = module("torchrl_ppo")
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
        "actions": "drawn",
        "target": CARTPOLE,
    }


def by_example(library: str, target: float, plan: AdapterPlan) -> dict[str, Any]:
    """As long as the library's example trains by its own settings.

    Args:
        library: Its name.
        target: The return that counts as learnt.
        plan: Where, and how long.
    """
    example = module(f"{library}_ppo")
    tiny = {"num_envs": 8, "updates": 1} if plan.quick else {}
    args = example.Args(device=plan.device, **tiny)
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints its networks
        trained = example.train(args)
    seconds = time.perf_counter() - begin
    episodes = plan.size(1000, 8)
    return {
        "env": args.env_id,
        "num_envs": args.num_envs,
        "settings": vars(args),
        "seconds": seconds,
        "steps": args.num_envs * args.num_steps * args.updates,
        "evaluated": float(example.evaluate(trained, args, episodes).mean()),
        "episodes": episodes,
        "actions": "the likeliest",
        "target": target,
    }


def module(name: str) -> ModuleType:
    """The module of one of the examples, which do not form a package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made
