"""What a short run learns of the particle environments, beside random actions."""

import numpy as np
import pytest
from harness import Make, Place, numpy_of
from registered import draw, placed

pytest.importorskip("torch")

from gpu_envs.training import Config, Trainer
from gpu_envs.training.presets import PRESETS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "preset", "metric", "share", "steps"),
    [
        ("SimpleTag-v3", "adversaries", "collisions", 3.0, 80_000),  # 10 at the end
        ("SimpleSpread-v3", "default", "distance", 0.75, 80_000),  # 0.6; the whole preset comes to 0.3
    ],
)
def test_more_is_learnt_than_chance(
    env_id: str, preset: str, metric: str, share: float, steps: int, device: str, make: Make
) -> None:
    env = make(env_id, 1000, device=device, autoreset_mode="SameStep")
    env.reset(seed=0)
    for actions in draw(env, 25):
        env.step(placed(env, actions, Place(device, "numpy")))
    by_chance = float(np.mean(numpy_of(env.episode_metrics[metric])))

    settings = {**PRESETS[env_id][preset], "num_envs": 64, "total_steps": steps}
    trainer = Trainer(Config(env=env_id, device=device, run_dir="", **settings))
    trainer.run(progress=False)
    found = next(iter(trainer.evaluate(episodes=200).values())).metrics[metric].mean
    assert found > share * by_chance if share > 1 else found < share * by_chance
