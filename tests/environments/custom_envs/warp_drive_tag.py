"""WarpDrive's Numba tutorial environment, Tag on a grid, ported to gpu_envs: rules and spec."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, Rules, TeamSpec
from gpu_envs.rules import AGENTS, NUM_TAGGERS, Params, Row, Team, TeamActions, World, add, clip


def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        w.x[i] = p.grid_length // 2 if i < NUM_TAGGERS else 0
        w.y[i] = w.x[i]


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        action = actions[i]  # stay, +x, -x, +y, -y
        x = w.x[i] + int(action == 1) - int(action == 2)
        y = w.y[i] + int(action == 3) - int(action == 4)
        w.x[i] = clip(x, 0, p.grid_length)
        w.y[i] = clip(y, 0, p.grid_length)
        w.reward[i] = -p.wall_hit_penalty if w.x[i] != x or w.y[i] != y else 0.0
        if i == 0:
            w.tags = 0
    for i in team.agents(NUM_TAGGERS):
        if w.x[i] == w.x[NUM_TAGGERS] and w.y[i] == w.y[NUM_TAGGERS]:
            add(w.tags, 1)
    for i in team.agents():
        if i < NUM_TAGGERS:
            w.reward[i] += p.tag_reward_for_tagger if w.tags > 0 else -p.step_cost_for_tagger
        else:
            w.reward[i] += -p.tag_penalty_for_runner if w.tags > 0 else p.step_cost_for_tagger
            if w.tags > 0:
                w.in_game[i] = False
                w.terminated = True


def observe(w: World, p: Params, i: int, row: Row) -> None:
    for j in row.columns(AGENTS):
        row[j] = w.x[j] / p.grid_length
        row[j + AGENTS] = w.y[j] / p.grid_length
        row[j + 2 * AGENTS] = 1.0 if j == NUM_TAGGERS else 0.0
        row[j + 3 * AGENTS] = 1.0 if j == i else 0.0
    row[4 * AGENTS] = w.elapsed / p.episode_length


def observation(params: Mapping[str, Any]) -> Box:
    return Box(0.0, 1.0, (4 * (params["num_taggers"] + 1) + 1,), np.float32)


TAG = TeamSpec(
    id="WarpDriveTag-v0",
    header=Rules(reset=reset, step=step, observe=observe),
    roles=(
        Role("tagger", "num_taggers", observation, Discrete(5)),
        Role("runner", 1, observation, Discrete(5)),
    ),
    state={"x": Field("int"), "y": Field("int")},
    shared_scratch={"tags": Field("int")},
    params={
        "num_taggers": Param(4, positive=True, fixed=True),
        "grid_length": Param(100, positive=True),
        "episode_length": Param(100, positive=True, fixed=True),
        "wall_hit_penalty": Param(0.1),
        "tag_reward_for_tagger": Param(10.0),
        "tag_penalty_for_runner": Param(5.0),
        "step_cost_for_tagger": Param(0.01),
    },
    max_episode_steps=lambda params: int(params["episode_length"]),
)
