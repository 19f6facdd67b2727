"""The environments with continuous actions as rsl_rl's own ``VecEnv``.

rsl_rl bootstraps an episode that the time limit cut short from the value of the observation *before* its last step,
which is all its PPO has at hand; ``time_outs`` says where.
"""

from gpu_envs.adapters.rsl_rl.vec_env import EpisodeLog, VecEnv

__all__ = ["EpisodeLog", "VecEnv"]
