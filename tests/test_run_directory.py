"""What a run keeps on the disk: configuration, log, TensorBoard events, checkpoints; and its line on the terminal."""

import csv
import io
import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import with_package

import gpu_envs
from gpu_envs.training.config import Config
from gpu_envs.training.schedule import Schedule

torch = pytest.importorskip("torch")

from gpu_envs.training import checkpoint, events, progress, run_directory, runs  # noqa: E402 - they import torch
from gpu_envs.training.checkpoint import CheckpointError, Checkpoints, check_fits  # noqa: E402
from gpu_envs.training.log import RunLog  # noqa: E402
from gpu_envs.training.progress import Progress  # noqa: E402
from gpu_envs.training.run_directory import RunDirectory  # noqa: E402
from gpu_envs.training.runs import evaluate, resume, train  # noqa: E402

# --- checkpoints ---


def test_a_payload_comes_back_as_it_was(tmp_path: Path) -> None:
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
    # a view does not drag its storage along: 6 of 1000 floats
    assert found["weights"]["a"].untyped_storage().nbytes() == 6 * 4


@pytest.mark.parametrize("wrong", [object(), {1, 2}, b"bytes", {"deep": [lambda: 0]}, {(1, 2): 3}, 1j])
def test_what_a_checkpoint_cannot_hold_is_refused_and_harms_nothing(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "one.pt"
    checkpoint.save(path, {"good": 1})
    with pytest.raises(TypeError, match=r"payload.*checkpoint"):
        checkpoint.save(path, {"wrong": wrong})
    assert checkpoint.load(path) == {"good": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["one.pt"]


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


def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"iteration": 1})

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            checkpoints.save(2, {"iteration": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-00000001.pt"]
    (tmp_path / "iteration-00000002.pt.partial").write_bytes(b"what a killed writer leaves")
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoint.load(latest) == {"iteration": 1}
    checkpoints.save(3, {"iteration": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-00000003.pt"]


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "made later", keep=3)
    assert checkpoints.latest() is None
    assert checkpoints.paths() == []
    for iteration in (5, 99_999_999, 100_000_000, 7):  # numbers, not names, decide which is newer
        checkpoints.save(iteration, {})
    (checkpoints.folder / "iteration-x.pt").touch()
    assert [checkpoint.iteration_of(path) for path in checkpoints.paths()] == [7, 99_999_999, 100_000_000]
    assert checkpoints.latest() == checkpoints.folder / "iteration-100000000.pt"
    with pytest.raises(ValueError, match="at least one"):
        Checkpoints(tmp_path, keep=0)


KILLED = """
import os, pathlib, random, signal, sys, time, torch
from gpu_envs.training.checkpoint import Checkpoints, iteration_of, load
folder = pathlib.Path(sys.argv[1])
checkpoints, rounds = Checkpoints(folder, keep=2), random.Random(0)
checkpoints.save(0, {"iteration": 0, "data": torch.full((200_000,), 0.0)})
partial = 0
for _ in range(20):
    first = iteration_of(checkpoints.latest())
    child = os.fork()
    if child == 0:
        for iteration in range(first + 1, 10_000_000):
            checkpoints.save(iteration, {"iteration": iteration, "data": torch.full((200_000,), float(iteration))})
    time.sleep(rounds.uniform(0.005, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    partial += bool(list(folder.glob("*.partial")))
    for path in checkpoints.paths():
        found = load(path)
        assert found["iteration"] == iteration_of(path) and (found["data"] == found["iteration"]).all(), path
# Those killed between writing and pruning left more than two; one writer that lives tidies up after all of them.
last = iteration_of(checkpoints.latest())
checkpoints.save(last + 1, {})
assert [iteration_of(path) for path in checkpoints.paths()] == [last, last + 1]
assert len(list(folder.iterdir())) == 2
print(partial, last)
"""


def test_killed_in_the_middle_of_writing(tmp_path: Path) -> None:
    """Twenty writers are killed at random moments; every checkpoint that has its name is whole."""
    code = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = with_package(OMP_NUM_THREADS="1")
    done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    caught_writing, last = map(int, done.stdout.split())
    assert caught_writing > 0, "no writer was killed in the middle of a write"
    assert last > 0


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_file_is_named_with_the_one_before(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    old, new = (checkpoints.save(iteration, {"data": torch.arange(10_000)}) for iteration in (3, 8))
    data = bytearray(new.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1  # inside the tensor: torch itself would read it without a word
    cut = data[: len(data) // 2]
    new.write_bytes(bytes({"cut": cut, "flipped": data, "empty": b"", "text": b"hello\n" * 99}[damage]))
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


def test_no_code_is_run(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    torch.save({"version": 1, "kind": "training", "payload": Malice()}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoint.load(path)
    torch.save({"model": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of gpu_envs"):
        checkpoint.load(path)
    torch.save({"version": 99, "kind": "training", "payload": {}}, path)
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.load(path)
    checkpoint.save(path, {}, kind="policy")
    assert checkpoint.load(path, kind="policy") == {}
    with pytest.raises(CheckpointError, match="kind 'policy'; expected 'training'"):
        checkpoint.load(path)


def test_everything_that_does_not_fit_is_named() -> None:
    shape = {"num_envs": 4096, "shape of a": [64, 4], "params": {"force": 1.0}, "same": "x"}
    check_fits(shape, dict(shape) | {"shape of a": (64, 4)})  # JSON makes lists of tuples
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


# --- the folder ---


def test_a_run_keeps_what_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu-envs", "train", "CartPole-v1"])
    config = Config(
        env="CartPole-v1", learning_rate=Schedule.of(1 / 3), params={"gravity": 9.0}, hidden=(8, 8), device="cpu"
    )
    run = RunDirectory.create(tmp_path / "a" / "b", config)
    again = RunDirectory.open(str(run.path))
    assert again.config() == config  # to the last bit of the learning rate
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
    longer = Config.from_json(config.to_json() | {"total_steps": 5})
    again.amend(longer)
    assert run.config() == longer
    assert [line[2] for line in run.about()["commands"]] == ["CartPole-v1", "--resume"]


def test_parameters_of_each_replica_are_kept(tmp_path: Path) -> None:
    config = Config(env="CartPole-v1", num_envs=2, params={"gravity": np.array([9.0, 9.5])}, device="cpu")
    run = RunDirectory.create(tmp_path / "run", config)
    assert run.config().params == {"gravity": [9.0, 9.5]}


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "-20250131-120000")
    config = Config(env="gpu_envs/CartPole-v1", device="cpu")
    names = [RunDirectory.create(None, config, root=tmp_path / "runs").path.name for _ in range(3)]
    assert names == [f"CartPole-v1-20250131-120000{end}" for end in ("", "-2", "-3")]


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    config = Config(env="CartPole-v1", device="cpu")
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", config)
    with pytest.raises(FileExistsError, match="--resume"):
        RunDirectory.create(tmp_path / "empty", config)


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_is_no_folder(below: str, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("x")
    with pytest.raises(NotADirectoryError, match="notes is a file: name another"):
        RunDirectory.create(file / below, Config(env="CartPole-v1", device="cpu"))
    with pytest.raises(FileNotFoundError, match="notes is a file, not a folder"):
        RunDirectory.open(file)
    assert file.read_text() == "x"


@pytest.mark.parametrize(
    ("program", "kept"),
    [("/usr/bin/gpu-envs", True), ("gpu-envs.exe", True), ("/lib/gpu_envs/__main__.py", True), ("train.py", False),
     ("/lib/pytest/__main__.py", False), ("", False), ("-c", False)],
)  # fmt: skip
def test_command_lines_of_other_programs_are_not_kept(
    program: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "word"])
    config = Config(env="CartPole-v1", device="cpu")
    run = RunDirectory.create(tmp_path / "run", config)
    assert run.about()["commands"] == [[program, "word"]] * kept
    run.amend(config)
    assert run.about()["commands"] == [[program, "word"]] * 2 * kept


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    run = RunDirectory.create(tmp_path / "run", Config(env="CartPole-v1", device="cpu"))
    code = (
        "import sys, time; from pathlib import Path; from gpu_envs.training import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock(): print(1, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=with_package()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(BlockingIOError, match=f"trained already, by process {other.pid} on "), run.lock():
            pass
        other.kill()
    with run.lock(), pytest.raises(BlockingIOError, match=f"process {os.getpid()} on "), run.lock():
        pass
    with run.lock():
        pass


def test_a_run_in_training_cannot_be_resumed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    run = RunDirectory.create(tmp_path / "run", Config(env="CartPole-v1", device="cpu"))
    before = run.about()
    with run.lock(), pytest.raises(BlockingIOError, match="trained already"):
        resume(run, progress=False)
    assert run.about() == before


def test_a_run_cannot_end_before_where_it_is(tmp_path: Path) -> None:
    few: dict[str, Any] = {"num_envs": 8, "horizon": 16, "hidden": (8,), "threads": 1, "device": "cpu"}
    run = RunDirectory(tmp_path / "run")
    train(Config(env="CartPole-v1", total_steps=500, run_dir=str(run.path), **few), progress=False)  # 4 updates of 128
    before = run.about()
    with pytest.raises(ValueError, match=r"total_steps is 384, and the run .* has done 512 already"):
        resume(run, total_steps=384, progress=False)
    assert run.about() == before
    assert resume(run, total_steps=385, progress=False).iterations == 4
    assert resume(run, total_steps=513, progress=False).iterations == 5


def test_a_checkpoint_too_large_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise MemoryError("Unable to allocate it")

    few: dict[str, Any] = {"num_envs": 8, "horizon": 16, "hidden": (8,), "threads": 1, "device": "cpu"}
    run = str(tmp_path / "run")
    train(Config(env="CartPole-v1", total_steps=1, run_dir=run, **few), progress=False)
    monkeypatch.setattr(runs, "load", none_left)
    with pytest.raises(MemoryError, match="lower num_envs to 4, or horizon to 8"):
        resume(run, total_steps=1000, progress=False)
    with pytest.raises(MemoryError, match="1 replica needs more than there is on cpu: use smaller hidden layers"):
        evaluate(run, device="cpu")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "pendulum", Config(env="Pendulum-v1", device="cpu"))
    with pytest.raises(FileNotFoundError, match=r"does not exist\. Did you mean .*pendulum'"):
        RunDirectory.open(tmp_path / "pendulun")
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match=r"the run directory .*other has no config\.json"):
        RunDirectory.open(tmp_path / "other")
    for text, message in (("{", "damaged"), ("[]", "lacks 'config'"), ('{"config": {"env": "x", "sed": 1}}', "'seed'")):
        (tmp_path / "other" / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            RunDirectory.open(tmp_path / "other").config()


def test_the_device_has_a_name() -> None:
    assert run_directory.device_name("cpu")


# --- the log ---


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(log: RunLog, iterations: range) -> None:
    for iteration in iterations:
        record = {"return": iteration / 3, "loss, a": -1e-9 * iteration, "count": iteration}
        log.write(iteration, 100 * iteration, record, seconds=iteration / 2)


def test_numbers_in_the_log_read_back_exactly(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.csv")
    log.write(1, 100, {"return": 1 / 3, "loss, a": float(np.float32(0.1)), "nan": math.nan, "whole": 7})
    log.write(2, 200, {"return": 1e300})
    first, second = rows(log.path)  # flushed, though not closed
    assert list(first) == ["iteration", "steps", "seconds", "return", "loss, a", "nan", "whole"]
    assert (float(first["return"]), float(first["loss, a"])) == (1 / 3, float(np.float32(0.1)))
    assert (first["nan"], first["whole"]) == ("nan", "7")
    assert (second["return"], second["loss, a"], second["whole"]) == ("1e+300", "", "")
    assert 0 <= float(first["seconds"]) <= float(second["seconds"]) < 60
    with pytest.raises(ValueError, match=r"no column 'retrun'\. Did you mean 'return'"):
        log.write(3, 300, {"retrun": 1.0})
    assert len(rows(log.path)) == 2
    log.close()
    with pytest.raises(ValueError, match="'steps' of its own"):
        RunLog(tmp_path / "other.csv").write(1, 1, {"steps": 1.0})


@pytest.mark.parametrize("cut", ["", "9,900,4.5,3.0", '9,900,4.5,3.0,"-1e'])
def test_a_resumed_log_equals_an_uninterrupted_one(tmp_path: Path, cut: str) -> None:
    whole = RunLog(tmp_path / "whole" / "log.csv")
    parts = RunLog(tmp_path / "parts" / "log.csv")
    for log in (whole, parts):
        log.path.parent.mkdir()
    write(whole, range(1, 13))
    whole.close()
    write(parts, range(1, 9))
    parts.close()
    with parts.path.open("a") as file:
        file.write(cut)  # the process was killed while it wrote this row
    again = RunLog(parts.path)
    again.resume(5)
    write(again, range(6, 13))
    again.close()
    assert parts.path.read_bytes() == whole.path.read_bytes()
    written = [decoded(path) for path in sorted(parts.path.parent.glob("events*"))]
    assert len(written) == 2
    assert counting(written) == counting([decoded(path) for path in whole.path.parent.glob("events*")])


def test_time_goes_on_in_a_resumed_log(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.csv")
    log.write(1, 10, {"a": 1.0}, seconds=1000.0)
    log.close()
    again = RunLog(log.path)
    again.resume(1)
    again.write(2, 20, {"a": 1.0})
    again.close()
    assert 1000 <= float(rows(log.path)[1]["seconds"]) < 1060


def test_a_log_resumed_before_its_first_row_starts_anew(tmp_path: Path) -> None:
    for kept in (False, True):
        log = RunLog(tmp_path / "log.csv")
        log.resume(0)
        assert rows(log.path) == []
        log.write(1, 10, {"b" if kept else "a": 1.0})
        log.close()
    assert list(rows(log.path)[0])[3:] == ["b"]
    assert counting([decoded(path) for path in sorted(tmp_path.glob("events*"))]) == {(10, "b"): 1.0}


# --- TensorBoard ---


def crc32c_bit_by_bit(data: bytes) -> int:
    """The same polynomial written the other way round, unlike the table: 0x1EDC6F41 over mirrored bits."""
    bits = [byte >> at & 1 for byte in data for at in range(8)]
    register = 0xFFFFFFFF
    for bit in bits:
        top = register >> 31 ^ bit
        register = (register << 1 & 0xFFFFFFFF) ^ (0x1EDC6F41 if top else 0)
    return int(f"{register ^ 0xFFFFFFFF:032b}"[::-1], 2)


def messages(data: bytes) -> list[tuple[int, Any]]:
    """The members of a protocol buffer: numbers, and bytes or integers."""
    members: list[tuple[int, Any]] = []
    stream = io.BytesIO(data)

    def varint() -> int:
        value = shift = 0
        while True:
            (byte,) = stream.read(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while stream.tell() < len(data):
        key = varint()
        kind = key & 7
        size = {1: 8, 5: 4}.get(kind)
        members.append((key >> 3, varint() if kind == 0 else stream.read(varint() if kind == 2 else size)))
        assert kind in (0, 1, 2, 5)
    return members


def decoded(path: Path) -> list[dict[int, Any]]:
    data, events_found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        for part, at in ((data[:8], 8), (record, 12 + length)):
            checksum = crc32c_bit_by_bit(part)
            masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32
            assert struct.unpack("<I", data[at : at + 4]) == (masked,)
        events_found.append(dict(messages(record)))
        data = data[16 + length :]
    return events_found


def scalars(event: Mapping[int, Any]) -> dict[str, float]:
    values = [dict(messages(value)) for number, value in messages(event.get(5, b"")) if number == 1]
    return {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}


def counting(files: list[list[dict[int, Any]]]) -> dict[tuple[int, str], float]:
    """What TensorBoard shows: a session's start makes it forget events from that step on."""
    shown: dict[tuple[int, str], float] = {}
    for event in (event for file in files for event in file):
        if 7 in event:
            assert messages(event[7]) == [(1, 1)]
            shown = {key: value for key, value in shown.items() if key[0] < event[2]}
        shown |= {(event[2], tag): value for tag, value in scalars(event).items()}
    return shown


def test_the_checksum_is_castagnolis() -> None:
    assert events.crc32c(b"123456789") == 0xE3069283  # the check value of the catalogue of CRCs
    assert events.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    for length in range(40):
        data = os.urandom(length)
        assert events.crc32c(data) == crc32c_bit_by_bit(data)


def test_events_decode(tmp_path: Path) -> None:
    before = time.time()
    writer = events.EventWriter(tmp_path / "new")
    values = {"return/läufer": 1.5, "nan": math.nan, "huge": 1e300, "low": -1e300, "zero": 0.0}
    writer.scalars(0, values)
    writer.scalars(2**40, {f"tag {number}": float(number) for number in range(300)})
    writer.flush()
    first, second, third = decoded(writer.path)
    writer.close()
    assert first[3] == b"brain.Event:2"
    assert before <= struct.unpack("<d", first[1])[0] <= time.time()
    found = scalars(second)
    assert math.isnan(found.pop("nan"))
    assert found == {"return/läufer": 1.5, "huge": math.inf, "low": -math.inf, "zero": 0.0}
    assert third[2] == 2**40
    assert scalars(third) == {f"tag {number}": float(number) for number in range(300)}
    second_file = events.EventWriter(tmp_path / "new")
    with pytest.raises(ValueError, match="negative"):
        second_file.scalars(-1, {})
    second_file.close()
    assert len(sorted((tmp_path / "new").iterdir())) == 2


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = RunLog(tmp_path / "log.csv")
    write(log, range(1, 9))
    log.close()
    again = RunLog(log.path)
    again.resume(5)
    write(again, range(6, 8))
    again.close()
    shown = accumulator.EventAccumulator(str(tmp_path))
    shown.Reload()
    assert sorted(shown.Tags()["scalars"]) == ["count", "loss, a", "return"]
    assert [(event.step, event.value) for event in shown.Scalars("count")] == [(100 * i, i) for i in range(1, 8)]


# --- the bar ---


class Terminal(io.StringIO):
    """A terminal of 80 columns, or of as many as the environment says."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What stands on the screen: a carriage return writes over what is there."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_bar_says_how_far_it_is(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    bar = Progress(1_000_000, stream=terminal)
    bar.update(250_000, 1.2e4, {"agent": 123.456})
    (line,) = terminal.lines()
    assert all(part in line for part in (" 25%", "12.0 k steps/s", "return 123.5", "1:03 left"))
    assert len(line) < 100
    clock[0] += 1
    bar.update(1_000_000, 1.2e6, {"tagger": 1.0, "runner": -2.0})
    (line,) = terminal.lines()  # the rests of the longer line are gone
    assert all(part in line for part in ("100%", "1.2 M steps/s", "tagger 1", "runner -2", "0s left"))
    bar.note("a note")
    assert terminal.lines() == ["a note", line]
    bar.close()
    assert terminal.lines() == ["a note", line, ""]
    bar.close()
    bar.update(1_000_000, 1.0, {})
    assert terminal.lines() == ["a note", line, ""]


def test_the_bar_is_drawn_ten_times_a_second(clock: list[float]) -> None:
    terminal = Terminal()
    bar = Progress(1000, stream=terminal)
    for step in range(1000):
        clock[0] = step / 1000
        bar.update(step, 1.0, {})
    assert 9 <= terminal.getvalue().count("\r") <= 10
    bar.update(1000, 1.0, {})
    assert "100%" in terminal.lines()[0]  # the last one is never left out


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 60, 80, 200])
def test_the_bar_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    bar = Progress(10**9, stream=terminal)
    bar.update(123_456_789, 98_765_432.1, {f"role {number}": 1000.123 * number for number in range(5)})
    assert len(terminal.lines()[0]) <= max(1, columns - 1)
    bar.update(10**9, 0.0, {"agent": math.nan})
    bar.close()


def test_nothing_is_drawn_into_a_pipe() -> None:
    for quiet, drawn, noted in ((None, False, True), (True, False, False), (False, True, True)):
        pipe = io.StringIO()
        bar = Progress(10, quiet, pipe)
        bar.update(5, 1.0, {"agent": 1.0})
        assert ("50%" in pipe.getvalue()) == drawn
        bar.note("a note")
        assert ("a note\n" in pipe.getvalue()) == noted
        bar.close()
    assert Terminal().isatty()
    quiet_terminal = Terminal()
    Progress(10, True, quiet_terminal).update(10, 1.0, {})
    assert quiet_terminal.getvalue() == ""


def test_a_terminal_that_knows_no_blocks_gets_a_bar_too() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    bar = Progress(10, False, stream)
    bar.update(5, 1.0, {})
    bar.close()
    assert b"##" in raw.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.0 k"),
        (1234, "1.2 k"),
        (123_456, "123 k"),
        (999_950, "1.0 M"),
        (2.5e9, "2.5 G"),
    ],
)
def test_amounts(value: float, text: str) -> None:
    assert progress.amount(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (59.5, "1:00"), (3599, "59:59"), (3723, "1:02:03"), (math.inf, "?")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text
