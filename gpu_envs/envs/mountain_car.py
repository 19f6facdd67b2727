"""Mountain car, with the constants of Gymnasium's."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, box, disc, line, per_replica, placed, polygon
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec

ROAD = {
    "min_position": Param(-1.2, "the left wall"),
    "max_position": Param(0.6, "the right end"),
    "max_speed": Param(0.07, "greatest speed of the car, either way, a step", minimum=0),
    "goal_velocity": Param(0.0, "the least velocity at which an arrival counts, a step"),
    "gravity": Param(0.0025, "on the steepest slope, a step^2"),
}
START = {
    "low": Param(-0.6, "the least start position"),
    "high": Param(-0.4, "the greatest start position"),
}
ORDERED = (("min_position", "max_position"), ("low", "high"))


def road_observation(params: Params) -> Box:
    """Position and velocity within their limits."""
    speed = np.max(params["max_speed"])
    low = np.array([np.min(params["min_position"]), -speed], np.float32)
    high = np.array([np.max(params["max_position"]), speed], np.float32)
    return Box(low, high, dtype=np.float32)


WIDE, HIGH = 600, 400
"""Of the picture, in pixels, which are the units of what is drawn."""
CAR, WHEEL, CLEARANCE, FLAG = (40, 20), 8, 10, 50
CURVE = 100
"""Points of the road."""


def _height(position: Any) -> Any:
    return np.sin(3 * position) * 0.45 + 0.55


def _draw(state: State, params: Params) -> Picture:
    """A car on the road between two hills, and a flag where the goal begins."""
    position = state["position"]
    left, right, goal = (
        per_replica(params[n], len(position)) for n in ("min_position", "max_position", "goal_position")
    )
    unit = WIDE / np.maximum(right - left, 1e-9)
    rise = np.minimum(unit, HIGH - FLAG - CLEARANCE)  # the hilltop, at height 1, and a flag on it stay in the picture
    x, y = (position - left) * unit, _height(position) * rise + CLEARANCE
    tilt = np.cos(3 * position) * rise / unit
    flag, foot = (goal - left) * unit, _height(goal) * rise
    road = np.linspace(left, right, CURVE, axis=-1)
    curve = np.stack([(road - left[:, None]) * unit[:, None], _height(road) * rise[:, None]], -1)
    wheels = np.array([[-CAR[0] / 4, 0], [CAR[0] / 4, 0]])
    return Picture(
        (0, 0, WIDE, HIGH),
        (
            line(curve[:, None], 1, BLACK),
            polygon(placed(box(-CAR[0] / 2, 0, CAR[0] / 2, CAR[1]), x, y, tilt), BLACK),
            disc(placed(wheels, x, y, tilt)[:, 0], WHEEL, (128, 128, 128)),
            line(placed([[0, 0], [0, FLAG]], flag, foot), 1, BLACK),
            polygon(placed([[0, 0], [0, -10], [25, -5]], flag, foot + FLAG), (204, 204, 0)),
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
        "force": Param(0.001, "force of a push, a step^2"),
    },
    metrics={"position": Metric("of the car")},
    options=START,
    ordered=ORDERED,
    observation=road_observation,
    action=Discrete(3),
    max_episode_steps=200,
    reward_threshold=-110.0,
    drawing=ROAD_DRAWING,
)
