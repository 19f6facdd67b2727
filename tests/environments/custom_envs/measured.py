"""Environments with metrics of every kind: single-agent and team, in C++ and in Python."""

import dataclasses

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Field, Metric, Param, Role, Rules, TeamSpec
from gpu_envs.rules import (
    AGENTS,
    RESET,
    STEP,
    Action,
    Metrics,
    Observation,
    Params,
    Random,
    Row,
    State,
    Team,
    TeamActions,
    World,
    add,
)

METRICS = {
    "last": Metric(),
    "mean": Metric("a share", "mean"),
    "sum": Metric(reduce="sum"),
    "highest": Metric(reduce="max"),
}
PARAMS = {"start": Param(0.5, minimum=0), "edge": Param(2.0, positive=True)}

DRIFTER = EnvSpec(
    id="Drifter-v0",
    header="drifter.cuh",
    state={"x": Field(), "trail": Field("real", 3)},
    params=PARAMS,
    metrics=METRICS,
    observation=Box(-np.inf, np.inf, (1,), np.float32),
    action=Discrete(3),
    max_episode_steps=9,
)

FLOCK = TeamSpec(
    id="Flock-v0",
    header="flock.cuh",
    roles=(Role("bird", "birds", Box(-np.inf, np.inf, (1,), np.float32), Discrete(3)),),
    state={"x": Field()},
    scratch={"size": Field()},
    shared_scratch={"out": Field("int")},
    params={**PARAMS, "birds": Param(3, positive=True, fixed=True)},
    metrics=METRICS,
    max_episode_steps=9,
)


def reset(s: State, p: Params, random: Random) -> None:
    s.x = random.uniform(-p.start, p.start)
    for k in range(3):
        s.trail[k] = 0.0


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    for k in range(2, 0, -1):
        s.trail[k] = s.trail[k - 1]
    s.trail[0] = s.x
    s.x += random.uniform(-1.0, 1.0) + 0.1 * (action - 1)
    return -s.x, s.x > p.edge


def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.x


def measure(s: State, p: Params, metrics: Metrics) -> None:
    metrics.last = s.x
    metrics.mean = s.x / p.edge
    metrics.sum = s.trail[2]
    metrics.highest = s.x - s.trail[0]


DRIFTER_IN_PYTHON = dataclasses.replace(
    DRIFTER, id="DrifterInPython-v0", header=Rules(reset=reset, step=step, observe=observe, measure=measure)
)


def reset_flock(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        w.x[i] = team.random(RESET, i).uniform(-p.start, p.start)


def step_flock(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        w.x[i] += team.random(STEP, i, w.elapsed).uniform(-1.0, 1.0) + 0.1 * (actions[i] - 1)
        w.reward[i] = w.x[i]
        if i == 0:
            w.out = 0
    for i in team.agents():
        if w.x[i] > p.edge:
            add(w.out, 1)
    for _ in team.agents(1):
        w.terminated = 2 * w.out > AGENTS


def observe_flock(w: World, p: Params, i: int, row: Row) -> None:
    row[0] = w.x[i]


def measure_flock(w: World, p: Params, team: Team, metrics: Metrics) -> None:
    for i in team.agents():
        w.size[i] = abs(w.x[i])
    for _ in team.agents(1):
        total = 0.0
        for i in range(AGENTS):
            total += w.size[i]
        metrics.last = w.x[AGENTS - 1]
        metrics.mean = total
        metrics.sum = float(w.out)
        metrics.highest = w.x[0]


FLOCK_IN_PYTHON = dataclasses.replace(
    FLOCK,
    id="FlockInPython-v0",
    header=Rules(reset=reset_flock, step=step_flock, observe=observe_flock, measure=measure_flock),
)
