"""Several processes train together: the results match one process with all their replicas."""

import copy
import dataclasses
import functools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, subprocess_env
from trainers import GRID, MODULE_SETTINGS, call_after, small_run, without_times

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from torch import nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.backend.driver import device_count  # noqa: E402
from gpu_envs.backend.program import header_text  # noqa: E402
from gpu_envs.registry import catalog  # noqa: E402
from gpu_envs.training import Run, Trainer, resume, train  # noqa: E402
from gpu_envs.training.process import group as processes  # noqa: E402
from gpu_envs.training.process.group import PEER_MEMORY_VARIABLE, Group  # noqa: E402
from gpu_envs.training.record.checkpoint import iteration_of, load  # noqa: E402
from gpu_envs.training.record.run_directory import RunDirectory  # noqa: E402
from gpu_envs.training.record.run_state import load_run, process_state  # noqa: E402

EACH = 6
"""Replicas per process."""

ON_GPUS = {"cuda": "peer memory, and NCCL above ", "nccl": f"NCCL ({PEER_MEMORY_VARIABLE} is 0)"}
DEVICES = {"cpu": "gloo"} | (ON_GPUS if device_count() > 1 else {})
"""Devices, with the transport of gradients."""

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kernels": {"fused": None},
    "one pass": {
        "algorithm": "a2c",
        "normalise_observations": True,
        "normalise_rewards": True,
        "normalise_values": True,
        "stagger": True,
    },
    "continuous": {"env": "Pendulum-v1", "algorithm": "a2c", "normalise_rewards": True},
    "team": {"env": GRID, "algorithm": "a2c", "normalise_observations": True},
    "one policy for a team": {"env": GRID, "algorithm": "a2c", "policies": {"tagger": "all", "runner": "all"}},
    "against random": {"env": GRID, "algorithm": "a2c", "policies": {"runner": "random"}},
    "separate settings": {
        "env": GRID,
        "algorithm": "a2c",
        "tagger.hidden": (8,),
        "tagger.normalise_rewards": True,
        "runner.learning_rate": 0.01,
    },
    "central critic": {"env": GRID, "algorithm": "a2c", "critic": "all", "normalise_observations": True},
    "shared trunk": {"algorithm": "a2c", "shared_trunk": True},
    "from a buffer": {
        "env": "Pendulum-v1",
        "algorithm": "sac",
        "buffer_size": 40,
        "batch_size": 32,
        "gradient_steps": 2,
        "learning_starts": 100,
        "exploration": "ou",
        "normalise_observations": True,
    },
    "memory": {"memory": "gru:6", "minibatches": 1, "sequence_length": 4},
    "stopped early": {"epochs": 4, "target_kl": 1e-4, "minibatches": 1},
}
SAME_BATCH = [name for name, run in RUNS.items() if run.get("algorithm") == "a2c" or run.get("minibatches") == 1]
"""Runs with one minibatch: only the order of samples differs from a single process."""


def config_of(name: str, device: str, count: int = EACH, **others: Any) -> Run:
    given: dict[str, Any] = {"num_envs": count, "fused": False, "total_steps": 16 * count * 40, **RUNS[name], **others}
    env = given.pop("env", "CartPole-v1")
    return small_run(device, env, **given)


def iterated(group: Any, device: str) -> dict[str, Any]:
    """Return each run's first horizon, and its trainer's state and returns after two more."""
    found = {}
    for name in RUNS:
        ours = Trainer(config_of(name, device), group=group)
        ours.iterate(1)
        seen = {role: storage.observations.cpu().clone() for role, storage in ours.horizon_env.storage.items()}
        ours.iterate(2)
        found[name] = {"state": ours.state(), "seen": seen, "steps": ours.steps}
        found[name]["returns"] = ours.returns | ours.history.metrics
        found[name]["way"] = ours.group.transport
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, str], list[dict[str, Any]]]:
    """Results of several processes by run; processes with the same number and device are started once."""

    @functools.cache
    def run(size: int, place: str) -> list[dict[str, Any]]:
        return run_ranks(size, iterated, tmp_path_factory.mktemp("ranks") / "run", device=place)

    return lambda name, size, place: [found[name] for found in run(size, place)]


def weights(state: dict[str, Any]) -> dict[str, Any]:
    return {name: kept["module"] for name, kept in state["learners"].items()}


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("name", RUNS)
def test_initial_weights_and_first_horizons_match_one_process(parts: Any, name: str, place: str) -> None:
    first, second = parts(name, 2, place)
    assert_same_bits(weights(first["state"]), weights(second["state"]))
    assert first["way"] == second["way"]
    assert first["way"].startswith(DEVICES[place])
    assert first["returns"] == pytest.approx(second["returns"], rel=0, abs=0, nan_ok=True)
    assert first["steps"] == second["steps"] == 3 * 2 * EACH * 16
    device = "cpu" if place == "cpu" else "cuda"
    whole = Trainer(config_of(name, device, 2 * EACH))
    whole.iterate(1)
    for role, storage in whole.horizon_env.storage.items():
        seen = torch.cat([part["seen"][role] for part in (first, second)], 1)
        near = 0.0 if name == "kernels" and device == "cuda" else 1e-5  # torch's roundings depend on the number of rows
        torch.testing.assert_close(seen, storage.observations.cpu(), rtol=near, atol=near)


@pytest.mark.parametrize("name", SAME_BATCH)
def test_updates_match_one_process(parts: Any, name: str) -> None:
    """Gradients, moments, normalisers, the early stop and the returns use the samples of all processes."""
    first, *others = parts(name, 3, "cpu")
    whole = Trainer(config_of(name, "cpu", 3 * EACH))
    whole.iterate(3)
    for policy, kept in whole.state()["learners"].items():
        found = first["state"]["learners"][policy]
        for tensor, value in kept["module"].items():
            torch.testing.assert_close(found["module"][tensor], value, rtol=1e-3, atol=2e-5)
        for scale in ("observations", "rewards", "values"):
            if kept.get(scale) is not None:
                for part in ("mean", "variance", "count"):
                    torch.testing.assert_close(found[scale][part], kept[scale][part], rtol=1e-5, atol=1e-6)
    for each in (first, *others):
        assert each["returns"] == pytest.approx(whole.returns | whole.history.metrics, rel=1e-5, nan_ok=True)


def trained(group: Any, device: str, folder: Path, names: tuple[str, ...], until: int | None) -> list[dict[str, Any]]:
    """Train runs in separate folders; one of the processes interrupts each after some iterations."""
    ends = []
    for name in names:
        kept = {"checkpoint_interval": 3, "keep_checkpoints": 100, "log_interval": 1}
        config = config_of(name, device, run_dir=str(folder / name), **kept)
        with pytest.MonkeyPatch.context() as patch:
            if until is not None and torch.distributed.get_rank(group) == 1:
                press_at(patch, until)
            result = train(config, group=group)
        ends.append({"reason": result.reason, "iterations": result.iterations, "folder": result.run_dir})
    return ends


def press_at(patch: pytest.MonkeyPatch, iteration: int) -> None:
    """Send Ctrl-C when a trainer of this process has done ``iterations`` iterations."""
    prepare = Trainer.prepare

    def prepared(ours: Trainer) -> None:
        prepare(ours)
        call_after(ours, iteration, lambda: signal.raise_signal(signal.SIGINT))

    patch.setattr(Trainer, "prepare", prepared)


def resumed(group: Any, device: str, folders: list[Path], changes: dict[str, Any]) -> list[str]:
    del device
    return [resume(folder, group=group, **changes).reason for folder in folders]


def test_each_process_saves_its_environment_and_observations() -> None:
    trainer = Trainer(config_of("team", "cpu"))
    assert trainer.horizon_env.state().keys() <= process_state(trainer.state() | {"buffers": {}}).keys()


def test_interrupted_runs_resume_bit_for_bit(tmp_path: Path) -> None:
    names = ("one pass", "from a buffer")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    first, second = run_ranks(2, trained, tmp_path / "a", whole, names, None)
    assert [end["reason"] for end in (*first, *second)] == ["total_steps"] * 4
    assert [end["folder"] for end in (*first, *second)] == [*(str(whole / name) for name in names), None, None]
    first, second = run_ranks(2, trained, tmp_path / "b", broken, names, 7)
    for one, other in zip(first, second, strict=True):
        assert one["reason"] == other["reason"] == "interrupted"
        assert 7 <= one["iterations"] == other["iterations"] <= 9
    again = run_ranks(2, resumed, tmp_path / "c", [broken / name for name in names], {})
    assert again == [["total_steps"] * 2] * 2
    for name in names:
        folders = (whole / name, broken / name)
        kept = [load(folder / "checkpoints" / "iteration-00000020.pt") for folder in folders]
        assert_same_bits(without_times(kept[0]), without_times(kept[1]))
        buffers = [sorted(folder.glob("checkpoints/iteration-00000020.buffers-*.zip")) for folder in folders]
        assert len(buffers[0]) == len(buffers[1]) == (2 if name == "from a buffer" else 0)
        for one, other in zip(*buffers, strict=True):
            assert one.read_bytes() == other.read_bytes()
        rows = [(folder / "log.csv").read_text().count("\n") for folder in folders]
        assert rows[0] == rows[1]


def test_episodes_restart_with_another_number_of_processes(tmp_path: Path) -> None:
    folder, steps = tmp_path / "one pass", 16 * EACH
    run_ranks(2, trained, tmp_path / "a", tmp_path, ("one pass",), None)
    run = RunDirectory.open(folder)
    kept = load_run(run.checkpoints.paths()[-1])
    config = run.config()
    assert (config.gpus, kept["iteration"], config.steps_at(20)) == (2, 20, 40 * steps)

    alone = Trainer(dataclasses.replace(config, gpus=1, since=(20, 40 * steps), total_steps=50 * steps))
    begun = alone.horizon_env.state()["observations"]["agent"].clone()
    alone.load(kept)
    assert_same_bits(weights(alone.state()), weights(kept))
    found, expected = (state["learners"]["agent"] for state in (alone.state(), kept))
    assert_same_bits(found["optimiser"], expected["optimiser"])
    assert_same_bits(found["observations"], expected["observations"])
    assert found["rewards"]["count"] == expected["rewards"]["count"]
    assert not found["rewards"]["running"].any()
    assert (alone.iteration, alone.steps, alone.config.iterations) == (20, 40 * steps, 30)
    assert not torch.equal(alone.horizon_env.state()["observations"]["agent"], begun)

    with pytest.warns(UserWarning, match="was trained by 2 processes and is resumed by 1"):
        result = resume(folder, total_steps=50 * steps)
    assert (result.iterations, result.steps) == (30, 50 * steps)
    assert RunDirectory.open(folder).config().since == (20, 40 * steps)
    assert resume(folder, total_steps=52 * steps).iterations == 32  # any number of times
    run_ranks(3, resumed, tmp_path / "b", [folder], {"total_steps": 58 * steps})
    assert RunDirectory.open(folder).config().since == (32, 52 * steps)
    rows = [tuple(map(int, line.split(",")[:2])) for line in (folder / "log.csv").read_text().splitlines()[1:]]
    assert rows == [(n, steps * (2 * min(n, 20) + min(max(n - 20, 0), 12) + 3 * max(n - 32, 0))) for n in range(1, 35)]

    for path in run.checkpoints.paths():  # resumes from before the run had three processes
        if iteration_of(path) > 27:
            path.unlink()
    assert resume(folder, total_steps=49 * steps).iterations == 29
    assert RunDirectory.open(folder).config().since == (27, 47 * steps)


def test_a_wrong_number_of_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="gpus is 4, but the group has 1 process"):
        Trainer(config_of("plain", "cpu", gpus=4))


def initial_weights(group: Any, device: str) -> dict[str, Any]:
    torch.manual_seed(torch.distributed.get_rank(group))
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    config = config_of(
        "plain", device, algorithm="pqn", params={"gravity": np.linspace(9, 10, EACH)}, **MODULE_SETTINGS
    )
    ours = Trainer(config, modules={"agent": module}, group=group)
    first = {name: tensor.clone() for name, tensor in ours.learners["agent"].module.state_dict().items()}
    ours.iterate(2)
    return {"first": first, "last": ours.learners["agent"].module.state_dict()}


@pytest.mark.parametrize("place", DEVICES)
def test_modules_start_with_the_weights_of_the_first_process(place: str, tmp_path: Path) -> None:
    first, second = run_ranks(2, initial_weights, tmp_path, device=place)
    assert len(first["first"]) == 9
    assert_same_bits(first, second)
    assert not torch.equal(first["first"]["1.running_mean"], first["last"]["1.running_mean"])


def modules_in_any_order(group: Any, device: str) -> list[str]:
    ours = Trainer(config_of("plain", device, env=GRID, **MODULE_SETTINGS), group=group)
    modules = [(name, copy.deepcopy(learner.module)) for name, learner in ours.learners.items()]
    order = 1 - 2 * torch.distributed.get_rank(group)
    return [*Trainer(ours.config, modules=dict(modules[::order]), group=group).learners]


def test_modules_may_be_in_any_order(tmp_path: Path) -> None:
    """Such as the order of a set, which differs between processes."""
    first, second = run_ranks(2, modules_in_any_order, tmp_path)
    assert len(first) == 2
    assert first == second


def differing(group: Any, device: str, folder: Path) -> list[str]:
    rank = torch.distributed.get_rank(group)
    with pytest.raises(ValueError, match=r"gamma is 0.9 in process 0 and 0.8 in process 1") as settings:
        Trainer(config_of("plain", device, gamma=0.9 - 0.1 * rank), group=group)
    header = folder / f"{rank}.cuh"
    header.write_text(header_text("environments/cartpole.cuh") + "// edited\n" * rank)
    gpu_envs.register(dataclasses.replace(catalog.spec("CartPole-v1"), id="Edited-v0", header=header))
    with pytest.raises(ValueError, match=r"code is 'gpu_envs .* in process 0 and 'gpu_envs .* in process 1") as code:
        Trainer(config_of("plain", device, env="Edited-v0"), group=group)
    return [str(settings.value), str(code.value)]


def test_different_settings_and_rules_are_refused(tmp_path: Path) -> None:
    first, second = run_ranks(2, differing, tmp_path, tmp_path)
    assert first == second


def left_waiting(group: Any, device: str, folder: Path) -> None:
    processes.PATIENCE = 2.0
    ours, numbers = Group(group), torch.ones(4, device=device)
    ours.sum(numbers)
    assert numbers.tolist() == [2.0] * 4
    if ours.rank == 0:
        torch.save(None, folder / "result-0")  # early: NCCL's watchdog may end the process after the wait
        ours.sum(numbers)
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.cuda.synchronize()
    else:
        time.sleep(6)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs two GPUs")
def test_a_lost_process_is_reported(tmp_path: Path) -> None:
    run_ranks(2, left_waiting, tmp_path, tmp_path, device="cuda")


@pytest.mark.slow
def test_the_example_under_torchs_launcher(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "examples" / "several_processes.py"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(file)]
    run = tmp_path / "run"
    env = subprocess_env(OMP_NUM_THREADS="1", RUN_DIR=str(run), TARGET_RETURN="60")
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(r"return [67]\d\.\d after [\d,]+ steps", done.stdout), done.stdout
    assert (run / "log.csv").exists()
