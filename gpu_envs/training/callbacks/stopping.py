"""Early stopping: the end of a run that has become no better for a while."""

import math
from typing import Any, final

from gpu_envs.training.callbacks.base import Callback


@final
class EarlyStopping(Callback):
    """Stops a run when a figure of its reports has not become better for a number of iterations.

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
        self._best, self._since = -math.inf, 0

    def on_iteration(self, trainer: Any, report: Any) -> str | None:  # noqa: ARG002
        """Compare the figure with the best one; NaN, before the first episode has ended, is not counted."""
        figure = self._sign * report[self.figure]
        if math.isnan(figure):
            return None
        better = figure > self._best + self.min_change
        self._best, self._since = (figure, 0) if better else (self._best, self._since + 1)
        if self._since < self.patience:
            return None
        return f"{self.figure} has not been better than {self._sign * self._best:g} for {self._since} iterations"

    def state_dict(self) -> dict[str, float]:
        """Return the best figure and the number of iterations since."""
        return {"best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a result of ``state_dict``."""
        self._best, self._since = state["best"], int(state["since"])
