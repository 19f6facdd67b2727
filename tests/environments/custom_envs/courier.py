"""A courier in a warehouse: integers, arrays, tables and action masks, with rules in C++."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Field, Param, Table
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, box, disc, placed, polygon, repeat

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

HIGH, WIDE = WALLS.shape
SHELF, PARCEL, COURIER, GREEN = (200, 200, 200), (202, 152, 101), (36, 113, 163), (214, 234, 214)


def _squares(places: np.ndarray, replicas: int) -> np.ndarray:
    """Returns cells at these positions, the same in all replicas."""
    cells = places[:, None] + box(0, 0, 1, 1)
    return np.broadcast_to(cells, (replicas, *cells.shape))


def _draw(state: State, params: Params) -> Picture:
    """Draws walls, shelves, the door, parcels, the courier and its load."""
    del params
    replicas = len(state["x"])
    x, y = state["x"] + 0.5, state["y"] + 0.5
    shelves = SHELVES[state["shelf"]] + 0.5
    return Picture(
        (0, 0, WIDE, HIGH),
        (
            polygon(repeat(box(0, 0, 1, 1) + DOOR, replicas), GREEN),
            polygon(_squares(SHELVES, replicas), SHELF),
            polygon(_squares(np.argwhere(WALLS)[:, ::-1], replicas), BLACK),
            disc(shelves, 0.3, PARCEL, state["status"] == 0),
            disc(placed([[0, 0]], x, y)[:, :, 0], 0.35, COURIER),
            disc(placed([[0, 0]], x, y)[:, :, 0], 0.2, PARCEL, state["laden"][:, None] != 0),
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
