"""Versions of a run's two sides that play against each other: who plays, scores and ratings."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import error_of, output_of
from trainers import GRID, MODULE_SETTINGS, small_run

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.evaluating import Estimate, Evaluation, Evaluations  # noqa: E402
from gpu_envs.training import Run, RunDirectory, Tournament, Trainer, tournament, train  # noqa: E402
from gpu_envs.training import tournaments as module  # noqa: E402
from gpu_envs.training.record.run_state import load_run  # noqa: E402
from gpu_envs.training.rollout.evaluation import play  # noqa: E402
from gpu_envs.training.tournaments import elo  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(folder: Path, device: str = "cpu", **settings: Any) -> Run:
    """Train four updates, with a checkpoint after each."""
    few = {"checkpoint_interval": 1, "keep_checkpoints": 9, "total_steps": 8 * 16 * 4, "run_dir": str(folder)}
    run = small_run(device, GRID, **(few | settings))
    train(run, progress=False)
    return run


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5), (6, 6)])
def test_elo_finds_the_ratings_that_explain_all_scores(rows: int, columns: int) -> None:
    generator = np.random.default_rng(rows)
    row, column = generator.normal(0, 300, rows), generator.normal(100, 300, columns)
    found = elo(1.0 / (1.0 + 10.0 ** ((column - row[:, None]) / 400.0)))
    assert np.allclose(found[0], row - row[0], atol=1e-3)
    assert np.allclose(found[1], column - column[0], atol=1e-3)


def test_elo_of_scores_that_contradict_each_other_is_the_most_likely() -> None:
    """The sum of each version's expected scores is the sum of its scores."""
    scores = np.random.default_rng(0).uniform(0.05, 0.95, (4, 3))
    row, column = elo(scores)
    shifts = np.linspace(-2000, 2000, 400_001)  # of all columns, which ratings relative to the first ones lack
    odds = 10.0 ** (-row[:, None, None] / 400.0) * 10.0 ** (column[:, None] / 400.0)
    totals = (1.0 / (1.0 + odds[0, :, :] * 10.0 ** (shifts / 400.0))).sum(0)
    shift = shifts[np.abs(totals - scores[0].sum()).argmin()]
    expected = 1.0 / (1.0 + odds[..., 0] * 10.0 ** (shift / 400.0))
    assert np.allclose(expected.sum(0), scores.sum(0), atol=1e-4)
    assert np.allclose(expected.sum(1), scores.sum(1), atol=1e-4)


def test_scores_of_zero_and_one_have_finite_ratings() -> None:
    scores = np.array([[0.0, 0.0], [1.0, 0.5]])
    games = Tournament(("runner", "tagger"), (1, 2), scores, np.zeros((2, 2)), 50)
    assert all(np.isfinite(ratings).all() for ratings in games.ratings.values())
    assert games.ratings["runner"][1] > 0
    assert games.ratings["tagger"][1] > 0


def test_gains_are_those_of_the_last_version_over_the_first_against_all() -> None:
    scores, errors = np.array([[0.2, 0.4], [0.5, 0.9]]), np.array([[0.3, 0.0], [0.0, 0.4]])
    games = Tournament(("runner", "tagger"), (1, 2), scores, errors, 50)
    assert games.gain("runner") == pytest.approx((0.4, 0.25))
    assert games.gain("tagger") == pytest.approx((-0.3, 0.25))


def test_each_version_of_a_side_plays_each_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run")
    states = [load_run(path)["learners"] for path in RunDirectory.open(tmp_path / "run").checkpoints.paths()]
    played = []

    def watched(policies: Any, **options: Any) -> Evaluations:
        assert (options["episodes"], options["greedy"]) == (30, False)
        versions = {}
        for role, networks in policies.networks.items():
            weights = networks.module.state_dict()["actor.0.weight"]
            of_role = [state[role]["module"]["actor.0.weight"] for state in states]
            (versions[role],) = (number for number, found in enumerate(of_role) if torch.equal(found, weights))
        played.append((versions["tagger"], versions["runner"], options["seed"]))
        estimate = Estimate(10.0 * len(played), 1.0, 1.96)
        evaluation = Evaluation(0, 0, 0, 0, 0, 30, {"survival": estimate}, np.zeros(1), np.zeros(1))
        return Evaluations({"tagger": evaluation, "runner": evaluation})

    monkeypatch.setattr(module, "play", watched)
    games = tournament(tmp_path / "run", versions=3, episodes=30, greedy=False, side="tagger", progress=False)
    assert games.sides == ("tagger", "runner")
    assert games.versions == (1, 3, 4)
    assert [pair[:2] for pair in played] == [*itertools.product((0, 2, 3), repeat=2)]
    assert len({seed for *_, seed in played}) == 9
    assert np.allclose(games.scores, 10 * np.arange(1, 10).reshape(3, 3) / 100)
    assert np.allclose(games.errors, 1 / 100)


def test_games_are_played_and_repeat(tmp_path: Path, device: str) -> None:
    trained(tmp_path / "run", device)
    first, again = (tournament(tmp_path / "run", versions=2, episodes=20, device=device, progress=False) for _ in "ab")
    assert np.array_equal(first.scores, again.scores)
    assert ((first.scores > 0) & (first.scores <= 1)).all()
    assert repr(first).startswith("score of runner, by tagger  1")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run")
    options = ("tournament", str(tmp_path / "run"), "--versions", "2", "--episodes", "20", "--device", "cpu")
    printed = json.loads(output_of(capsys, *options, "--json"))
    assert printed["sides"] == ["runner", "tagger"]
    assert {*printed["gains"]} == {*printed["ratings"]} == {"runner", "tagger"}
    pytest.importorskip("matplotlib")
    assert "Elo" in output_of(capsys, *options, "--png", str(tmp_path / "games.png"))
    assert (tmp_path / "games.png").read_bytes().startswith(b"\x89PNG")
    assert "its name ends in .png" in error_of(capsys, *options, "--png", "games.pdf")
    assert "Did you mean 'survival'?" in error_of(capsys, *options, "--score", "survive")
    assert "side is 'runners', which is not a role. Did you mean 'runner'?" in error_of(
        capsys, *options, "--side", "runners"
    )
    assert "versions is 1; give 2 or more" in error_of(capsys, "tournament", str(tmp_path / "run"), "--versions", "1")


def test_runs_without_two_sides_or_versions_are_refused(tmp_path: Path) -> None:
    one = {"policies": {"runner": "both", "tagger": "both"}}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "two sides, but the policy 'both' acts for tagger and runner": (one, {}),
        "has 1 checkpoint: train with a smaller checkpoint_interval": ({"keep_checkpoints": 1}, {}),
        "there are no versions of the role 'runner': none of its policies learns": (
            {"policies": {"runner": "random"}},
            {},
        ),
        "versions is 1; give 2 or more": ({}, {"versions": 1}),
        "episodes is 1; give 2 or more": ({}, {"episodes": 1}),
        "best is 0; give a number above 0": ({}, {"best": 0}),
        "survival is .*, not between 0 and best, 0.5; give its highest value": ({}, {"best": 0.5}),
        "with the score 'tags' give side, for which a high value is good, and best": ({}, {"score": "tags"}),
    }
    for number, (message, (settings, options)) in enumerate(cases.items()):
        trained(tmp_path / str(number), **settings)
        with pytest.raises(ValueError, match=message):
            tournament(tmp_path / str(number), device="cpu", progress=False, **options)


def test_modules_of_users_have_the_weights_of_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = {}
    for name, learner in Trainer(small_run("cpu", GRID)).learners.items():
        own[name] = Both(nn.Linear(learner.policy_rows.features, learner.policy_rows.head.parameters + 1))
    few = {"checkpoint_interval": 1, "total_steps": 8 * 16 * 2, "run_dir": str(tmp_path / "run"), **MODULE_SETTINGS}
    train(small_run("cpu", GRID, **few), modules=own, progress=False)
    before, played = own["runner"].linear.weight.clone(), []

    def watched(policies: Any, **options: Any) -> Evaluations:
        played.append(policies.networks["runner"].module.linear.weight.sum().item())
        return play(policies, **options)

    monkeypatch.setattr(module, "play", watched)
    tournament(tmp_path / "run", modules=own, episodes=20, device="cpu", progress=False)
    assert played[0] == played[1] != played[2] == played[3]
    assert torch.equal(own["runner"].linear.weight, before)


class Both(nn.Module):
    """Actor and critic in one layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, observations: Any) -> Any:
        outputs = self.linear(observations)
        return outputs[:, :-1], outputs[:, -1]
