"""A greenhouse, with actions of three integers, masks and rules in Python."""

import math

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from gpu_envs import EnvSpec, Field, Param, Rules, pictures
from gpu_envs.pictures import Drawing, Picture, at, disc, rectangle
from gpu_envs.rules import Action, Mask, Observation, Params, Random, State, clip

VENTS, LAMPS, CANS = 3, 2, 5
"""Numbers of choices of an action's elements; cans of water count from 0."""


def reset(s: State, p: Params, random: Random) -> None:
    s.warmth = random.uniform(14.0, 22.0)
    s.moisture = random.uniform(0.3, 0.7)
    s.tank = random.integer(CANS)
    s.hour = random.integer(24)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    day = math.sin(math.pi * s.hour / 12.0)
    outside = 12.0 + 10.0 * day
    s.warmth += p.leak * (1.0 + action[0]) * (outside - s.warmth) + p.lamp * action[1] + max(day, 0.0)
    poured = min(action[2], s.tank)
    s.tank = min(s.tank - poured + (1 if s.hour % 3 == 0 else 0), CANS - 1)
    s.moisture = clip(s.moisture * (1.0 - p.drying) + p.can * poured, 0.0, 1.0)
    s.hour = (s.hour + 1) % 24
    growth = fitness(s.warmth, 20.0, 10.0) * fitness(s.moisture, 0.5, 0.4)
    return growth - p.lamp_price * action[1], s.warmth < 4.0 or s.warmth > 36.0 or s.moisture < 0.05


def fitness(x: float, best: float, width: float) -> float:
    """Clips to the range from 0 to 1."""
    away = (x - best) / width
    return max(1.0 - away * away, 0.0)


def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = (s.warmth - 20.0) / 10.0
    observation[1] = s.moisture
    observation[2] = s.tank / CANS
    observation[3] = math.sin(math.pi * s.hour / 12.0)
    observation[4] = math.cos(math.pi * s.hour / 12.0)


def allow(s: State, p: Params, mask: Mask) -> None:
    """Forbids more water than the tank has, and an open vent in a cold night."""
    mask[VENTS - 1] = s.warmth > 8.0
    for can in range(CANS):
        mask[VENTS + LAMPS + can] = can <= s.tank


GLASS, SOIL, WATER, PLANT = (214, 230, 240), (120, 90, 60), (36, 113, 163), (88, 150, 88)


def _draw(state: pictures.State, params: pictures.Params) -> Picture:
    """Draws the plant, the soil and the water in the tank."""
    del params
    cans = np.arange(CANS)[None]
    return Picture(
        (0, 0, 4, 4),
        (
            rectangle(0, 0.6, 4, 1.2, SOIL),
            disc(at(2.0, 0.8 + state["warmth"] / 16.0), 0.5, PLANT),
            disc(at(0.4 + 0.4 * cans, 0.3), 0.15, WATER, state["tank"][:, None] > cans),
        ),
        GLASS,
    )


GREENHOUSE_V0 = EnvSpec(
    id="Greenhouse-v0",
    header=Rules(reset=reset, step=step, observe=observe, allow=allow),
    description="Keep plants warm and watered through days and nights.",
    state={"warmth": Field(), "moisture": Field(), "tank": Field("int"), "hour": Field("int")},
    params={
        "leak": Param(0.08, "of the difference in warmth is lost an hour; a vent adds as much", positive=True),
        "lamp": Param(1.5, "degrees an hour", positive=True),
        "lamp_price": Param(0.2, "of an hour", minimum=0),
        "drying": Param(0.12, "of the moisture is lost an hour", positive=True),
        "can": Param(0.12, "of moisture", positive=True),
    },
    observation=Box(-np.inf, np.inf, (5,), np.float32),
    action=MultiDiscrete([VENTS, LAMPS, CANS]),
    action_mask=True,
    max_episode_steps=96,
    reward_threshold=70.0,
    drawing=Drawing(_draw, size=(300, 300), frames_a_second=8),
)
