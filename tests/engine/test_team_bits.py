"""Trajectories of teams have the same bits in every mode, with every launch configuration and on every device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from harness import MODES, Make, Place, assert_all_same, numpy_of
from registered import (
    CONTINUOUS,
    GRID,
    Team,
    Variant,
    all_buffers,
    draw_actions,
    each_variant,
    ended_replicas,
    make_variant,
    needs_cuda,
    numpy_by_role,
    record,
    take_step,
)


@each_variant
def test_modes_agree(make: Make, variant: Variant, device: str) -> None:
    """Every replica's trajectory is the same in NextStep, SameStep and, with resets by the user, Disabled mode.

    The reset steps of NextStep mode get invalid actions.
    """
    count, steps = 23, 60
    replicas = list(range(count))
    trajectories: dict[str, list[list[Any]]] = {}

    def of(i: int, by_role: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [values[i] for values in by_role.values()]

    for mode in MODES:
        env = make_variant(make, variant, count, Place(device, "numpy"), autoreset_mode=mode)
        first = numpy_by_role(env, env.reset(seed=17)[0])
        trajectories[mode] = [[of(i, first)] for i in replicas]
        actions = draw_actions(env, steps)
        block = {role: np.stack([action[role] for action in actions]) for role in actions[0]}
        done = np.zeros(count, int)  # steps taken by each replica; finished replicas repeat the last actions
        pending = np.zeros(count, bool)
        while done.min() < steps:
            step_actions = {role: values[np.minimum(done, steps - 1), replicas] for role, values in block.items()}
            for values in step_actions.values():
                values[pending] = 99 if values.dtype.kind == "i" else np.nan
            result = take_step(env, step_actions)
            flags = [result[name] for name in ("rewards", "terminations", "truncations")]
            assert not any(values[pending].any() for by_role in flags for values in by_role.values()), "a reset step"
            assert "alive" not in result or all(alive[pending].all() for alive in result["alive"].values())
            assert not numpy_of(env.elapsed)[pending].any()
            ended, observations = ended_replicas(result), result["observations"]
            last, start = result["final_obs"] if mode == "SameStep" else observations, observations
            if mode == "Disabled" and ended.any():
                start = numpy_by_role(env, env.reset(options={"reset_mask": ended})[0])
            for i in replicas:
                if not pending[i]:
                    trajectories[mode][i].append(
                        [*(of(i, part) for part in flags), of(i, last if ended[i] else observations)]
                    )
                if pending[i] or (ended[i] and mode != "NextStep"):
                    trajectories[mode][i].append(of(i, start))
            done += ~pending
            pending = ended & (mode == "NextStep")
    assert sum(map(len, trajectories["SameStep"])) > count * (1 + steps + 3), (
        "each replica's episode ends more than three times"
    )
    assert_all_same([part[: steps + 5] for part in of_mode] for of_mode in trajectories.values())


TEAMS = [
    Team(1, 1),
    Team(1, 1, full=True),
    Team(2, 3, seen=2),
    Team(2, 3, seen=20),
    Team(3, 14),
    Team(3, 14, seen=16),
    Team(3, 14, full=True),
    Team(3, 14, box=True),
    Team(5, 28, seen=15),
    Team(5, 28, seen=17),
    Team(4, 60, seen=1),
    Team(14, 50, seen=32),
    Team(4, 60, full=True),
    Team(5, 60),
    Team(5, 60, full=True),
    Team(10, 100),
    Team(10, 100, seen=30),
    Team(10, 100, full=True),
    Team(20, 280),
    Team(20, 280, seen=100),
    Team(20, 280, full=True),
]


def compare_devices(make: Make, env_id: str, count: int, steps: int, **kwargs: Any) -> None:
    """Step the same environment on CPU and CUDA, and compare all results and all buffers."""
    envs = [make(env_id, count, device=device, **kwargs) for device in ("cpu", "cuda")]
    assert_all_same(env.reset(seed=21)[0] for env in envs)
    for t, action in enumerate(draw_actions(envs[0], steps, seed=1)):
        results = [take_step(env, action) for env in envs]
        assert_all_same(results, f"step {t}")
        assert_all_same((all_buffers(env) for env in envs), f"step {t}")
        ended = ended_replicas(results[0])
        if envs[0].autoreset_mode is AutoresetMode.DISABLED and ended.any():
            assert_all_same((env.reset(options={"reset_mask": ended})[0] for env in envs), f"reset {t}")
            assert_all_same((all_buffers(env) for env in envs), f"reset {t}")


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic", "precision"),
    [
        *((team, "SameStep", "float32") for team in TEAMS),
        *((team, mode, "float32") for team in TEAMS[2::6] for mode in ("NextStep", "Disabled")),
        (Team(2, 3), "NextStep", "float64"),
        (Team(5, 28, seen=17), "SameStep", "float64"),
        (Team(5, 60, full=True), "NextStep", "float64"),
        (Team(10, 100), "SameStep", "float64"),
    ],
    ids=str,
)
def test_cpu_and_cuda_agree(make: Make, team: Team, automatic: str, precision: str) -> None:
    """Teams of all sizes have the same results and buffers on CPU and CUDA, also across episodes."""
    agents = team.taggers + team.runners
    count = (
        301 if agents <= 5 else 37 if agents < 300 else 9
    )  # more replicas of the smallest team than fit in one block
    options: dict[str, Any] = {"autoreset_mode": automatic, "precision": precision, "episode_length": 13}
    compare_devices(make, CONTINUOUS, count, 30, **options, **team.params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("taggers", "full", "automatic"),
    [
        *((taggers, full, "SameStep") for taggers in (1, 4, 16, 63, 64, 299) for full in (True, False)),
        *((taggers, full, mode) for taggers, full in ((4, True), (64, False)) for mode in ("NextStep", "Disabled")),
        *((2100, full, "SameStep") for full in (True, False)),  # spread over the GPU
    ],
)
def test_cpu_and_cuda_agree_on_the_grid(make: Make, taggers: int, full: bool, automatic: str) -> None:
    """Also in the grid world."""
    params = {"num_taggers": taggers, "grid_length": 2 + min(taggers, 898), "use_full_observation": full}
    count, steps, length = (2, 4, 3) if taggers > 2000 else (9 if taggers > 64 else 37 if taggers > 4 else 301, 30, 13)
    compare_devices(make, GRID, count, steps, autoreset_mode=automatic, episode_length=length, **params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("block_size", [64, 128, 256])
@pytest.mark.parametrize("team", [Team(1, 1), Team(3, 14), Team(10, 100), Team(10, 100, full=True)], ids=str)
def test_block_size_changes_nothing(make: Make, team: Team, block_size: int) -> None:
    """Blocks of other sizes have other numbers of replicas, but the same results."""
    arguments: dict[str, Any] = {"autoreset_mode": "SameStep", "episode_length": 13, **team.params}
    envs = [make(CONTINUOUS, 101, device="cuda", block_size=size, **arguments) for size in (None, block_size)]
    assert_all_same(env.reset(seed=2)[0] for env in envs)
    assert_all_same((record(env, draw_actions(env, 30)), all_buffers(env)) for env in envs)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        *((Team(1500, 600), mode) for mode in MODES),
        (Team(1100, 950, seen=17), "SameStep"),
        (Team(60, 1990, full=True), "NextStep"),
    ],
    ids=str,
)
def test_spread_team_agrees(make: Make, team: Team, automatic: str) -> None:
    """A team spread over the GPU, with a launch for each phase, has the same results, also across episodes."""
    compare_devices(make, CONTINUOUS, 2, 4, autoreset_mode=automatic, episode_length=3, **team.params)
