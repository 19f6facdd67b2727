"""What was recorded, and the three ways to look at it."""

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
    """Some replicas of an environment, frame by frame: frame 0 is the beginning, frame ``t`` is after ``t`` steps.

    A replica that was recorded no longer than others keeps its last frame.
    """

    def save_video(
        self, path: str | Path, *, width: int | None = None, fps: int | None = None, progress: bool | None = False
    ) -> None:
        """Writes a video of all replicas side by side.

        Args:
            path: The file: ``.mp4``, or ``.gif`` for an animated picture.
            width: In pixels, about; None: 1200, and less where replicas are few.
            fps: Frames, which are steps, a second; None: as many as make time pass as in the world.
            progress: Draw a progress bar; None: in a terminal or a notebook, and elsewhere write a line every 30 s.
        """
        video.write(self, Path(path), width, fps, progress)

    def save_html(self, path: str | Path, *, fps: int | None = None) -> None:
        """Writes a page that plays in any browser, from one file, without a network.

        Args:
            path: The file, ``.html``.
            fps: Frames, which are steps, a second; None: as many as make time pass as in the world.
        """
        page.write(self, Path(path), fps)

    def __repr__(self) -> str:
        return f"<Replay of {self.env}: {self.replicas} replicas, {self.steps} steps>"

    def _repr_html_(self) -> str:
        """In a notebook: the page, with its player."""
        return page.frame(self)

    def show(self, *, width: int | None = None, fps: int | None = None) -> None:
        """Plays it in a window, once; closing the window ends it.

        Args:
            width: In pixels, about; None: 1200, and less where replicas are few.
            fps: Frames a second; None: as many as make time pass as in the world.
        """
        window.play(self, width, fps)
