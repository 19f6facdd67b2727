"""Invalid rules in Python, and checks of the translation errors that they raise."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from translation_cases import HEADER, import_source, rules_of

import gpu_envs
from gpu_envs.translation.translate import translate_rules

MARK = "# <--"

SINGLE_AGENT_RULES = """
import functools
import random as pythons

import numpy as np

TABLE = {0: 1.0}
SIZE = 3
HITS = [0]
ZERO_D = np.array(3.0)
RAGGED = [[1, 2], [3]]
NO_NUMBER = (math.nan, 1)
HUGE = (2**40, 1)

@functools.cache
def wrapped(x: float) -> float:
    return x

def late(p: Params, x: float) -> float:
    return x

def pair(x: float) -> tuple[float, float]:
    return x, x

def twice(x: float) -> float:
    return 2 * x

def untyped(x):
    return x

def untold(x: float):
    return x

def forever(x: float) -> float:
    return forever(x)

def moves(s: State) -> float:
    s.x += 1
    return s.x

def reset(s: State, p: Params, random: Random) -> None:
    s.x = random.uniform(-1, 1)
    s.count = 0
    s.small = 0
    s.on = False
    for j in range(4):
        s.cells[j] = 0

def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    {body}
    return 0.0, False

def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.x
    observation[1] = s.count
    observation[-1] = distance(s)
    {seen}

def distance(s: State) -> float:
    return abs(s.x)

def action_of(s: State) -> int:
    return int(s.x)

def counts(s: State) -> bool:
    s.count = 0  # within
    return True

def begin(s: State) -> None:
    s.count = 0
    if s.x > 0:
        return
    s.on = False
"""

TEAM_RULES = """
def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        w.x[i] = 0
        for k in range(3):
            w.cargo[i, k] = 0
        if i == 0:
            w.left = 1
    for k in team.agents(5):
        w.board[k] = 0

def put(w: World, k: int, value: float) -> None:
    w.x[k] = value

def note(w: World, value: int) -> None:
    w.left = value

def once(w: World, k: int) -> None:
    if k == 1:
        w.left = w.left + 1

def some(w: World) -> int:
    return min(w.left, 2)

def seen(w: World, k: int) -> float:
    return w.x[k]

def roll(w: World, team: Team) -> None:
    for i in team.agents():
        w.x[i] = team.random(STEP, i, w.elapsed).uniform(0, 1)

def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    {body}

def observe(w: World, p: Params, i: int, row: Row) -> None:
    row[0] = w.x[i]
    row[1] = row[-1] = 0
    {seen}
"""

BOX = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


def single_agent_spec(header: gpu_envs.Rules, **changes: Any) -> gpu_envs.EnvSpec:
    kinds = {"count": gpu_envs.Field("int"), "small": gpu_envs.Field("byte"), "on": gpu_envs.Field("bool")}
    fields: dict[str, Any] = {
        "id": "Refused-v0",
        "header": header,
        "state": {"x": gpu_envs.Field(), **kinds, "cells": gpu_envs.Field("int", 4)},
        "params": {
            "speed": gpu_envs.Param(1.0),
            "start": gpu_envs.Param("random", choices=("random", "fixed")),
            "rows": gpu_envs.Param(5, fixed=True),
        },
        "tables": {"map": gpu_envs.Table([[1, 2], [3, 4]], "int")},
        "observation": BOX,
        "action": gymnasium.spaces.Discrete(2),
    }
    return gpu_envs.EnvSpec(**fields | changes)


def team_spec(header: gpu_envs.Rules, **changes: Any) -> gpu_envs.TeamSpec:
    fields: dict[str, Any] = {
        "id": "RefusedTeam-v0",
        "header": header,
        "roles": (gpu_envs.Role("cat", 2, BOX, gymnasium.spaces.Discrete(5)),),
        "state": {"x": gpu_envs.Field(), "cargo": gpu_envs.Field("int", 3)},
        "shared": {"left": gpu_envs.Field("int"), "board": gpu_envs.Field("int", 5)},
        "shared_scratch": {"tiles": gpu_envs.Field("int", shape=(2, 3))},
        "params": {"size": gpu_envs.Param(1.0), "wide": gpu_envs.Param(False)},
    }
    return gpu_envs.TeamSpec(**fields | changes)


Make = Callable[[gpu_envs.Rules], gpu_envs.Spec]


def translation_error(text: str, make: Make, folder: Path) -> str:
    """Translates invalid rules; checks that the error names the marked line, and returns its message."""
    rules = import_source(HEADER + text, folder)
    spec = make(rules_of(rules))
    with pytest.raises(gpu_envs.TranslationError) as caught:
        translate_rules(spec, spec.check_params({}, 1))
    message, lines = str(caught.value), (HEADER + text).splitlines()
    marked = [n for n, line in enumerate(lines, 1) if MARK in line]
    assert caught.value.line == (marked[0] if marked else caught.value.line), message
    assert f'File "{rules.__file__}", line {caught.value.line}, in ' in message
    shown = lines[caught.value.line - 1].strip()
    assert re.search(rf"^    {re.escape(shown)}\n    +\^+$", message, re.M), message
    return message


def fill_template(template: str, body: str = "pass", seen: str = "pass") -> str:
    """Inserts lines into the bodies of ``step`` and ``observe``."""
    body, seen = ("\n    ".join(text.splitlines()) for text in (body, seen))
    return template.replace("{body}", body).replace("{seen}", seen)


def mark_first_line(text: str) -> str:
    return text if MARK in text else re.sub(r"$", f"  {MARK}", text, count=1, flags=re.M)
