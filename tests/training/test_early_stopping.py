"""Early stopping."""

import math
from pathlib import Path
from typing import Any

import pytest
from trainers import rows_of, small_run

torch = pytest.importorskip("torch")

from gpu_envs.training import resume, train  # noqa: E402
from gpu_envs.training.callbacks import EarlyStopping  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def stops_at(stopping: EarlyStopping, figures: list[float]) -> int | None:
    reasons = [stopping.on_iteration(None, {"return": figure}) for figure in figures]
    return next((k for k, reason in enumerate(reasons) if reason), None)


def test_it_counts_iterations_without_a_better_figure() -> None:
    figures = [math.nan, 1.0, 2.0, 2.0, 1.5, 2.5, 2.4, 2.5, 2.5]
    assert stops_at(EarlyStopping(2), figures) == 4
    assert stops_at(EarlyStopping(3), figures) == 8
    assert stops_at(EarlyStopping(4), figures) is None
    assert stops_at(EarlyStopping(3, min_change=1.0), figures) == 4
    assert stops_at(EarlyStopping(4, higher_is_better=False), figures) == 5
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopping(0)


def test_a_run_stops_and_continues_to_count_when_it_is_resumed(tmp_path: Path, device: str) -> None:
    config: dict[str, Any] = {"total_steps": 8 * 16 * 100, "learning_rate": 1e-6, "log_interval": 1}
    whole = train(
        small_run(device, run_dir=str(tmp_path / "whole"), **config), progress=False, callbacks=[EarlyStopping(5)]
    )
    assert whole.reason.startswith("return has not been better than ")
    assert whole.reason.endswith(" for 5 iterations")
    figures = [float(row["return"]) for row in rows_of(tmp_path / "whole" / "log.csv")]
    assert max(figures[:-6]) == max(figures[:-1])
    half = small_run(
        device, run_dir=str(tmp_path / "half"), **config | {"total_steps": 8 * 16 * (whole.iterations // 2)}
    )
    train(half, progress=False, callbacks=[EarlyStopping(5)])
    again = resume(tmp_path / "half", progress=False, total_steps=config["total_steps"], callbacks=[EarlyStopping(5)])
    assert (again.iterations, again.reason) == (whole.iterations, whole.reason)
