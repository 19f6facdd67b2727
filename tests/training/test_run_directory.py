"""Checkpoints and run directories."""

import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, subprocess_env
from trainers import call_after, rows_of, run_of, small_run

import gpu_envs
from gpu_envs.training.schedule import Schedule

torch = pytest.importorskip("torch")

from gpu_envs.errors import CheckpointError, NotWrittenError  # noqa: E402
from gpu_envs.training import Trainer, iterations, runs  # noqa: E402 - they import torch
from gpu_envs.training.record import checkpoint  # noqa: E402 - they import torch
from gpu_envs.training.record.checkpoint import Checkpoints  # noqa: E402
from gpu_envs.training.record.run_directory import RunDirectory  # noqa: E402
from gpu_envs.training.record.run_state import check_fits, load_run  # noqa: E402
from gpu_envs.training.runs import evaluate, resume, train  # noqa: E402


def test_a_payload_is_restored(tmp_path: Path) -> None:
    flat = torch.arange(1000, dtype=torch.float32)
    payload: dict[str, Any] = {
        "weights": {"a": flat[:6].view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "empty": torch.zeros(0, 4)},
        "array": np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1],
        "scalars": [1, 2.5, True, None, "word", np.float64(0.1), np.int64(2**62), np.bool_(False)],
        "nested": ({"x": (1, [2, ()])}, float("inf")),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "numbers": {7: "as keys"},
    }
    path = tmp_path / "one.pt"
    checkpoint.save(path, payload)
    found = checkpoint.load(path, "cpu")
    assert torch.equal(found["weights"]["a"], flat[:6].view(2, 3))
    assert found["weights"]["b"].dtype == torch.bfloat16
    assert found["weights"]["empty"].shape == (0, 4)
    assert found["array"].dtype == torch.int32
    assert found["array"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert found["scalars"] == [1, 2.5, True, None, "word", 0.1, 2**62, False]
    assert [type(item) for item in found["scalars"]] == [int, float, bool, type(None), str, float, int, bool]
    assert found["nested"] == ({"x": (1, [2, ()])}, float("inf"))
    assert type(found["parameter"]) is torch.Tensor
    assert not found["parameter"].requires_grad
    assert found["numbers"] == {7: "as keys"}
    # a view is saved without the rest of its storage: 6 of 1000 floats
    assert found["weights"]["a"].untyped_storage().nbytes() == 6 * 4


@pytest.mark.parametrize("wrong", [object(), {1, 2}, b"bytes", {"deep": [lambda: 0]}, {(1, 2): 3}, 1j])
def test_invalid_payloads_are_refused(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "one.pt"
    checkpoint.save(path, {"good": 1})
    with pytest.raises(TypeError, match=r"payload.*checkpoint"):
        checkpoint.save(path, {"wrong": wrong})
    assert checkpoint.load(path) == {"good": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["one.pt"]


@pytest.mark.parametrize("wrong", [object(), {9.8}, np.complex64(1j)])
def test_invalid_configurations_are_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"params is \{'gravity': .*config.json cannot contain"):
        RunDirectory.create(tmp_path, small_run("cpu", params={"gravity": wrong}))
    assert list(tmp_path.iterdir()) == []


def test_the_data_are_safe_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")  # noqa: PTH112
        fsync(descriptor)

    def note_replace(old: Path, new: Path) -> None:
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    checkpoint.save(tmp_path / "one.pt", {"a": 1})
    assert done == ["file", "name", "folder"]


def test_partial_files_are_deleted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"iteration": 1})
    (tmp_path / "iteration-00000002.pt.partial").write_bytes(b"half of it")
    assert checkpoint.load(checkpoints.paths()[-1]) == {"iteration": 1}
    checkpoints.save(3, {"iteration": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-00000003.pt"]


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Limit the size of files that this process writes, as a full disk would."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda room: resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("in_a_row", [False, True], ids=["checkpoint", "log"])
def test_a_full_disk(in_a_row: bool, tmp_path: Path, small_disk: Callable[[int], None]) -> None:
    run = str(tmp_path / "run")
    config = small_run("cpu", total_steps=10 * 128, checkpoint_interval=4, log_interval=3, run_dir=run)
    folder = RunDirectory.create(run, config)
    trainer = Trainer(config, folder)
    file = folder.log_path if in_a_row else folder.path / "checkpoints/iteration-00000008.pt"
    call_after(trainer, 5, lambda: small_disk(folder.log_path.stat().st_size + 10 if in_a_row else 2000))
    with pytest.raises(NotWrittenError, match=rf"{file} could not be written: File too large") as caught:
        trainer.run(progress=False)
    small_disk(2**30)
    assert in_a_row or "the last good checkpoint is" in str(caught.value)
    assert list((folder.path / "checkpoints").iterdir()) == [folder.path / "checkpoints/iteration-00000004.pt"]
    assert resume(folder, progress=False).iterations == 10  # the disk has space again
    train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")), progress=False)
    assert rows_of(folder.log_path) == rows_of(tmp_path / "whole" / "log.csv")


def test_the_newest_checkpoints_remain(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "made later", keep=3)
    assert checkpoints.latest() is None
    assert checkpoints.paths() == []
    for iteration in (5, 99_999_999, 100_000_000, 7):  # newer by number, not by name
        checkpoints.save(iteration, {})
    (checkpoints.folder / "iteration-x.pt").touch()
    assert [checkpoint.iteration_of(path) for path in checkpoints.paths()] == [7, 99_999_999, 100_000_000]
    assert checkpoints.latest() == checkpoints.folder / "iteration-100000000.pt"
    with pytest.raises(ValueError, match="keep is 0; give 1"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("damage", ["cut", "shortened", "flipped", "reversed", "empty", "text", "archive"])
def test_a_damaged_file_is_named_with_the_one_before(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    old, new = (checkpoints.save(iteration, {"data": torch.arange(10_000)}) for iteration in (3, 8))
    data = bytearray(new.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1  # inside the tensor, which torch would read without an error
    others = {"empty": b"", "text": b"hello\n" * 99, "archive": b"PK\x03\x04" + bytes(99), "flipped": data}
    cut = {"cut": data[: len(data) // 2], "shortened": data[:-9], "reversed": data[::-1]}
    new.write_bytes(bytes((cut | others)[damage]))
    with pytest.raises(CheckpointError, match=r"damaged.*before it is") as caught:
        checkpoint.load(new)
    assert str(new) in str(caught.value)
    assert str(old) in str(caught.value)
    old.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint before it"):
        checkpoint.load(old)


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("echo harm",))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    with pytest.raises(FileNotFoundError, match=r"the checkpoint .* does not exist"):
        checkpoint.load(path)
    torch.save({"version": 1, "kind": "training", "payload": Malice()}, path)  # its code must not run
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)
    torch.save({"model": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of gpu_envs"):
        checkpoint.load(path)
    checkpoint.save(path, {"model": torch.ones(3)})
    with pytest.raises(CheckpointError, match="is not a checkpoint of a training run: it lacks describes, iteration"):
        load_run(path)
    torch.save({"version": 99, "kind": "training", "payload": {}}, path)
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.load(path)
    torch.save({"version": 2, "kind": "policy", "payload": {}}, path)
    with pytest.raises(CheckpointError, match="kind 'policy', not 'training'; give a checkpoint that a run wrote"):
        checkpoint.load(path)


def test_small_files_that_would_exhaust_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    many: list[Any] = [0]
    for _ in range(9):
        many = [many] * 10
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for payload, message in (
        (many, "are shared or nested"),
        (endless, "are shared or nested"),
        (deep, "nested too deeply"),
        ({1, 2}, "it has a set"),
        (torch.zeros(1).expand(10**12), "a tensor that is a view"),
        (torch.ones(2).to_sparse(), "not strided"),
    ):
        torch.save({"version": 1, "kind": "training", "payload": {"x": payload}}, path)
        with pytest.raises(CheckpointError, match=f"is damaged .*{message}"):
            checkpoint.load(path)
    checkpoint.save(path, {"x": torch.zeros(10**6)})
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(tmp_path / "two.pt", "w", zipfile.ZIP_DEFLATED) as two:
        for name in one.namelist():
            two.writestr(name, one.read(name))
    with pytest.raises(CheckpointError, match="it is compressed"):
        checkpoint.load(tmp_path / "two.pt")


def test_a_torch_that_runs_code_of_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1+cu124"))
    with pytest.raises(ImportError, match=r"torch 2\.5\.1\+cu124 is installed.*training needs 2\.6 or newer"):
        importlib.reload(checkpoint)


def test_all_differences_are_named() -> None:
    shape = {"num_envs": 4096, "shape of a": [64, 4], "params": {"force": 1.0}, "same": "x"}
    check_fits(shape, dict(shape) | {"shape of a": (64, 4)})  # JSON turns tuples into lists
    check_fits({"array": np.arange(3)}, {"array": torch.arange(3)})
    with pytest.raises(CheckpointError) as caught:
        check_fits(shape | {"here": 1}, dict(shape) | {"num_envs": 1024, "shape of a": (32, 4), "there": 2})
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        "num_envs: this run has 4096, the checkpoint 1024",
        "shape of a: this run has (64, 4), the checkpoint (32, 4)",
        "here: this run has 1, the checkpoint none",
        "there: this run has none, the checkpoint 2",
    ]


def test_a_run_saves_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu-envs", "train", "CartPole-v1"])
    config = small_run("cpu", learning_rate=Schedule.of(1 / 3), num_envs=2, params={"gravity": [9.0, 9.5]})
    run = RunDirectory.create(tmp_path / "a" / "b", config)
    again = RunDirectory.open(str(run.path))
    assert again.config() == config  # including the last bit of the learning rate
    about = json.loads((run.path / "config.json").read_text())
    assert about["gpu_envs"] == gpu_envs.__version__
    assert about["torch"] == torch.__version__
    assert about["python"].startswith("3.")
    assert about["device"]
    assert about["commands"] == [["gpu-envs", "train", "CartPole-v1"]]
    assert again.checkpoints.keep == config.keep_checkpoints
    assert again.checkpoints.latest() is None
    assert again.log_path.parent == run.path
    assert RunDirectory.open(again) is again
    monkeypatch.setattr(sys, "argv", ["gpu-envs", "train", "--resume", "b"])
    longer = config.changed({"total_steps": 5})
    again.amend(longer, 7)
    assert run.config() == longer
    assert run.about()["changes"] == [{"iteration": 7, "total_steps": {"from": config.total_steps, "to": 5}}]
    assert [line[2] for line in run.about()["commands"]] == ["CartPole-v1", "--resume"]


@pytest.mark.parametrize("name", [".lock", "run.toml.partial", "log.csv", "checkpoints"])
def test_a_run_with_a_link_is_not_resumed(name: str, tmp_path: Path) -> None:
    """A run directory from elsewhere may have links to files of the user."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    train(small_run("cpu", total_steps=128, run_dir=str(run)), progress=False)
    if name == "checkpoints":
        (run / name).rename(mine)
    else:
        mine.write_text("mine")
    before = {file: file.read_bytes() for file in (mine, *mine.rglob("*")) if file.is_file()}
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    with pytest.raises(ValueError, match=f"{name} is a symbolic link.*remove it"):
        resume(run, total_steps=256, keep_checkpoints=1, progress=False)
    assert {file: file.read_bytes() for file in before} == before


def test_a_partial_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "one.pt.partial").symlink_to(mine)
    checkpoint.save(tmp_path / "one.pt", {"a": 1})
    assert mine.read_text() == "mine"
    assert not (tmp_path / "one.pt").is_symlink()
    assert checkpoint.load(tmp_path / "one.pt") == {"a": 1}


def test_runs_of_the_same_second_have_separate_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "-20250131-120000")
    monkeypatch.chdir(tmp_path)
    config = run_of(env="gpu_envs/CartPole-v1", device="cpu")
    names = [RunDirectory.create(None, config).path.name for _ in range(3)]
    assert names == [f"CartPole-v1-20250131-120000{end}" for end in ("", "-2", "-3")]


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    config = run_of(env="CartPole-v1", device="cpu")
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", config)
    with pytest.raises(FileExistsError, match=r"run_dir or --run-dir, .*\.resume\('.*empty'\) or .* --resume "):
        RunDirectory.create(tmp_path / "empty", config)
    file = tmp_path / "notes"
    file.write_text("x")
    for place in (file, file / "run"):
        with pytest.raises(NotADirectoryError, match="notes is a file: name another"):
            RunDirectory.create(place, config)
    with pytest.raises(FileNotFoundError, match="notes is a file, not a folder"):
        RunDirectory.open(file)
    assert file.read_text() == "x"


def test_only_one_of_two_processes_gets_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, both = run_of(env="CartPole-v1", device="cpu"), threading.Barrier(2)
    results: list[int | str] = []
    iterdir = Path.iterdir

    def look(folder: Path) -> list[Path]:
        entries = list(iterdir(folder))
        both.wait(10)
        return entries

    def create(seed: int) -> None:
        try:
            RunDirectory.create(tmp_path / "run", dataclasses.replace(config, seed=seed))
            results.append(seed)
        except FileExistsError as error:
            results.append(str(error))

    monkeypatch.setattr(Path, "iterdir", look)
    threads = [threading.Thread(target=create, args=[seed]) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (seed,) = (result for result in results if isinstance(result, int))
    (refusal,) = (result for result in results if isinstance(result, str))
    assert RunDirectory.open(tmp_path / "run").config().seed == seed
    assert "is not empty: name another" in refusal


def test_a_new_run_starts_in_the_same_folder_once_the_disk_has_room(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    config = run_of(env="CartPole-v1", device="cpu")
    small_disk(10)
    with pytest.raises(NotWrittenError, match="File too large"):
        RunDirectory.create(tmp_path / "run", config)
    small_disk(2**30)
    assert RunDirectory.create(tmp_path / "run", config).config() == config


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        ("/usr/bin/gpu-envs", True),
        ("gpu-envs.exe", True),
        ("/lib/gpu_envs/__main__.py", True),
        ("train.py", False),
        ("/lib/pytest/__main__.py", False),
        ("", False),
        ("-c", False),
    ],
)
def test_command_lines_of_other_programs_are_not_saved(
    program: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "word"])
    config = run_of(env="CartPole-v1", device="cpu")
    run = RunDirectory.create(tmp_path / "run", config)
    assert run.about()["commands"] == [[program, "word"]] * kept
    run.amend(config, 0)
    assert run.about()["commands"] == [[program, "word"]] * 2 * kept


@pytest.mark.slow
def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    run = RunDirectory.create(tmp_path / "run", run_of(env="CartPole-v1", device="cpu"))
    code = (
        "import sys, time; from pathlib import Path; from gpu_envs.training import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock(): print(1, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=subprocess_env()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(BlockingIOError, match=f"trained already, by process {other.pid} on "), run.lock():
            pass
        other.kill()
    before = run.about()
    with run.lock(), pytest.raises(BlockingIOError, match=f"process {os.getpid()} on "):
        resume(run, progress=False)
    assert run.about() == before
    with run.lock():
        pass


def test_total_steps_cannot_be_below_the_steps_done(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    train(small_run("cpu", total_steps=500, run_dir=str(run.path)), progress=False)  # 4 updates of 128 steps
    before = run.about()
    with pytest.raises(ValueError, match=r"total_steps is 384, but the run .* has already done 512"):
        resume(run, total_steps=384, progress=False)
    assert run.about() == before
    with pytest.warns(UserWarning, match="no step was taken"):
        assert resume(run, total_steps=385, progress=False).iterations == 4
    assert resume(run, total_steps=513, progress=False).iterations == 5


def test_a_run_too_large_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate it")

    run = str(tmp_path / "run")
    train(small_run("cpu", total_steps=1, run_dir=run), progress=False)
    monkeypatch.setattr(runs, "load_run", none_left)
    with pytest.raises(MemoryError, match="lower num_envs to 4, or horizon to 8"):
        resume(run, total_steps=1000, progress=False)
    with pytest.raises(MemoryError, match="1 replica needs more memory than is free on cpu: use smaller hidden layers"):
        evaluate(run, device="cpu")
    monkeypatch.setattr(iterations, "HorizonEnv", none_left)
    with pytest.raises(MemoryError, match="lower num_envs to 4, or horizon to 8"):
        Trainer(small_run("cpu"))


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    (latest,) = (Path(__file__).parents[1] / "recordings" / "run_format_1" / "checkpoints").iterdir()
    renamed = Path(shutil.copy(latest, tmp_path / "iteration-00000099.pt"))
    with pytest.raises(CheckpointError, match=r"its iteration is \d+, but its file name says 99"):
        load_run(renamed)


def test_a_run_of_format_1_is_evaluated_and_resumed(tmp_path: Path) -> None:
    """Its weights are unchanged; its settings get their current names."""
    old, run = Path(__file__).parents[1] / "recordings" / "run_format_1", tmp_path / "run"
    shutil.copytree(old, run)
    (latest,) = (run / "checkpoints").iterdir()
    state, trainer = load_run(latest), Trainer(RunDirectory.open(run).config())
    trainer.load(state)
    assert_same_bits(state["learners"], trainer.state()["learners"])
    environment = trainer.state()["environment"]
    params = {name: value for name, value in environment["params"].items() if name != "observe_speeds"}  # is newer
    assert_same_bits(state["environment"], {**environment, "params": params})
    assert evaluate(run, episodes=4, device="cpu")["agent"].episodes >= 4
    assert resume(run, total_steps=2 * 4 * 6, progress=False).iterations == 6
    about = RunDirectory.open(run).about()
    assert about["format"] == checkpoint.FORMAT == 2
    assert {name: about["config"][name] for name in ("gamma", "agent.gamma", "agent.learning_rate")} == {
        "gamma": 0.9,
        "agent.gamma": 0.95,
        "agent.learning_rate": "0:0.01,1:0",
    }
    assert rows_of(run / "log.csv")[:3] == rows_of(old / "log.csv")
    assert len(rows_of(run / "log.csv")) == 6


def test_other_folders_are_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "pendulum", run_of(env="Pendulum-v1", device="cpu"))
    with pytest.raises(FileNotFoundError, match=r"does not exist; .*\. Did you mean .*pendulum'"):
        RunDirectory.open(tmp_path / "pendulun")
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match=r"the run directory .*other has no config\.json"):
        RunDirectory.open(tmp_path / "other")
    for text, message in (
        ("{", "damaged"),
        ("[]", "lacks 'config'"),
        ("[" * 100_000, "is damaged: maximum recursion"),
        ('{"config": {}}', "give env"),
        ('{"config": {"env": "x"}, "format": 3}', "format 3.*reads format 2"),
        ('{"config": {"env": "x", "sed": 1}}', "'seed'"),
    ):
        (tmp_path / "other" / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            RunDirectory.open(tmp_path / "other").config()
