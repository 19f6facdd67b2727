"""Games of all versions of a run's two sides against each other: a matrix of scores, and Elo ratings."""

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.extras import extra
from gpu_envs.progress import Progress
from gpu_envs.seeds import derived_seed
from gpu_envs.tables import html_table, text_table
from gpu_envs.training.policy import learns
from gpu_envs.training.process.device import exclusive, torch_threads
from gpu_envs.training.record.checkpoint import iteration_of
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.rollout.evaluation import TrainedPolicies, play
from gpu_envs.training.rollout.plan import Plan, RoleMembers, with_replicas
from gpu_envs.training.runs import policies_at

_POINTS = 400.0 / math.log(10.0)
"""Elo points of a factor e of the odds."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Tournament:
    """The scores of all versions of one side against all versions of the other. Prints as a table."""

    sides: tuple[str, str]
    """The roles: the side whose score it is, and the other."""
    versions: tuple[int, ...]
    """Number of updates of each version."""
    scores: np.ndarray
    """Mean score of the first side, from 0 to 1, ``[versions of the first side, versions of the other]``."""
    errors: np.ndarray
    """Standard errors of ``scores``."""
    episodes: int
    """Minimum number of episodes of each pair."""

    @property
    def ratings(self) -> dict[str, np.ndarray]:
        """Elo ratings of each side's versions, relative to its first one, which fit the full matrix best."""
        half = 0.5 / self.episodes  # a score is at least half an episode's, so that ratings are finite
        return dict(zip(self.sides, elo(np.clip(self.scores, half, 1.0 - half)), strict=True))

    def gain(self, side: str) -> tuple[float, float]:
        """Return by how much a side's last version scores more than its first, against all versions; and its error."""
        scores, errors = (self.scores, self.errors) if side == self.sides[0] else (1.0 - self.scores.T, self.errors.T)
        variance = (errors[[0, -1]] ** 2).sum() / scores.shape[1] ** 2
        return float((scores[-1] - scores[0]).mean()), math.sqrt(variance)

    def as_dict(self) -> dict[str, Any]:
        """Return everything by name, with the ratings and the gains, such as for JSON."""
        gains = {side: dict(zip(("mean", "error"), self.gain(side), strict=True)) for side in self.sides}
        return dataclasses.asdict(self) | {"ratings": self.ratings, "gains": gains}

    def __repr__(self) -> str:
        return f"{text_table(self._matrix())}\n\n{text_table(self._versions())}"

    def _repr_html_(self) -> str:
        return "\n".join(html_table(rows, heading=True) for rows in (self._matrix(), self._versions()))

    def _matrix(self) -> list[tuple[str, ...]]:
        names = [f"{version:,}" for version in self.versions]
        rows = [(name, *(f"{score:.3f}" for score in row)) for name, row in zip(names, self.scores, strict=True)]
        return [(f"score of {self.sides[0]}, by {self.sides[1]}", *names), *rows]

    def _versions(self) -> list[tuple[str, ...]]:
        rows = [("Elo", *(f"{version:,}" for version in self.versions), "gain of the last against all")]
        for side, ratings in self.ratings.items():
            gain, error = self.gain(side)
            rows.append((side, *(f"{rating:+.0f}" for rating in ratings), f"{gain:+.3f} +- {error:.3f}"))
        return rows

    def figure(self) -> Any:
        """Return a matplotlib figure with the matrix and the ratings."""
        with extra("plot", "matplotlib"):
            from matplotlib.figure import Figure
        figure = Figure((11, 4.5), layout="constrained")
        first, other = self.sides
        ticks: dict[str, Any] = {"ticks": range(len(self.versions)), "labels": self.versions}
        axes = figure.add_subplot(
            1, 2, 1, title=f"score of {first}", xlabel=f"{other}, updates", ylabel=f"{first}, updates"
        )
        figure.colorbar(axes.imshow(self.scores, vmin=0, vmax=1), ax=axes)
        axes.set_xticks(**ticks, rotation=90)
        axes.set_yticks(**ticks)
        axes = figure.add_subplot(1, 2, 2, title="Elo, relative to the first version", xlabel="updates")
        for side, ratings in self.ratings.items():
            axes.plot(self.versions, ratings, marker="o", label=side)
        axes.legend()
        return figure


def elo(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ratings of rows and of columns, relative to the first ones, of maximum likelihood.

    A row's expected score against a column is ``1 / (1 + 10 ** ((column - row) / 400))``; scores are between 0 and 1.
    """
    rows, columns = scores.shape
    ratings = np.zeros(rows + columns)
    for _ in range(100):
        expected = 1.0 / (1.0 + np.exp(ratings[rows:] - ratings[:rows, None]))
        missing, weights = scores - expected, expected * (1.0 - expected)
        slope = np.concatenate([missing.sum(1), -missing.sum(0)])
        curvature = np.diag(np.concatenate([weights.sum(1), weights.sum(0)]))
        curvature[:rows, rows:], curvature[rows:, :rows] = -weights, -weights.T
        step = np.linalg.lstsq(curvature, slope, rcond=1e-9)[0]  # a shift of all ratings changes nothing
        ratings += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-10:
            break
    row_ratings, column_ratings = _POINTS * ratings[:rows], _POINTS * ratings[rows:]
    return row_ratings - row_ratings[0], column_ratings - column_ratings[0]


@exclusive()
def tournament(
    run: str | Path | RunDirectory,
    *,
    versions: int = 8,
    score: str = "survival",
    side: str | None = None,
    best: float | None = None,
    episodes: int = 200,
    greedy: bool = True,
    device: str = "auto",
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
    progress: bool | None = None,
) -> Tournament:
    """Let a run's two roles play against each other, each in the versions of the run's checkpoints.

    A run keeps its last ``keep_checkpoints`` checkpoints, one every ``checkpoint_interval`` updates.

    Args:
        run: Run directory.
        versions: Maximum number of versions; the first and the last checkpoint are always among them.
        score: The metric of the environment that is the score. If it is not ``survival``, give ``side`` and ``best``.
        side: The role for which a high metric is good; None: the role that comes last.
        best: The value of the metric that is the score 1; 0 is 0. None: the time limit of episodes.
        episodes: Minimum number of episodes of each pair.
        greedy: Take the most likely actions instead of sampling.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        modules: The torch modules that you gave for training, by policy name.
        trust: Whether to import the file of an environment that is not registered in this process.
        progress: As in ``train``.

    Example:
        >>> from gpu_envs.training import Run, tournament, train
        >>> run = Run(env="TagGridWorld-v0", num_envs=64, total_steps=10_240, checkpoint_interval=2, keep_checkpoints=9)
        >>> games = tournament(train(run).run_dir, versions=2, episodes=64)
        >>> games.scores.shape
        (2, 2)
    """
    for name, number in (("versions", versions), ("episodes", episodes)):
        if number < 2:
            raise ValueError(f"{name} is {number}; give 2 or more")
    folder = RunDirectory.open(run)
    spec = folder.spec(trust=trust)
    config = dataclasses.replace(folder.config(), device=device)
    sides = _sides_of(Plan(with_replicas(config, 1), resolve_device(device), 1).policies, side, spec.id)
    if score not in spec.metrics:
        raise ValueError(
            f"score is {score!r}, which is not a metric of {spec.id}{did_you_mean(score, spec.metrics)} It has: "
            f"{', '.join(spec.metrics) or 'none'}"
        )
    if score != "survival" and (side is None or best is None):
        raise ValueError(
            f"with the score {score!r} give side, for which a high value is good, and best, its highest value"
        )
    paths = folder.checkpoints.paths()
    if len(paths) < 2:
        raise ValueError(
            f"a tournament needs two versions, but {folder.path} has {len(paths)} checkpoint{'s' * (not paths)}: train "
            "with a smaller checkpoint_interval and a larger keep_checkpoints"
        )
    chosen = [paths[n] for n in np.unique(np.linspace(0, len(paths) - 1, versions).round().astype(int))]
    players = [policies_at(path, folder, config, copy.deepcopy(dict(modules or {}))) for path in chosen]
    limit = players[0].make().max_episode_steps if best is None else best
    if limit is None:
        raise ValueError(f"the episodes of {spec.id} have no time limit: give best, the value that is the score 1")
    if limit <= 0:
        raise ValueError(f"best is {limit}; give a number above 0")
    scores, errors = np.zeros((2, len(chosen), len(chosen)))
    bar = Progress(len(chosen) ** 2, None if progress is None else not progress, unit="pairs")
    start = time.perf_counter()
    with contextlib.closing(bar), torch_threads(players[0].device, config.torch_threads):
        for pair, (i, j) in enumerate(np.ndindex(scores.shape), 1):
            seed = derived_seed(players[0].seed, "tournament", str(pair))
            pairing = _pair(players[i], players[j], sides)
            results = play(pairing, episodes=episodes, greedy=greedy, seed=seed, num_envs=None)
            estimate = results[sides[0]].metrics[score]
            scores[i, j], errors[i, j] = estimate.mean / limit, estimate.interval / 1.96 / limit
            if not 0.0 <= scores[i, j] <= 1.0:
                raise ValueError(
                    f"{score} is {estimate.mean:g}, not between 0 and best, {limit:g}; give its highest value"
                )
            bar.update(pair, pair / (time.perf_counter() - start), {})
    return Tournament(sides, tuple(map(iteration_of, chosen)), scores, errors, episodes)


def _sides_of(policies: Mapping[str, tuple[RoleMembers, ...]], side: str | None, env: str) -> tuple[str, str]:
    """Return the roles, that of ``side`` first; ValueError unless there are two, with separate policies that learn."""
    roles = [*dict.fromkeys(part.role.name for parts in policies.values() for part in parts)]
    if len(roles) != 2:
        raise ValueError(f"a tournament needs two roles, but {env} has {len(roles)}: {', '.join(roles)}")
    for name, parts in policies.items():
        if len({part.role.name for part in parts}) > 1:
            raise ValueError(f"a tournament needs two sides, but the policy {name!r} acts for {' and '.join(roles)}")
    learning = {parts[0].role.name for name, parts in policies.items() if learns(name)}
    for role in roles:
        if role not in learning:
            raise ValueError(f"there are no versions of the role {role!r}: none of its policies learns")
    if side is not None and side not in roles:
        raise ValueError(
            f"side is {side!r}, which is not a role{did_you_mean(side, roles)} They are: {', '.join(roles)}"
        )
    first = side or roles[-1]
    return first, roles[1 - roles.index(first)]


def _pair(first: TrainedPolicies, other: TrainedPolicies, sides: tuple[str, str]) -> TrainedPolicies:
    """Return policies: of ``first`` for its side, and of ``other`` for the other side."""
    of_side = {name: first if parts[0].role.name == sides[0] else other for name, parts in first.parts.items()}
    return dataclasses.replace(first, networks={name: version.networks[name] for name, version in of_side.items()})
