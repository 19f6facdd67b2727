"""Populations: each run has the same results as alone."""

import csv
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_envs

pytest.importorskip("torch")

from populations import assert_as_alone
from trainers import FIELD, FIELD_PARAMS, off_policy_run, small_run

from gpu_envs.training import Outcome, Population, Run, RunDirectory, extract, resume, train
from gpu_envs.training.population_result import PopulationResult
from gpu_envs.training.process import copies

NUMBERS = {
    "learning_rate": "log:1e-4:1e-2",
    "gamma": [0.9, 0.99],
    "gae_lambda": "uniform:0.5:1",
    "entropy_weight": [0.0, 0.1],
    "clip": [0.1, 0.3],
    "value_clip": [0.1, 1.0],
    "value_weight": [0.1, 0.9],
    "max_grad_norm": [0.05, 10.0],
    "target_kl": [0.001, 0.05],
    "env.pole_mass": "uniform:0.05:0.4",
}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "seeds": ("CartPole-v1", {"stagger": True}, {}),
    "numbers": ("CartPole-v1", {}, NUMBERS),
    "distributions": ("CartPole-v1", {}, {"env.pole_mass": [f"uniform:0.05:{high}" for high in (0.1, 0.2, 0.4)]}),
    "normalised": (
        "Pendulum-v1",
        {"normalise_observations": True, "normalise_rewards": True, "normalise_values": True},
        {"gamma": [0.9, 0.99]},
    ),
    "a2c": ("CartPole-v1", {"algorithm": "a2c", "gae_lambda": 0.9}, {"learning_rate": [1e-3, 1e-2]}),
    "team": ("TagGridWorld-v0", {"normalise_observations": True}, {"learning_rate": [1e-3, 1e-2]}),
    "against random": ("TagGridWorld-v0", {"policies": {"runner": "random"}}, {"gamma": [0.9, 0.99]}),
}
CPU_CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "several actions": ("SimpleSpread-v3", {"params": {"continuous_actions": True}}, {"gamma": [0.9, 0.99]}),
    "pqn": ("CartPole-v1", {"algorithm": "pqn"}, {"epsilon": [0.1, 0.5], "gae_lambda": [0.5, 0.9]}),
    "shared trunk": ("CartPole-v1", {"shared_trunk": True, "layer_norm": True}, {"gamma": [0.9, 0.99]}),
    "masks": (FIELD, {"params": FIELD_PARAMS}, {"gamma": [0.9, 0.99]}),
}


def population_of(device: str, case: str, **settings: Any) -> Population:
    env, own, vary = (CASES | CPU_CASES)[case]
    common = {"num_envs": 8, "horizon": 16, "hidden": [32, 32], "total_steps": 8 * 16 * 6, "seed": 3, "run_dir": ""}
    run = Run.from_flat({"env": env, "device": device, "threads": 1} | common | own | settings)
    return Population(run, seeds=2, vary=vary, runs=3)


@pytest.mark.parametrize("case", CASES)
def test_each_run_is_the_run_alone(case: str, device: str) -> None:
    population = population_of(device, case)
    result = population.train(progress=False)
    for number in (0, 3, len(population.runs) - 1):
        assert_as_alone(population, result, min(number, len(population.runs) - 1))


@pytest.mark.parametrize(("hidden", "precision"), [((32, 32), "float32"), ((64, 64), "tf32"), ((64, 64), "bf16")])
@pytest.mark.parametrize(("env", "replicas"), [("CartPole-v1", 60), ("CartPole-v1", 2000), ("Pendulum-v1", 256)])
@pytest.mark.parametrize("runs", [1, 12, 33, 70])
def test_blocks_for_several_workers_of_a_run(
    runs: int, env: str, replicas: int, hidden: tuple[int, int], precision: str, device: str
) -> None:
    """On a GPU some blocks of the update, or one, are all workers of a network, and one block takes a run's steps.

    Of 60 replicas there are 4 workers and a part of a tile, of 2,000 workers with one and with two tiles. On an H100 or
    H200 a network of 12 runs has up to 4 blocks, of 33 runs 2, of 70 runs 1.
    """
    if device == "cpu" and (precision != "float32" or replicas > 60 or runs > 12):
        pytest.skip("a CPU computes in float32, and has no blocks")
    common = {"env": env, "device": device, "hidden": hidden, "precision": precision, "run_dir": "", "epochs": 2}
    run = Run.from_flat({**common, "num_envs": replicas, "horizon": 32, "total_steps": replicas * 32 * 3})
    population = Population(run, seeds=runs)
    result = population.train(progress=False)
    for number in {0, runs - 1}:
        assert_as_alone(population, result, number)


@pytest.mark.parametrize("case", CPU_CASES)
def test_each_run_on_a_cpu_is_the_run_alone(case: str) -> None:
    population = population_of("cpu", case)
    result = population.train(progress=False)
    assert_as_alone(population, result, len(population.runs) - 1)


def test_runs_end_alone_at_their_target_and_when_they_diverge(device: str) -> None:
    """The others go on as if they had trained alone."""
    flat = small_run(device, num_envs=32, total_steps=32 * 16 * 40, target_return=30.0).flat()
    run = Run.from_flat(flat | {"hidden": [32, 32], "max_grad_norm": None})
    population = Population(run, vary={"learning_rate": [0.0, 3e-3, 1e-2, 1e30]}, search="grid")
    result = population.train(progress=False)
    reasons = [outcome.reason for outcome in result.outcomes]
    assert reasons == ["total_steps", "target_return", "target_return", "diverged"]
    assert result.outcomes[1].iterations < population.runs[0].iterations
    for number in range(3):
        assert_as_alone(population, result, number)
    assert np.isnan(result.curves[3]).all() or result.best != 3


def test_runs_of_different_shapes_train_in_groups(device: str) -> None:
    run = dataclasses.replace(small_run(device, total_steps=8 * 16 * 2))
    flat = Run.from_flat(run.flat() | {"hidden": [32, 32]})
    population = Population(flat, seeds=2, vary={"hidden": [[32, 32], [64, 64]], "gamma": [0.9, 0.99]}, search="grid")
    result = population.train(progress=False)
    assert len(result.outcomes) == 8
    assert_as_alone(population, result, 6)


def test_curves_of_groups_with_other_steps() -> None:
    run = small_run("cpu", total_steps=16 * 16 * 4, log_interval=2)
    result = Population(run, vary={"num_envs": [8, 16]}, search="grid").train(progress=False)
    assert result.steps.tolist() == [256, 512, 768, 1024]
    assert np.isfinite(result.curves).tolist() == [[True] * 4, [False, True, False, True]]


def test_the_best_run_has_not_diverged() -> None:
    run = small_run("cpu")
    outcomes = [Outcome("diverged", 3, 500.0), Outcome("total_steps", 9, 20.0), Outcome("total_steps", 9, float("nan"))]
    result = PopulationResult([run] * 3, outcomes, np.zeros(0), np.zeros((3, 0)), 1.0)
    assert result.best == 1
    assert PopulationResult([run], outcomes[:1], np.zeros(0), np.zeros((1, 0)), 1.0).best is None


@pytest.mark.parametrize("case", ["seeds", "distributions", "against random"])
def test_a_trainer_of_a_run_continues_it(case: str, device: str) -> None:
    population = population_of(device, case)
    result = population.train(progress=False)
    assert_as_alone(population, result, len(population.runs) - 1, more=3)


def test_means_of_the_last_episodes_are_of_every_role_and_metric() -> None:
    """Roles and metrics have their last 100 episodes, however many the role of the target return has."""
    run = small_run("cpu", FIELD, total_steps=8 * 16 * 60)
    population = Population(run, seeds=2)
    assert_as_alone(population, population.train(progress=False), 1)


def test_a_log_std_at_its_limit_stays_there() -> None:
    run = small_run("cpu", "Pendulum-v1", total_steps=8 * 16 * 20, learning_rate=0.5, entropy_weight=1.0)
    population = Population(run, seeds=2)
    assert_as_alone(population, population.train(progress=False), 1)


def test_a_thread_may_open_environments_while_a_population_trains() -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def open_environments() -> None:
        while not done.is_set():
            try:
                gpu_envs.make("CartPole-v1", num_envs=4, device="cpu", output="torch").reset(seed=0)
            except BaseException as error:  # noqa: BLE001 - reported by the test
                failures.append(error)
                return

    thread = threading.Thread(target=open_environments)
    thread.start()
    Population(small_run("cpu", total_steps=8 * 16 * 20), seeds=2).train(progress=False)
    done.set()
    thread.join()
    assert not failures


def test_a_saved_population_has_its_tables_and_run_directories(tmp_path: Path) -> None:
    run = small_run("cpu", total_steps=8 * 16 * 12, log_interval=4)
    folder = tmp_path / "all"
    run = dataclasses.replace(run, run_dir=str(folder))
    population = Population(run, vary={"learning_rate": [1e-3, 1e-2]}, search="grid")
    result = population.train(progress=False)
    rows = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    assert [float(row["learning_rate"]) for row in rows] == [1e-3, 1e-2]
    assert [int(row["iterations"]) for row in rows] == [12, 12]
    curves = list(csv.DictReader((folder / "curves.csv").read_text().splitlines()))
    assert [int(row["steps"]) for row in curves] == [512, 1024, 1536]
    assert float(curves[-1]["0"]) == float(rows[0]["return"])
    assert result.best is not None
    best = RunDirectory.open(folder / "best").config()
    assert best.algorithm.learning_rate == population.runs[result.best].algorithm.learning_rate
    other = extract(folder, 1 - result.best, tmp_path / "other")
    result_of_other = resume(other, total_steps=8 * 16 * 14, progress=False)
    alone = train(dataclasses.replace(population.runs[1 - result.best], total_steps=8 * 16 * 14), progress=False)
    assert (result_of_other.iterations, result_of_other.returns) == (14, alone.returns)
    with pytest.raises(ValueError, match="there is no run 2; the population has the runs 0 to 1"):
        extract(folder, 2)
    with pytest.raises(FileExistsError, match="is not empty"):
        Population(run).train()


def test_runs_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    population = Population(small_run("cpu"), seeds=100)
    monkeypatch.setattr(copies, "available_memory", lambda _: 2**22)
    with pytest.raises(MemoryError, match=r"^100 runs of 0\.\d MiB do not fit on cpu: give \d+ or fewer$"):
        population.train(progress=False)


def test_a_population_refuses_what_it_cannot_train() -> None:
    run = small_run("cpu")
    with pytest.raises(ValueError, match="the policy 'agent' learns by sac; a population learns by ppo, a2c or pqn"):
        Population(off_policy_run("cpu")).train(progress=False)
    with pytest.raises(ValueError, match="run 0 has not trained yet"):
        Population(run).trainer(0)
