"""Keep the best checkpoint of a run, which may be worse at its end."""

import json
import math
import shutil
from pathlib import Path
from typing import Any, final

from gpu_envs.training.callbacks.base import Callback
from gpu_envs.training.record.checkpoint import atomic_write


@final
class KeepBest(Callback):
    """Copies the checkpoint with the highest mean return to ``best`` in the run directory, itself a run directory.

    It is the mean return that ``target_return`` refers to, and counts once 100 episodes have ended.

    Example:
        >>> from gpu_envs.training import Run, evaluate, train
        >>> from gpu_envs.training.callbacks import KeepBest
        >>> run = Run(env="CartPole-v1", num_envs=64, total_steps=65536, checkpoint_interval=8)
        >>> result = train(run, callbacks=[KeepBest()])
        >>> evaluations = evaluate(f"{result.run_dir}/best", episodes=100)
    """

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        """Copy the checkpoint, if no former one has a higher return."""
        value = trainer.history.target_mean
        if trainer.run_dir is None or math.isnan(value):
            return
        best = trainer.run_dir / "best"
        about, checkpoints = best / "best.json", best / path.parent.name
        if about.is_file() and json.loads(about.read_text())["return"] >= value:
            return
        checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.copy2(trainer.run_dir / "config.json", best)
        files = {file.name: file for file in path.parent.glob(f"{path.stem}.*")}
        for name in sorted(files, key=path.name.__eq__):  # the checkpoint last, which refers to the others
            with atomic_write(checkpoints / name) as target, files[name].open("rb") as source:
                shutil.copyfileobj(source, target)
        for old in checkpoints.iterdir():
            if old.name not in files:
                old.unlink()
        with atomic_write(about) as file:
            file.write(json.dumps({"iteration": trainer.iteration, "return": value}).encode())
