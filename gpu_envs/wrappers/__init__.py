"""Gymnasium's vector wrappers for environments with torch output: on the device, in kernels of their own.

    from gpu_envs.wrappers import NormalizeObservation, RecordEpisodeStatistics
    env = gpu_envs.make("Pendulum-v1", 4096, output="torch", autoreset_mode="SameStep")
    env = NormalizeObservation(RecordEpisodeStatistics(env))

Names, arguments and results are those of ``gymnasium.wrappers.vector`` (of ``gymnasium.wrappers`` for
``FrameStackObservation``); each docstring says where one differs. ``ObservationNoise``, ``ActionNoise`` and
``RandomPushes`` are this package's own. All work in the three auto-reset modes, and ``infos["final_obs"]`` is
transformed as observations are. What else infos hold, such as ``action_mask``, they hand on. Those that change
observations say which spaces they take.

What a step returns is as with the environment inside: the wrapper's own memory, which the next step overwrites; fresh
tensors where the environment was made with ``copy=True``. ``step(actions, out=Step(...))`` writes what the wrapper
makes into the tensors given, and passes on the others. No step waits for the device, and a step can be captured in a
CUDA graph after one that was not.
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
