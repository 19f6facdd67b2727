"""A mine environment: specs with every kind of state, observation and mask, and a NumPy implementation."""

import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from gpu_envs import EnvSpec, Field, Param, Table

ROCK = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]], bool)
HIGH, WIDE = ROCK.shape
CELLS = HIGH * WIDE
ORE = np.arange(CELLS) * 7 % 3
"""Kind of ore by cell, 0 to 2."""
MOVES, DIG, LEAVE, ACTIONS = 4, 4, 5, 6
STEPS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])

_ALLOW = """
FN void allow(const State& s, const Params& p, Mask& mask) {
    for (int move = 0; move < MOVES; ++move)
        mask[move] = is_open(p, s.row + row_step(move), s.column + column_step(move));
    if (s.dug[cell_of(s, p)]) mask[DIG] = false;
    mask[LEAVE] = s.row == 0;
    if (s.noise == 13) for (int k = 0; k < 6; ++k) mask[k] = false;  // no action is possible
}
"""

_FLOATS = """
    observation[0] = float(s.row);
    observation[1] = float(s.column);
    observation[2] = float(s.fuel);
    observation[3] = s.lamp ? 1.0f : 0.0f;
"""

_DICT = """
    observation.place[0] = float(s.row);
    observation.place[1] = float(s.column);
    observation.fuel[0]  = float(s.fuel);
    for (int k = 0; k < 3; ++k) observation.bag[k] = s.bag[k];
    paint(s, p, observation.image);
"""

IMAGE = spaces.Box(0, 255, (HIGH, WIDE, 3), np.uint8)
SPACES: dict[str, tuple[str, spaces.Space[Any]]] = {
    "floats": (_FLOATS, spaces.Box(-100, 100, (4,), np.float32)),
    "image": ("paint(s, p, observation);", IMAGE),
    "long": (
        "for (int k = 0; k < 300; ++k) observation[k] = float(s.fuel) * float(k);",
        spaces.Box(-np.inf, np.inf, (300,), np.float32),
    ),
    "dict": (
        _DICT,
        spaces.Dict(
            {
                "place": spaces.Box(0, 10, (2,), np.float32),
                "image": IMAGE,
                "bag": spaces.Box(0, 10_000, (3,), np.int32),
                "fuel": spaces.Box(-100, 100, (), np.float32),
            }
        ),
    ),
}
"""Observations by name: the rule in C++, and the space."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where headers are written: one for all tests, since what is compiled is kept by name too."""
    return tempfile.TemporaryDirectory(prefix="digger")


@functools.cache
def digger(kind: str, *, masked: bool = False) -> EnvSpec:
    """Returns the spec with a kind of observation, a key of ``SPACES``, and with action masks if ``masked``."""
    body, space = SPACES[kind]
    observe = f"FN void observe(const State& s, const Params& p, Observation& observation) {{ {body} }}\n"
    header = Path(_folder().name) / f"digger_{kind}_{masked}.cuh"
    header.write_text(Path(__file__).with_name("digger.cuh").read_text() + observe + (_ALLOW if masked else ""))
    return dataclasses.replace(
        DIGGER, id=f"Digger{kind.title()}{'Masked' * masked}-v0", header=header, observation=space, action_mask=masked
    )


DIGGER = EnvSpec(
    id="Digger-v0",
    header="",
    state={
        "row": Field("int"),
        "column": Field("int"),
        "lamp": Field("bool"),
        "noise": Field("int"),
        "fuel": Field(),
        "dug": Field("byte", CELLS),
        "bag": Field("int", lambda _: 3),
    },
    tables={"rock": Table(ROCK, "bool"), "ore": Table(ORE, "byte")},
    params={"tank": Param(8.0, "of fuel at most", positive=True), "burn": Param(0.5, "of fuel a step")},
    observation=SPACES["floats"][1],
    action=spaces.Discrete(ACTIONS),
    max_episode_steps=23,
    start_fields=("row", "column", "lamp", "dug", "bag", "noise"),
)

State = dict[str, np.ndarray]


def advance(state: Mapping[str, np.ndarray], actions: np.ndarray, burn: float = 0.5) -> tuple[State, np.ndarray, Any]:
    """Returns the next state, rewards and terminations."""
    s = {name: np.array(values) for name, values in state.items()}
    every = np.arange(len(actions))
    real = s["fuel"].dtype.type
    s["noise"] = (s["noise"] * 5 + 3) % 64
    s["lamp"] = s["lamp"] != (s["noise"] % 7 == 0)
    s["fuel"] = s["fuel"] - np.where(s["lamp"], real(burn), real(burn) / 2)
    place = np.stack([s["row"], s["column"]], 1)
    target = place + STEPS[np.minimum(actions, MOVES - 1)]
    moves = (actions < MOVES) & is_open(target)
    cell = s["row"] * WIDE + s["column"]
    digs = (actions == DIG) & (s["dug"][every, cell] == 0)
    place = np.where(moves[:, None], target, place)
    s["row"], s["column"] = place.T.astype(np.int32)
    s["dug"][every[digs], cell[digs]] = 1
    s["bag"][every[digs], ORE[cell[digs]]] += (1 + s["noise"] % 3)[digs]
    rewards = np.where(digs, ORE[cell].astype(real) / 2, real(0))
    return s, rewards, ((actions == LEAVE) & (s["row"] == 0)) | (s["fuel"] <= 0)


def is_open(places: np.ndarray) -> np.ndarray:
    """Which places (row, column) are within the mine and no rock."""
    row, column = places[..., 0], places[..., 1]
    inside = (row >= 0) & (row < HIGH) & (column >= 0) & (column < WIDE)
    return np.asarray(inside & ~ROCK[np.where(inside, row, 0), np.where(inside, column, 0)])


def observed(kind: str, state: Mapping[str, np.ndarray]) -> Any:
    """Returns the observations of a state."""
    row, column, fuel = state["row"], state["column"], state["fuel"].astype(np.float32)
    replicas = len(row)
    if kind == "floats":
        return np.stack([row, column, fuel, state["lamp"]], 1).astype(np.float32)
    if kind == "long":
        return fuel[:, None] * np.arange(300, dtype=np.float32)
    image = np.zeros((replicas, HIGH, WIDE, 3), np.uint8)
    image[..., 0] = np.where(ROCK, 255, 100 * state["dug"].reshape(-1, HIGH, WIDE))
    image[np.arange(replicas), row, column, 1] = 200
    image[..., 2] = state["noise"][:, None, None]
    if kind == "image":
        return image
    return {
        "place": np.stack([row, column], 1).astype(np.float32),
        "image": image,
        "bag": state["bag"].astype(np.int32),
        "fuel": fuel,
    }


def possible(state: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which actions are possible."""
    place = np.stack([state["row"], state["column"]], 1)
    mask = np.ones((len(place), ACTIONS), np.int8)
    mask[:, :MOVES] = is_open(place[:, None] + STEPS)
    mask[:, DIG] = state["dug"][np.arange(len(place)), place @ [WIDE, 1]] == 0
    mask[:, LEAVE] = state["row"] == 0
    mask[state["noise"] == 13] = 0
    return mask


def actions_of(replicas: int, *steps: int, seed: int = 0) -> np.ndarray:
    """Random actions, ``[*steps, replicas]``."""
    return np.random.default_rng(seed).integers(0, ACTIONS, (*steps, replicas))
