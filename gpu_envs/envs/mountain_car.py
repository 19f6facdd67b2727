"""Mountain car, with the constants of Gymnasium's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.params import Param
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, box, disc, line, placed, polygon, same
from gpu_envs.spec import EnvSpec

ROAD = {
    "min_position": Param(-1.2, "the left wall"),
    "max_position": Param(0.6, "the right end"),
    "max_speed": Param(0.07, "of the car, either way", minimum=0),
    "goal_velocity": Param(0.0, "the least at which an arrival counts"),
    "gravity": Param(0.0025, "of a step, on the steepest slope"),
}
START = {
    "low": Param(-0.6, "the least start position"),
    "high": Param(-0.4, "the greatest start position"),
}
ORDERED = (("min_position", "max_position"), ("low", "high"))


def road_observation(params: Mapping[str, Any]) -> Box:
    """Position and velocity within their limits."""
    speed = np.max(params["max_speed"])
    low = np.array([np.min(params["min_position"]), -speed], np.float32)
    high = np.array([np.max(params["max_position"]), speed], np.float32)
    return Box(low, high, dtype=np.float32)


WIDE, HIGH = 600, 400
"""Of the picture, in pixels; lengths below are in pixels of that size."""
CAR, WHEEL, CLEARANCE, FLAG = (40, 20), 8, 10, 50
CURVE = 100
"""Points of the road."""


def _height(x: Any) -> Any:
    return np.sin(3 * x) * 0.45 + 0.55


def _draw(state: State, params: Params) -> Picture:
    """A car on the road between two hills, and a flag where the goal begins."""
    left, right = float(np.min(params["min_position"])), float(np.max(params["max_position"]))
    pixel = (right - left) / WIDE
    x, slope = state["position"], np.arctan(3 * 0.45 * np.cos(3 * state["position"]))
    road = np.linspace(left, right, CURVE)
    goal = np.broadcast_to(np.asarray(params["goal_position"], np.float64), x.shape)
    top = _height(goal) + FLAG * pixel
    pole = np.stack([np.stack([goal, _height(goal)], -1), np.stack([goal, top], -1)], 1)[:, None]
    cloth = np.array([[0, 0], [0, -10], [25, -5]]) * pixel
    body = box(-CAR[0] / 2, CLEARANCE, CAR[0] / 2, CLEARANCE + CAR[1]) * pixel
    wheels = np.array([[-CAR[0] / 4, CLEARANCE], [CAR[0] / 4, CLEARANCE]]) * pixel
    return Picture(
        (left, 0.0, right, HIGH * pixel),
        (
            line(same(np.stack([road, _height(road)], -1), len(x)), pixel, BLACK),
            polygon(placed(body, x, _height(x), slope), BLACK),
            disc(placed(wheels, x, _height(x), slope)[:, 0], WHEEL * pixel, (128, 128, 128)),
            line(pole, pixel, BLACK),
            polygon(placed(cloth, goal, top), (204, 204, 0)),
        ),
    )


ROAD_DRAWING = Drawing(_draw, size=(WIDE, HIGH), frames_a_second=30)


MOUNTAIN_CAR = EnvSpec(
    id="MountainCar-v0",
    header="mountain_car.cuh",
    description="Rock an underpowered car out of a valley: push left, not at all, or right.",
    state=("position", "velocity"),
    params={
        **ROAD,
        "goal_position": Param(0.5, "where the goal begins"),
        "force": Param(0.001, "of a push, per step"),
    },
    options=START,
    ordered=ORDERED,
    observation=road_observation,
    action=Discrete(3),
    max_episode_steps=200,
    reward_threshold=-110.0,
    drawing=ROAD_DRAWING,
)
