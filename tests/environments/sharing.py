"""A team with shared observations for hunters and prey, but not for guards, with rules in C++ and in Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from small_envs import chase

from gpu_envs import Field, Param, Role, Rules, TeamSpec
from gpu_envs.rules import (
    AGENTS,
    GUARD,
    HUNTER,
    PREY,
    RESET,
    WIDE,
    Params,
    Row,
    Team,
    TeamActions,
    World,
    clip,
    role_of,
)

RULES = {
    "reset": """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = team.random(RESET, i).uniform(0, 10);
        if (i == 0) w.weather = team.random(RESET, AGENTS).uniform(0, 1);
    }""",
    "step": """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = clip(w.x[i] + real(actions[i] - 1), real(0), real(10));
        w.reward[i] = w.x[i] * w.weather;
        if (role_of(i) == PREY && w.x[i] == 0) w.in_game[i] = false;
    }""",
    "observe": """row[0] = float(w.x[i]);
    row[1] = float(i);
    if (role_of(i) != GUARD) row[2] = float(w.elapsed);""",
    "further": """FN void observe_shared(const World& w, const Params&, int role, const Row& row) {
    row[0] = float(w.weather);
    FOR_EACH_COLUMN(j, WIDE) row[1 + j] = float(role == HUNTER ? real(100 + j) : w.x[0] + real(j));
}
""",
}


def reset(w: World, p: Params, team: Team) -> None:  # noqa: ARG001
    for i in team.agents():
        w.x[i] = team.random(RESET, i).uniform(0, 10)
        if i == 0:
            w.weather = team.random(RESET, AGENTS).uniform(0, 1)


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:  # noqa: ARG001
    for i in team.agents():
        w.x[i] = clip(w.x[i] + (actions[i] - 1), 0, 10)
        w.reward[i] = w.x[i] * w.weather
        if role_of(i) == PREY and w.x[i] == 0:
            w.in_game[i] = False


def observe(w: World, p: Params, i: int, row: Row) -> None:  # noqa: ARG001
    row[0] = w.x[i]
    row[1] = i
    if role_of(i) != GUARD:
        row[2] = w.elapsed


def observe_shared(w: World, p: Params, role: int, row: Row) -> None:  # noqa: ARG001
    row[0] = w.weather
    for j in row.columns(WIDE):
        row[1 + j] = 100 + j if role == HUNTER else w.x[0] + j


def _shared_space(params: Mapping[str, Any]) -> Box:
    return Box(-1, 200, (1 + params["wide"],), np.float32)


def sharing(folder: Path | None = None) -> TeamSpec:
    """Returns the spec, with rules in a header that is written into ``folder``, or in Python if it is None."""
    agent_space, guard_space = Box(0, 99, (3,), np.float32), Box(0, 99, (2,), np.float32)
    more: dict[str, Any] = {
        "params": {
            "num_hunters": Param(2, minimum=1, fixed=True),
            "num_prey": Param(3, minimum=1, fixed=True),
            "wide": Param(70, minimum=1, fixed=True),
        },
        "shared": {"weather": Field()},
        "roles": (
            Role("hunter", "num_hunters", agent_space, Discrete(3), _shared_space, shared_at=1),
            Role("prey", "num_prey", agent_space, Discrete(3), _shared_space),
            Role("guard", 1, guard_space, Discrete(3)),
        ),
    }
    if folder is not None:
        spec: TeamSpec = chase(folder, "Sharing-v0", more=more, **RULES)
        return spec
    rules = Rules(reset=reset, step=step, observe=observe, observe_shared=observe_shared)
    return TeamSpec(id="Sharing-v0", header=rules, state={"x": Field()}, max_episode_steps=40, **more)


def join_shared(own: np.ndarray, shared: np.ndarray, at: int) -> np.ndarray:
    """Inserts the shared observations into the agents' rows, ``[num_envs, agents, numbers]``."""
    shared_rows = np.broadcast_to(shared[:, None], (*own.shape[:2], shared.shape[1]))
    return np.concatenate([own[..., :at], shared_rows, own[..., at:]], -1)
