"""``gpu-envs train --gpus``: several processes, one command, one exit code, one error."""

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
from harness import with_package
from trainers import saved, small

pytest.importorskip("torch")

from gpu_envs.backend.driver import device_count
from gpu_envs.cli import INTERRUPTED, MISTAKE, OK, launch, main
from gpu_envs.cli.launch import Ending, explained
from gpu_envs.cli.launched import FELL, LOST, MISTOOK, SHORT, tell_launcher
from gpu_envs.cli.parser import FAILED
from gpu_envs.training.process.group import TURN_OFF
from gpu_envs.training.record.run_directory import RunDirectory

DEVICES = {"cpu": "gloo"} | ({"cuda": "peer memory", "nccl": "NCCL"} if device_count() > 1 else {})
"""Where processes train, and what they add gradients up through."""

WORDS = ("--num-envs", "16", "--horizon", "8", "--hidden", "8", "--checkpoint-interval", "5")


def started(*words: str, device: str = "cpu", at: Path | None = None) -> "subprocess.Popen[str]":
    settings: dict[str, Any] = {"OMP_NUM_THREADS": "1"} | ({TURN_OFF: "0"} if device == "nccl" else {})
    if at is not None:
        settings["PYTHONPATH"] = f"{at}{os.pathsep}{with_package()['PYTHONPATH']}"
    own = ("train", "--no-progress", "--device", device.replace("nccl", "cuda"))
    return cli_tools.started(*own, *words, **settings)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def trained_by_two(run: Path, place: str) -> str:
    """Trains a run by two processes; what they print."""
    words = ("CartPole-v1", "--gpus", "2", *WORDS, "--total-steps", "2560", "--run-dir", str(run))
    code, stdout, stderr = ended(started(*words, device=place))
    assert (code, stderr) == (OK, ""), stdout + stderr
    return stdout


@pytest.mark.end_to_end
@pytest.mark.parametrize("place", DEVICES)
def test_two_train(place: str, tmp_path: Path) -> None:
    stdout = trained_by_two(tmp_path / "run", place)
    assert stdout.startswith(
        "2 processes train together, with 16 replicas each and 32 in all; their gradients are added up through "
        f"{DEVICES[place]}"
    )
    assert stdout.count("finished") == 1
    assert "2,560 in 10 updates" in stdout
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["gpus"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("place", DEVICES)
def test_two_resume(place: str, tmp_path: Path) -> None:
    trained_by_two(tmp_path / "run", place)
    words = ("--resume", str(tmp_path / "run"), "--gpus", "2", "--total-steps", "3840")
    code, stdout, stderr = ended(started(*words, device=place))
    assert (code, stderr) == (OK, ""), stdout + stderr
    assert "3,840 in 15 updates" in stdout


def begun(run: Path, *words: str, device: str = "cpu", gpus: int = 2) -> "subprocess.Popen[str]":
    """A run of several that has written a checkpoint and will not end by itself."""
    endless = ("CartPole-v1", "--gpus", str(gpus), *WORDS, "--total-steps", "1e9", "--run-dir", str(run))
    process = started(*endless, *words, device=device)
    reached(process, run, 1)
    return process


def reached(process: "subprocess.Popen[str]", run: Path, least: int) -> int:
    """Waits for a checkpoint of so many updates or more; gives its number."""
    deadline = time.monotonic() + 90
    while True:
        found = max((int(path.stem[-8:]) for path in run.glob("checkpoints/iteration-*.pt")), default=0)
        if found >= least:
            return found
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: "subprocess.Popen[str]") -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    return sorted(map(int, listed.stdout.split()))


KILLED = {"cpu": [(0, 2)], "cuda": [(0, 2), (1, 2), (2, 3)], "nccl": [(0, 2), (1, 2)]}
"""Which process of how many."""


@pytest.mark.slow
@pytest.mark.parametrize(("place", "rank", "gpus"), [(p, *each) for p in DEVICES for each in KILLED[p]])
def test_one_is_killed(place: str, rank: int, gpus: int, tmp_path: Path) -> None:
    if place != "cpu" and gpus > device_count():
        pytest.skip("more GPUs than there are")
    run = tmp_path / "run"
    process = begun(run, device=place, gpus=gpus)
    all_of_them = children(process)
    os.kill(all_of_them[rank], signal.SIGKILL)
    began = time.monotonic()
    code, stdout, stderr = ended(process)
    assert time.monotonic() - began < 30
    assert code == 1, stderr
    assert stdout.startswith(f"{gpus} processes train together")
    assert stdout.count("\n") == 1
    done = saved(run)["iteration"]
    assert done >= 5
    assert stderr == (
        f"gpu-envs: error: process {rank} of {gpus} was ended by SIGKILL; gpu-envs train --resume {run} --gpus {gpus} "
        f"goes on from update {done:,}\n"
    )
    assert not [pid for pid in all_of_them if Path(f"/proc/{pid}").exists()]


def goes_on_after_a_kill(process: "subprocess.Popen[str]", run: Path) -> tuple[int, str]:
    """One of two is killed: all are started again, and log every tenth update once and in order."""
    done = reached(process, run, 1)
    first = children(process)
    os.kill(first[1], signal.SIGKILL)
    reached(process, run, done + 50)
    assert not set(first) & set(children(process))
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = ended(process)
    assert stdout.count("processes train together") == 2
    updates = [int(line.split(",")[0]) for line in (run / "log.csv").read_text().splitlines()[1:]]
    assert updates == list(range(10, updates[-1] + 1, 10))
    return code, stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", DEVICES)
def test_one_that_is_killed_is_started_again(place: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, stderr = goes_on_after_a_kill(begun(run, "--max-restarts", "1", device=place), run)
    assert code == INTERRUPTED
    said = rf"gpu-envs: process 1 of 2 was ended by SIGKILL; goes on from update [\d,]+ of {run} \(restart 1 of 1\)\n"
    assert re.fullmatch(said, stderr)


@pytest.mark.slow
def test_torchrun_starts_it_again(tmp_path: Path) -> None:
    """Its own option does, where the run has a folder: the second attempt goes on with what the first has saved."""
    run = tmp_path / "run"
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 -m gpu_envs".split()
    endless = ["train", "CartPole-v1", *WORDS, "--total-steps", "1e9", "--run-dir", str(run), "--device", "cpu"]
    env = with_package(OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, *torchrun, *endless], env=env, stdout=pipe, stderr=pipe, text=True)
    goes_on_after_a_kill(process, run)


@pytest.mark.slow
def test_a_restart_does_not_take_over_another_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "Acrobot-v1", "--device", "cpu", *WORDS, "--total-steps", "128", "--run-dir", str(run)]) == OK
    before = (run / "config.json").read_text()
    code, _, stderr = ended(started("CartPole-v1", "--gpus", "2", *WORDS, "--run-dir", str(run), "--max-restarts", "1"))
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
    done, seen = 0, Path(__file__).with_name("seen")
    count = Learner.count
    attempt = len(seen.read_text()) if seen.exists() else 0
    def failing(learner):
        global done
        count(learner)
        done += 1
        if done == 20:
            seen.write_text("." * (attempt + 1))
            raise ({", ".join(ERRORS)})[attempt]("of the second alone")
    Learner.count = failing
"""


@pytest.mark.slow
def test_what_fails_in_the_midst(tmp_path: Path) -> None:
    """It goes on after errors that may not come again, and not after a mistake of the user's."""
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    run = tmp_path / "run"
    words = ("--gpus", "2", *WORDS, "--total-steps", "1e9", "--run-dir", str(run), "--max-restarts", "5")
    code, stdout, stderr = ended(started("CartPole-v1", *words, at=tmp_path))
    assert code == MISTAKE
    assert stdout.count("processes train together") == 3
    first, second, third = stderr.split(" of 5)\n")
    assert first.startswith("gpu-envs: process 1 of 2 failed: Traceback")
    assert "OverflowError: of the second alone" in first
    assert first.endswith(f"goes on from update 15 of {run} (restart 1")
    assert "stays) (process 1 of 2)" in second
    assert second.endswith(f"goes on from update 30 of {run} (restart 2")
    assert "of the second alone (process 1 of 2)" in third
    assert "goes on from" not in third


@pytest.mark.slow
@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize(
    ("rank", "how"), [(None, signal.SIGINT), (0, signal.SIGTERM), (1, signal.SIGTERM)], ids=["launcher", "0", "1"]
)
def test_one_is_told_to_end(rank: int | None, how: signal.Signals, place: str, tmp_path: Path) -> None:
    """All end, with the run saved, and none is started again."""
    run = tmp_path / "run"
    process = begun(run, "--max-restarts", "1", device=place)
    os.kill(process.pid if rank is None else children(process)[rank], how)
    code, stdout, stderr = ended(process)
    assert (code, stderr) == (INTERRUPTED, "")
    assert re.search(f"go on +.* train --resume {run} --gpus 2", stdout)
    assert "interrupted" in stdout
    steps = saved(run)["iteration"]
    assert f" in {steps:,} updates" in stdout


@pytest.mark.slow
def test_a_stopped_process_is_named_and_ends_at_the_second_request(tmp_path: Path) -> None:
    process = begun(tmp_path / "run")
    ranks = children(process)
    os.kill(ranks[1], signal.SIGSTOP)
    assert process.stderr is not None
    named = f"gpu-envs: process 1 of 2 (PID {ranks[1]}) is stopped, and the others wait for it: kill -CONT {ranks[1]} "
    assert process.stderr.readline().startswith(named)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):  # it may go on yet, and save
        process.wait(5)
    process.send_signal(signal.SIGINT)
    process.wait(15)
    assert ended(process) == (INTERRUPTED, ANY, "")
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = begun(run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()
    process.send_signal(signal.SIGTERM)
    code, _, stderr = ended(process)
    assert code == MISTAKE
    assert stderr.startswith("gpu-envs: error: ")
    assert str(run / "checkpoints") in stderr


@pytest.mark.slow
def test_told_to_end_again_and_again(tmp_path: Path) -> None:
    """Before, while and after its processes end: what the launcher was told last ends it, without a word."""
    process = begun(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
    code, _, stderr = ended(process)
    assert stderr == ""
    assert code in (-signal.SIGTERM, INTERRUPTED)


def test_a_signal_while_torch_throws_things_away(capfd: pytest.CaptureFixture[str]) -> None:
    """Its launcher's handlers raise an exception, which Python has nobody to give to there."""
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
    """An empty variable is none to Python, and any other means yes."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    with launch.silent_launcher(1):
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert os.environ.get("PYTHONSAFEPATH") == before


@pytest.mark.slow
def test_what_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup, where a terminal that is closed ends nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = begun(run := tmp_path / "run")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    reached(process, run, reached(process, run, 1) + 50)
    process.send_signal(signal.SIGTERM)
    code, _, stderr = ended(process)
    assert (code, stderr) == (INTERRUPTED, "")


def words(kind: str, message: str = "this", timestamp: float = 1.0) -> dict[str, object]:
    return {"kind": kind, "message": message, "timestamp": timestamp}


@pytest.mark.parametrize(
    ("codes", "told", "expected"),
    [
        ({}, {}, Ending(INTERRUPTED)),
        ({0: INTERRUPTED, 1: -signal.SIGTERM}, {}, Ending(INTERRUPTED)),
        ({0: MISTAKE, 1: -signal.SIGTERM}, {0: words(MISTOOK)}, Ending(MISTAKE, "this", MISTOOK)),
        (
            {0: MISTAKE, 1: MISTAKE},
            {0: words(LOST), 1: words(MISTOOK, timestamp=2.0)},
            Ending(MISTAKE, "this (process 1 of 2)", MISTOOK),
        ),
        ({0: MISTAKE, 1: -signal.SIGTERM}, {0: words(SHORT)}, Ending(MISTAKE, "this (process 0 of 2)", SHORT)),
        (
            {0: -signal.SIGABRT, 1: -signal.SIGTERM},
            {0: words(FELL)},
            Ending(FAILED, "process 0 of 2 failed: this", FELL),
        ),
        (
            {0: MISTAKE, 1: -signal.SIGKILL},
            {0: words(LOST)},
            Ending(FAILED, "process 1 of 2 was ended by SIGKILL", FELL),
        ),
        ({0: 3, 1: -signal.SIGTERM}, {}, Ending(FAILED, "process 0 of 2 ended with exit code 3", FELL)),
        (
            {0: MISTAKE, 1: MISTAKE},
            {0: words(LOST), 1: words(LOST)},
            Ending(FAILED, "process 0 of 2 failed: this", FELL),
        ),
        ({}, {1: words(MISTOOK)}, Ending(MISTAKE, "this (process 1 of 2)", MISTOOK)),
        ({}, {1: words(LOST)}, Ending(INTERRUPTED)),
    ],
)
def test_who_failed_first(codes: dict[int, int], told: dict[int, dict[str, object]], expected: Ending) -> None:
    assert explained(2, codes, told) == expected


@pytest.mark.parametrize(
    ("gpus", "device", "there", "wrong"),
    [
        ("0", "cpu", 0, "--gpus is '0'; give a whole number from 1 up, or all"),
        ("two", "cpu", 0, "--gpus is 'two'; give a whole number"),
        ("all", "cpu", 4, "there is none to train on"),
        ("all", "auto", 0, "there is none to train on"),
        ("2", "cuda:1", 4, "--device cuda:1 names one"),
        ("2", "gpu", 4, "device is 'gpu'; allowed: 'auto'"),
        ("5", "auto", 4, "--gpus is 5, and there are 4 GPUs here"),
    ],
)
def test_what_cannot_be(
    gpus: str, device: str, there: int, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: there)
    assert main(["train", "CartPole-v1", "--gpus", gpus, "--device", device]) == MISTAKE
    assert wrong in capsys.readouterr().err


def test_a_folder_does_not_say_how_many_processes_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may come from a stranger, whose config.json asks for as many as the machine cannot bear."""
    monkeypatch.setattr("gpu_envs.cli.train.launch", lambda *_: pytest.fail("processes would be started"))
    RunDirectory.create(tmp_path / "run", small("cpu", gpus=65536))
    assert main(["train", "--resume", str(tmp_path / "run")]) == MISTAKE
    assert "trained by 65536 processes: give --gpus 65536 to resume" in capsys.readouterr().err


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
    command = [sys.executable, "-P", "-m", "gpu_envs", "train", env, "--gpus", "2", *words]  # -P: as gpu-envs does
    settings = with_package(OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == OK, done.stderr
    assert "2 processes train together" in done.stdout
    assert not (tmp_path / "was run").exists()


def test_other_numbers_than_were_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--device", "cpu", "--max-restarts", "2"]) == MISTAKE
    assert "--max-restarts goes with --gpus" in capsys.readouterr().err
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "CartPole-v1", "--device", "cpu", "--gpus", "4"]) == MISTAKE
    assert "--gpus is 4, and the launcher has started 2; leave --gpus out" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "device", "expected"), [("all", "auto", 4), ("3", "cuda", 3), ("8", "cpu", 8)])
def test_how_many(gpus: str, device: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: 4)
    assert launch.count_of(gpus, device) == expected


def test_what_a_process_says_of_its_end_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launcher reads that at any moment: a half of it would end the launcher, as a mistake in the options."""
    file = tmp_path / "error.json"
    read: list[str] = []
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):  # by which it knows that it has a launcher
        monkeypatch.setenv(name, "0")
    writer = threading.Thread(target=lambda: [tell_launcher("." * 2**22, LOST) for _ in range(20)])
    writer.start()
    while writer.is_alive():
        with contextlib.suppress(FileNotFoundError):
            read.append(json.loads(file.read_text())["kind"])
    assert set(read) == {LOST}
