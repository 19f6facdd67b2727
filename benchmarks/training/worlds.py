"""Results of training in RICE-N and COVID, compared with random and with constant actions."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import gpu_envs
from benchmarks.training.learning import play_at_random, to_dicts
from benchmarks.training.plan import TrainingPlan, preset, train_preset

SEEDS = 5
EPISODES = 256
"""Episodes of an evaluation; they differ only in the sampled actions."""

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Half width of the 95 % confidence interval of a mean, in standard errors, by the number of seeds."""


class World(NamedTuple):
    """A preset, and the constant actions to compare with."""

    env_id: str
    preset: str
    constants: tuple[str, ...]
    """Names of the elements of a constant action."""


_RICE = ("savings", "mitigation", "export limit", "bids", "tariffs")

WORLDS = {
    "RiceN-v0": World("RiceN-v0", "default", _RICE),
    "RiceN-v0 negotiating": World("RiceN-v0", "negotiation", _RICE),
    "CovidEconomy-v0": World("CovidEconomy-v0", "default", ("stringency", "subsidy")),
}

RICE_GRID = (range(10), (0, 2, 4, 6, 9), (0, 5, 9), (0, 3), (0, 5))
"""Grid of savings, mitigation, export limit, bids and tariffs, in tenths; no promises, requests and consents."""

COVID_GRID = (range(1, 11), range(21))
"""Grid of stringency and subsidy."""


def worlds(plan: TrainingPlan) -> dict[str, Any]:
    """Train each preset with several seeds; evaluate random actions and all constant actions of a grid."""
    results = {}
    for name, world in WORLDS.items():
        params = preset(world.env_id, world.preset).get("params", {})
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            trainer, run = train_preset(plan, world.env_id, world.preset, seed)
            for kind, greedy in (("drawn", False), ("greedy", True)):
                run[kind] = to_dicts(trainer.evaluate(episodes=EPISODES, greedy=greedy))
            runs.append(run)
            plan.log(f"{name}, seed {seed}: {format_means(run['drawn'])} sampled, {format_means(run['greedy'])} greedy")
        results[name] = {
            "settings": dict(preset(world.env_id, world.preset)),
            "random": play_at_random(plan, world.env_id, runs[0]["drawn"], params),
            "constants": constants(plan, world, params),
            "learnt": {
                role: mean_over_seeds([run["drawn"][role]["mean"] for run in runs]) for role in runs[0]["drawn"]
            },
            "runs": runs,
        }
        plan.log(f"{name}: {results[name]['learnt']}; constants {results[name]['constants']}")
    return results


def format_means(by_role: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the mean returns by role as text."""
    return ", ".join(f"{role} {evaluation['mean']:.5g}" for role, evaluation in by_role.items())


def mean_over_seeds(means: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds, and the half width of its 95 % confidence interval."""
    standard_error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
    return {"mean": statistics.fmean(means), "interval": STUDENT.get(len(means), 0.0) * standard_error}


def constants(plan: TrainingPlan, world: World, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best constant action of each role, with its return and the metrics of its episode."""
    grid = tuple(itertools.product(*(COVID_GRID if world.env_id == "CovidEconomy-v0" else RICE_GRID)))
    env: Any = gpu_envs.make(
        world.env_id,
        len(grid),
        device=plan.device,
        output="numpy",
        autoreset_mode="SameStep",
        statistics=True,
        **params,
    )
    _, infos = env.reset(seed=0)
    actions = {role: np.zeros(space.shape, np.int64) for role, space in env.action_spaces.items()}
    if world.env_id == "CovidEconomy-v0":
        actions["governor"][:], actions["planner"][:] = np.hsplit(np.array(grid), 2)
    else:
        grid_actions, regions = np.array(grid), env.counts["region"]
        for column, (start, end) in enumerate(
            ((0, 1), (1, 2), (2, 3), (3 + regions, 3 + 2 * regions), (3, 3 + regions))
        ):
            actions["region"][:, :, start:end] = grid_actions[:, column].reshape(-1, 1, 1)
    while "episode" not in infos:
        *_, infos = env.step(actions)
    returns = {role: values.mean(1) for role, values in infos["episode"]["r"].items()}
    best = {role: int(np.argmax(values)) for role, values in returns.items()}
    return {
        role: {
            "mean": float(returns[role][index]),
            "action": dict(zip(world.constants, map(int, grid[index]), strict=True)),
            "metrics": {name: float(values[index]) for name, values in env.episode_metrics.items()},
        }
        for role, index in best.items()
    }
