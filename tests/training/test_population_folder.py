"""Populations that are saved, interrupted and resumed."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from populations import Interruption, Record, assert_as_alone, assert_same
from trainers import FIELD, FIELD_PARAMS, GRID, small_run

from gpu_envs.errors import UntrustedError
from gpu_envs.training import Population, Trainer, population
from gpu_envs.training.joint_iterations import JointIterations
from gpu_envs.training.record.checkpoint import load, save

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ended runs": (
        "CartPole-v1",
        {"num_envs": 32, "total_steps": 32 * 16 * 30, "target_return": 30.0, "hidden": [32, 32], "max_grad_norm": None},
        {"learning_rate": [0.0, 3e-3, 1e-2, 1e30]},
    ),
    "team with metrics": (FIELD, {"params": FIELD_PARAMS, "total_steps": 8 * 16 * 18}, {"gamma": [0.9, 0.99]}),
    "statistics": (
        GRID,
        {"normalise_observations": True, "total_steps": 8 * 16 * 18, "hidden": [32, 32]},
        {"env.wall_hit_penalty": [0.0, 0.5]},
    ),
    "groups": ("CartPole-v1", {"total_steps": 8 * 16 * 30, "hidden": [32, 32]}, {"horizon": [16, 32]}),
}


@pytest.mark.parametrize("case", CASES)
def test_resumed_runs_have_the_results_of_runs_alone(case: str, device: str, tmp_path: Path) -> None:
    env, settings, vary = CASES[case]
    if env == FIELD and device != "cpu":
        pytest.skip(
            "for action masks a GPU needs torch, which rounds the products of several runs otherwise than alone"
        )
    run = small_run(device, env, **settings | {"run_dir": str(tmp_path / "all")})
    result = Population(run, vary=vary, search="grid").train(progress=False, callbacks=[Interruption(12)])
    assert "interrupted" in [outcome.reason for outcome in result.outcomes]
    assert not (tmp_path / "all" / "best").exists()
    resumed = Population.open(tmp_path / "all")
    found = resumed.train(progress=False)
    assert "interrupted" not in [outcome.reason for outcome in found.outcomes]
    for number, outcome in enumerate(found.outcomes):
        if outcome.reason != "diverged":
            assert_as_alone(resumed, found, number)
    whole = Population(dataclasses.replace(run, run_dir=""), vary=vary, search="grid").train(progress=False)
    assert str(found.outcomes) == str(whole.outcomes)
    np.testing.assert_array_equal(found.curves, whole.curves)
    assert (tmp_path / "all" / "best").is_dir()
    assert str(Population.open(tmp_path / "all").train(progress=False).outcomes) == str(whole.outcomes)


def test_the_same_object_continues() -> None:
    run = small_run("cpu", total_steps=8 * 16 * 9)
    joint, record = Population(run, seeds=2), Record()
    joint.train(progress=False, callbacks=[Interruption(3)])
    result = joint.train(progress=False, callbacks=[record])
    assert [report.iteration for report in record.reports] == [4, 5, 6, 7, 8, 9]
    assert_as_alone(joint, result, 1)


@pytest.mark.parametrize("iteration", [0, 2])
def test_an_interruption_before_the_first_episode_has_ended(iteration: int, tmp_path: Path) -> None:
    class BeforeTheFirst:
        def on_start(self, trainer: Any) -> None:
            del trainer
            signal.raise_signal(signal.SIGINT)

    run = small_run("cpu", "Pendulum-v1", total_steps=8 * 16 * 15, run_dir=str(tmp_path / "all"))
    interruption = Interruption(iteration) if iteration else BeforeTheFirst()
    result = Population(run, seeds=2).train(progress=False, callbacks=[interruption])
    assert {(outcome.reason, outcome.iterations) for outcome in result.outcomes} == {("interrupted", iteration)}
    resumed = Population.open(tmp_path / "all")
    assert_as_alone(resumed, resumed.train(progress=False), 1)


def test_a_failure_inside_an_iteration_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training starts again with the last states that are whole."""
    run = small_run("cpu", total_steps=8 * 16 * 9)
    joint = Population(run, seeds=2)
    joint.train(progress=False, callbacks=[Interruption(3)])
    learn, calls = JointIterations.learn, []

    def fail(self: JointIterations) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("once")
        learn(self)

    monkeypatch.setattr(JointIterations, "learn", fail)
    with pytest.raises(OSError, match="once"):
        joint.train(progress=False)
    assert_as_alone(joint, joint.train(progress=False), 1)


def test_a_failure_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        calls = 0

        def on_start(self, trainer: Any) -> None:
            del trainer
            self.calls += 1
            if self.calls == 1:
                raise OSError("once")

    monkeypatch.chdir(tmp_path)
    joint = Population(dataclasses.replace(small_run("cpu", total_steps=256), run_dir=None), seeds=2)
    fails = Fails()
    with pytest.raises(OSError, match="once"):
        joint.train(progress=False, callbacks=[fails])
    assert not any((tmp_path / "runs").iterdir())
    assert joint.train(progress=False, callbacks=[fails]).run_dir == joint.run_dir
    assert (tmp_path / "runs").iterdir().__next__().name.startswith("CartPole-v1-population-")


def test_states_of_callbacks(tmp_path: Path) -> None:
    class Counts(Interruption):
        count = 0

        def on_iteration(self, trainer: Any, report: Any) -> None:
            self.count += 1
            super().on_iteration(trainer, report)

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: Mapping[str, int]) -> None:
            self.count = state["count"]

    run = small_run("cpu", total_steps=8 * 16 * 9, run_dir=str(tmp_path / "all"))
    Population(run, seeds=2).train(progress=False, callbacks=[Counts(3)])
    resumed = Population.open(tmp_path / "all")
    counts = Counts(6)
    resumed.train(progress=False, callbacks=[counts])
    assert counts.count == 6
    counts = Counts(0)
    resumed.train(progress=False, callbacks=[counts])
    assert counts.count == 9
    with pytest.warns(UserWarning, match="state of the callbacks Counts, which are not given"):
        Population.open(tmp_path / "all").train(progress=False)


def test_checkpoints_during_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A population that is killed continues from the last one."""
    monkeypatch.setattr(population, "MIN_SECONDS", 0.0)

    class Kill:
        def on_iteration(self, trainer: Any, report: Any) -> None:
            del trainer
            if report.iteration == 25:
                raise KeyboardInterrupt

    run = small_run("cpu", total_steps=8 * 16 * 30, checkpoint_interval=10, run_dir=str(tmp_path / "all"))
    with pytest.raises(KeyboardInterrupt):
        Population(run, seeds=3).train(progress=False, callbacks=[Kill()])
    resumed = Population.open(tmp_path / "all")
    record = Record()
    result = resumed.train(progress=False, callbacks=[record])
    assert [report.iteration for report in record.reports] == [*range(21, 31)]
    for number in range(3):
        assert_as_alone(resumed, result, number)


@pytest.mark.slow
def test_runs_are_divided_among_gpus(tmp_path: Path) -> None:
    """Each process takes some; on a machine without a GPU, they share the CPU."""
    run = small_run("cpu", total_steps=8 * 16 * 12, target_return=25.0, run_dir=str(tmp_path / "all"), log_interval=2)
    several = Population(dataclasses.replace(run, gpus=2), seeds=3)
    result = several.train(progress=False)
    one = Population(dataclasses.replace(run, run_dir=""), seeds=3).train(progress=False)
    assert result.outcomes == one.outcomes
    np.testing.assert_array_equal(result.curves, one.curves)
    for number in range(3):
        assert_as_alone(several, result, number)
    assert not any((tmp_path / "all").glob("gpu-*"))
    assert Population.open(tmp_path / "all").train(progress=False).outcomes == result.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_several_processes_are_ended(kill: signal.Signals, tmp_path: Path) -> None:
    """All runs continue, also from the folders of the processes if these were killed."""
    folder = tmp_path / "all"
    run = small_run("cpu", total_steps=8 * 16 * 20_000, run_dir=str(folder), gpus=2, checkpoint_interval=50)
    code = (
        "from gpu_envs.training import Population, Run, population\n"
        "if __name__ in ('__main__', '__mp_main__'):\n    population.MIN_SECONDS = 0.0\n"
        f"if __name__ == '__main__':\n    Population(Run.from_flat({run.flat()!r}), seeds=3).train(progress=False)\n"
    )
    file = tmp_path / "train.py"
    file.write_text(code)
    process = subprocess.Popen([sys.executable, str(file)], start_new_session=True, env=os.environ)
    deadline = time.monotonic() + 60
    while not all(first_iteration(folder / f"gpu-{gpu}") for gpu in range(2)) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, kill)
    process.wait(60)
    left = Population.open(folder)
    assert any(folder.glob("gpu-*")) == (kill == signal.SIGKILL)
    for number in range(3):
        ours = left.trainer(number).state()
        assert ours["iteration"] >= 50
        alone = Trainer(left.runs[number])
        alone.iterate(ours["iteration"])
        theirs = alone.state()
        for name in ("iteration", "learners", "windows", "environment"):
            assert_same(ours[name], theirs[name], name)


def test_a_folder_of_a_gpu_may_not_name_other_code(tmp_path: Path) -> None:
    """It is trusted no more than the population's folder."""
    folder = tmp_path / "all"
    run = small_run("cpu", total_steps=8 * 16 * 2, gpus=2, run_dir=str(folder))
    joint = Population(run, seeds=2)
    joint.run_dir = folder
    joint._save()  # noqa: SLF001
    joint._give_share([0], 0, folder / "gpu-0")  # noqa: SLF001
    content = load(folder / "gpu-0" / "population.pt")
    file = tmp_path / "other.py"
    file.write_text("raise SystemExit('imported')\n")
    content["config"]["env"] = f"{file}:ENV"
    save(folder / "gpu-0" / "population.pt", content)
    with pytest.raises(UntrustedError, match=r"gpu-0 names the file .*other\.py as its environment"):
        Population.open(folder)


def test_mistakes_end_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = small_run("cpu", run_dir=str(tmp_path / "file"))
    with pytest.raises(FileExistsError, match="file is a file: name another, as run_dir or --run-dir"):
        Population(run).train()
    with pytest.raises(ValueError, match=r"gpus is 100, but this machine has (no|\d+) GPUs: give fewer, or"):
        Population(small_run("cuda", gpus=100), seeds=100).train()


def first_iteration(folder: Path) -> bool:
    """Whether a process has saved runs that have trained."""
    with contextlib.suppress(FileNotFoundError):
        return Population.open(folder)._result().outcomes[0].iterations > 0  # noqa: SLF001
    return False
