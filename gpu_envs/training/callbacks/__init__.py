"""Callbacks: objects whose methods a training run calls, to watch it, change it or stop it."""

from gpu_envs.training.callbacks.base import Callback as Callback

__all__ = ["Callback"]
