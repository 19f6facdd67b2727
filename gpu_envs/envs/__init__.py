"""Environments of this package: one module for each spec."""

from gpu_envs.envs.acrobot import ACROBOT
from gpu_envs.envs.cartpole import CARTPOLE_HIDDEN, CARTPOLE_V0, CARTPOLE_V1
from gpu_envs.envs.covid_economy import COVID_ECONOMY
from gpu_envs.envs.mountain_car import MOUNTAIN_CAR
from gpu_envs.envs.mountain_car_continuous import MOUNTAIN_CAR_CONTINUOUS
from gpu_envs.envs.pendulum import PENDULUM
from gpu_envs.envs.repeat_previous import REPEAT_PREVIOUS
from gpu_envs.envs.rice_n import RICE_N
from gpu_envs.envs.simple import SIMPLE
from gpu_envs.envs.simple_adversary import SIMPLE_ADVERSARY
from gpu_envs.envs.simple_crypto import SIMPLE_CRYPTO
from gpu_envs.envs.simple_push import SIMPLE_PUSH
from gpu_envs.envs.simple_reference import SIMPLE_REFERENCE
from gpu_envs.envs.simple_speaker_listener import SIMPLE_SPEAKER_LISTENER
from gpu_envs.envs.simple_spread import SIMPLE_SPREAD
from gpu_envs.envs.simple_tag import SIMPLE_TAG
from gpu_envs.envs.simple_world_comm import SIMPLE_WORLD_COMM
from gpu_envs.envs.t_maze import T_MAZE
from gpu_envs.envs.tag_continuous import TAG_CONTINUOUS
from gpu_envs.envs.tag_grid import TAG_GRID_WORLD

PARTICLES = (
    SIMPLE,
    SIMPLE_ADVERSARY,
    SIMPLE_CRYPTO,
    SIMPLE_PUSH,
    SIMPLE_REFERENCE,
    SIMPLE_SPEAKER_LISTENER,
    SIMPLE_SPREAD,
    SIMPLE_TAG,
    SIMPLE_WORLD_COMM,
)
"""The Multi Particle Environments."""

ALL = (
    CARTPOLE_HIDDEN,
    CARTPOLE_V0,
    CARTPOLE_V1,
    MOUNTAIN_CAR,
    MOUNTAIN_CAR_CONTINUOUS,
    PENDULUM,
    ACROBOT,
    REPEAT_PREVIOUS,
    T_MAZE,
    TAG_CONTINUOUS,
    TAG_GRID_WORLD,
    RICE_N,
    COVID_ECONOMY,
    *PARTICLES,
)

__all__ = ["ALL", "PARTICLES"]
