"""Continuous mountain car, with the constants of Gymnasium."""

import numpy as np
from gymnasium.spaces import Box

from gpu_envs.envs.mountain_car import ORDERED, ROAD, ROAD_DRAWING, START, road_observation
from gpu_envs.pictures import Params
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec


def _action(params: Params) -> Box:
    return Box(float(np.min(params["min_action"])), float(np.max(params["max_action"])), (1,), np.float32)


MOUNTAIN_CAR_CONTINUOUS = EnvSpec(
    id="MountainCarContinuous-v0",
    header="mountain_car_continuous.cuh",
    description="Rock an underpowered car out of a valley with a throttle, which has a cost.",
    state=("position", "velocity"),
    params={
        **ROAD,
        "min_action": Param(-1.0, "minimum of the throttle; actions are clipped"),
        "max_action": Param(1.0, "maximum of the throttle; actions are clipped"),
        "goal_position": Param(0.45, "minimum position of the goal"),
        "power": Param(0.0015, "acceleration at full throttle, per step^2"),
        "goal_reward": Param(100.0, "reward at the goal"),
        "action_cost": Param(0.1, "factor of the squared action in the cost of a step"),
    },
    metrics={"position": Metric("position of the car")},
    options=START,
    ordered=(*ORDERED, ("min_action", "max_action")),
    observation=road_observation,
    action=_action,
    max_episode_steps=999,
    reward_threshold=90.0,
    drawing=ROAD_DRAWING,
)
