"""Tag on a grid as a Python author would write it: the rules of ``kernels/environments/tag_grid.cuh``."""

from gpu_envs.rules import (
    AGENTS,
    EPISODE_LENGTH,
    NUM_TAGGERS,
    RESET,
    Metrics,
    Params,
    Row,
    Team,
    TeamActions,
    World,
    add,
    clip,
    lower,
)

THE_RUNNER = NUM_TAGGERS
FAR = 0x7FFFFFFF


def draw_cell(team: Team, agent: int, n: int) -> int:
    random = team.random(RESET, agent)
    return random.integer(n)


def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        side = p.grid_length + 1
        cell = draw_cell(team, THE_RUNNER, side * side)
        if i != THE_RUNNER:
            other = draw_cell(team, i, side * side - 1)
            cell = other if other < cell else other + 1
        centre = 0 if i == THE_RUNNER else p.grid_length // 2
        if p.start == "fixed":
            w.x[i] = centre
            w.y[i] = centre
        else:
            w.x[i] = cell % side
            w.y[i] = cell // side
        if i == 0:
            w.runners_left = 1


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        action = actions[i]
        x = w.x[i] + (action == 1) - (action == 2)
        y = w.y[i] + (action == 3) - (action == 4)
        w.x[i] = clip(x, 0, p.grid_length)
        w.y[i] = clip(y, 0, p.grid_length)
        w.reward[i] = -p.wall_hit_penalty if w.x[i] != x or w.y[i] != y else 0
        if i == 0:
            w.tags = 0
    for tagger in team.agents(NUM_TAGGERS):
        if w.x[tagger] == w.x[THE_RUNNER] and w.y[tagger] == w.y[THE_RUNNER]:
            add(w.tags, 1)
    for i in team.agents():
        tagged = w.tags > 0
        if i == THE_RUNNER:
            w.reward[i] += -p.tag_penalty_for_runner if tagged else p.step_cost_for_tagger
            if tagged:
                w.in_game[i] = False
                w.runners_left = 0
                w.terminated = True
        else:
            w.reward[i] += p.tag_reward_for_tagger if tagged else -p.step_cost_for_tagger


def look(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        w.column[i] = w.x[i] / p.grid_length
        w.line[i] = w.y[i] / p.grid_length
        if i == 0:
            w.nearest_tagger = w.nearest_distance = FAR
    if not p.use_full_observation:
        for i in team.agents(NUM_TAGGERS):
            dx, dy = w.x[i] - w.x[THE_RUNNER], w.y[i] - w.y[THE_RUNNER]
            w.distance[i] = dx * dx + dy * dy
            lower(w.nearest_distance, w.distance[i])
        for i in team.agents(NUM_TAGGERS):
            if w.distance[i] == w.nearest_distance:
                lower(w.nearest_tagger, i)


def kind_of(agent: int) -> float:
    return 1.0 if agent == THE_RUNNER else 0.0


def observe(w: World, p: Params, agent: int, row: Row) -> None:
    time = min(w.elapsed, EPISODE_LENGTH) / EPISODE_LENGTH
    if p.use_full_observation:
        for j in row.columns(AGENTS):
            row[j] = w.column[j]
            row[j + AGENTS] = w.line[j]
            row[j + 2 * AGENTS] = kind_of(j)
            row[j + 3 * AGENTS] = j == agent
        row[4 * AGENTS] = time
    else:
        target = w.nearest_tagger if agent == THE_RUNNER else THE_RUNNER
        row[0] = w.column[agent]
        row[1] = w.line[agent]
        row[2] = w.column[target]
        row[3] = w.line[target]
        row[4] = kind_of(agent)
        row[5] = time


def measure(w: World, p: Params, team: Team, metrics: Metrics) -> None:
    for _ in team.agents(1):
        metrics.tags = 1.0 - w.runners_left
        metrics.survival = float(w.elapsed) - (1 - w.runners_left)
