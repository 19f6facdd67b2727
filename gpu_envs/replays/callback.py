"""A callback that records replays while a run trains."""

import tempfile
from pathlib import Path
from typing import Any, final

from gpu_envs.registry import catalog as registry
from gpu_envs.replays import video
from gpu_envs.replays.recorded import require_drawing
from gpu_envs.replays.recording import record


@final
class RecordReplays:
    """Records replays of the present policies, as pages or videos in the folder ``replays`` of the run directory.

    Trackers receive the files, too.

    Example:
        >>> from gpu_envs.replays import RecordReplays
        >>> from gpu_envs.training import Run, train
        >>> run = Run(env="CartPole-v1", num_envs=64, total_steps=16384)
        >>> result = train(run, callbacks=[RecordReplays(every=4, replicas=2, steps=20)])
    """

    def __init__(self, every: int = 0, *, suffix: str = ".html", **options: Any) -> None:
        """Make the callback.

        Args:
            every: Iterations between two replays; 0: only one at the end of the run.
            suffix: ``.html``, or ``.mp4`` or ``.gif`` for a video.
            **options: Arguments of ``record``, such as ``replicas`` or ``episodes``.
        """
        if suffix not in (".html", ".mp4", ".gif"):
            raise ValueError(f"suffix is {suffix!r}; give .html, .mp4 or .gif")
        if every < 0:
            raise ValueError(f"every is {every}; give 0 or more")
        self.every, self.suffix, self.options = every, suffix, options

    def on_start(self, trainer: Any) -> None:
        """Raise an error if a video cannot be written."""
        self._folder = Path(trainer.run_dir or tempfile.mkdtemp(), "replays") if trainer.is_main else None
        if self._folder is not None and self.suffix != ".html":
            spec = registry.spec(trainer.config.env)
            require_drawing(spec.drawing, spec.id)
            video.check(self._folder / f"replay{self.suffix}", None, None)

    def on_iteration(self, trainer: Any, report: Any) -> None:
        """Record a replay after each ``every`` iterations."""
        if self.every and report.iteration % self.every == 0:
            self._record(trainer)

    def on_end(self, trainer: Any, result: Any) -> None:  # noqa: ARG002
        """Record the last replay."""
        self._record(trainer)

    def _record(self, trainer: Any) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"iteration-{trainer.iteration:08d}{self.suffix}"
        replay = record(trainer.policies(), **self.options)
        if self.suffix == ".html":
            replay.save_html(path)
        else:
            replay.save_video(path)
        trainer.add_file(path)
