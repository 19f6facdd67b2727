"""WarpDrive's Numba tutorial environment, Tag on a grid, as it is written here: the rules, and the spec."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, Rules, TeamSpec
from gpu_envs.rules import add, clip


def reset(w, p, team):
    for i in team.agents():
        w.x[i] = p.grid_length // 2 if i < p.num_taggers else 0
        w.y[i] = w.x[i]


def step(w, p, team, actions):
    for i in team.agents():
        action = actions[i]  # stay, +x, -x, +y, -y
        x = w.x[i] + int(action == 1) - int(action == 2)
        y = w.y[i] + int(action == 3) - int(action == 4)
        w.x[i] = clip(x, 0, p.grid_length)
        w.y[i] = clip(y, 0, p.grid_length)
        w.reward[i] = -p.wall_hit_penalty if w.x[i] != x or w.y[i] != y else 0.0
        if i == 0:
            w.tags = 0
    for i in team.agents(p.num_taggers):
        if w.x[i] == w.x[p.num_taggers] and w.y[i] == w.y[p.num_taggers]:
            add(w.tags, 1)
    for i in team.agents():
        if i < p.num_taggers:
            w.reward[i] += p.tag_reward_for_tagger if w.tags > 0 else -p.step_cost_for_tagger
        else:
            w.reward[i] += -p.tag_penalty_for_runner if w.tags > 0 else p.step_cost_for_tagger
            if w.tags > 0:
                w.terminated = True


def observe(w, p, i, row):
    n = p.num_taggers + 1
    for j in row.columns(n):
        row[j] = w.x[j] / p.grid_length
        row[j + n] = w.y[j] / p.grid_length
        row[j + 2 * n] = 1.0 if j == p.num_taggers else 0.0
        row[j + 3 * n] = 1.0 if j == i else 0.0
    row[4 * n] = w.elapsed / p.episode_length


def observation(params):
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
    limit="episode_length",
    max_episode_steps=100,
)
