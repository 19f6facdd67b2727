"""The example with Lightning: it learns, its processes train as one, and its checkpoints are gone on with."""

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
from harness import assert_same_bits, numpy_of, with_package

import gpu_envs
from gpu_envs.seeds import derived_seed

pytest.importorskip("lightning")
import torch

pytestmark = pytest.mark.slow  # of a process that trains most of the time is its start

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCELERATORS = {"cpu": "cpu", "cuda": "gpu"}

EACH = 3
"""Replicas of a process."""

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
"""Some of the runners are out of the game, not as many in every process."""

PROGRAM = """
import json
import sys

import lightning
import torch
from lightning_ppo import Args, train


class Keeps(lightning.Callback):
    def __init__(self):
        self.found = {}

    def weights(self, when, ppo):
        self.found[when] = {name: tensor.cpu().clone() for name, tensor in ppo.policy.state_dict().items()}

    def on_train_batch_start(self, trainer, ppo, batch, number):
        if "first" not in self.found:
            self.found |= {"first": ppo.replicas.own.observations[0].cpu().clone(), "epoch": trainer.current_epoch}
            self.weights("before", ppo)

    def on_train_end(self, trainer, ppo):
        self.found |= {"epochs": trainer.current_epoch, "alive": ppo.samples.alive.sum().item()}
        self.weights("after", ppo)
        torch.save(self.found, f"{sys.argv[1]}-{trainer.global_rank}")


if __name__ == "__main__":
    train(Args(**json.loads(sys.argv[2])), Keeps())
"""


def run(folder: Path, *command: str) -> str:
    """What a Python process prints that works in a folder, once it and those that it starts have ended well."""
    settings = with_package(OMP_NUM_THREADS="1", COLUMNS="100")
    settings["PYTHONPATH"] += f":{EXAMPLES}"
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kept(folder: Path, devices: int, updates: int, *, num_envs: int = EACH, **settings: Any) -> list[dict[str, Any]]:
    """What each process of a short run keeps, by rank."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    given = {**RUN, "num_envs": num_envs, "devices": devices, **settings}
    run(folder, "program.py", "kept", json.dumps({**given, "steps": updates * devices * num_envs * RUN["horizon"]}))
    return [torch.load(folder / f"kept-{rank}", weights_only=True) for rank in range(devices)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def both(folder: Path) -> Sequence[Any]:
    """What two processes keep of five updates."""
    return kept(folder, 2, 5)


def test_all_have_the_same_weights(both: Any) -> None:
    first, second = both
    assert first["epochs"] == second["epochs"] == 5
    assert_same_bits(first["before"], second["before"])
    assert_same_bits(first["after"], second["after"])
    assert any((first["before"][name] != first["after"][name]).any() for name in first["after"])


def test_each_has_replicas_of_its_own(both: Any) -> None:
    env = gpu_envs.make("TagContinuous-v0", 2 * EACH, device="cpu", **PARAMS)
    observations, _ = env.reset(seed=derived_seed(3, "training", 0))
    whole = numpy_of(observations["runner"])
    np.testing.assert_array_equal(torch.cat([rank["first"] for rank in both]).numpy(), whole)
    assert len(np.unique(whole[:, 0], axis=0)) == len(whole)


def test_updates_are_those_of_one_process(both: Any, tmp_path: Path) -> None:
    """Gradients and the moments of advantages are about the samples of all."""
    assert both[0]["alive"] != both[1]["alive"]
    (alone,) = kept(tmp_path, 1, 5, num_envs=2 * EACH)
    assert alone["alive"] == sum(rank["alive"] for rank in both)
    for tensor, value in alone["after"].items():
        torch.testing.assert_close(both[0]["after"][tensor], value, rtol=1e-3, atol=2e-5)


def test_a_checkpoint_is_gone_on_with(folder: Path, both: Any, tmp_path: Path) -> None:
    """By as many processes, from the same weights and in new episodes."""
    first = both[0]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    checkpoint = torch.load(tmp_path / LAST, weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (4, 5)
    assert_same_bits({f"policy.{name}": value for name, value in first["after"].items()}, checkpoint["state_dict"])
    after = kept(tmp_path, 2, 10, ckpt_path=LAST)
    for rank in after:
        assert (rank["epoch"], rank["epochs"]) == (5, 10)
        assert_same_bits(rank["before"], first["after"])
        assert (rank["first"] != first["first"]).any()
    assert_same_bits(after[0]["after"], after[1]["after"])
    run(tmp_path, "-c", f"from lightning_ppo import PPO; assert PPO.load_from_checkpoint({LAST!r}).args.seed == 3")


def mean_return(printed: str) -> float:
    """What Lightning's table of the last validation says."""
    found = re.search(r"agent/return\s+│\s+([\d.]+)", printed)
    assert found, printed
    return float(found[1])


def test_it_learns_cartpole(device: str, tmp_path: Path) -> None:
    """The example stops at a return of 490; its last validation is another."""
    words = ["--accelerator", ACCELERATORS[device], "--devices", "1", "--target-return", "490"]
    assert mean_return(run(tmp_path, str(EXAMPLES / "lightning_ppo.py"), *words)) >= 475.0
