"""Plays a replay in a window on the screen."""

import importlib
from typing import Any

from gpu_envs.extras import extra
from gpu_envs.painter import Painter
from gpu_envs.rendering import Window
from gpu_envs.replays.replay import Replay


def check() -> None:
    """Raises an error if the library that opens windows is missing."""
    _library()


def _library() -> Any:
    with extra("render", "pygame"):
        return importlib.import_module("pygame")


def play(replay: Replay, width: int | None, fps: int | None) -> None:
    """Shows every frame once, or those before the window is closed or Escape is pressed.

    Args:
        replay: What to show.
        width: In pixels, about.
        fps: Frames a second; None: the drawing's.
    """
    pygame = _library()
    size = replay.tile(width)
    painter = Painter(replay.device)
    window = Window(replay.title or replay.env, fps or replay.drawing.frames_a_second)
    try:
        for frame in range(replay.frames):
            window.show(replay.pixels(frame, painter, size))
            keys = pygame.event.get((pygame.QUIT, pygame.KEYDOWN))
            if any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in keys):
                break
    finally:
        window.close()
