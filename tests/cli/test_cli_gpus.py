"""Tests of ``gpu-envs train --gpus``: several processes with one exit code and one error message."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import cli_tools
import pytest
from harness import subprocess_env
from trainers import last_checkpoint, small_run

pytest.importorskip("torch")

from gpu_envs.backend.driver import device_count
from gpu_envs.cli import INTERRUPTED, MISTAKE, OK, launch, main
from gpu_envs.cli.launch import Outcome, find_outcome
from gpu_envs.cli.launched import FAILURE, LOST_PEER, OUT_OF_MEMORY, USER_MISTAKE, report_error
from gpu_envs.cli.parser import FAILED
from gpu_envs.cli.report import program_command
from gpu_envs.training.process.group import PEER_MEMORY_VARIABLE
from gpu_envs.training.record.run_directory import RunDirectory

DEVICES = {"cpu": "gloo"} | ({"cuda": "peer memory", "nccl": "NCCL"} if device_count() > 1 else {})
"""Devices, and the transport that sums gradients there."""

WORDS = ("--num-envs", "16", "--horizon", "8", "--hidden", "8", "--checkpoint-interval", "5")


def start_training(*words: str, device: str = "cpu", imports: Path | None = None) -> "subprocess.Popen[str]":
    settings: dict[str, Any] = {"OMP_NUM_THREADS": "1"} | ({PEER_MEMORY_VARIABLE: "0"} if device == "nccl" else {})
    if imports is not None:
        settings["PYTHONPATH"] = f"{imports}{os.pathsep}{subprocess_env()['PYTHONPATH']}"
    command = ("train", "--no-progress", "--device", device.replace("nccl", "cuda"))
    return cli_tools.start_process(*command, *words, **settings)


def wait_for_end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def train_with_two_processes(run: Path, device: str) -> str:
    """Train a run in two processes; return their output."""
    words = ("CartPole-v1", "--gpus", "2", *WORDS, "--total-steps", "2560", "--run-dir", str(run))
    code, stdout, stderr = wait_for_end(start_training(*words, device=device))
    assert (code, stderr) == (OK, ""), stdout + stderr
    return stdout


def test_processes_name_the_program_that_the_user_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/else.py"])
    with launch.silent_launcher(2):
        monkeypatch.setattr(sys, "argv", ["/somewhere/gpu_envs/__main__.py"])
        assert program_command() == "gpu-envs"
    assert program_command().endswith("python -m gpu_envs")


@pytest.mark.end_to_end
@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_train(device: str, tmp_path: Path) -> None:
    stdout = train_with_two_processes(tmp_path / "run", device)
    assert stdout.startswith(
        "2 processes train together, with 16 replicas each, 32 in total; they add up their gradients through "
        f"{DEVICES[device]}"
    )
    assert stdout.count("finished") == 1
    assert "2,560 in 10 updates" in stdout
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["gpus"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_resume(device: str, tmp_path: Path) -> None:
    train_with_two_processes(tmp_path / "run", device)
    words = ("--resume", str(tmp_path / "run"), "--gpus", "2", "--total-steps", "3840")
    code, stdout, stderr = wait_for_end(start_training(*words, device=device))
    assert (code, stderr) == (OK, ""), stdout + stderr
    assert "3,840 in 15 updates" in stdout


def start_endless_run(run: Path, *words: str, device: str = "cpu", gpus: int = 2) -> "subprocess.Popen[str]":
    """Start an endless run of several processes, and wait for its first checkpoint."""
    endless = ("CartPole-v1", "--gpus", str(gpus), *WORDS, "--total-steps", "1e9", "--run-dir", str(run))
    process = start_training(*endless, *words, device=device)
    wait_for_checkpoint(process, run, 1)
    return process


def wait_for_checkpoint(process: "subprocess.Popen[str]", run: Path, minimum: int) -> int:
    """Wait for a checkpoint of at least that many iterations; return its iteration."""
    deadline = time.monotonic() + 90
    while True:
        iteration = max((int(path.stem[-8:]) for path in run.glob("checkpoints/iteration-*.pt")), default=0)
        if iteration >= minimum:
            return iteration
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: "subprocess.Popen[str]") -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    return sorted(map(int, listed.stdout.split()))


KILLED = {"cpu": [(0, 2)], "cuda": [(0, 2), (1, 2), (2, 3)], "nccl": [(0, 2), (1, 2)]}
"""Rank of the killed process, and number of processes."""


@pytest.mark.slow
@pytest.mark.parametrize(("device", "rank", "gpus"), [(p, *case) for p in DEVICES for case in KILLED[p]])
def test_a_killed_process_ends_the_run(device: str, rank: int, gpus: int, tmp_path: Path) -> None:
    if device != "cpu" and gpus > device_count():
        pytest.skip("more GPUs than there are")
    run = tmp_path / "run"
    process = start_endless_run(run, device=device, gpus=gpus)
    pids = children(process)
    os.kill(pids[rank], signal.SIGKILL)
    began = time.monotonic()
    code, stdout, stderr = wait_for_end(process)
    assert time.monotonic() - began < 30
    assert code == 1, stderr
    assert stdout.startswith(f"{gpus} processes train together")
    assert stdout.count("\n") == 1
    done = last_checkpoint(run)["iteration"]
    assert done >= 5
    assert stderr == (
        f"gpu-envs: error: process {rank} of {gpus} was ended by SIGKILL; gpu-envs train --resume {run} --gpus {gpus} "
        f"resumes from update {done:,}\n"
    )
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def check_restart_after_a_kill(process: "subprocess.Popen[str]", run: Path) -> tuple[int, str]:
    """Kill one of two processes: all restart, and log every tenth update once and in order."""
    done = wait_for_checkpoint(process, run, 1)
    first = children(process)
    os.kill(first[1], signal.SIGKILL)
    wait_for_checkpoint(process, run, done + 50)
    assert not set(first) & set(children(process))
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = wait_for_end(process)
    assert stdout.count("processes train together") == 2
    updates = [int(line.split(",")[0]) for line in (run / "log.csv").read_text().splitlines()[1:]]
    assert updates == list(range(10, updates[-1] + 1, 10))
    return code, stderr


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_max_restarts_restarts_killed_processes(device: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, stderr = check_restart_after_a_kill(start_endless_run(run, "--max-restarts", "1", device=device), run)
    assert code == INTERRUPTED
    expected = (
        rf"gpu-envs: process 1 of 2 was ended by SIGKILL; restarting from update [\d,]+ of {run} \(restart 1 of 1\)\n"
    )
    assert re.fullmatch(expected, stderr)


@pytest.mark.slow
def test_torchrun_restarts_killed_processes(tmp_path: Path) -> None:
    """With its option ``--max-restarts`` and a run directory, the restart continues from the last checkpoint."""
    run = tmp_path / "run"
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 -m gpu_envs".split()
    endless = ["train", "CartPole-v1", *WORDS, "--total-steps", "1e9", "--run-dir", str(run), "--device", "cpu"]
    env = subprocess_env(OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, *torchrun, *endless], env=env, stdout=pipe, stderr=pipe, text=True)
    check_restart_after_a_kill(process, run)


@pytest.mark.slow
def test_a_restart_does_not_continue_another_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "Acrobot-v1", "--device", "cpu", *WORDS, "--total-steps", "128", "--run-dir", str(run)]) == OK
    before = (run / "config.json").read_text()
    code, _, stderr = wait_for_end(
        start_training("CartPole-v1", "--gpus", "2", *WORDS, "--run-dir", str(run), "--max-restarts", "1")
    )
    assert code == MISTAKE
    assert "is not empty: name another" in stderr
    assert (run / "config.json").read_text() == before


ERRORS = ("OverflowError", "MemoryError", "ValueError")

FAILING = f"""
import os
from pathlib import Path
from typing import Any
if os.environ.get("RANK") == "1":
    from gpu_envs.training.learner import Learner
    done, attempts = 0, Path(__file__).with_name("attempts")
    end_iteration = Learner.end_iteration
    attempt = len(attempts.read_text()) if attempts.exists() else 0
    def failing(learner):
        global done
        end_iteration(learner)
        done += 1
        if done == 20:
            attempts.write_text("." * (attempt + 1))
            raise ({", ".join(ERRORS)})[attempt]("of the second alone")
    Learner.end_iteration = failing
"""


@pytest.mark.slow
def test_restarts_after_errors_of_one_process(tmp_path: Path) -> None:
    """Errors that may be temporary restart the run, mistakes of the user do not."""
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    run = tmp_path / "run"
    words = ("--gpus", "2", *WORDS, "--total-steps", "1e9", "--run-dir", str(run), "--max-restarts", "5")
    code, stdout, stderr = wait_for_end(start_training("CartPole-v1", *words, imports=tmp_path))
    assert code == MISTAKE
    assert stdout.count("processes train together") == 3
    first, second, third = stderr.split(" of 5)\n")
    assert first.startswith("gpu-envs: process 1 of 2 failed: Traceback")
    assert "OverflowError: of the second alone" in first
    assert first.endswith(f"restarting from update 15 of {run} (restart 1")
    assert "stays in use) (process 1 of 2)" in second
    assert second.endswith(f"restarting from update 30 of {run} (restart 2")
    assert "of the second alone (process 1 of 2)" in third
    assert "restarting from" not in third


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rank", "how"), [(None, signal.SIGINT), (0, signal.SIGTERM), (1, signal.SIGTERM)], ids=["launcher", "0", "1"]
)
def test_a_stop_signal_ends_all_processes(rank: int | None, how: signal.Signals, device: str, tmp_path: Path) -> None:
    """The run is saved, and no process restarts."""
    run = tmp_path / "run"
    process = start_endless_run(run, "--max-restarts", "1", device=device)
    os.kill(process.pid if rank is None else children(process)[rank], how)
    code, stdout, stderr = wait_for_end(process)
    assert (code, stderr) == (INTERRUPTED, "")
    assert re.search(f"resume it +.* train --resume {run} --gpus 2", stdout)
    assert "interrupted" in stdout
    steps = last_checkpoint(run)["iteration"]
    assert f" in {steps:,} updates" in stdout


@pytest.mark.slow
def test_a_stopped_process_is_named_and_ends_at_the_second_request(tmp_path: Path) -> None:
    process = start_endless_run(tmp_path / "run")
    pids = children(process)
    os.kill(pids[1], signal.SIGSTOP)
    assert process.stderr is not None
    named = f"gpu-envs: process 1 of 2 (PID {pids[1]}) is stopped, and the others wait for it: kill -CONT {pids[1]} "
    assert process.stderr.readline().startswith(named)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):  # it may still be resumed, and save
        process.wait(5)
    process.send_signal(signal.SIGINT)
    process.wait(15)
    assert wait_for_end(process) == (INTERRUPTED, ANY, "")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_a_failed_checkpoint_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_endless_run(run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()
    process.send_signal(signal.SIGTERM)
    code, _, stderr = wait_for_end(process)
    assert code == MISTAKE
    assert stderr.startswith("gpu-envs: error: ")
    assert str(run / "checkpoints") in stderr


@pytest.mark.slow
def test_repeated_stop_signals(tmp_path: Path) -> None:
    """Before, during and after the end of its processes, SIGTERM ends the launcher without a message."""
    process = start_endless_run(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
    code, _, stderr = wait_for_end(process)
    assert stderr == ""
    assert code in (-signal.SIGTERM, INTERRUPTED)


def test_a_signal_in_a_finalizer_of_torch(capfd: pytest.CaptureFixture[str]) -> None:
    """The launcher's handler raises an exception there, which Python would print as unraisable."""
    from torch.distributed.elastic.multiprocessing import api

    timer = threading.Event()
    weakref.finalize(timer, signal.raise_signal, signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with launch.silent_launcher(1):
        signal.signal(signal.SIGTERM, api._terminate_process_handler)  # noqa: SLF001 - torch's own
        del timer
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("before", [None, "", "0", "1"])
def test_workers_import_nothing_from_the_working_folder(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores the variable only if it is empty."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    with launch.silent_launcher(1):
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert os.environ.get("PYTHONSAFEPATH") == before


@pytest.mark.slow
def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """As with nohup, where a closed terminal ends nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start_endless_run(run := tmp_path / "run")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    wait_for_checkpoint(process, run, wait_for_checkpoint(process, run, 1) + 50)
    process.send_signal(signal.SIGTERM)
    code, _, stderr = wait_for_end(process)
    assert (code, stderr) == (INTERRUPTED, "")


def words(kind: str, message: str = "this", timestamp: float = 1.0) -> dict[str, object]:
    return {"kind": kind, "message": message, "timestamp": timestamp}


@pytest.mark.parametrize(
    ("codes", "errors", "expected"),
    [
        ({}, {}, Outcome(INTERRUPTED)),
        ({0: INTERRUPTED, 1: -signal.SIGTERM}, {}, Outcome(INTERRUPTED)),
        ({0: MISTAKE, 1: -signal.SIGTERM}, {0: words(USER_MISTAKE)}, Outcome(MISTAKE, "this", USER_MISTAKE)),
        (
            {0: MISTAKE, 1: MISTAKE},
            {0: words(LOST_PEER), 1: words(USER_MISTAKE, timestamp=2.0)},
            Outcome(MISTAKE, "this (process 1 of 2)", USER_MISTAKE),
        ),
        (
            {0: MISTAKE, 1: -signal.SIGTERM},
            {0: words(OUT_OF_MEMORY)},
            Outcome(MISTAKE, "this (process 0 of 2)", OUT_OF_MEMORY),
        ),
        (
            {0: -signal.SIGABRT, 1: -signal.SIGTERM},
            {0: words(FAILURE)},
            Outcome(FAILED, "process 0 of 2 failed: this", FAILURE),
        ),
        (
            {0: MISTAKE, 1: -signal.SIGKILL},
            {0: words(LOST_PEER)},
            Outcome(FAILED, "process 1 of 2 was ended by SIGKILL", FAILURE),
        ),
        ({0: 3, 1: -signal.SIGTERM}, {}, Outcome(FAILED, "process 0 of 2 ended with exit code 3", FAILURE)),
        (
            {0: MISTAKE, 1: MISTAKE},
            {0: words(LOST_PEER), 1: words(LOST_PEER)},
            Outcome(FAILED, "process 0 of 2 failed: this", FAILURE),
        ),
        ({}, {1: words(USER_MISTAKE)}, Outcome(MISTAKE, "this (process 1 of 2)", USER_MISTAKE)),
        ({}, {1: words(LOST_PEER)}, Outcome(INTERRUPTED)),
    ],
)
def test_the_process_that_failed_first(
    codes: dict[int, int], errors: dict[int, dict[str, object]], expected: Outcome
) -> None:
    assert find_outcome(2, codes, errors) == expected


@pytest.mark.parametrize(
    ("gpus", "device", "gpus_here", "message"),
    [
        ("0", "cpu", 0, "--gpus is '0'; give an integer of at least 1, or all"),
        ("two", "cpu", 0, "--gpus is 'two'; give an integer"),
        ("all", "cpu", 4, "there is no GPU to train on"),
        ("all", "auto", 0, "there is no GPU to train on"),
        ("2", "cuda:1", 4, "--device cuda:1 names one GPU"),
        ("2", "gpu", 4, "device is 'gpu'; allowed: 'auto'"),
        ("5", "auto", 4, "--gpus is 5, but this machine has 4 GPUs; give 4 or fewer"),
        ("2", "cuda", 0, "--device is cuda, but this machine has no GPU; give --device cpu"),
    ],
)
def test_messages_of_invalid_numbers_of_gpus(
    gpus: str,
    device: str,
    gpus_here: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: gpus_here)
    assert main(["train", "CartPole-v1", "--gpus", gpus, "--device", device]) == MISTAKE
    assert message in capsys.readouterr().err


def test_a_run_s_folder_does_not_choose_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrusted config.json could name more than the machine can run."""
    monkeypatch.setattr("gpu_envs.cli.train.launch", lambda *_: pytest.fail("processes would be started"))
    RunDirectory.create(tmp_path / "run", small_run("cpu", gpus=65536))
    assert main(["train", "--resume", str(tmp_path / "run")]) == MISTAKE
    assert "65536 processes trained the run: give --gpus 65536 to continue" in capsys.readouterr().err


@pytest.mark.end_to_end
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("env", ["mine:MINE", "mine.py:MINE"])
def test_modules_of_the_working_folder_are_imported_only_if_named(env: str, tmp_path: Path) -> None:
    for name in ("random.py", "torch.py", "numpy.py", "sitecustomize.py"):
        (tmp_path / name).write_text("open('was run', 'w')\nraise SystemExit('a module of the working folder')")
    (tmp_path / "mine.py").write_text(
        "import dataclasses\nfrom gpu_envs.envs.cartpole import CARTPOLE_V1\nimport helper\n"
        "MINE = dataclasses.replace(CARTPOLE_V1, id=helper.ID)\n"
    )
    (tmp_path / "helper.py").write_text("ID = 'Mine-v0'\n")
    words = [*WORDS, "--total-steps", "512", "--device", "cpu", "--no-progress"]
    command = [sys.executable, "-P", "-m", "gpu_envs", "train", env, "--gpus", "2", *words]  # -P: as with gpu-envs
    settings = subprocess_env(OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == OK, done.stderr
    assert "2 processes train together" in done.stdout
    assert not (tmp_path / "was run").exists()


def test_options_that_contradict_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "CartPole-v1", "--device", "cpu", "--max-restarts", "2"]) == MISTAKE
    assert "--max-restarts needs --gpus" in capsys.readouterr().err
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "CartPole-v1", "--device", "cpu", "--gpus", "4"]) == MISTAKE
    assert "--gpus is 4, and the launcher has started 2; leave out --gpus" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "device", "expected"), [("all", "auto", 4), ("3", "cuda", 3), ("8", "cpu", 8)])
def test_process_count(gpus: str, device: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: 4)
    assert launch.process_count(gpus, device) == expected


def test_error_files_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher reads them at any time; an incomplete file would end it with exit code 2."""
    file = tmp_path / "error.json"
    read: list[str] = []
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):  # as a launcher sets them
        monkeypatch.setenv(name, "0")
    writer = threading.Thread(target=lambda: [report_error("." * 2**22, LOST_PEER) for _ in range(20)])
    writer.start()
    while writer.is_alive():
        with contextlib.suppress(FileNotFoundError):
            read.append(json.loads(file.read_text())["kind"])
    assert set(read) == {LOST_PEER}
