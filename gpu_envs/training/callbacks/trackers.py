"""Trackers: callbacks that send a run to Weights & Biases or to MLflow from a separate thread."""

import abc
import contextlib
import csv
import os
import queue
import re
import secrets
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gpu_envs.extras import extra
from gpu_envs.training.callbacks.base import Callback

_MAX_QUEUED = 10_000
"""Maximum number of rows and files that wait for a slow tracker."""


class Tracker(Callback, abc.ABC):
    """Base class of trackers: sends settings, rows of the log, evaluations, replays and checkpoints of a run.

    A population is one run, with means over its runs, and a table of them at the end.

    A thread calls ``open``, ``send``, ``send_file`` and ``close``. If one of them raises, a warning says so, and the
    run continues without the tracker; if 10,000 rows and files wait, further ones are dropped. A resumed run continues
    the tracker's run.
    """

    def __init__(self, *, checkpoints: bool = True, timeout: float = 60.0) -> None:
        """Make a tracker.

        Args:
            checkpoints: Whether to send checkpoints.
            timeout: Seconds to wait at the end of the run until everything is sent.
        """
        self._checkpoints, self._timeout = checkpoints, timeout
        self._id, self._open, self._dropped = secrets.token_hex(8), False, False

    @abc.abstractmethod
    def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:
        """Start the tracker's run ``id``, or continue it; ``folder`` is the run directory, ``settings`` are flat."""

    @abc.abstractmethod
    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Send figures, each row with its number of environment steps."""

    @abc.abstractmethod
    def send_file(self, path: Path, kind: str, steps: int) -> None:
        """Send a file, whose kind is ``checkpoint``, ``replay`` or ``table``."""

    @abc.abstractmethod
    def close(self, *, complete: bool) -> None:
        """End the tracker's run; ``complete``: without an error."""

    def on_start(self, trainer: Any) -> None:
        """Start the thread, in the first process."""
        if not trainer.is_main:
            return
        folder, settings = trainer.run_dir, trainer.config.flat()
        run = self._id, folder.name if folder else trainer.config.env, folder, settings
        self._queue: queue.Queue[tuple[Any, ...]] = queue.Queue(_MAX_QUEUED)
        self._thread, self._open = threading.Thread(target=self._work, args=run, daemon=True), True
        self._thread.start()

    def on_log(self, trainer: Any, row: Mapping[str, float]) -> None:  # noqa: ARG002
        self._put(int(row["steps"]), dict(row))

    def on_evaluation(self, trainer: Any, evaluations: Any) -> None:
        by_role = {role: evaluation.as_dict() for role, evaluation in evaluations.items()}
        values = {f"evaluation/{role}/{key}": v for role, numbers in by_role.items() for key, v in numbers.items()}
        self._put(trainer.steps, {key: v for key, v in values.items() if isinstance(v, int | float)})

    def on_file(self, trainer: Any, path: Path) -> None:
        self._put(trainer.steps, path, "table" if path.suffix == ".csv" else "replay")

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        if self._checkpoints:
            self._put(trainer.steps, path, "checkpoint")

    def on_exit(self, trainer: Any, error: BaseException | None) -> None:  # noqa: ARG002
        """Wait until everything is sent, at most ``timeout`` seconds."""
        if not self._open:
            return
        self._complete, self._open = error is None, False
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            self._warn(f"has not sent everything within {self._timeout:g} s: {self._queue.qsize()} rows and files wait")

    def state_dict(self) -> dict[str, str]:
        """Return the ID of the tracker's run."""
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Restore a result of ``state_dict``."""
        self._id = state["id"]

    def _put(self, *entry: Any) -> None:
        """Queue a row (steps and figures) or a file (steps, path and kind)."""
        if not self._open:
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            if not self._dropped:
                self._warn(f"is too slow: {_MAX_QUEUED:,} rows and files wait for it, and further ones are dropped")
            self._dropped = True

    def _work(self, *run: Any) -> None:
        """Send what is queued until the run has ended; all rows that wait are sent together."""
        try:
            self.open(*run)
            while self._open or not self._queue.empty():
                rows: list[tuple[int, Mapping[str, float]]] = []
                file: tuple[Any, ...] = ()
                with contextlib.suppress(queue.Empty):
                    while not file:
                        steps, content, *kind = self._queue.get(block=not rows, timeout=0.1)
                        file = (content, *kind, steps) if kind else ()
                        rows += [] if kind else [(steps, content)]
                if rows:
                    self.send(rows)
                if file and file[0].exists():
                    with contextlib.suppress(FileNotFoundError):  # a newer checkpoint has replaced it
                        self.send_file(*file)
            self.close(complete=self._complete)
        except Exception as error:  # noqa: BLE001
            self._open = False
            self._warn(f"stops, and the run continues without it: {type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{type(self).__name__} {text}", stacklevel=2)


@final
class WandbTracker(Tracker):
    """Sends a run to Weights & Biases; needs the extra ``wandb``."""

    def __init__(self, *, checkpoints: bool = True, timeout: float = 60.0, **options: Any) -> None:
        """Make the tracker.

        Args:
            checkpoints: As in ``Tracker``.
            timeout: As in ``Tracker``.
            **options: Arguments of ``wandb.init``, such as ``project`` (default: ``WANDB_PROJECT``, or gpu_envs) or
                ``mode="offline"``.
        """
        super().__init__(checkpoints=checkpoints, timeout=timeout)
        with extra("wandb", "wandb"):
            import wandb
        self._wandb: Any = wandb
        self._options = {"project": os.environ.get("WANDB_PROJECT", "gpu_envs"), **options}

    def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:
        given = {"id": id, "name": name, "dir": folder, "config": dict(settings), "resume": "allow"}
        given["reinit"] = "create_new"  # besides other runs of this process
        self._run: Any = self._wandb.init(**given | self._options)
        self._run.define_metric("*", step_metric="steps")

    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        for steps, values in rows:
            self._run.log({**values, "steps": steps})

    def send_file(self, path: Path, kind: str, steps: int) -> None:
        media: Any = None
        if path.suffix in (".mp4", ".gif"):
            media = self._wandb.Video(str(path), format=path.suffix[1:])
        elif path.suffix == ".html":
            media = self._wandb.Html(path.read_text("utf-8"), inject=False)
        elif kind == "table":
            with path.open(newline="") as table:
                names, *rows = csv.reader(table)
            media = self._wandb.Table(columns=names, data=rows)
        if media is not None:
            self._run.log({kind: media, "steps": steps})
        else:
            artifact = self._wandb.Artifact(f"{kind}-{self._run.id}", "model" if kind == "checkpoint" else kind)
            for file, place in _files(path, kind):
                artifact.add_file(str(file), place)
            self._run.log_artifact(artifact)

    def close(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


@final
class MLflowTracker(Tracker):
    """Sends a run to MLflow; needs the extra ``mlflow``."""

    def __init__(self, *, experiment: str | None = None, tracking_uri: str | None = None, **options: Any) -> None:
        """Make the tracker.

        Args:
            experiment: Name of the experiment; None: ``MLFLOW_EXPERIMENT_NAME``, or gpu_envs.
            tracking_uri: Address of the server; None: ``MLFLOW_TRACKING_URI``, or as MLflow's own default.
            **options: ``checkpoints`` and ``timeout``, as in ``Tracker``.
        """
        super().__init__(**options)
        with extra("mlflow", "mlflow"):
            import mlflow
        self._mlflow: Any = mlflow
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "gpu_envs")
        self._tracking_uri = tracking_uri

    def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._client: Any = self._mlflow.MlflowClient(self._tracking_uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        runs = self._client.search_runs([experiment], f"tags.gpu_envs = '{id}'")
        run = runs[0] if runs else self._client.create_run(experiment, run_name=name, tags={"gpu_envs": id})
        self._run_id = run.info.run_id
        if runs:
            self._client.update_run(self._run_id, status="RUNNING")
            return
        params = [self._mlflow.entities.Param(_plain(key), str(value)[:6000]) for key, value in settings.items()]
        for first in range(0, len(params), 100):  # a request has at most 100
            self._client.log_batch(self._run_id, params=params[first : first + 100])

    def send(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        metric, now = self._mlflow.entities.Metric, int(1e3 * time.time())
        metrics = [metric(_plain(name), v, now, steps) for steps, values in rows for name, v in values.items()]
        for first in range(0, len(metrics), 1000):  # a request has at most 1,000
            self._client.log_batch(self._run_id, metrics=metrics[first : first + 1000])

    def send_file(self, path: Path, kind: str, steps: int) -> None:  # noqa: ARG002
        for file, place in _files(path, kind):
            self._client.log_artifact(self._run_id, str(file), str(Path(place).parent).strip("."))

    def close(self, *, complete: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if complete else "FAILED")


def _plain(name: str) -> str:
    """Return a name without characters that MLflow does not allow."""
    return re.sub(r"[^\w\-./: ]", "_", name)


def _files(path: Path, kind: str) -> list[tuple[Path, str]]:
    """Return the files to send, with their paths there: a checkpoint's files make a run directory, without buffers."""
    if kind != "checkpoint":
        return [(path, f"{kind}/{path.name}")]
    return [(path.parents[1] / "config.json", "config.json"), (path, f"checkpoints/{path.name}")]
