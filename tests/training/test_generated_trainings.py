"""Random training settings: every engine updates the weights as torch does.

``GENERATED_TRAININGS=2000`` sets the number of cases. A case is named by its seed:
``pytest "tests/training/test_generated_trainings.py" -k "[17]"``.
"""

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from harness import DEVICES
from trainers import FIELD, FIELD_PARAMS, GRID, run_of

torch = pytest.importorskip("torch")

from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.policy import algorithms_with  # noqa: E402

COUNT = int(os.environ.get("GENERATED_TRAININGS", "48" if "cuda" in DEVICES else "8"))

DISCRETE = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", GRID, FIELD)
BOX = ("Pendulum-v1", "MountainCarContinuous-v0", f"{FIELD} continuous")

APART = {"float32": 0.001, "tf32": 0.1, "bf16": 0.3}
"""Tolerated distance of two updates relative to their norm: roundings change some of the sampled actions.

The largest distances in 2,000 cases on an H200 were 0.0001, 0.08 and 0.23.
"""


def settings_of(random: Random, device: str) -> dict[str, Any]:
    """Random settings for which an engine other than torch may compute the networks."""
    gpu = device == "cuda"
    algorithm = random.choice(("ppo", "a2c", "pqn", "sac", "td3", "ddpg") if gpu else ("sac", "td3", "ddpg"))
    off_policy = algorithm in ("sac", "td3", "ddpg")
    env = random.choice(BOX if off_policy else DISCRETE if algorithm == "pqn" else DISCRETE + BOX)
    layers = random.choice((1, 2, 2, 2, 3))
    usual = random.random() < 0.5
    horizon = random.randint(1, 12)
    settings: dict[str, Any] = {
        "env": env.partition(" ")[0],
        "params": FIELD_PARAMS | ({"actions": "continuous"} if " " in env else {}) if env.startswith(FIELD) else {},
        "algorithm": algorithm,
        "device": device,
        "run_dir": "",
        "threads": 1,
        "total_steps": 10**6,
        "seed": random.randrange(10**6),
        "num_envs": random.randint(100, 700),
        "horizon": horizon,
        "hidden": tuple(random.choice((32, 64)) if usual else random.randint(1, 256) for _ in range(layers)),
        "activation": random.choice(("tanh", "tanh", "relu", "relu", "elu", "silu", "gelu")),
        "layer_norm": random.random() < 0.2,
        "shared_trunk": random.random() < 0.3,
        "precision": random.choice(("float32", "tf32", "bf16")) if gpu else "float32",
        "learning_rate": random.choice((1e-3, "0:0.002,1:0")),
        "gamma": random.uniform(0.8, 1.0),
        "max_grad_norm": random.choice((None, 0.5)),
        "normalise_observations": random.random() < 0.4,
        "normalise_rewards": random.random() < 0.3,
        "normalise_advantages": random.random() < 0.7,
        "normalise_values": random.random() < 0.3,
        "gae_lambda": random.random(),
        "value_clip": random.choice((None, 0.2)),
        "value_weight": random.uniform(0.2, 2.0),
        "entropy_weight": random.choice((0.0, 0.02)),
        "epochs": random.randint(1, 3),
        "minibatches": random.randint(1, 5),
        "clip": random.uniform(0.05, 0.4),
        "epsilon": random.choice((0.3, "0:1,0.5:0.1")),
        "buffer_size": 40,
        "learning_starts": 0,
        "batch_size": random.choice((32, 100, 256, 1000)),
        "gradient_steps": 2 * random.randint(1, 4),
        "n_step": random.choice((1, 1, 3)),
        "tau": random.uniform(0.005, 0.5),
        "noise": random.uniform(0.05, 0.5),
        "exploration": random.choice(("white", "ou")),
        "temperature": random.uniform(0.05, 1.0),
        "target_noise": random.uniform(0.05, 0.5),
        "policy_delay": random.choice((1, 2)),
    }
    return {name: value for name, value in settings.items() if algorithm in (algorithms_with(name) or (algorithm,))}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(COUNT))
def test_updates_move_weights_as_torch_does(
    seed: int, device: str, record_property: Callable[[str, object], None]
) -> None:
    """The first two iterations, including the first horizon, before any update.

    ``--junitxml`` records the distance of each part.
    """
    settings = settings_of(Random(seed), device)
    ours, plain = (Trainer(run_of(**settings, fused=fused)) for fused in (None, False))
    for iteration in range(2):
        if iteration > 0:  # the first iteration starts from the seed, so that the engine's initial state is tested, too
            plain.load(ours.state())
        before = weights_of(ours)
        for trainer in (ours, plain):
            trainer.iterate(1)
        for name, start in before.items():
            found, expected = (weights_of(trainer)[name] for trainer in (ours, plain))
            for part, values in start.items():
                moved, wanted = ((after[part] - values).double() for after in (found, expected))
                apart = ((moved - wanted).norm() / wanted.norm().clamp(min=1e-12)).item()
                record_property(f"{settings['precision']} {settings['algorithm']} {iteration} {name} {part}", apart)
                about = f"iteration {iteration + 1}, {name}'s {part} is {apart:.3f} apart: {settings}"
                assert apart < APART[settings["precision"]], about


def weights_of(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return copies of each policy's weights, one vector per network: actor, critics, and so on."""
    found: dict[str, dict[str, Any]] = {}
    for name, learner in trainer.state()["learners"].items():
        parts: dict[str, list[Any]] = {}
        for module in ("module", "targets"):
            for key, tensor in learner.get(module, {}).items():
                parts.setdefault(f"{module}.{key.partition('.')[0]}", []).append(tensor.flatten())
        parts["temperature"] = [learner["log_temperature"]] if "log_temperature" in learner else []
        found[name] = {part: torch.cat(tensors).clone() for part, tensors in parts.items() if tensors}
    return found
