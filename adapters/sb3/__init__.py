"""Stable-Baselines3: a ``VecEnv`` for the environments, and a PPO for many environments.

from gpu_envs.adapters import sb3
sb3.PPO("MlpPolicy", sb3.VecEnv("CartPole-v1", 1024, stagger=True), device="cpu").learn(10_000_000)
"""

from gpu_envs.extras import extra

with extra("sb3", "stable_baselines3", "torch"):
    from gpu_envs.adapters.sb3.ppo import PPO
    from gpu_envs.adapters.sb3.vec_env import VecEnv

__all__ = ["PPO", "VecEnv"]
