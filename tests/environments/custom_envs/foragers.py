"""A team in C++: a shared board, a basket per agent, and action masks by role."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, TeamSpec
from gpu_envs.pictures import Drawing, Params, Picture, State, at, cells, disc

PLANTS, FORAGER, SOWER = ((88, 150, 88), (202, 152, 101)), (192, 57, 43), (36, 113, 163)


def _cells(params: Mapping[str, Any]) -> int:
    return int(params["side"]) ** 2


def _kinds(params: Mapping[str, Any]) -> int:
    return int(params["kinds"])


def _observation(params: Mapping[str, Any]) -> Box:
    return Box(-1.0, 1.0, (5 + 2 * _kinds(params),), np.float32)


def _draw(state: State, params: Params) -> Picture:
    """Draws plants and active foragers."""
    side = int(params["side"])
    board = state["board"].reshape(-1, side, side)[:, ::-1]  # row 0 is at the bottom
    places = at(state["x"] + 0.5, state["y"] + 0.5)
    foragers = int(params["num_foragers"])
    return Picture(
        (0, 0, side, side),
        (
            *cells(board, {1 + kind: PLANTS[kind % len(PLANTS)] for kind in range(int(params["kinds"]))}),
            disc(places[:, foragers:], 0.35, SOWER),
            disc(places[:, :foragers], 0.3, FORAGER, state["in_game"][:, :foragers] != 0),
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
