"""Team rules in Python: roles, phases, functions that contain phases, actions with many elements."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing, programs
from translation_cases import HEADER, import_source, rules_of

import gpu_envs

ROAMING = """
PUSH = [(1, 0), (-1, 0), (0, 1)]

def inside(x: int) -> bool:
    return 0 <= x < SIZE

def spread_out(w: World, p: Params, team: Team, start: float) -> None:
    for i in team.agents():
        random = team.shared_random(RESET, i) if p.alike else team.random(RESET, i)
        w.x[i] = random.integer(SIZE)
        w.y[i] = start
        for k in range(3):
            w.cargo[i, k] = 0

def reset(w: World, p: Params, team: Team) -> None:
    spread_out(w, p, team, 0.5)
    for i in team.agents():
        if i != 0:
            continue
        w.visits = 0
        for k in range(5):
            w.board[k] = 0

def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        a = actions[i]
        moved = w.x[i] + PUSH[a[0]][0] + a[1]
        w.x[i] = moved if inside(moved) else w.x[i]
        w.cargo[i, a[0]] += 1
        w.cargo[i * 3 + 2] += 10
        w.reward[i] = team.random(STEP, i, w.elapsed).uniform(0, 1) if role_of(i) == DOG else -1
    for k in range(2):
        for i in team.agents(count_of(CAT)):
            add(w.visits, k)
    for k in team.agents(5):
        w.board[k] += k
    for i in team.agents():
        if team.last_step and i == 0:
            w.terminated = True

def observe(w: World, p: Params, agent: int, row: Row) -> None:
    row[0] = w.x[agent] / SIZE
    row[1] = features_of(role_of(agent)) + first_of(DOG)

def allow(w: World, p: Params, agent: int, mask: Mask) -> None:
    mask[0] = inside(w.x[agent] + 1)
    if agent == AGENTS - 1:
        mask[4] = False
"""


def test_a_team_with_all_features(tmp_path: Path) -> None:
    """MultiDiscrete actions, arrays of agents and of the replica, masks, functions that contain phases."""
    field, box = gpu_envs.Field, gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    moves = gymnasium.spaces.MultiDiscrete([3, 2])
    spec = gpu_envs.TeamSpec(
        id="Roaming-v0",
        header=rules_of(import_source(HEADER + ROAMING, tmp_path)),
        roles=(gpu_envs.Role("cat", 3, box, moves), gpu_envs.Role("dog", 2, box, moves)),
        state={"x": field("int"), "y": field(), "cargo": field("int", 3)},
        shared={"visits": field("int"), "board": field("int", 5)},
        params={"size": gpu_envs.Param(4, fixed=True), "alike": gpu_envs.Param(True)},
        action_mask=True,
        max_episode_steps=3,
    )
    env = gpu_envs.MultiAgentEnv(spec, 6, device="cpu", autoreset_mode="Disabled")
    _, infos = env.reset(seed=1)
    x = np.array(env.state["x"])
    assert (x == x[0]).all()
    assert infos["action_mask"]["cat"][:, :, 0].tolist() == (x[:, :3] < 3).tolist()
    assert infos["action_mask"]["dog"][0].tolist() == [[int(x[0, 3] < 3), 1, 1, 1, 1], [int(x[0, 4] < 3), 1, 1, 1, 0]]
    actions = {"cat": np.full((6, 3, 2), 1), "dog": np.full((6, 2, 2), [2, 1])}
    observations, rewards, *_ = env.step(actions)
    moved = x + np.array([0, 0, 0, 1, 1])  # cats: -1 + 1, dogs: 0 + 1
    assert env.state["x"].tolist() == np.where(moved < 4, moved, x).tolist()
    assert env.state["cargo"][0].tolist() == [[0, 1, 10]] * 3 + [[0, 0, 11]] * 2
    assert env.state["visits"].tolist() == [3] * 6
    assert env.state["board"].tolist() == [[0, 1, 2, 3, 4]] * 6
    assert (rewards["cat"] == -1).all()
    assert (rewards["dog"] >= 0).all()
    assert observations["dog"][0, :, 1].tolist() == [2 + 3] * 2
    env.step(actions)
    assert np.array(env.step(actions)[2]["cat"]).all()
    env.close()


HAULING = """
def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        w.load[i] = 0

def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        mine, total = actions[i], 0
        for j in range(LENGTH):
            total += mine[j] * (j + 1) + actions[AGENTS - 1][0]
        w.load[i] = total

def observe(w: World, p: Params, agent: int, row: Row) -> None:
    row[0] = w.load[agent]
"""


def hauling_spec(folder: Path) -> gpu_envs.TeamSpec:
    """Two roles, with actions too long to be copied."""
    box, spaces = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces
    return gpu_envs.TeamSpec(
        id="Hauling-v0",
        header=rules_of(import_source(HEADER + "\nLENGTH = 40\n" + HAULING, folder, "hauling")),
        roles=(
            gpu_envs.Role("cat", 3, box, spaces.MultiDiscrete([4] * 12)),
            gpu_envs.Role("dog", 2, box, spaces.MultiDiscrete([4 + j % 3 for j in range(40)])),
        ),
        state={"load": gpu_envs.Field("int")},
        params={},
        max_episode_steps=3,
    )


def step_and_check(env: Any, actions: Any) -> None:
    env.step(actions)
    env.check()


def test_long_actions(tmp_path: Path, device: str) -> None:
    env = gpu_envs.MultiAgentEnv(hauling_spec(tmp_path), 50, device=device, output="numpy")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = {"cat": rng.integers(0, 4, (50, 3, 12)), "dog": rng.integers(0, 4, (50, 2, 40))}
    loads = [(part * np.arange(1, part.shape[2] + 1)).sum(2) for part in actions.values()]
    expected = np.concatenate(loads, 1) + 40 * actions["dog"][:, 1, :1]
    observations = env.step(actions)[0]
    assert np.concatenate([observations["cat"], observations["dog"]], 1)[:, :, 0].tolist() == expected.tolist()
    actions["dog"][3, 1, 39] = 4  # the maximum is 3
    env.check()
    with pytest.raises(gpu_envs.ActionError, match="4"):
        step_and_check(env, actions)
    env.close()


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "NVRTC is installed")
def test_long_actions_are_not_copied(tmp_path: Path) -> None:
    (program,) = programs(hauling_spec(tmp_path), "SameStep", "float32")
    usage = kernel_resources(compile_with_nvrtc(program.source).cubin)
    assert max(count for _, kind, count in usage if kind == "local") < 4 * 40  # less than an action
