"""Mountain car, with the constants of Gymnasium."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, box, disc, line, per_replica, placed, polygon
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec

ROAD = {
    "min_position": Param(-1.2, "position of the left wall"),
    "max_position": Param(0.6, "position of the right end"),
    "max_speed": Param(0.07, "maximum speed of the car in both directions, per step", minimum=0),
    "goal_velocity": Param(0.0, "minimum velocity at the goal, per step"),
    "gravity": Param(0.0025, "acceleration on the steepest slope, per step^2"),
}
START = {
    "low": Param(-0.6, "minimum initial position"),
    "high": Param(-0.4, "maximum initial position"),
}
ORDERED = (("min_position", "max_position"), ("low", "high"))


def road_observation(params: Params) -> Box:
    """Return the space of (position, velocity)."""
    speed = np.max(params["max_speed"])
    low = np.array([np.min(params["min_position"]), -speed], np.float32)
    high = np.array([np.max(params["max_position"]), speed], np.float32)
    return Box(low, high, dtype=np.float32)


WIDE, HIGH = 600, 400
"""Size of the picture in pixels, which are also the units of coordinates."""
CAR, WHEEL, CLEARANCE, FLAG = (40, 20), 8, 10, 50
CURVE = 100
"""Number of points of the drawn road."""


def _height(position: Any) -> Any:
    return np.sin(3 * position) * 0.45 + 0.55


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, a car on the road between two hills, and a flag at the goal."""
    position = state["position"]
    left, right, goal = (
        per_replica(params[n], len(position)) for n in ("min_position", "max_position", "goal_position")
    )
    unit = WIDE / np.maximum(right - left, 1e-9)
    rise = np.minimum(unit, HIGH - FLAG - CLEARANCE)  # keeps a flag on the hilltop, at height 1, in the picture
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
        "goal_position": Param(0.5, "minimum position of the goal"),
        "force": Param(0.001, "acceleration of a push, per step^2"),
    },
    metrics={"position": Metric("position of the car")},
    options=START,
    ordered=ORDERED,
    observation=road_observation,
    action=Discrete(3),
    max_episode_steps=200,
    reward_threshold=-110.0,
    drawing=ROAD_DRAWING,
)
