"""What is learnt in the two worlds of many agents and no known solution: beside chance, and beside constant actions."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import gpu_envs
from benchmarks.training.learning import figures, play_at_random
from benchmarks.training.plan import TrainingPlan, preset, trained

SEEDS = 5
EPISODES = 256
"""Of an evaluation: but for the actions drawn, all are alike."""

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Half the width of a 95 % interval of a mean, in standard errors, by the number of seeds."""

Constants = Mapping[str, Sequence[tuple[int, ...]]]
"""By role, what its agents do in each of several replicas."""


class World(NamedTuple):
    """What is trained, and compared with what."""

    env_id: str
    preset: str
    constants: tuple[str, ...]
    """What constant actions are made of."""


_RICE = ("savings", "mitigation", "export limit", "bids", "tariffs")

WORLDS = {
    "RiceN-v0": World("RiceN-v0", "default", _RICE),
    "RiceN-v0 negotiating": World("RiceN-v0", "negotiation", _RICE),
    "CovidEconomy-v0": World("CovidEconomy-v0", "default", ("stringency", "subsidy")),
}

RICE_GRID = (range(10), (0, 2, 4, 6, 9), (0, 5, 9), (0, 3), (0, 5))
"""Of savings, mitigation, the limit of exports, bids and tariffs, in tenths. Promises, requests and consents: none."""

COVID_GRID = (range(1, 11), range(21))
"""Of stringency and subsidy."""


def worlds(plan: TrainingPlan) -> dict[str, Any]:
    """Trains each world's preset with several seeds; plays it at random, and with all constant actions of a grid."""
    found = {}
    for name, world in WORLDS.items():
        params = preset(world.env_id, world.preset).get("params", {})
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            trainer, run = trained(plan, world.env_id, world.preset, seed)
            for kind, greedy in (("drawn", False), ("greedy", True)):
                run[kind] = figures(trainer.evaluate(episodes=EPISODES, greedy=greedy))
            runs.append(run)
            plan.log(f"{name}, seed {seed}: {spoken(run['drawn'])} drawn, {spoken(run['greedy'])} greedily")
        found[name] = {
            "settings": dict(preset(world.env_id, world.preset)),
            "random": play_at_random(plan, world.env_id, runs[0]["drawn"], params),
            "constants": constants(plan, world, params),
            "learnt": {role: across([run["drawn"][role]["mean"] for run in runs]) for role in runs[0]["drawn"]},
            "runs": runs,
        }
        plan.log(f"{name}: {found[name]['learnt']}; constants {found[name]['constants']}")
    return found


def spoken(by_role: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns by role in a few words."""
    return ", ".join(f"{role} {found['mean']:.5g}" for role, found in by_role.items())


def across(means: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, and half the width of its 95 % interval."""
    spread = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
    return {"mean": statistics.fmean(means), "interval": STUDENT.get(len(means), 0.0) * spread}


def constants(plan: TrainingPlan, world: World, params: Mapping[str, Any]) -> dict[str, Any]:
    """Of each role the best constant action: its return, what it is, and what was measured of its episode."""
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
        chosen, regions = np.array(grid), env.counts["region"]
        for place, (begin, end) in enumerate(
            ((0, 1), (1, 2), (2, 3), (3 + regions, 3 + 2 * regions), (3, 3 + regions))
        ):
            actions["region"][:, :, begin:end] = chosen[:, place].reshape(-1, 1, 1)
    while "episode" not in infos:
        *_, infos = env.step(actions)
    returns = {role: values.mean(1) for role, values in infos["episode"]["r"].items()}
    best = {role: int(np.argmax(values)) for role, values in returns.items()}
    return {
        role: {
            "mean": float(returns[role][place]),
            "action": dict(zip(world.constants, map(int, grid[place]), strict=True)),
            "metrics": {name: float(values[place]) for name, values in env.episode_metrics.items()},
        }
        for role, place in best.items()
    }
