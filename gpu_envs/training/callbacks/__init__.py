"""Callbacks: objects whose methods a training run calls, to watch it, change it or stop it."""

from gpu_envs.training.callbacks.base import Callback as Callback
from gpu_envs.training.callbacks.curriculum import Curriculum as Curriculum
from gpu_envs.training.callbacks.curriculum import Stage as Stage
from gpu_envs.training.callbacks.curriculum import after_steps as after_steps
from gpu_envs.training.callbacks.curriculum import return_above as return_above
from gpu_envs.training.callbacks.curriculum import stages_between as stages_between
from gpu_envs.training.callbacks.stopping import EarlyStopping as EarlyStopping

__all__ = ["Callback", "Curriculum", "EarlyStopping", "Stage", "after_steps", "return_above", "stages_between"]
