"""Mountain car with a throttle, with the constants of Gymnasium's."""

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
    description="Rock an underpowered car out of a valley with a throttle whose use costs.",
    state=("position", "velocity"),
    params={
        **ROAD,
        "min_action": Param(-1.0, "the throttle is clipped below"),
        "max_action": Param(1.0, "the throttle is clipped above"),
        "goal_position": Param(0.45, "where the goal begins"),
        "power": Param(0.0015, "force of the full throttle, a step^2"),
        "goal_reward": Param(100.0, "reward at the goal"),
        "action_cost": Param(0.1, "of the squared action, in each step"),
    },
    metrics={"position": Metric("of the car")},
    options=START,
    ordered=(*ORDERED, ("min_action", "max_action")),
    observation=road_observation,
    action=_action,
    max_episode_steps=999,
    reward_threshold=90.0,
    drawing=ROAD_DRAWING,
)
