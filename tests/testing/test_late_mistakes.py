"""``check_environment`` finds mistakes that occur late, rarely, only with repeated actions, or without a crash."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_envs import CHASE, WALK, chase, check_message, walk

import gpu_envs
from gpu_envs.testing import builds, check_environment, sameness, values
from gpu_envs.testing.subject import Subject

CLOCK: dict[str, Any] = {
    "state": {"x": gpu_envs.Field(), "clock": gpu_envs.Field("int")},
    "tables": {"toll": gpu_envs.Table([1.0])},
    "max_episode_steps": 300,
}
START = "s.x = random.uniform(real(-1), real(1));\n    s.clock = 0;"
SHOWN = "observation[0] = 0;\n    observation[1] = 0;"


def clocked(folder: Path, step: str, **changes: Any) -> Any:
    """A walk with a clock that never ends by itself."""
    bodies = {"reset": START, "observe": SHOWN} | {k: changes.pop(k) for k in ("reset", "observe") if k in changes}
    step = f"s.clock += 1;\n    {step}\n    return {{reward, false}};"
    return walk(folder, more=CLOCK | changes, step=f"real reward = 0;\n    {step}", **bodies)


LATE: dict[str, tuple[str, dict[str, Any]]] = {
    "after step 60": ("s.x += p.toll[s.clock / 61];", {}),
    "at the last step": ("s.x += p.toll[s.clock / 300];", {}),
    "without a limit": ("s.x += p.toll[s.clock / 900];", {"max_episode_steps": None}),
    "in the longest episode": ("s.x += p.toll[s.clock / 399];", {"longest_episode": 400}),
    "after many steps one way": (
        "s.x += action ? real(0.01) : real(-0.01);\n    reward = p.toll[s.x > real(1.9)];",
        {},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "more"), LATE.values(), ids=LATE)
def test_a_late_index_outside_an_array(tmp_path: Path, step: str, more: dict[str, Any]) -> None:
    found = check_message(builds.undefined_values, clocked(tmp_path, step, **more))
    assert "index 1 of 'toll', which has 1 elements" in found


def test_a_late_nan_reward(tmp_path: Path) -> None:
    found = check_message(values.finite, clocked(tmp_path, "if (s.clock > 100) reward = log(real(-1));"), "cpu")
    assert "step 101 of its episode: the reward is nan" in found


def test_an_observation_that_rarely_leaves_its_space(tmp_path: Path) -> None:
    """Once in about 2,000 steps."""
    step = "s.x = random.uniform(real(0), real(2000)) < real(1) ? real(9) : real(0);"
    found = check_message(values.spaces, clocked(tmp_path, step, observe=WALK["observe"].replace("s.pace", "0")), "cpu")
    assert "the observation[0] of replica" in found
    assert "its space allows -8.0 to 8.0" in found


@pytest.mark.slow
def test_a_late_difference(tmp_path: Path) -> None:
    step = "real push;\n    if (s.clock < 100) push = 1;\n    s.x = push;"
    assert "of a long run (SameStep), state.x of replica" in check_message(
        builds.undefined_values, clocked(tmp_path, step)
    )


NEIGHBOURS = {
    "the next": ("w.x[(i + 1) % AGENTS] += real(0.5);", "the iteration of agent 3 writes 'x' of agent 0"),
    "the first": ("if (i == 2) w.x[0] = real(1);", "the iteration of agent 2 writes 'x' of agent 0"),
    "its game": ("if (i == 1) w.in_game[3] = false;", "the iteration of agent 1 writes 'in_game' of agent 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("line", "message"), NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_a_write_to_another_agent_without_a_race(tmp_path: Path, line: str, message: str) -> None:
    spec = chase(tmp_path, step=CHASE["step"] + f"\n    FOR_EACH_AGENT(i, AGENTS) {{\n{line}\n}}")
    found = check_message(builds.phases, spec)
    assert message in found
    at = [text.strip() for text in spec.header.read_text().splitlines()].index(line) + 1
    assert found.startswith(f"{spec.header}:{at}: ")


@pytest.mark.slow
def test_two_agents_in_an_iteration(tmp_path: Path) -> None:
    """In a phase that does not iterate over agents, an iteration belongs to the first agent that it writes."""
    spec = chase(tmp_path, step=CHASE["step"] + "\n    FOR_EACH_AGENT(k, 2) { w.x[2 * k] = 1; w.x[2 * k + 1] = 2; }")
    assert "the iteration of agent 2 writes 'x' of agent 3" in check_message(builds.phases, spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase",
    [
        "FOR_EACH_AGENT(i, AGENTS) { w.x[i] = w.x[(i + 1) % AGENTS] * 0 + 1; }",
        "FOR_EACH_AGENT(k, NUM_PREY) w.x[AGENTS - 1 - k] = 1;",
        "FOR_EACH_AGENT(i, AGENTS) w.bag[i * 2 + 1] = 1;",
        "FOR_EACH_AGENT(i, AGENTS) add(w.hits[(i + 1) % AGENTS], 1);",
        "FOR_EACH_AGENT(i, AGENTS) w.near[(i + 1) % AGENTS] = 1;",
        "FOR_EACH_AGENT(cell, AGENTS) w.board[(cell + 1) % AGENTS] = 1;",
        "FOR_EACH_AGENT(once, 1) { w.x[0] = 1; w.x[1] = w.x[0] + 1; }",
    ],
)
def test_allowed_writes(tmp_path: Path, phase: str) -> None:
    """Fields of the iteration's agent, of all agents in a single iteration, arrays of the replica, scratch, sums."""
    more = {
        "state": {"x": gpu_envs.Field(), "bag": gpu_envs.Field("byte", 2), "hits": gpu_envs.Field("int")},
        "shared": {"caught": gpu_envs.Field("int"), "board": gpu_envs.Field("int", 4)},
        "scratch": {"near": gpu_envs.Field()},
    }
    start = "FOR_EACH_AGENT(i, AGENTS) { w.hits[i] = 0; w.board[i] = 0; w.bag[2 * i] = 0; w.bag[2 * i + 1] = 0; }"
    spec = chase(tmp_path, more=more, reset=f"{CHASE['reset']}\n    {start}", step=f"{phase}\n    {CHASE['step']}")
    assert check_message(builds.phases, spec) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "reset"), [(walk, "s.x = 0;\n    s.pace = real(0.25);"), (chase, "FOR_EACH_AGENT(i, AGENTS) w.x[i] = 5;")]
)
def test_constant_initial_states_are_reported(tmp_path: Path, make: Callable[..., Any], reset: str) -> None:
    if make is walk:
        spec = walk(
            tmp_path,
            reset=reset,
            step="s.x += random.uniform(real(-1), real(1));\n    return {0, s.x < real(-4) || s.x > real(4)};",
        )
    else:
        shaken = CHASE["step"].replace("real(actions[i] - 1)", "team.random(STEP, i, w.elapsed).uniform(-1, 1)")
        spec = chase(tmp_path, reset=reset + "\n    FOR_EACH_AGENT(i, 1) w.caught = 0;", step=shaken)
    assert sameness.seeds(Subject(spec, 9, 40, 0, {}), "cpu").endswith("; initial states do not depend on the seed")
    report = check_environment(spec, devices=["cpu"], sanitize=False, report=lambda _: None)
    assert not report.failures


@pytest.mark.slow
def test_the_number_of_steps(tmp_path: Path) -> None:
    """With bounds checks."""
    spec = walk(tmp_path, more={"observation": spaces.Box(-8, 8, (2,), np.float32)})
    message = builds.undefined_values(Subject(spec, 9, 75, 0, {}))
    assert message.startswith("75 steps in each autoreset mode, and 40 in a long run with repeated actions")
