"""The training benchmark: stored results, criterion of solved runs, and peers that implement the same games."""

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_games import assert_same_game

from benchmarks import record
from benchmarks.pages import comparisons, off_policy
from benchmarks.pages import training as training_pages
from benchmarks.pages.tables import digits
from benchmarks.peers import process
from benchmarks.training import drawn, learning, particles, plan, race, worlds


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


def test_sections_are_merged_and_keep_their_provenance(results: Path) -> None:
    record.merge("training_x", {"solve": {"a": 1}, "shell": {"b": 2}}, "first")
    path = record.merge("training_x", {"shell": {"b": 3}}, "second", gpu="a GPU")
    assert path == results / "training_x.json"
    sections = json.loads(path.read_text())["sections"]
    assert {name: (s["commit"], s["results"], s["machine"]["gpu"]) for name, s in sections.items()} == {
        "solve": ("first", {"a": 1}, None),
        "shell": ("second", {"b": 3}, "a GPU"),
    }
    assert all(s["command"].startswith("python -m benchmarks.training") for s in sections.values())
    written = path.read_text()
    with pytest.raises(ValueError, match="JSON"):  # JSON cannot represent NaN
        record.merge("training_x", {"solve": {"a": math.inf}}, "third")
    assert path.read_text() == written
    record.write("throughput_x", {"old": 1}, "first")  # a document without sections is overwritten
    document = json.loads(record.write("throughput_x", {"new": 2}, "second").read_text())
    assert document["results"] == {"new": 2}
    assert document["commit"] == "second"
    assert document["command"].startswith("python -m benchmarks.throughput")
    assert sorted(each.name for each in results.iterdir()) == ["throughput_x.json", "training_x.json"]


def run(seconds: float, last_100: float, evaluated: float) -> dict[str, Any]:
    return {"seconds": seconds, "last_100": last_100, "evaluated": evaluated}


def test_an_unconfirmed_run_counts_as_infinitely_slow() -> None:
    slow, quick, false = run(3.0, 480, 490), run(2.0, 476, 475), run(1.0, 480, 470)
    summary = plan.summary([slow, quick, false], 475)
    assert (summary["median_s"], summary["solved"], summary["seeds"]) == (3.0, 2, 3)  # median of 2, 3 and infinity
    summary = plan.summary([run(1.0, -math.inf, 20), false, quick], 475)
    assert (summary["median_s"], summary["solved"]) == (None, 1)
    assert summary["runs"][0]["last_100"] is None
    json.dumps(summary, allow_nan=False)


def test_a_missing_peer_is_skipped_with_a_message_and_a_failing_peer_is_an_error() -> None:
    outcome = process.run_peer(sys.executable, "no_such_package", "jax_ppo")
    assert outcome == {"skipped": f"{sys.executable} has no no_such_package"}
    with pytest.raises(RuntimeError, match="No module named"):
        process.run_peer(sys.executable, "json", "no_such_peer")


def test_the_error_of_a_peer_is_one_line() -> None:
    """The line is from the traceback, before JAX's note on hidden frames, or from the peer's own message."""
    jax = (
        "python -m peer failed with 1:\nTraceback (most recent call last):\n  raise ValueError(5)\n"
        "ValueError: too many values\n--------------------\nFor simplicity, JAX has removed its internal frames.\n\n"
    )
    assert process.error_line(jax) == "ValueError: too many values"
    assert process.error_line(jax.replace("ValueError:", "jax.errors.JaxRuntimeError:")) == (
        "jax.errors.JaxRuntimeError: too many values"
    )
    assert (
        process.error_line("python -m peer failed with 1:\nrejax 0.1.3 needs gymnax<1\n")
        == "rejax 0.1.3 needs gymnax<1"
    )
    assert process.error_line("\n") == "no output"


def test_the_torch_sampler_draws_from_its_logits() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.peers.torch_sampler import by_distributions, by_exponential_race

    torch.manual_seed(0)
    rows, sizes = 20_000, (2, 3)
    logits = torch.tensor([0.3, -0.5, 1.0, 0.0, -2.0]).repeat(rows, 1)
    odds = [part.double().softmax(0).numpy() for part in logits[0].split(sizes)]
    for sampler in (by_distributions, by_exponential_race):
        actions, log_probs, entropies = sampler(logits, sizes)
        exact = sum(np.log(p)[actions[:, e].numpy()] for e, p in enumerate(odds))
        np.testing.assert_allclose(log_probs.numpy(), exact, atol=1e-6)
        np.testing.assert_allclose(entropies.numpy(), -sum((p * np.log(p)).sum() for p in odds), atol=1e-6)
        for element, p in enumerate(odds):
            shares = np.bincount(actions[:, element].numpy(), minlength=len(p)) / rows
            assert (abs(shares - p) < 5 * np.sqrt(p * (1 - p) / rows)).all()  # five standard deviations


def test_the_jax_peer_plays_the_same_game() -> None:
    """Single steps from each of our states agree up to rounding, with the same ends."""
    jax = pytest.importorskip("jax")
    from benchmarks.peers import jax_cartpole

    jitted, numbers = jax.jit(jax_cartpole.step), itertools.count()

    def step(state: np.ndarray, elapsed: np.ndarray, action: np.ndarray) -> tuple[Any, ...]:
        worlds = jax_cartpole.CartPoles(state, elapsed)
        world, done, steps = jitted(worlds, action, jax.random.key(next(numbers)))
        assert (np.asarray(steps) == elapsed + 1).all()
        return world.state, world.elapsed, done, np.zeros_like(done)

    assert assert_same_game(step) > 100
    standing, late = np.zeros((64, 4), np.float32), np.full(64, 499, np.int32)
    *_, ended, _ = step(standing, late, np.zeros(64, np.int64))
    assert np.asarray(ended).all()


def test_the_jax_peer_stops_by_the_same_rule() -> None:
    """The mean is over the most recent steps in which at least 100 episodes ended."""
    pytest.importorskip("jax")
    from benchmarks.peers.jax_ppo import mean_of_last

    assert mean_of_last(np.array([[60, 600.0], [39, 390.0]])) == -math.inf
    assert mean_of_last(np.array([[1000, 0.0], [60, 600.0], [0, 0.0], [50, 1600.0]])) == pytest.approx(2200 / 110)


@pytest.mark.slow
def test_best_constant_actions() -> None:
    """In COVID, governors close for long with full subsidies; in RICE-N, regions save, and the climate warms."""
    here = plan.TrainingPlan("cpu", seeds=1, rounds=1, seconds=1.0, jax_python="", sb3_python="", log=lambda _: None)
    best = worlds.constants(here, worlds.WORLDS["CovidEconomy-v0"], {})
    assert best["governor"]["action"] == {"stringency": 7, "subsidy": 20}
    assert best["planner"]["action"]["subsidy"] == 0
    assert best["governor"]["mean"] > 784.9  # return of the highest level
    region = worlds.constants(here, worlds.WORLDS["RiceN-v0"], {})["region"]
    assert region["action"]["savings"] > 0
    assert 1.25 < region["metrics"]["temperature"] < 7.0
    assert worlds.mean_over_seeds([1.0, 2.0, 3.0]) == {"mean": 2.0, "interval": pytest.approx(4.303 / 3**0.5)}


@pytest.mark.slow
def test_tag_is_trained_with_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seed is a separate run, and the page shows minimum and maximum."""
    pytest.importorskip("torch")
    env = "TagContinuous-v0"
    small = {**plan.preset(env, "small"), "num_envs": 32, "horizon": 40, "epochs": 1, "total_steps": 32 * 40 * 10}
    presets = {"taggers": small, "runners": {**small, "policies": {"tagger": "random"}}}
    monkeypatch.setattr(plan, "PRESETS", {env: presets})
    monkeypatch.setattr(learning, "TEAMS", (env,))
    monkeypatch.setattr(learning, "EPISODES", 32)
    here = plan.TrainingPlan("cpu", seeds=2, rounds=1, seconds=1.0, jax_python="", sb3_python="", log=lambda _: None)
    measured = learning.tag(here)
    monkeypatch.setattr(training_pages, "results", lambda *_: measured)
    for team in presets:
        assert list(measured[env][team]["runs"]) == ["kernels"]
        runs = measured[env][team]["runs"]["kernels"]
        assert [run["seed"] for run in runs] == [0, 1]
        assert all(0 < run["curve"][-1][0] <= run["seconds"] for run in runs)
        lasted = sorted(run["evaluated"]["length"] for run in runs)
        assert f" {lasted[0]:.1f} to {lasted[1]:.1f}; " in training_pages.tag_learning(Path())
        assert lasted[0] < lasted[1]
    json.dumps(measured, allow_nan=False)


@pytest.mark.slow
def test_the_race_has_one_rule_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a target that is reached at once: training is timed, evaluations are counted, missing peers are skipped."""
    lines: list[str] = []
    python = sys.executable
    here = plan.TrainingPlan(
        "cpu", seeds=1, rounds=1, seconds=1.0, jax_python=python, sb3_python=python, log=lines.append
    )
    rule = race.Rule(target=-2000.0, episodes=4, every=64, limit=1024)
    absent = set(process.missing_modules(python, [peer.package for peer in race.PEERS.values()]))
    outcome = race.race(here, rule)
    assert len(lines) == 1 + len(race.PEERS)
    for name in ("ours", *race.PEERS):
        if name != "ours" and race.PEERS[name].package in absent:
            assert "skipped" in outcome[name]
            continue
        (run,) = outcome[name]["runs"]
        assert outcome[name]["reached"] == 1, run
        assert (run["steps"], len(run["returns"])) == ({"ours": 256, "sbx": 128 + 64}.get(name, 64), 1)
        assert -2000 <= run["returns"][0] < 0
        assert outcome[name]["median_s"] == run["seconds"] > 0
        assert run["prepare_s"] > 0
    monkeypatch.setattr(off_policy, "results", lambda *_: outcome)
    assert f"| gpu_envs | 1 of 1 | {digits(outcome['ours']['median_s'])} | 256 |" in off_policy.race(Path())
    json.dumps(outcome, allow_nan=False)


def test_a_race_ends_at_its_limit() -> None:
    """The first run never reaches the target return; the second run reaches it later."""
    rule, steps = race.Rule(target=-1.0, every=10, limit=25), iter((10, 20, 30))
    outcome = rule.race(lambda _: next(steps), lambda: -2.0)
    assert (outcome["steps"], outcome["returns"], outcome["reached"]) == (30, [-2.0] * 3, False)
    steps, returns = iter((10, 20, 30)), iter((-2.0, -1.0))
    outcome = rule.race(lambda _: next(steps), lambda: next(returns))
    assert (outcome["steps"], outcome["reached"]) == (20, True)
    assert race.summarize([{"seed": 0, "failed": "no device"}])["median_s"] is None


def test_policies_are_evaluated_in_the_same_drawn_environments(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from gpu_envs.training import Run, train

    config = Run(env="CartPole-v1", device="cpu", num_envs=64, total_steps=20_000, run_dir=str(tmp_path / "run"))
    train(config, progress=False)
    here = plan.TrainingPlan("cpu", 1, 1, 1.0, jax_python="", sb3_python="", log=lambda _: None)
    params = plan.preset("CartPole-v1", "drawn")["params"]
    first, again = (drawn.returns(here, tmp_path / "run", params, worlds=20) for _ in range(2))
    assert (first == again).all()
    assert len(np.unique(first)) > 10
    assert 8 <= first.min() < first.max() <= 500


@pytest.mark.parametrize(("env_id", "at_random"), [("SimpleSpread-v3", 2.27), ("SimpleTag-v3", 0.45)])
def test_jaxmarl_is_trained_on_the_same_environments(env_id: str, at_random: float) -> None:
    """Random actions score as in our environment, and a few updates improve the score; a missing peer is skipped."""
    python = sys.executable
    here = plan.TrainingPlan(
        "cpu", seeds=1, rounds=1, seconds=1.0, jax_python=python, sb3_python="", log=lambda _: None
    )
    outcome = particles.jaxmarl(here, env_id, "--updates", 60, "--every", 40, "--episodes", 2000)
    if process.missing_modules(python, ["jaxmarl"]):
        assert outcome == {"skipped": f"{python} has no jaxmarl"}
        return
    assert outcome["random"] == pytest.approx(at_random, abs=0.15)
    (run,) = outcome["runs"]
    assert run["steps"] == 60 * 128 * 16
    assert run["seconds"] > 0
    assert (run["evaluated"] < 0.8 * at_random) if env_id == "SimpleSpread-v3" else (run["evaluated"] > 1.5 * at_random)
    json.dumps(outcome, allow_nan=False)


def test_the_particles_table_contains_the_measured_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """JaxMARL has a row only if it was measured, with the median over seeds that reached the goal."""
    ours = {"metric": "distance", "random": 2.0, "reached": 1, "runs": [{"evaluated": 0.5, "seconds": 0.6}]}
    runs = [{"evaluated": value, "seconds": 60.0, "reached_s": s} for value, s in ((0.7, 12.0), (0.9, None))]
    theirs = {"random": 2.1, "reached": 1, "runs": runs}
    sections = {"particles": {"A": ours, "B": ours}, "ippo": {"A": theirs, "B": {"skipped": "no device"}}}
    monkeypatch.setattr(comparisons, "results", lambda _, section: sections[section])
    monkeypatch.setattr(comparisons, "device", lambda _, section: f"GPU of {section}")
    assert comparisons.particles(Path()).splitlines()[2:] == [
        "| A, distance | ours | GPU of particles | 2.00 | 0.50, 0.50 | 1 of 1 | 0.6 | |",
        "| A, distance | JaxMARL's IPPO | GPU of ippo | 2.10 | 0.70, 0.90 | 1 of 2 | 60 | 12 |",
        "| B, distance | ours | GPU of particles | 2.00 | 0.50, 0.50 | 1 of 1 | 0.6 | |",
    ]
