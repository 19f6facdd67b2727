"""A replay, which can be saved as a video or a page, or shown in a window."""

import dataclasses
from pathlib import Path
from typing import final

from gpu_envs.documented import documented
from gpu_envs.replays import page, video, window
from gpu_envs.replays.recorded import Recorded


@final
@documented
@dataclasses.dataclass(frozen=True)
class Replay(Recorded):
    """A recording of some replicas: frame 0 is the first state, frame ``t`` is the state after ``t`` steps.

    Replicas that stop before others repeat their last frame.
    """

    def save_video(
        self, path: str | Path, *, width: int | None = None, fps: int | None = None, progress: bool | None = False
    ) -> None:
        """Save a video of all replicas side by side, which needs a drawing.

        Args:
            path: The file, ``.mp4`` or ``.gif``.
            width: Approximate width in pixels; None for 1200, or less for few replicas.
            fps: Frames (steps) per second; None for real time.
            progress: Whether to draw a progress bar; None draws one in terminals and notebooks, else prints every 30 s.
        """
        video.write(self, Path(path), width, fps, progress)

    def save_html(self, path: str | Path, *, fps: int | None = None) -> None:
        """Save a page that plays in a browser. It is one file and needs no network.

        It shows returns, metrics and pictures, or without a drawing charts of the state's fields.

        Args:
            path: The file, ``.html``.
            fps: Frames (steps) per second; None for real time.
        """
        page.write(self, Path(path), fps)

    def __repr__(self) -> str:
        return f"<Replay of {self.env}: {self.replicas} replicas, {self.steps} steps>"

    def _repr_html_(self) -> str:
        """Return the page for notebooks."""
        return page.to_iframe(self)

    def show(self, *, width: int | None = None, fps: int | None = None) -> None:
        """Play the replay once in a window, which needs a drawing. Closing the window stops it.

        Args:
            width: Approximate width in pixels; None for 1200, or less for few replicas.
            fps: Frames (steps) per second; None for real time.
        """
        window.play(self, width, fps)
