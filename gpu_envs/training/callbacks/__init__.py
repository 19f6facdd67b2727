"""Callbacks: objects whose methods a training run calls, to watch it, change it or stop it."""

from gpu_envs.training.callbacks.base import Callback as Callback
from gpu_envs.training.callbacks.curriculum import Curriculum as Curriculum
from gpu_envs.training.callbacks.curriculum import Stage as Stage
from gpu_envs.training.callbacks.curriculum import after_steps as after_steps
from gpu_envs.training.callbacks.curriculum import return_above as return_above
from gpu_envs.training.callbacks.curriculum import stages_between as stages_between
from gpu_envs.training.callbacks.keeping import KeepBest as KeepBest
from gpu_envs.training.callbacks.stopping import EarlyStopping as EarlyStopping
from gpu_envs.training.callbacks.stopping import Halving as Halving
from gpu_envs.training.callbacks.trackers import MLflowTracker as MLflowTracker
from gpu_envs.training.callbacks.trackers import Tracker as Tracker
from gpu_envs.training.callbacks.trackers import WandbTracker as WandbTracker

__all__ = [
    "Callback",
    "Curriculum",
    "EarlyStopping",
    "Halving",
    "KeepBest",
    "MLflowTracker",
    "Stage",
    "Tracker",
    "WandbTracker",
    "after_steps",
    "return_above",
    "stages_between",
]
