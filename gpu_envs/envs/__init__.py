"""The environments of this package, one spec a file."""

from gpu_envs.envs.acrobot import ACROBOT
from gpu_envs.envs.cartpole import CARTPOLE_V0, CARTPOLE_V1
from gpu_envs.envs.covid_economy import COVID_ECONOMY
from gpu_envs.envs.mountain_car import MOUNTAIN_CAR
from gpu_envs.envs.mountain_car_continuous import MOUNTAIN_CAR_CONTINUOUS
from gpu_envs.envs.pendulum import PENDULUM
from gpu_envs.envs.rice_n import RICE_N
from gpu_envs.envs.tag_continuous import TAG_CONTINUOUS
from gpu_envs.envs.tag_grid import TAG_GRID_WORLD

ALL = (
    CARTPOLE_V0,
    CARTPOLE_V1,
    MOUNTAIN_CAR,
    MOUNTAIN_CAR_CONTINUOUS,
    PENDULUM,
    ACROBOT,
    TAG_CONTINUOUS,
    TAG_GRID_WORLD,
    RICE_N,
    COVID_ECONOMY,
)

__all__ = ["ALL"]
