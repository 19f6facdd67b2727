"""The examples of a search with Optuna: trials that stay behind are pruned, or a batch of trials trains at once."""

import dataclasses
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpu_envs.training import PPO, Network, Run, train

optuna = pytest.importorskip("optuna")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_six_trials() -> None:
    study = runpy.run_path(str(EXAMPLES / "optuna_search.py"))["search"]("CartPole-v1", trials=6, steps=100_000)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 6
    assert states[:2] == ["COMPLETE", "COMPLETE"]
    assert "PRUNED" in states
    assert set(states) == {"COMPLETE", "PRUNED"}
    for trial in study.trials:
        iterations = 100_000 / (256 * trial.params["horizon"])
        assert (max(trial.intermediate_values) < iterations - 5) == (trial.state.name == "PRUNED")
    assert study.best_value > 60


def test_batches_of_trials_train_as_populations() -> None:
    example = runpy.run_path(str(EXAMPLES / "optuna_populations.py"))
    run = Run(
        env="CartPole-v1", num_envs=8, network=Network(hidden=(32, 32)), total_steps=4096, device="cpu", run_dir=""
    )
    study = example["search"](run, batches=2, batch=3, seeds=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 6
    settings = dataclasses.replace(run, algorithm=PPO(**study.trials[4].params), threads=1)
    alone = [train(dataclasses.replace(settings, seed=seed), progress=False).returns["agent"] for seed in (0, 1)]
    assert study.trials[4].value == sum(alone) / 2

    example["SPACE"]["learning_rate"] = optuna.distributions.FloatDistribution(1e29, 1e30)
    study = example["search"](run, batches=1, batch=1, seeds=1)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]
