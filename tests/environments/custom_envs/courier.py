"""A courier in a warehouse: integers, arrays, tables and action masks, with rules in C++."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Field, Param, Table
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, at, cells, disc

PARCELS = 2

WALLS = np.array(
    [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 1, 0, 1, 1, 0],
        [0, 1, 0, 0, 0, 0],
    ],
    bool,
)
"""True for walls: row, column."""

FLOOR = np.argwhere(~WALLS)[:, ::-1]
SHELVES = np.array([[0, 4], [2, 2], [5, 2], [5, 4]])
DOOR = np.array([0, 0])
"""Positions are column, row."""

MAP = WALLS.astype(int)
MAP[tuple(SHELVES.T[::-1])] = 2
MAP[tuple(DOOR[::-1])] = 3
"""1 for walls, 2 for shelves, 3 for the door."""

HIGH, WIDE = WALLS.shape
SHELF, PARCEL, COURIER, GREEN = (200, 200, 200), (202, 152, 101), (36, 113, 163), (214, 234, 214)


def _draw(state: State, params: Params) -> Picture:
    """Draws walls, shelves, the door, parcels, the courier and its load."""
    del params
    place = at(state["x"] + 0.5, state["y"] + 0.5)
    shelves = SHELVES[state["shelf"]] + 0.5
    return Picture(
        (0, 0, WIDE, HIGH),
        (
            *cells(MAP[None, ::-1], {1: BLACK, 2: SHELF, 3: GREEN}),
            disc(shelves, 0.3, PARCEL, state["status"] == 0),
            disc(place, 0.35, COURIER),
            disc(place, 0.2, PARCEL, state["laden"] != 0),
        ),
    )


COURIER_V0 = EnvSpec(
    id="Courier-v0",
    header="courier.cuh",
    description="Fetch parcels from shelves and bring them to the door.",
    state={
        "x": Field("int"),
        "y": Field("int"),
        "laden": Field("bool"),
        "shelf": Field("int", PARCELS),
        "status": Field("byte", PARCELS),
    },
    tables={
        "walls": Table(WALLS, "bool"),
        "floor": Table(FLOOR, "int"),
        "shelves": Table(SHELVES, "int"),
        "door": Table(DOOR, "byte"),
    },
    params={
        "step_cost": Param(0.02, "of every step", minimum=0),
        "pick_reward": Param(0.5, "for a parcel taken from its shelf"),
        "delivery_reward": Param(1.0, "for a parcel brought to the door"),
    },
    observation=Box(-1.0, 1.0, (9 + 3 * PARCELS,), np.float32),
    action=Discrete(6),
    action_mask=True,
    max_episode_steps=100,
    reward_threshold=2.2,
    drawing=Drawing(_draw, size=(360, 300), frames_a_second=5),
)
