"""Trackers: what they send, to real runs of Weights & Biases and MLflow, and that they never stop or slow a run."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from trainers import rows_of, small_run

torch = pytest.importorskip("torch")

from gpu_envs.cli import OK, main  # noqa: E402
from gpu_envs.replays import RecordReplays  # noqa: E402
from gpu_envs.training import Trainer, resume, train  # noqa: E402
from gpu_envs.training.callbacks import MLflowTracker, Tracker, WandbTracker, trackers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 8 * 16 * 12


class Notes(Tracker):
    """Notes what it is to send."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent: list[Any] = []
        self.names: set[str] = set()

    def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.sent.append(("open", id, name, folder, settings["learning_rate"]))

    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        self.sent += [("values", steps, dict(values)) for steps, values in rows]

    def send_file(self, path: Path, kind: str, steps: int) -> None:
        assert path.is_file()
        self.sent.append((kind, path.name, steps))

    def close(self, *, complete: bool) -> None:
        self.sent.append(("close", complete))


class Evaluator:
    """Evaluates after the sixth iteration."""

    def on_iteration(self, trainer: Trainer, report: Any) -> None:
        if report.iteration == 6:
            trainer.evaluate(20)


def test_what_is_sent(tmp_path: Path) -> None:
    """Rows of the log, evaluations, replays and checkpoints, in order; a resumed run continues the tracker's."""
    config = small_run("cpu", run_dir=str(tmp_path / "run"), total_steps=STEPS, log_interval=4, checkpoint_interval=8)
    notes = Notes()
    train(config, callbacks=[Evaluator(), RecordReplays(every=8, replicas=1, steps=3), notes], progress=False)
    opened, *sent, closed = notes.sent
    assert opened[2:] == ("run", tmp_path / "run", str(config.algorithm.learning_rate))
    assert closed == ("close", True)
    files = [entry for entry in sent if entry[0] != "values"]
    assert files == [
        ("checkpoint", "iteration-00000008.pt", 8 * 128),
        ("replay", "iteration-00000009.html", 9 * 128),
        ("checkpoint", "iteration-00000012.pt", STEPS),
        ("replay", "iteration-00000012.html", STEPS),
    ]
    values = [(steps, row) for kind, steps, row in sent if kind == "values"]
    rows = [(steps, row) for steps, row in values if "iteration" in row]
    assert [steps for steps, _ in rows] == [512, 1024, 1536]
    for (_, row), written in zip(rows, rows_of(tmp_path / "run" / "log.csv"), strict=True):
        assert {name: repr(row[name]) for name in ("return", "kl")} == {n: written[n] for n in ("return", "kl")}
    ((at, evaluated),) = [entry for entry in values if entry not in rows]
    assert at == 7 * 128
    assert evaluated["evaluation/agent/episodes"] == 20
    later = Notes()
    resume(tmp_path / "run", callbacks=[later], progress=False, total_steps=2 * STEPS)
    assert later.sent[0][1] == opened[1]


def test_without_a_run_directory() -> None:
    notes = Notes(checkpoints=False)
    train(small_run("cpu", total_steps=STEPS, log_interval=6), callbacks=[notes], progress=False)
    assert [entry[0] for entry in notes.sent] == ["open", "values", "values", "close"]


class Failing(Notes):
    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:  # noqa: ARG002
        raise ConnectionError("the server is gone")


class Blocking(Notes):
    """Sends nothing until ``released``."""

    def __init__(self) -> None:
        super().__init__(timeout=0.05)
        self.released = threading.Event()

    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:  # noqa: ARG002
        self.released.wait(60)


def test_a_tracker_that_fails_is_reported_once() -> None:
    failing = Failing()
    with pytest.warns(
        UserWarning, match="Failing stops, and the run continues without it: ConnectionError: the server is gone"
    ) as caught:
        result = train(small_run("cpu", total_steps=STEPS, log_interval=1), callbacks=[failing], progress=False)
    assert (result.reason, len(caught)) == ("total_steps", 1)
    assert [entry[0] for entry in failing.sent] == ["open"]


@pytest.mark.parametrize("queued", [100, 5])
def test_a_tracker_that_blocks_does_not_stop_the_run(queued: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end the run waits for ``timeout``; rows beyond a maximum number are dropped."""
    monkeypatch.setattr(trackers, "_MAX_QUEUED", queued)
    blocking = Blocking()
    with pytest.warns(UserWarning, match="Blocking") as caught:
        result = train(small_run("cpu", total_steps=128 * 20, log_interval=1), callbacks=[blocking], progress=False)
    assert result.reason == "total_steps"
    texts = [str(warning.message) for warning in caught]
    assert [text for text in texts if "is too slow: 5 rows" in text] == texts[: queued == 5]
    assert "Blocking has not sent everything within 0.05 s" in texts[-1]
    assert len(texts) == 1 + (queued == 5)
    blocking.released.set()


class Stopper:
    def on_iteration(self, _trainer: Trainer, report: Any) -> None:
        if report.iteration == 3:
            raise ValueError("a mistake")


def test_rows_before_an_error_are_sent() -> None:
    """Another callback ends the run by an exception."""
    notes = Notes()
    with pytest.raises(ValueError, match="a mistake"):
        train(small_run("cpu", total_steps=STEPS, log_interval=1), callbacks=[Stopper(), notes], progress=False)
    assert [entry[0] for entry in notes.sent] == ["open", "values", "values", "values", "close"]
    assert notes.sent[-1] == ("close", False)


def test_slow_trackers_get_several_rows_at_once() -> None:
    counts = []

    class Slow(Notes):
        def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
            counts.append(len(rows))
            time.sleep(0.2)

    train(small_run("cpu", total_steps=128 * 30, log_interval=1), callbacks=[Slow()], progress=False)
    assert sum(counts) == 30
    assert max(counts) > 2


def wandb_records(file: Path) -> Iterator[Any]:
    """Yields the records of an offline run: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2 as protobuf

    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 2**15 - position % 2**15 < 7:  # the rest of a block is empty
            position += 2**15 - position % 2**15
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # complete, or the last part
            record: Any = protobuf.Record()  # type: ignore[attr-defined]
            record.ParseFromString(parts)
            yield record
            parts = b""


def finished_wandb_records(file: Path) -> list[Any]:
    """Returns the records of an offline run when the last one is there: another process writes them."""
    protobuf: Any = pytest.importorskip("google.protobuf.message")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(protobuf.DecodeError):  # of a record that is not complete yet
            records = [*wandb_records(file)]
            if any(record.HasField("exit") for record in records):
                return records
        time.sleep(0.05)
    raise TimeoutError(f"{file} has no record of the run's end")


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--track wandb``, read back from the file of the offline run."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ["train", "CartPole-v1", "--preset=none", "--num-envs=8", "--horizon=16", "--device=cpu", "--run-dir=run"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of wandb's sockets
        assert main([*words, f"--total-steps={STEPS}", "--log-interval=4", "--no-progress", "--track=wandb"]) == OK
    (file,) = Path("run/wandb").glob("offline-*/*.wandb")
    records = finished_wandb_records(file)
    (run,) = [record.run for record in records if record.HasField("run")]
    settings = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert (run.display_name, settings["num_envs"], settings["env"]) == ("run", 8, "CartPole-v1")
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    logged = [row for row in rows if "return" in row]
    assert [row["steps"] for row in logged] == [512, 1024, 1536]
    assert [repr(row["return"]) for row in logged] == [row["return"] for row in rows_of(Path("run/log.csv"))]
    assert any("html-file" in json.dumps(row.get("replay", row)) for row in rows)
    artifacts = [r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")]
    artifacts += [record.artifact for record in records if record.HasField("artifact")]
    assert [entry.path for artifact in artifacts for entry in artifact.manifest.contents] == [
        "checkpoints/iteration-00000012.pt",
        "config.json",
    ]


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Starts a server with a database in a folder; returns its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store, address = f"sqlite:///{folder}/mlflow.db", f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--backend-store-uri", store]
    words += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health") as answer:
                if answer.status == 200:
                    break
            assert server.poll() is None
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, 15)
        server.wait()


@pytest.mark.slow
def test_mlflow_server(tmp_path: Path) -> None:
    """A run and its continuation, read back from a server."""
    mlflow = pytest.importorskip("mlflow")
    config = small_run("cpu", run_dir=str(tmp_path / "run"), total_steps=STEPS, log_interval=4)
    with mlflow_server(tmp_path) as address:
        tracker = MLflowTracker(tracking_uri=address, experiment="poles")
        train(config, callbacks=[Evaluator(), RecordReplays(replicas=1, steps=3), tracker], progress=False)
        again = MLflowTracker(tracking_uri=address, experiment="poles")
        resume(tmp_path / "run", callbacks=[again], progress=False, total_steps=2 * STEPS)
        client = mlflow.MlflowClient(address)
        (run,) = client.search_runs([client.get_experiment_by_name("poles").experiment_id])
        history = client.get_metric_history(run.info.run_id, "return")
        artifacts = [
            file.path
            for folder in ("checkpoints", "replay", "")
            for file in client.list_artifacts(run.info.run_id, folder)
        ]
    assert (run.info.run_name, run.info.status, run.data.params["hidden"]) == ("run", "FINISHED", "[16, 16]")
    assert run.data.metrics["evaluation/agent/episodes"] == 20
    written = [(int(row["steps"]), float(row["return"])) for row in rows_of(tmp_path / "run" / "log.csv")]
    assert [(metric.step, metric.value) for metric in history] == written
    names = [f"checkpoints/iteration-000000{n}.pt" for n in (12, 24)]
    assert artifacts == [*names, "replay/iteration-00000012.html", "checkpoints", "config.json", "replay"]


@pytest.mark.parametrize(("tracker", "module"), [(WandbTracker, "wandb"), (MLflowTracker, "mlflow")])
def test_a_missing_library_is_named(tracker: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"gpu_envs\[{module}\]"):
        tracker()


def test_an_unknown_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--track", "wandbb"]) == 2
    assert "'wandbb' is no tracker. Did you mean 'wandb'? There are: wandb, mlflow" in capsys.readouterr().err
