"""rsl_rl: a ``VecEnv`` for environments with continuous actions.

rsl_rl's PPO bootstraps truncated episodes, marked by ``time_outs``, from the observation *before* their last step: it
does not store the final observation.
"""

from gpu_envs.adapters.rsl_rl.vec_env import EpisodeLog, VecEnv

__all__ = ["EpisodeLog", "VecEnv"]
