"""A team's trajectories are the same in every mode, and its bits whatever its size, the launch or the device."""

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
    """Every replica's trajectory is one and the same in NextStep, SameStep and, reset by its user, Disabled mode.

    The restart steps of NextStep mode get actions that are none.
    """
    count, steps = 23, 60
    everybody = list(range(count))
    told: dict[str, list[list[Any]]] = {}

    def of(i: int, by_role: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [values[i] for values in by_role.values()]

    for mode in MODES:
        env = make_variant(make, variant, count, Place(device, "numpy"), autoreset_mode=mode)
        first = numpy_by_role(env, env.reset(seed=17)[0])
        told[mode] = [[of(i, first)] for i in everybody]
        actions = draw_actions(env, steps)
        block = {role: np.stack([action[role] for action in actions]) for role in actions[0]}
        done = np.zeros(count, int)  # steps taken of each replica's sequence; who is done repeats the last
        pending = np.zeros(count, bool)
        while done.min() < steps:
            given = {role: values[np.minimum(done, steps - 1), everybody] for role, values in block.items()}
            for values in given.values():
                values[pending] = 99 if values.dtype.kind == "i" else np.nan
            result = take_step(env, given)
            flags = [result[name] for name in ("rewards", "terminations", "truncations")]
            assert not any(values[pending].any() for by_role in flags for values in by_role.values()), "a restart"
            assert "alive" not in result or all(alive[pending].all() for alive in result["alive"].values())
            assert not numpy_of(env.elapsed)[pending].any()
            ended, shown = ended_replicas(result), result["observations"]
            last, start = result["final_obs"] if mode == "SameStep" else shown, shown
            if mode == "Disabled" and ended.any():
                start = numpy_by_role(env, env.reset(options={"reset_mask": ended})[0])
            for i in everybody:
                if not pending[i]:
                    told[mode][i].append([*(of(i, part) for part in flags), of(i, last if ended[i] else shown)])
                if pending[i] or (ended[i] and mode != "NextStep"):
                    told[mode][i].append(of(i, start))
            done += ~pending
            pending = ended & (mode == "NextStep")
    assert sum(map(len, told["SameStep"])) > count * (1 + steps + 3), "each ends more than three times"
    assert_all_same([part[: steps + 5] for part in of_mode] for of_mode in told.values())


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
    """Steps the CPU's and CUDA's, and compares all that they give and all that they hold."""
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
    """Teams of all sizes are the same on the CPU and on CUDA, over all memory, through restarts."""
    agents = team.taggers + team.runners
    count = 301 if agents <= 5 else 37 if agents < 300 else 9  # more than a block of the smallest holds
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
    """So is the grid world."""
    params = {"num_taggers": taggers, "grid_length": 2 + min(taggers, 898), "use_full_observation": full}
    count, steps, length = (2, 4, 3) if taggers > 2000 else (9 if taggers > 64 else 37 if taggers > 4 else 301, 30, 13)
    compare_devices(make, GRID, count, steps, autoreset_mode=automatic, episode_length=length, **params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("block_size", [64, 128, 256])
@pytest.mark.parametrize("team", [Team(1, 1), Team(3, 14), Team(10, 100), Team(10, 100, full=True)], ids=str)
def test_block_size_changes_nothing(make: Make, team: Team, block_size: int) -> None:
    """Blocks of other sizes, which hold other numbers of replicas, give the same."""
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
    """A team that is spread over the GPU, a launch for each phase, is the same, over the end of an episode too."""
    compare_devices(make, CONTINUOUS, 2, 4, autoreset_mode=automatic, episode_length=3, **team.params)
