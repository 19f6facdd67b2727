"""The algorithms, one file each."""

from collections.abc import Mapping

from gpu_envs.documented import documented
from gpu_envs.training.algorithms.a2c import A2C
from gpu_envs.training.algorithms.base import Algorithm, OffPolicy, OnPolicy
from gpu_envs.training.algorithms.ddpg import DDPG
from gpu_envs.training.algorithms.ppo import PPO
from gpu_envs.training.algorithms.pqn import PQN
from gpu_envs.training.algorithms.sac import SAC
from gpu_envs.training.algorithms.td3 import TD3

ALGORITHMS: Mapping[str, type[Algorithm]] = {cls.name: documented(cls) for cls in (PPO, A2C, PQN, SAC, TD3, DDPG)}
"""The algorithms by their names on the command line."""

__all__ = ["A2C", "ALGORITHMS", "DDPG", "PPO", "PQN", "SAC", "TD3", "Algorithm", "OffPolicy", "OnPolicy"]
