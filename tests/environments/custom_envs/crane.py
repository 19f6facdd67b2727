"""A crane in a yard, with actions of three integers, masks and rules in C++."""

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from gpu_envs import EnvSpec, Field, Param
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, at, disc, line, placed, rectangle

COLUMNS, CRATES = 5, 4

TOP = CRATES + 2.0
GROUND, LORRY, CRATE, HOOK = (120, 110, 100), (36, 113, 163), (202, 152, 101), (192, 57, 43)


def _draw(state: State, params: Params) -> Picture:
    """Draws the yard, the lorry, the crates, and the trolley with its load."""
    del params
    x = state["x"]
    where = np.stack(np.meshgrid(np.arange(COLUMNS), np.arange(CRATES), indexing="ij"), -1).reshape(-1, 2)
    there = state["stack"][:, where[:, 0]] > where[:, 1]
    hook = at(x + 0.5, TOP - 1)
    return Picture(
        (0, -0.5, COLUMNS, TOP),
        (
            rectangle(0, -0.5, COLUMNS - 1, 0, GROUND),
            rectangle(COLUMNS - 1, -0.5, COLUMNS, 0, LORRY),
            disc(where[None] + 0.5, 0.4, CRATE, there),
            line(placed([[0.5, TOP], [0.5, TOP - 1]], x, 0), 0.1, BLACK),
            disc(hook, 0.2, HOOK),
            disc(hook, 0.4, CRATE, state["laden"] != 0),
        ),
    )


CRANE_V0 = EnvSpec(
    id="Crane-v0",
    header="crane.cuh",
    description="Stack crates on a lorry.",
    state={"x": Field("int"), "laden": Field("bool"), "stack": Field("byte", COLUMNS)},
    params={
        "step_cost": Param(0.02, "of every step", minimum=0),
        "prize": Param(0.5, "for a crate that is lifted off the yard, or set down on the lorry; lost for the reverse"),
    },
    observation=Box(0.0, 1.0, (2 * COLUMNS + 1,), np.float32),
    action=MultiDiscrete([3, 2, 5], start=[-1, 0, 0]),
    action_mask=True,
    max_episode_steps=60,
    reward_threshold=2.5,
    drawing=Drawing(_draw, size=(250, 325), frames_a_second=5),
)
