"""Trackers: callbacks that send a run to Weights & Biases or to MLflow, from a thread of their own."""

import abc
import atexit
import os
import queue
import re
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from gpu_envs.extras import extra
from gpu_envs.training.callbacks.base import Callback

_MAX_QUEUED = 1000
"""Number of rows and files that wait for a slow tracker before it is given up."""


class Tracker(Callback, abc.ABC):
    """Base class of trackers: sends settings, rows of the log, evaluations, replays and checkpoints of a run.

    A thread calls ``open``, ``send``, ``send_file`` and ``close`` in order. If one of them raises, or a thousand rows
    wait for it, a warning says so and the run continues without the tracker. A resumed run continues the tracker's run.
    """

    def __init__(self, *, checkpoints: bool = True, timeout: float = 60.0) -> None:
        """Make a tracker.

        Args:
            checkpoints: Whether to send checkpoints.
            timeout: Seconds to wait at the end of the run until everything is sent.
        """
        self._checkpoints, self._timeout = checkpoints, timeout
        self._id, self._failed = secrets.token_hex(8), True
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:
        """Start the tracker's run ``id``, or continue it; ``folder`` is the run directory, ``settings`` are flat."""

    @abc.abstractmethod
    def send(self, values: Mapping[str, float], steps: int) -> None:
        """Send figures after a number of environment steps."""

    @abc.abstractmethod
    def send_file(self, path: Path, kind: str, steps: int) -> None:
        """Send a file, whose kind is ``checkpoint`` or ``replay``."""

    @abc.abstractmethod
    def close(self, *, complete: bool) -> None:
        """End the tracker's run; ``complete``: without an error."""

    def on_start(self, trainer: Any) -> None:
        """Start the thread, in the first process."""
        if not trainer.is_main:
            return
        self._queue: queue.Queue[Any] = queue.Queue(_MAX_QUEUED)
        self._thread, self._failed = threading.Thread(target=self._work, daemon=True), False
        self._thread.start()
        atexit.register(self._finish, complete=False)
        folder = trainer.run_dir
        self._put(self.open, self._id, folder.name if folder else trainer.config.env, folder, trainer.config.flat())

    def on_log(self, trainer: Any, row: Mapping[str, float]) -> None:
        self._put(self.send, dict(row), trainer.config.steps_at(row["iteration"]))

    def on_evaluation(self, trainer: Any, evaluations: Any) -> None:
        by_role = {role: evaluation.as_dict() for role, evaluation in evaluations.items()}
        values = {f"evaluation/{role}/{key}": v for role, numbers in by_role.items() for key, v in numbers.items()}
        self._put(self.send, {key: v for key, v in values.items() if isinstance(v, int | float)}, trainer.steps)

    def on_file(self, trainer: Any, path: Path) -> None:
        self._put(self.send_file, path, "replay", trainer.steps)

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        if self._checkpoints:
            self._put(self.send_file, path, "checkpoint", trainer.steps)

    def on_end(self, trainer: Any, result: Any) -> None:  # noqa: ARG002
        """Wait until everything is sent, at most ``timeout`` seconds."""
        self._finish(complete=True)

    def state_dict(self) -> dict[str, str]:
        """Return the ID of the tracker's run."""
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Restore a result of ``state_dict``."""
        self._id = state["id"]

    def _put(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        if self._failed:
            return
        try:
            self._queue.put_nowait((function, args, options))
        except queue.Full:
            self._fail(f"{_MAX_QUEUED} rows and files wait for it")

    def _work(self) -> None:
        function: Callable[..., None] = self.send
        while function != self.close and not self._failed:
            function, args, options = self._queue.get()
            try:
                function(*args, **options)
            except Exception as error:  # noqa: BLE001
                self._fail(f"{type(error).__name__}: {error}")

    def _finish(self, *, complete: bool) -> None:
        """Let the thread close the tracker's run, and wait for it."""
        if self._thread is None:
            return
        atexit.unregister(self._finish)
        self._put(self.close, complete=complete)
        self._thread.join(0.0 if self._failed else self._timeout)
        if not self._failed and self._thread.is_alive():
            self._fail(f"{self._queue.qsize()} rows and files were not sent within {self._timeout:g} s")

    def _fail(self, reason: str) -> None:
        self._failed = True
        warnings.warn(f"{type(self).__name__} stops, and the run continues without it: {reason}", stacklevel=2)


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
        self._run: Any = self._wandb.init(**given | self._options)
        self._run.define_metric("*", step_metric="steps")

    def send(self, values: Mapping[str, float], steps: int) -> None:
        self._run.log({**values, "steps": steps})

    def send_file(self, path: Path, kind: str, steps: int) -> None:
        if path.suffix in (".mp4", ".gif"):
            self.send({kind: self._wandb.Video(str(path), format=path.suffix[1:])}, steps)
        elif path.suffix == ".html":
            self.send({kind: self._wandb.Html(path.read_text("utf-8"), inject=False)}, steps)
        elif path.exists():  # else a newer checkpoint has replaced it
            artifact = self._wandb.Artifact(f"{kind}-{self._run.id}", "model" if kind == "checkpoint" else kind)
            artifact.add_file(str(path))
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
        params = [self._mlflow.entities.Param(key, str(value)[:6000]) for key, value in settings.items()]
        for first in range(0, len(params), 100):  # a request has at most 100
            self._client.log_batch(self._run_id, params=params[first : first + 100])

    def send(self, values: Mapping[str, float], steps: int) -> None:
        names, now = (
            {re.sub(r"[^\w\-./: ]", "_", name): value for name, value in values.items()},
            int(1e3 * time.time()),
        )
        metrics = [self._mlflow.entities.Metric(name, value, now, steps) for name, value in names.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def send_file(self, path: Path, kind: str, steps: int) -> None:  # noqa: ARG002
        if path.exists():  # else a newer checkpoint has replaced it
            self._client.log_artifact(self._run_id, str(path), kind)

    def close(self, *, complete: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if complete else "FAILED")
