"""The Lightning example: training, several processes, and continuing from checkpoints."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of, subprocess_env

import gpu_envs
from gpu_envs.seeds import derived_seed

pytest.importorskip("lightning")
import torch

pytestmark = pytest.mark.slow  # starting a training process takes seconds

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCELERATORS = {"cpu": "cpu", "cuda": "gpu"}

NUM_ENVS = 3
"""Replicas per process."""

LAST = "lightning_logs/version_0/checkpoints/last.ckpt"
PARAMS: dict[str, Any] = {
    "num_taggers": 3,
    "num_runners": 4,
    "grid_length": 5.0,
    "tagging_distance": 0.1,
    "episode_length": 40,
}

RUN: dict[str, Any] = {
    "env": "TagContinuous-v0",
    "role": "runner",
    "params": json.dumps(PARAMS),
    "epochs": 1,
    "minibatches": 1,
    "horizon": 24,
    "accelerator": "cpu",
    "seed": 3,
    "learning_rate": 1e-2,
}
"""In these runs some runners become inactive, a different number in each process."""

PROGRAM = """
import json
import sys

import lightning
import torch
from lightning_ppo import Args, train


class Recorder(lightning.Callback):
    def __init__(self):
        self.records = {}

    def weights(self, when, ppo):
        self.records[when] = {name: tensor.cpu().clone() for name, tensor in ppo.policy.state_dict().items()}

    def on_train_batch_start(self, trainer, ppo, batch, number):
        if "first" not in self.records:
            first = ppo.replicas.role_storage.observations[0].cpu().clone()
            self.records |= {"first": first, "epoch": trainer.current_epoch}
            self.weights("before", ppo)

    def on_train_end(self, trainer, ppo):
        self.records |= {"epochs": trainer.current_epoch, "alive": ppo.samples.alive.sum().item()}
        self.weights("after", ppo)
        torch.save(self.records, f"{sys.argv[1]}-{trainer.global_rank}")


if __name__ == "__main__":
    train(Args(**json.loads(sys.argv[2])), Recorder())
"""


def run(folder: Path, *command: str) -> str:
    """Run Python in a folder, assert success and return its output."""
    settings = subprocess_env(OMP_NUM_THREADS="1", COLUMNS="100")
    settings["PYTHONPATH"] += f":{EXAMPLES}"
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(
    folder: Path, devices: int, updates: int, *, num_envs: int = NUM_ENVS, **settings: Any
) -> list[dict[str, Any]]:
    """Run a short training and return the records of its processes by rank."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    steps = updates * devices * num_envs * RUN["horizon"]
    arguments = {**RUN, "num_envs": num_envs, "devices": devices, "steps": steps, **settings}
    run(folder, "program.py", "records", json.dumps(arguments))
    return [torch.load(folder / f"records-{rank}", weights_only=True) for rank in range(devices)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def both(folder: Path) -> Sequence[Any]:
    return train(folder, 2, 5)


def test_processes_have_equal_weights(both: Any) -> None:
    first, second = both
    assert first["epochs"] == second["epochs"] == 5
    assert_same_bits(first["before"], second["before"])
    assert_same_bits(first["after"], second["after"])
    assert any((first["before"][name] != first["after"][name]).any() for name in first["after"])


def test_processes_have_different_replicas(both: Any) -> None:
    env = gpu_envs.make("TagContinuous-v0", 2 * NUM_ENVS, device="cpu", **PARAMS)
    observations, _ = env.reset(seed=derived_seed(3, "training", 0))
    expected = numpy_of(observations["runner"])
    np.testing.assert_array_equal(torch.cat([rank["first"] for rank in both]).numpy(), expected)
    assert len(np.unique(expected[:, 0], axis=0)) == len(expected)


def test_updates_equal_a_single_process(both: Any, tmp_path: Path) -> None:
    """Gradients and statistics of advantages are computed over the samples of all processes."""
    assert both[0]["alive"] != both[1]["alive"]
    (single,) = train(tmp_path, 1, 5, num_envs=2 * NUM_ENVS)
    assert single["alive"] == sum(rank["alive"] for rank in both)
    for tensor, value in single["after"].items():
        torch.testing.assert_close(both[0]["after"][tensor], value, rtol=1e-3, atol=2e-5)


def test_training_continues_from_a_checkpoint(folder: Path, both: Any, tmp_path: Path) -> None:
    """With the same number of processes, from the same weights, in new episodes."""
    first = both[0]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    checkpoint = torch.load(tmp_path / LAST, weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (4, 5)
    assert_same_bits({f"policy.{name}": value for name, value in first["after"].items()}, checkpoint["state_dict"])
    after = train(tmp_path, 2, 10, ckpt_path=LAST)
    for rank in after:
        assert (rank["epoch"], rank["epochs"]) == (5, 10)
        assert_same_bits(rank["before"], first["after"])
        assert (rank["first"] != first["first"]).any()
    assert_same_bits(after[0]["after"], after[1]["after"])
    run(tmp_path, "-c", f"from lightning_ppo import PPO; assert PPO.load_from_checkpoint({LAST!r}).args.seed == 3")


def mean_return(printed: str) -> float:
    """Return the mean return in Lightning's table of the last validation."""
    match = re.search(r"agent/return\s+│\s+([\d.]+)", printed)
    assert match, printed
    return float(match[1])


def test_it_learns_cartpole(device: str, tmp_path: Path) -> None:
    """The example stops at a return of 490 in training; the last validation has its own episodes."""
    words = ["--accelerator", ACCELERATORS[device], "--devices", "1", "--target-return", "490"]
    assert mean_return(run(tmp_path, str(EXAMPLES / "lightning_ppo.py"), *words)) >= 475.0
