"""A resumed run matches an uninterrupted run bit for bit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, subprocess_env
from trainers import (
    FIELD,
    FIELD_PARAMS,
    GRID,
    MODULE_SETTINGS,
    call_after,
    last_checkpoint,
    rows_of,
    small_run,
    without_times,
)

torch = pytest.importorskip("torch")

from dropout_policy import seeded_dropout  # noqa: E402

from gpu_envs import Uniform  # noqa: E402
from gpu_envs.cli import INTERRUPTED, OK, main  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.training import RunDirectory, Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.record import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS: Mapping[str, Mapping[str, Any]] = {
    "normalised": {
        "normalise_observations": True,
        "normalise_rewards": True,
        "normalise_values": True,
        "learning_rate": "0:0.01,1:0",
    },
    "box": {"env": "Pendulum-v1", "stagger": True, "target_kl": 0.01, "entropy_weight": "0:0.1,0.1:0"},
    "box in bf16": {"env": "Pendulum-v1", "precision": "bf16"},
    "team": {"env": GRID, "policies": {"tagger_1": "odd", "runner": "random"}, "shared_trunk": True},
    "team of two with one policy": {"env": GRID, "policies": {"tagger": "one", "runner": "one"}},
    "box team": {
        "env": FIELD,
        "normalise_observations": True,
        "normalise_rewards": True,
        "params": FIELD_PARAMS | {"actions": "continuous"},
    },
    "drawn": {
        "params": {"pole_mass": Uniform(0.05, 0.4), "gravity": "normal:9.8:1", "observe_params": ["pole_mass"]},
        "normalise_observations": True,
    },
    "drawn team": {
        "env": GRID,
        "params": {"wall_hit_penalty": "choice:0:0.1:0.2", "observe_params": "wall_hit_penalty"},
        "normalise_observations": True,
    },
    "bf16": {"precision": "bf16", "shared_trunk": True},
    "memory": {"memory": "gru:6", "sequence_length": 4, "stagger": True, "normalise_observations": True},
    "memory of a team": {"env": FIELD, "params": FIELD_PARAMS, "memory": "lstm:6", "shared_trunk": True},
    "a2c": {"algorithm": "a2c", "num_envs": 5},
}


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("name", RUNS)
def test_resuming_from_a_checkpoint(name: str, tmp_path: Path, device: str) -> None:
    config = small_run(device, **RUNS[name])
    whole = Trainer(config)
    whole.iterate(3)
    middle = whole.state()
    checkpoint.save(tmp_path / "middle.pt", middle)
    whole.iterate(4)
    expected = without_times(whole.state())
    assert expected["iteration"] == 7
    for learner in whole.learners.values():
        assert np.isfinite(learner.metrics.tolist()).all()
        assert all(tensor.dtype == torch.float32 for tensor in learner.state()["module"].values())

    other = Trainer(config)
    other.load(checkpoint.load(tmp_path / "middle.pt", other.device))
    assert_same_bits(without_times(middle), without_times(other.state()), "what was loaded")
    other.iterate(4)
    assert_same_bits(expected, without_times(other.state()), "state")
    whole.load(middle)  # the copies are unchanged, and an earlier state can be loaded, too
    whole.iterate(4)
    assert_same_bits(expected, without_times(whole.state()), "state")


def test_the_seed_determines_the_run(device: str) -> None:
    states = [Trainer(small_run(device, seed=seed)).state() for seed in (0, 1)]
    for part in ("learners", "environment"):
        with pytest.raises(AssertionError):
            assert_same_bits(*(state[part] for state in states))


def test_user_modules_resume(tmp_path: Path, device: str) -> None:
    """Dropout's random state belongs to the run: reading its folder or evaluating it does not change it."""
    one = Trainer(small_run(device, total_steps=8 * 16 * 6, **MODULE_SETTINGS), modules=seeded_dropout())
    before = torch.get_rng_state()
    one.iterate(1)
    assert one.evaluate(4, seed=1) == one.evaluate(4, seed=1)
    one.iterate(5)
    assert torch.equal(before, torch.get_rng_state())  # the process's random state is unchanged
    part = small_run(device, total_steps=8 * 16 * 3, run_dir=str(tmp_path / "two"), **MODULE_SETTINGS)
    train(part, progress=False, modules=seeded_dropout())
    resume(str(tmp_path / "two"), total_steps=8 * 16 * 6, progress=False, modules=seeded_dropout())
    found, expected = final(tmp_path / "two"), without_times(one.state()) | {"recent": []}  # iterate() writes no log
    assert_same_bits(expected, {name: found[name] for name in expected} | {"recent": []})


def final(run: Path) -> dict[str, Any]:
    """The last checkpoint, without times."""
    return without_times(last_checkpoint(run))


# --- with a run directory ---

ITERATIONS, NUM_ENVS, HORIZON = 300, 16, 8

WORDS = [
    *("CartPole-v1", "--preset=none", "--no-progress", "--threads=1", "--hidden=16", "--normalise-observations"),
    *(f"--num-envs={NUM_ENVS}", f"--horizon={HORIZON}", f"--total-steps={ITERATIONS * NUM_ENVS * HORIZON}"),
    *("--epochs=1", "--minibatches=2", "--learning-rate=0:0.003,1:0", "--checkpoint-interval=7", "--log-interval=10"),
]


def start(*words: str) -> "subprocess.Popen[str]":
    words = (sys.executable, "-m", "gpu_envs", "train", *words)
    out, errors = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(words, env=subprocess_env(), stdout=out, stderr=errors, text=True)


@pytest.fixture(autouse=True)
def _terminals_close() -> Iterator[None]:
    """Started programs receive SIGHUP, even if the tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def stop(process: "subprocess.Popen[str]", run: Path, after: int, how: int) -> str:
    """Send a signal some time after the checkpoint of an iteration; return the output."""
    deadline = time.monotonic() + 120
    while not any(path.stem > f"iteration-{after:08d}" for path in (run / "checkpoints").glob("iteration-*.pt")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(float(np.random.default_rng().uniform(0, 0.05)))
    process.send_signal(how)
    return process.communicate(timeout=60)[0]


@pytest.mark.end_to_end
def test_a_killed_and_interrupted_run_resumes(tmp_path: Path, device: str) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(["train", *WORDS, "--run-dir", str(whole), "--device", device]) == OK

    process = start(*WORDS, "--run-dir", str(broken), "--device", device)
    stop(process, broken, 20, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    process = start("--resume", str(broken), "--no-progress")
    reached = max(path.stem for path in (broken / "checkpoints").glob("iteration-*.pt"))
    printed = stop(process, broken, int(reached.removeprefix("iteration-")), signal.SIGINT)
    assert process.returncode == INTERRUPTED, printed
    assert f"--resume {broken}" in printed
    assert "Traceback" not in printed

    result = resume(str(broken), progress=False)
    assert (result.reason, result.iterations) == ("total_steps", ITERATIONS)
    assert_same_bits(final(whole), final(broken), "the last checkpoint")
    assert rows_of(whole / "log.csv") == rows_of(broken / "log.csv")
    assert [row["iteration"] for row in rows_of(whole / "log.csv")] == [str(i) for i in range(10, ITERATIONS + 1, 10)]
    with pytest.warns(UserWarning, match="already complete, .* no step was taken: to continue, give more total_steps"):
        assert resume(str(broken), progress=False).iterations == ITERATIONS
    assert_same_bits(final(whole), final(broken))


@pytest.mark.slow
def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    run = tmp_path / "run"
    words = [sys.executable, "-m", "gpu_envs", "train", *WORDS, "--run-dir", str(run), "--device=cpu", "--progress"]
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, words, subprocess_env(PYTHONUNBUFFERED=""))
    deadline = time.monotonic() + 120
    while not list((run / "checkpoints").glob("iteration-*.pt")):
        assert time.monotonic() < deadline
        os.read(terminal, 1000)
    before = last_checkpoint(run)["iteration"]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert last_checkpoint(run)["iteration"] > before


def test_an_interruption_after_the_last_iteration_leaves_its_row_to_the_resumed_run(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("whole", "cut")]
    for run in runs:
        config = small_run("cpu", total_steps=8 * 16 * 14, run_dir=str(run))
        trainer = Trainer(config, RunDirectory.create(str(run), config))
        if run is runs[1]:
            call_after(trainer, 14, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert trainer.run(progress=False).reason == "interrupted"
            trainer = Trainer(config, RunDirectory.open(run))
            trainer.load(last_checkpoint(run, trainer.device))
        assert trainer.run(progress=False).reason == "total_steps"
    assert rows_of(runs[0] / "log.csv") == rows_of(runs[1] / "log.csv")


@pytest.mark.parametrize("cut", [3, 10, 14])
def test_a_log_row_spans_the_interruption(cut: int, tmp_path: Path, device: str) -> None:
    """A row is the mean of ten updates, wherever the run was interrupted."""
    runs = [tmp_path / name for name in ("whole", "cut")]
    for run, stops in zip(runs, ((), (cut,)), strict=True):
        config = small_run(device, total_steps=8 * 16 * 20, run_dir=str(run))
        folder = RunDirectory.create(str(run), config)
        trainer = Trainer(config, folder)
        for at in stops:
            call_after(trainer, at, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert trainer.run(progress=False).reason == "interrupted"
            trainer = Trainer(config, folder)
            trainer.load(last_checkpoint(run, trainer.device))
            assert trainer.iteration == at
        assert trainer.run(progress=False).reason == "total_steps"
    assert rows_of(runs[0] / "log.csv") == rows_of(runs[1] / "log.csv")
    assert_same_bits(final(runs[0]), final(runs[1]))


def test_a_resumed_run_may_have_more_steps(tmp_path: Path, device: str) -> None:
    """Also with parameters by replica: config.json has lists in place of arrays."""
    steps, gravity = 8 * 16 * 10, np.linspace(8, 11, 8)
    for name, asked in (("long", 2 * steps), ("short", steps)):
        config = small_run(device, params={"gravity": gravity}, total_steps=asked, run_dir=str(tmp_path / name))
        train(config, progress=False)
    resume(str(tmp_path / "short"), total_steps=2 * steps, progress=False)
    assert_same_bits(final(tmp_path / "long"), final(tmp_path / "short"))
    assert rows_of(tmp_path / "long" / "log.csv") == rows_of(tmp_path / "short" / "log.csv")
    assert RunDirectory.open(tmp_path / "short").config().total_steps == 2 * steps


def test_a_resumed_run_may_change_settings(tmp_path: Path, device: str) -> None:
    """Device and rates: from then on it matches a run with these settings from the start."""
    run = tmp_path / "run"
    train(small_run("cpu", total_steps=8 * 16 * 4, run_dir=str(run)), progress=False)
    changes: dict[str, Any] = {"learning_rate": 0.0, "entropy_weight": "0.1", "log_interval": 1, "device": device}
    changes |= {"checkpoint_interval": 5, "target_role": "agent", "keep_checkpoints": 9}
    before = final(run)
    resume(run, total_steps=8 * 16 * 10, progress=False, **changes)
    assert_same_bits(before["learners"]["agent"]["module"], final(run)["learners"]["agent"]["module"])
    assert [path.stem for path in RunDirectory.open(run).checkpoints.paths()] == [
        f"iteration-{number:08d}" for number in (4, 5, 10)
    ]
    assert [row["learning_rate"] for row in rows_of(run / "log.csv")][-6:] == ["0.0"] * 6
    (change,) = RunDirectory.open(run).about()["changes"]
    assert change["iteration"] == 4
    assert change["learning_rate"] == {"from": "0.001", "to": "0"}
    assert set(change) - {"device"} == {"iteration", "total_steps", *changes} - {"device"}
    with pytest.raises(ValueError, match="cannot change num_envs"):
        resume(run, num_envs=3)
    assert resume(run, progress=False, target_return=-1e9, total_steps=10**6).reason in ("target_return", "total_steps")


def test_nan_weights_are_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_run("cpu", total_steps=8 * 16, run_dir=str(run)), progress=False)
    state = last_checkpoint(run)
    state["learners"]["agent"]["module"]["critic.0.bias"][3] = float("nan")
    checkpoint.save(run / "checkpoints/iteration-00000001.pt", state)
    for use in (lambda: evaluate(run, episodes=2, device="cpu"), lambda: resume(run, total_steps=9999)):
        with pytest.raises(CheckpointError, match=r"agent.* NaN or infinite \(critic.0.bias\)"):
            use()


# --- checkpoints that do not fit ---


@pytest.mark.parametrize(
    ("of_it", "others", "named"),
    [
        ({}, {"env": "CartPole-v0"}, r"env: this run has 'CartPole-v0', the checkpoint 'CartPole-v1'"),
        ({}, {"num_envs": 9}, "num_envs: this run has 9, the checkpoint 8"),
        ({}, {"horizon": 4}, "horizon: this run has 4, the checkpoint 16"),
        ({}, {"hidden": (16,)}, "critic"),
        ({}, {"hidden": (16, 17)}, "agent: actor"),
        ({}, {"activation": "relu"}, "activation: this run has 'relu', the checkpoint 'tanh'"),
        ({}, {"shared_trunk": True}, "agent: trunk"),
        ({}, {"params": {"gravity": 9.0}}, "params"),
        ({}, {"policies": {"agent": "mine"}}, "mine: "),
        ({}, {"normalise_observations": True}, "normalise_observations: this run has True"),
        ({}, {"normalise_rewards": True}, "normalise_rewards: this run has True"),
        ({}, {"normalise_values": True}, "normalise_values: this run has True"),
        ({"env": GRID, "policies": {"runner": "random"}}, {"env": GRID}, "runner"),
        (
            {"env": GRID, "tagger.normalise_rewards": True},
            {"env": GRID},
            "tagger: normalise_rewards: this run has False, the checkpoint True",
        ),
        (
            {"env": GRID},
            {"env": GRID, "runner.activation": "relu"},
            "runner: activation: this run has 'relu', the checkpoint 'tanh'",
        ),
        ({}, {"gamma": 0.9}, "agent: gamma: this run has 0.9, the checkpoint 0.99"),
        ({}, {"algorithm": "a2c"}, "agent: algorithm: this run has 'a2c', the checkpoint 'ppo'"),
        ({}, {"stagger": True}, "stagger: this run has True, the checkpoint False"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run_is_refused(
    of_it: Mapping[str, Any], others: Mapping[str, Any], named: str, device: str
) -> None:
    state = Trainer(small_run(device, **of_it)).state()
    trainer = Trainer(small_run(device, **others))
    before = without_times(trainer.state())
    with pytest.raises(CheckpointError, match=named):
        trainer.load(state)
    assert_same_bits(before, without_times(trainer.state()))
