"""The end of runs that have become no better for a while, and of the worst runs of a population."""

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from gpu_envs.training.callbacks.base import Callback


@final
class EarlyStopping(Callback):
    """Stops a run when a figure of its reports has not become better for a number of iterations.

    In a population it stops each run for itself.

    Example:
        >>> from gpu_envs.training import Run, train
        >>> from gpu_envs.training.callbacks import EarlyStopping
        >>> run = Run(env="CartPole-v1", num_envs=64, total_steps=8192)
        >>> result = train(run, callbacks=[EarlyStopping(patience=100)])
        >>> result.reason
        'total_steps'
    """

    def __init__(
        self, patience: int, figure: str = "return", *, min_change: float = 0.0, higher_is_better: bool = True
    ) -> None:
        """Make the callback.

        Args:
            patience: Number of iterations without a better figure after which the run stops.
            figure: Name of a figure, as in ``log.csv``: such as ``tagger/return`` or ``metrics/angle``.
            min_change: A figure is better if it differs from the best one by more than this.
            higher_is_better: Whether higher figures are better; otherwise lower ones.
        """
        if patience < 1 or min_change < 0:
            raise ValueError(f"patience is {patience} and min_change {min_change}; give 1 or more, and 0 or more")
        self.patience, self.figure, self.min_change = patience, figure, min_change
        self._sign = 1.0 if higher_is_better else -1.0
        self._best: dict[int, tuple[float, int]] = {}

    def on_iteration(self, trainer: Any, report: Any) -> Mapping[int, str] | str | None:  # noqa: ARG002
        """Compare the figure with the best one; NaN, before the first episode has ended, is not counted."""
        figures = report[self.figure]
        if not isinstance(figures, np.ndarray):
            return self._compare(0, figures)
        reasons = {
            number: self._compare(number, figure)
            for number, figure in zip(report.numbers.tolist(), figures.tolist(), strict=True)
        }
        return {number: reason for number, reason in reasons.items() if reason}

    def _compare(self, run: int, figure: float) -> str | None:
        (best, since), figure = self._best.get(run, (-math.inf, 0)), self._sign * figure
        if math.isnan(figure):
            return None
        best, since = (figure, 0) if figure > best + self.min_change else (best, since + 1)
        self._best[run] = best, since
        if since < self.patience:
            return None
        return f"{self.figure} has not been better than {self._sign * best:g} for {since} iterations"

    def state_dict(self) -> dict[str, Any]:
        """Return, of each run, the best figure and the number of iterations since."""
        return {str(run): list(best) for run, best in self._best.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state_dict``."""
        self._best = {int(run): (best, int(since)) for run, (best, since) in state.items()}


@final
class Halving(Callback):
    """Ends the worst runs of a population early: successive halving.

    With a factor of 3, 27 runs train for 1/27 of their iterations; the best nine of them continue to 1/9, the best
    three to 1/3, and one to the end.

    Example:
        >>> from gpu_envs.training import Population, Run
        >>> from gpu_envs.training.callbacks import Halving
        >>> run = Run(env="CartPole-v1", num_envs=16, horizon=64, total_steps=16384, run_dir="")
        >>> population = Population(run, vary={"learning_rate": "log:1e-4:1e-2"}, runs=4)
        >>> result = population.train(progress=False, callbacks=[Halving(2)])
        >>> sorted(outcome.iterations for outcome in result.outcomes)
        [4, 4, 8, 16]
    """

    of_population = True

    def __init__(self, factor: int = 3, figure: str = "") -> None:
        """Make the callback.

        Args:
            factor: Each time, a share of 1 / ``factor`` of the runs continues.
            figure: Name of a figure, as in ``log.csv``, that compares the runs; empty: the return that
                ``target_return`` refers to. The highest is the best. A run whose first episode has not ended has none,
                and is the worst.
        """
        if factor < 2:
            raise ValueError(f"factor is {factor}; give 2 or more")
        self.factor, self.figure = factor, figure

    def on_iteration(self, trainer: Any, report: Any) -> Mapping[int, str]:  # noqa: ARG002
        """Compare the runs that train, if it is time."""
        runs, iterations = report.total, report.iterations
        if iterations < self.factor:
            raise ValueError(
                f"runs of {iterations} iterations cannot be halved by {self.factor}: give more total_steps"
            )
        figures = report[self.figure] if self.figure else report.returns
        times = [iterations // self.factor**k for k in range(1, runs.bit_length()) if self.factor**k <= runs]
        if report.iteration not in times:
            return {}
        keep = -(-runs // self.factor ** sum(time <= report.iteration for time in times))
        figures = np.where(np.isnan(figures), -np.inf, figures)[report.active]
        numbers = report.numbers[report.active][np.argsort(-figures, kind="stable")]
        return dict.fromkeys(numbers[keep:].tolist(), "halving")

    def state_dict(self) -> dict[str, int]:
        """Return the factor, so that a population that continues without this callback warns of it."""
        return {"factor": self.factor}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Keep the present factor."""
