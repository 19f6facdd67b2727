"""Mountain car, with the constants of Gymnasium's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.params import Param
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
)
