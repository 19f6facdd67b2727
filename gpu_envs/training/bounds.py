"""What the settings of a training run may be."""

import math

from gpu_envs.backend.host import MOST_THREADS

MOST = 2**31 - 1
_LONGEST = 10**15
"""Steps and updates are counted in doubles, too, which are exact so far."""

MAPPINGS = {
    "params": "{'gravity': 9.8}",
    "policies": "{'runner': 'random'}",
    "policy_settings": "{'runner': {'gamma': 0.95}}",
}
"""Settings that are mappings by name, and an example of each."""

WHOLE = {
    "seed": (0, math.inf),
    "total_steps": (1, _LONGEST),
    "num_envs": (1, MOST),
    "gpus": (1, 2**16),
    "horizon": (1, MOST),
    "epochs": (1, MOST),
    "minibatches": (1, MOST),
    "log_interval": (1, _LONGEST),
    "checkpoint_interval": (0, _LONGEST),
    "keep_checkpoints": (1, _LONGEST),
    "threads": (1, MOST_THREADS),
}
"""Settings that are whole numbers, and the least and the most that each may be."""

RANGES = {
    "gamma": (0.0, 1.0, False),
    "gae_lambda": (0.0, 1.0, False),
    "clip": (0.0, 10.0, True),
    "value_clip": (0.0, 1e9, True),
    "value_weight": (0.0, 1e6, False),
    "max_grad_norm": (0.0, 1e9, True),
    "target_kl": (0.0, 1e3, True),
    "initial_std": (0.0068, 7.38, False),  # within LOG_STD_RANGE of training/operations/heads.py
    "target_return": (-1e30, 1e30, False),
}
"""Settings that are numbers: the least, the most, and whether the least itself is out."""

SCHEDULES = {"learning_rate": (0.0, math.inf), "entropy_weight": (-math.inf, math.inf), "epsilon": (0.0, 1.0)}
"""Settings that are schedules: the least and the most."""
