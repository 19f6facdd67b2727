"""Comparison of training runs over seeds, as in Agarwal et al., "Deep RL at the Edge of the Statistical Precipice"."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from gpu_envs.errors import did_you_mean
from gpu_envs.extras import extra
from gpu_envs.tables import Row, html_table, text_table
from gpu_envs.training.policy import learns
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.summary import plot
from gpu_envs.training.run import CHANGEABLE, MAPPINGS

_COMPARED = ("callbacks", "total_steps", "target_return", "learning_rate", "entropy_weight")
_FREE = {"seed", "run_dir", "since", *CHANGEABLE}.difference(_COMPARED)  # settings that may differ within a group


def iqm(values: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the runs of ``[runs, ...]``, as ``scipy.stats.trim_mean(values, 0.25)``."""
    return np.asarray(np.sort(values, axis=0)[len(values) // 4 : len(values) - len(values) // 4].mean(axis=0))


def share_above(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the share of pairs of runs with ``values`` above ``first``, both ``[runs, ...]``; ties count half."""
    return np.asarray(np.mean([values[:, None] > first, values[:, None] >= first], axis=(0, 1, 2)))


def interval(statistic: Callable[..., np.ndarray], *samples: np.ndarray) -> np.ndarray:
    """Return the 95 % percentile-bootstrap interval ``[2, points]`` for samples ``[runs, points]``; NaN for one run."""
    draw = np.random.default_rng(0).integers
    samples = tuple(sample[np.lexsort(sample.T)] for sample in samples)  # so that the order of runs does not matter
    drawn = [statistic(*(runs[draw(len(runs), size=len(runs))] for runs in samples)) for _ in range(2000)]
    return np.asarray(np.percentile(drawn, (2.5, 97.5), axis=0)) * (1.0 if min(map(len, samples)) > 1 else math.nan)


@final
class Comparison(dict[str, dict[str, dict[str, Any]]]):
    """Scores and curves, by environment and column (``CartPole-v1, return``) and by group. Prints as tables."""

    def __repr__(self) -> str:
        return "\n\n".join(text_table(self._rows(title)) for title in self)

    def _repr_html_(self) -> str:
        lines = {title: {name: [*group["curve"].values()] for name, group in self[title].items()} for title in self}
        return "\n".join(html_table(self._rows(title), heading=True) + plot(title, lines[title], 640) for title in self)

    def _rows(self, title: str) -> list[Row]:
        def text(value: Any) -> str:
            numbers = filter(math.isfinite, () if isinstance(value, str | dict) else np.ravel(value))
            words = (f"{number:,.0f}" if abs(number) >= 1e4 else f"{number:.4g}" for number in numbers)
            return value if isinstance(value, str) else " to ".join(words)

        names = sorted(dict.fromkeys(itertools.chain(*self[title].values())), key="note".__eq__)  # notes are last
        columns = [(k.replace("_", " "), *(text(group.get(k, "")) for group in self[title].values())) for k in names]
        return [*zip((title, *self[title]), *(column for column in columns if any(column[1:])), strict=True)]

    def figure(self) -> Any:
        """Return a matplotlib figure with the curves of each environment."""
        with extra("plot", "matplotlib"):
            from matplotlib.figure import Figure
        figure = Figure((7 * len(self), 4.5), layout="constrained")
        for number, (title, groups) in enumerate(self.items(), 1):
            axes = figure.add_subplot(1, len(self), number, title=title, xlabel="steps")
            for name, group in groups.items():
                steps, values, *limits = group["curve"].values()
                axes.fill_between(steps, *limits, color=axes.plot(steps, values, label=name)[0].get_color(), alpha=0.2)
            axes.legend()
        return figure


def compare(runs: Iterable[str | Path | RunDirectory], value: str = "return") -> Comparison:
    """Compare runs, or folders of runs, by a column of ``log.csv``; runs that differ only in their seed are a group."""
    paths = [run.path if isinstance(run, RunDirectory) else Path(run) for run in runs]
    found = [file.parent for path in paths for file in sorted(path.glob("*/config.json")) or [path / "config.json"]]
    if not found:
        raise ValueError("there are no runs to compare: give run directories, such as runs/a, or a folder of them")
    members: dict[str, dict[Row, list[dict[str, Any]]]] = {}
    for path in {path.resolve(): path for path in found}.values():
        title, settings, member = _read(RunDirectory.open(path), value)
        members.setdefault(title, {}).setdefault(settings, []).append(member)
    result = Comparison()
    for title, groups in members.items():
        scores = result.setdefault(title, {})
        for words, group in groups.items():
            same = [key for key in groups if key[1] == words[1]]  # those with the algorithm
            name = [words[1]] * (len(same) < len(groups)) + [it for it in words if any(it not in key for key in same)]
            scores[" ".join(name or words[:2])] = _scores(group, next(iter(scores.values()), {}))
    return result


def _read(run: RunDirectory, value: str) -> tuple[str, Row, dict[str, Any]]:
    """Return environment and column; the environment, algorithm and settings of the run's group; and its values."""
    config, log = run.config(), run.log()
    returns = [name for name in log if name.rpartition("/")[2] == "return"]
    returns.sort(key=lambda name: not learns(str(config.policies.get(name.removesuffix("/return")))))
    target = next((name for name in (f"{config.target_role}/return", *returns) if name in log), "return")
    column = target if value == "return" else value
    rows = np.array([*zip(log.get("steps", ()), log.get(column, ()), strict=False)]).reshape(-1, 2)
    steps, values = rows[np.isfinite(rows).all(axis=1)].T
    if not len(steps):
        message = f"{run.log_path} has no value of {column!r} (train the run for longer, or leave it out)"
        raise ValueError(f"{message}{did_you_mean(column, {*log} - {column})} Columns: {', '.join(log) or 'none yet'}")
    reached = math.nan if config.target_return is None else float(log[target][-1] >= config.target_return)
    until = [reached, *(log[name][-1] if reached == 1 else math.inf for name in ("steps", "seconds"))]
    flat = config.flat()
    flat |= {f"{part}.{name}": item for part in MAPPINGS for name, item in sorted(flat.pop(part).items())}
    group = [flat.pop("env"), flat.pop("algorithm")]
    group += [f"{name}={item}" for name, item in flat.items() if name.rpartition(".")[2] not in _FREE]
    member = {"path": str(run.path), "seed": config.seed, "steps": steps, "values": values, "until": until}
    return f"{group[0]}, {column}", tuple(group), member


def _scores(runs: list[dict[str, Any]], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores and curve of a group; ``first``: those of the environment's first group, empty for itself."""
    starts, ends = zip(*(run["steps"][[0, -1]] for run in runs), strict=True)
    shortest = runs[np.argmin(ends)]["path"]
    if max(starts) > min(ends):
        raise ValueError(f"{shortest} ends before another run with its settings has a value: leave out one of them")
    steps = np.linspace(max(starts), min(ends), 200)
    curves = np.stack([np.interp(steps, run["steps"], run["values"]) for run in runs])
    limits, last = interval(iqm, curves), curves[:, -1:]
    scores = {"runs": len(runs), "steps": steps[-1], "iqm": iqm(last)[0], "interval": limits[:, -1]}
    scores |= {name: getattr(np, name)(last) for name in ("median", "mean", "min", "max")}
    reached, after, seconds = np.transpose([run["until"] for run in runs])
    scores |= {"reached_target": reached.mean(), "after_steps": np.median(after), "after_seconds": np.median(seconds)}
    if first:
        samples = last, np.array([*first["values"].values()])[:, None]
        scores |= {"above_first": share_above(*samples)[0], "its_interval": interval(share_above, *samples)[:, 0]}
    notes = [f"up to the end of {shortest}"] if min(ends) < max(ends) else []
    notes += ["some seeds are equal"] if len({run["seed"] for run in runs}) < len(runs) else []
    values = {run["path"]: value for run, value in zip(runs, last[:, 0], strict=True)}
    curve = {"steps": steps, "iqm": iqm(curves), "low": limits[0], "high": limits[1]}
    return scores | {"note": ", ".join(notes), "values": values, "curve": curve}
