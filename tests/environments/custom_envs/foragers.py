"""A team in C++: a shared board, a basket per agent, and action masks by role."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, TeamSpec
from gpu_envs.pictures import Drawing, Params, Picture, State, box, disc, polygon

PLANTS, FORAGER, SOWER = ((88, 150, 88), (202, 152, 101)), (192, 57, 43), (36, 113, 163)


def _cells(params: Mapping[str, Any]) -> int:
    return int(params["side"]) ** 2


def _kinds(params: Mapping[str, Any]) -> int:
    return int(params["kinds"])


def _observation(params: Mapping[str, Any]) -> Box:
    return Box(-1.0, 1.0, (5 + 2 * _kinds(params),), np.float32)


def _draw(state: State, params: Params) -> Picture:
    """Draws plants and active foragers."""
    side, board = int(params["side"]), state["board"]
    cells = np.stack([np.arange(side**2) % side, np.arange(side**2) // side], -1)
    squares = np.broadcast_to(cells[:, None] + box(0.1, 0.1, 0.9, 0.9), (len(board), side**2, 4, 2))
    at = np.stack([state["x"], state["y"]], -1) + 0.5
    plants = [polygon(squares, PLANTS[kind % len(PLANTS)], board == 1 + kind) for kind in range(int(params["kinds"]))]
    foragers = int(params["num_foragers"])
    return Picture(
        (0, 0, side, side),
        (
            *plants,
            disc(at[:, foragers:], 0.35, SOWER),
            disc(at[:, :foragers], 0.3, FORAGER, state["in_game"][:, :foragers] != 0),
        ),
    )


FORAGERS_V0 = TeamSpec(
    id="Foragers-v0",
    header="foragers.cuh",
    description="Some pick what grows on a field, others sow it.",
    roles=(
        Role("forager", "num_foragers", _observation, Discrete(6)),
        Role("sower", 1, _observation, lambda params: Discrete(5 + _kinds(params))),
    ),
    state={"x": Field("int"), "y": Field("int"), "cargo": Field("int", _kinds)},
    shared={
        "board": Field("byte", _cells),
        "growing": Field("int"),
        "seeds": Field("int"),
        "harvest": Field("int"),
    },
    scratch={"acts": Field("bool"), "nearest": Field("int")},
    shared_scratch={"first": Field("int", _cells), "picked": Field("int")},
    params={
        "num_foragers": Param(3, "foragers in a replica", positive=True, fixed=True),
        "side": Param(6, "cells of the field, both ways", positive=True, fixed=True),
        "kinds": Param(2, "of plants", positive=True, fixed=True),
        "basket": Param(4, "plants that fill a forager's basket", positive=True),
        "seeds_of_a_kind": Param(3, "that a sower has at first", minimum=0),
        "density": Param(0.3, "the share of cells where something grows at first", minimum=0, maximum=1),
        "pick_reward": Param(1.0, "for the forager who picks a plant"),
        "share_of_sowers": Param(0.3, "of each plant picked, for every sower"),
        "step_cost": Param(0.02, "of every step", minimum=0),
    },
    action_mask=True,
    max_episode_steps=60,
    drawing=Drawing(_draw, size=(300, 300), frames_a_second=5),
)
