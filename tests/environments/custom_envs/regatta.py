"""A boat that rounds buoys in a current, with rules in Python: loops, conditions, tables, `math`, a list of marks."""

import math

import numpy as np
from gymnasium.spaces import Box

from gpu_envs import EnvSpec, Field, Param, Rules, Table, pictures
from gpu_envs.pictures import Drawing, Picture, disc, line, placed, polygon
from gpu_envs.rules import Action, Observation, Params, Random, State, clip

BUOYS = np.array([[7.0, 2.0], [7.5, 7.0], [2.0, 6.0]])
CURRENT = 0.5 * np.sin(np.linspace(0, np.pi, 10))
"""Eastward current by distance from the southern shore, in metres."""

SIDE = 10.0


def reset(s: State, p: Params, random: Random) -> None:
    s.x = random.uniform(1.0, 3.0)
    s.y = random.uniform(1.0, 3.0)
    s.heading = random.uniform(-math.pi, math.pi)
    s.target = 0
    for k in range(len(BUOYS)):
        s.rounded[k] = False


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    before = distance(s, p)
    s.heading += p.rudder * clip(action[0], -1.0, 1.0)
    row = int(clip(s.y, 0.0, SIDE - 1.0))
    s.x += p.tau * (p.speed * math.cos(s.heading) + p.current[row])
    s.y += p.tau * p.speed * math.sin(s.heading)
    after = distance(s, p)
    reward = before - after - p.step_cost
    if after < p.near:
        reward += p.rounding_reward
        s.rounded[s.target] = True
        s.target += 1
    ashore = s.x < 0.0 or s.x > SIDE or s.y < 0.0 or s.y > SIDE
    if ashore:
        reward -= p.rounding_reward
    return reward, ashore or s.target == len(BUOYS)


def distance(s: State, p: Params) -> float:
    """Returns the distance to the next buoy."""
    k = min(s.target, len(BUOYS) - 1)
    dx = p.buoys[k, 0] - s.x
    dy = p.buoys[k, 1] - s.y
    return math.sqrt(dx * dx + dy * dy)


def observe(s: State, p: Params, observation: Observation) -> None:
    k = min(s.target, len(BUOYS) - 1)
    observation[0] = (p.buoys[k, 0] - s.x) / SIDE
    observation[1] = (p.buoys[k, 1] - s.y) / SIDE
    observation[2] = math.cos(s.heading)
    observation[3] = math.sin(s.heading)
    for j in range(len(BUOYS)):
        observation[4 + j] = 1.0 if s.rounded[j] else 0.0


WATER, BUOY, ROUNDED, BOAT = (214, 230, 240), (192, 57, 43), (88, 150, 88), (60, 60, 60)


def _draw(state: pictures.State, params: pictures.Params) -> Picture:
    """Draws the buoys, green after rounding, and the boat."""
    del params
    hull = [[0.5, 0.0], [-0.4, 0.25], [-0.4, -0.25]]
    return Picture(
        (0, 0, SIDE, SIDE),
        (
            line([[0, 0], [SIDE, 0], [SIDE, SIDE], [0, SIDE], [0, 0]], 0.05, BOAT),
            disc(BUOYS[None], 0.3, BUOY, state["rounded"] == 0),
            disc(BUOYS[None], 0.3, ROUNDED, state["rounded"] != 0),
            polygon(placed(hull, state["x"], state["y"], state["heading"]), BOAT),
        ),
        WATER,
    )


REGATTA_V0 = EnvSpec(
    id="Regatta-v0",
    header=Rules(reset=reset, step=step, observe=observe),
    description="Round three buoys in a current.",
    state={
        "x": Field(),
        "y": Field(),
        "heading": Field(),
        "target": Field("int"),
        "rounded": Field("bool", len(BUOYS)),
    },
    tables={"buoys": Table(BUOYS), "current": Table(CURRENT)},
    params={
        "tau": Param(0.25, "seconds a step", positive=True),
        "speed": Param(1.5, "of the boat through the water, m/s", positive=True),
        "rudder": Param(0.5, "the most it turns in a step, radians", positive=True),
        "near": Param(0.8, "a buoy counts as rounded within, m", positive=True),
        "step_cost": Param(0.02, "of every step", minimum=0),
        "rounding_reward": Param(1.0, "for each buoy; subtracted ashore"),
    },
    observation=Box(-np.inf, np.inf, (4 + len(BUOYS),), np.float32),
    action=Box(-1.0, 1.0, (1,), np.float32),
    max_episode_steps=200,
    reward_threshold=10.0,
    drawing=Drawing(_draw, size=(400, 400), frames_a_second=8),
)
