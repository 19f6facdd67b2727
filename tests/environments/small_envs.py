"""Small environments with replaceable rules, for tests of the checks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import gpu_envs
from gpu_envs.testing.report import FailedError
from gpu_envs.testing.subject import Subject

WALK = {
    "reset": "s.x = random.uniform(real(-1), real(1));\n    s.pace = real(0.25);",
    "step": "s.x += action == 1 ? s.pace : -s.pace;\n    return {-s.x * s.x, s.x > real(4) || s.x < real(-4)};",
    "observe": "observation[0] = float(s.x);\n    observation[1] = float(s.pace);",
}
"""Rules of a walk on a line, which terminates far from zero."""

CHASE = {
    "reset": """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = team.random(RESET, i).uniform(0, 10);
        if (i == 0) w.caught = 0;
    }""",
    "step": """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = clip(w.x[i] + real(actions[i] - 1), real(0), real(10));
        w.reward[i] = w.x[i];
    }
    FOR_EACH_AGENT(k, NUM_PREY) {
        const int prey = NUM_HUNTERS + k;
        if (!w.in_game[prey] || fabs_of(w.x[prey] - w.x[0]) > real(1)) continue;
        w.in_game[prey] = false;
        add(w.caught, 1);
    }
    FOR_EACH_AGENT(i, 1) w.terminated = w.caught == NUM_PREY;""",
    "look": "",
    "observe": """row[0] = float(w.x[i]);
    row[1] = float(w.caught);""",
}
"""Rules of a hunter and prey on a line: prey near the hunter becomes inactive."""


def write_header(folder: Path, name: str, first: str, heads: Mapping[str, str], bodies: Mapping[str, str]) -> Path:
    """Writes the header of an environment with these functions."""
    header = folder / f"{name.partition('-')[0].lower()}.cuh"
    functions = (f"{head} {{\n    {bodies[rule]}\n}}\n" for rule, head in heads.items())
    header.write_text(first + "".join(functions) + bodies.get("further", ""))
    return header


def walk(folder: Path, name: str = "Walk-v0", *, more: Mapping[str, Any] | None = None, **bodies: str) -> Any:
    """Returns the spec of a walk; ``bodies`` replace rules."""
    heads = {
        "reset": "FN void reset(State& s, const Params& p, Random& random)",
        "step": "FN Outcome step(State& s, const Params& p, const Action& action, Random& random)",
        "observe": "FN void observe(const State& s, const Params& p, Observation& observation)",
    }
    header = write_header(folder, name, "", heads, WALK | bodies)
    settings: dict[str, Any] = {
        "state": ("x", "pace"),
        "params": {},
        "observation": spaces.Box(np.array([-8, 0], np.float32), np.array([8, 1], np.float32)),
        "action": spaces.Discrete(2),
        "max_episode_steps": 40,
    }
    return gpu_envs.EnvSpec(id=name, header=header, **(settings | dict(more or {})))


def chase(folder: Path, name: str = "Chase-v0", *, more: Mapping[str, Any] | None = None, **bodies: str) -> Any:
    """Returns the spec of a chase; ``bodies`` replace rules."""
    heads = {
        "reset": "FN void reset(World& w, const Params& p, Team& team)",
        "step": "FN void step(World& w, const Params& p, Team& team, const TeamActions& actions)",
        "look": "FN void look(World& w, const Params& p, Team& team)",
        "observe": "FN void observe(const World& w, const Params& p, int i, const Row& row)",
    }
    header = write_header(folder, name, "FN real fabs_of(real x) { return x < 0 ? -x : x; }\n", heads, CHASE | bodies)
    space = spaces.Box(0, 10, (2,), np.float32)
    settings: dict[str, Any] = {
        "roles": (
            gpu_envs.Role("hunter", "num_hunters", space, spaces.Discrete(3)),
            gpu_envs.Role("prey", "num_prey", space, spaces.Discrete(3)),
        ),
        "state": {"x": gpu_envs.Field()},
        "shared": {"caught": gpu_envs.Field("int")},
        "params": {
            "num_hunters": gpu_envs.Param(1, "How many hunters.", minimum=1, fixed=True),
            "num_prey": gpu_envs.Param(3, "How many prey.", minimum=1, fixed=True),
        },
        "max_episode_steps": 40,
    }
    return gpu_envs.TeamSpec(id=name, header=header, **(settings | dict(more or {})))


def check_message(check: Callable[..., str], spec: Any, *more: str) -> str:
    """Returns the message of a failed check, or an empty string."""
    try:
        check(Subject(spec, 9, 40, 0, {}), *more)
    except FailedError as error:
        return str(error)
    return ""
