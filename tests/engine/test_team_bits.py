"""A team's trajectories are the same in every mode, and its bits whatever its size, the launch or the device."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from harness import MODES, Make, Place, assert_all_same, assert_same_bits, numpy_of
from registered import (
    CONTINUOUS,
    GRID,
    Team,
    Variant,
    all_buffers,
    draw,
    each_variant,
    made,
    needs_cuda,
    over,
    record,
    take,
)


@each_variant
def test_modes_agree(make: Make, variant: Variant, device: str) -> None:
    """Every replica's trajectory is one and the same in NextStep, SameStep and, reset by its user, Disabled mode.

    The restart steps of NextStep mode get actions that are none.
    """
    count, steps = 23, 60
    same, following, disabled = (
        made(make, variant, count, Place(device, "numpy"), autoreset_mode=mode)
        for mode in ("SameStep", "NextStep", "Disabled")
    )
    assert_all_same(env.reset(seed=17)[0] for env in (same, following, disabled))
    actions = draw(same, steps)
    expected, by_hand = record(same, actions), record(disabled, actions)
    for name in ("rewards", "terminations", "truncations"):
        assert_same_bits(expected[name], by_hand[name], name)
    assert_same_bits(expected["observations"], by_hand["restarted"], "observations")
    ends = np.array(
        [over({name: {r: v[t] for r, v in e.items()} for name, e in expected.items()}) for t in range(steps)]
    )
    assert ends.sum() > 3 * count
    for role in actions[0]:  # the last observation of an episode is the one that a frozen replica shows
        assert_same_bits(expected["final_obs"][role][ends], by_hand["observations"][role][ends], "final_obs")

    done = np.zeros(count, int)  # steps taken of each replica's sequence
    pending = np.zeros(count, bool)
    everybody = np.arange(count)
    while done.min() < steps:
        taken = np.minimum(done, steps - 1)
        given = {role: np.stack([a[role] for a in actions])[taken, everybody] for role in actions[0]}
        for values in given.values():
            values[pending] = 99 if values.dtype.kind == "i" else np.nan
        result = take(following, given)
        looked_at = done < steps  # who is done repeats the last of its actions until all are
        for role in actions[0]:
            for name in ("rewards", "terminations", "truncations"):
                values = result[name][role]
                assert not values[pending].any(), "a restart step gives nothing"
                kept = looked_at & ~pending
                assert_same_bits(values[kept], expected[name][role][taken, everybody][kept], name)
            shown, ended = result["observations"][role], ends[taken, everybody]
            kept = looked_at & ~pending & ended
            assert_same_bits(shown[kept], expected["final_obs"][role][taken, everybody][kept], "final_obs")
            kept = looked_at & ~pending & ~ended
            assert_same_bits(shown[kept], expected["observations"][role][taken, everybody][kept], "observations")
            kept = pending & (done <= steps)
            before = np.clip(done - 1, 0, steps - 1)
            assert_same_bits(shown[kept], expected["observations"][role][before, everybody][kept], "restart")
            assert "alive" not in result or result["alive"][role][pending].all()
        assert not numpy_of(following.elapsed)[pending].any()
        done += ~pending
        pending = over(result)


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
    for t, action in enumerate(draw(envs[0], steps, seed=1)):
        results = [take(env, action) for env in envs]
        assert_all_same(results, f"step {t}")
        assert_all_same((all_buffers(env) for env in envs), f"step {t}")
        ended = over(results[0])
        if envs[0].autoreset_mode is AutoresetMode.DISABLED and ended.any():
            assert_all_same((env.reset(options={"reset_mask": ended})[0] for env in envs), f"reset {t}")
            assert_all_same((all_buffers(env) for env in envs), f"reset {t}")


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        *((team, "SameStep") for team in TEAMS),
        *((team, mode) for team in TEAMS[2::6] for mode in ("NextStep", "Disabled")),
    ],
    ids=str,
)
def test_cpu_and_cuda_agree(make: Make, team: Team, automatic: str) -> None:
    """Teams of all sizes are the same on the CPU and on CUDA, over all memory, through restarts."""
    count = 37 if team.taggers + team.runners > 5 else 301  # more than a block of the smallest holds
    compare_devices(make, CONTINUOUS, count, 30, autoreset_mode=automatic, episode_length=13, **team.params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        (Team(2, 3), "NextStep"),
        (Team(5, 28, seen=17), "SameStep"),
        (Team(5, 60, full=True), "NextStep"),
        (Team(10, 100), "SameStep"),
    ],
    ids=str,
)
def test_cpu_and_cuda_agree_in_float64(make: Make, team: Team, automatic: str) -> None:
    """In float64 too."""
    compare_devices(
        make, CONTINUOUS, 37, 30, autoreset_mode=automatic, episode_length=13, precision="float64", **team.params
    )


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("taggers", "full", "automatic"),
    [
        *((taggers, full, "SameStep") for taggers in (1, 4, 16, 63, 64, 299) for full in (True, False)),
        *((taggers, full, mode) for taggers, full in ((4, True), (64, False)) for mode in ("NextStep", "Disabled")),
    ],
)
def test_cpu_and_cuda_agree_on_the_grid(make: Make, taggers: int, full: bool, automatic: str) -> None:
    """So is the grid world."""
    params = {"num_taggers": taggers, "grid_length": 2 + taggers, "use_full_observation": full}
    count = 37 if taggers > 4 else 301
    compare_devices(make, GRID, count, 30, autoreset_mode=automatic, episode_length=13, **params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("block_size", [64, 128, 256])
@pytest.mark.parametrize("team", [Team(1, 1), Team(3, 14), Team(10, 100), Team(10, 100, full=True)], ids=str)
def test_block_size_changes_nothing(make: Make, team: Team, block_size: int) -> None:
    """Blocks of other sizes, which hold other numbers of replicas, give the same."""
    arguments: dict[str, Any] = {"autoreset_mode": "SameStep", "episode_length": 13, **team.params}
    envs = [make(CONTINUOUS, 101, device="cuda", block_size=size, **arguments) for size in (None, block_size)]
    assert_all_same(env.reset(seed=2)[0] for env in envs)
    assert_all_same((record(env, draw(env, 30)), all_buffers(env)) for env in envs)


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


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("full", [True, False])
def test_spread_grid_agrees(make: Make, full: bool) -> None:
    """So is the grid world with thousands of taggers."""
    params = {"num_taggers": 2100, "grid_length": 900, "use_full_observation": full}
    compare_devices(make, GRID, 2, 4, autoreset_mode="SameStep", episode_length=3, **params)
