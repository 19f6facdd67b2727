"""Gymnasium: single environments for ``gymnasium.make("gpu_envs/CartPole-v1")``."""

from gpu_envs.adapters.gymnasium.single_env import SingleEnv

__all__ = ["SingleEnv"]
