"""The example of a search with Optuna: trials that stay behind are pruned through a callback."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")
optuna = pytest.importorskip("optuna")

EXAMPLE = Path(__file__).parents[1] / "examples" / "optuna_search.py"


@pytest.mark.slow
def test_six_trials() -> None:
    study = runpy.run_path(str(EXAMPLE))["search"]("CartPole-v1", trials=6, steps=100_000)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 6
    assert states[:2] == ["COMPLETE", "COMPLETE"]
    assert "PRUNED" in states
    assert set(states) == {"COMPLETE", "PRUNED"}
    for trial in study.trials:
        iterations = 100_000 / (256 * trial.params["horizon"])
        assert (max(trial.intermediate_values) < iterations - 5) == (trial.state.name == "PRUNED")
    assert study.best_value > 60
