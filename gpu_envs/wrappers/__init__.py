"""Gymnasium's vector wrappers for environments with torch output. They run on the environment's device.

    from gpu_envs.wrappers import NormalizeObservation, RecordEpisodeStatistics
    env = gpu_envs.make("Pendulum-v1", 4096, output="torch", autoreset_mode="SameStep")
    env = NormalizeObservation(RecordEpisodeStatistics(env))

Names, arguments and results are the same as in ``gymnasium.wrappers.vector`` (``gymnasium.wrappers`` for
``FrameStackObservation``); docstrings list the differences. ``ObservationNoise``, ``ActionNoise`` and ``RandomPushes``
do not exist in Gymnasium. All wrappers support the three auto-reset modes, transform ``infos["final_obs"]`` like
observations, and pass other infos through, such as ``action_mask``.

A step returns the wrapper's buffers, which the next step overwrites, or new tensors if the environment was made with
``copy=True``. ``step(actions, out=Step(...))`` writes results into the caller's tensors. No step synchronizes with the
device. A step can be captured in a CUDA graph after a first step outside of the graph.
"""

from gpu_envs.extras import extra

with extra("train", "torch"):
    from gpu_envs.wrappers.actions import ClipAction, RescaleAction
    from gpu_envs.wrappers.base import TorchWrapper
    from gpu_envs.wrappers.episodes import RecordEpisodeStatistics
    from gpu_envs.wrappers.frames import FlattenObservation, FrameStackObservation
    from gpu_envs.wrappers.moments import RunningMeanStd
    from gpu_envs.wrappers.noise import ActionNoise, ObservationNoise, RandomPushes
    from gpu_envs.wrappers.observations import NormalizeObservation
    from gpu_envs.wrappers.rewards import NormalizeReward

__all__ = [
    "ActionNoise",
    "ClipAction",
    "FlattenObservation",
    "FrameStackObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "ObservationNoise",
    "RandomPushes",
    "RecordEpisodeStatistics",
    "RescaleAction",
    "RunningMeanStd",
    "TorchWrapper",
]
