"""Trains with a curriculum, W&B, early stopping, and videos: python callbacks.py CartPole-v1"""

import sys
from pathlib import Path
from typing import Any

from gpu_envs.replays import RecordReplays
from gpu_envs.training import Run, resume, train
from gpu_envs.training.callbacks import Curriculum, EarlyStopping, WandbTracker, return_above, stages_between

SETTINGS: dict[str, Any] = {
    "CartPole-v1": ({}, "pole_mass", stages_between("uniform:0.09:0.11", "uniform:0.01:0.8", 4), 150, ""),
    "TagContinuous-v0": ({"num_taggers": 2, "num_runners": 5}, "tagging_distance", [0.5, 0.2, 0.1], 20, "tagger"),
}
params, parameter, stages, goal, role = SETTINGS[sys.argv[1]]
folder = sys.argv[2] if len(sys.argv) > 2 else f"runs/{sys.argv[1]}"
run = Run(env=sys.argv[1], params={parameter: stages[0], **params}, num_envs=64, total_steps=400_000, run_dir=folder)
callbacks = [
    Curriculum(parameter, stages, when=return_above(goal, role)),
    EarlyStopping(patience=100, figure=f"{role}/return".lstrip("/")),
    RecordReplays(every=50, suffix=".mp4", steps=100),
    WandbTracker(mode="offline"),
]
result = resume(folder, callbacks=callbacks) if Path(folder).exists() else train(run, callbacks=callbacks)
print(f"{result.reason}, after {result.iterations} iterations")
