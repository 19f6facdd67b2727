"""A window that shows pixels."""

import os
from typing import Any, ClassVar, final

import numpy as np

from gpu_envs.extras import extra


def open_display() -> Any:
    """Open a display, and return pygame; raise an error if pygame is missing, or if this machine has no display."""
    with extra("render", "pygame"):
        import pygame

    pygame.display.init()
    if pygame.display.get_driver() == "offscreen" and "SDL_VIDEODRIVER" not in os.environ:  # SDL's last resort
        pygame.display.quit()
        raise ValueError(
            "this machine has no display for a window: save a page or a video (gpu-envs play --html or --video, "
            "Replay.save_html or save_video), or make the environment with render_mode='rgb_array'"
        )
    return pygame


@final
class Window:
    """A pygame window. Pygame has only one: the ``Window`` that shows a picture takes it over from the others."""

    _shown: ClassVar["Window | None"] = None

    def __init__(self, title: str, frames_a_second: int) -> None:
        self._pygame = pygame = open_display()
        self._title = title
        self._clock = pygame.time.Clock()
        self._rate = frames_a_second
        self._surface: Any = None

    def show(self, picture: np.ndarray) -> None:
        """Show a picture, and wait for the time of the next."""
        pygame = self._pygame
        height, width, _ = picture.shape
        open_here = Window._shown is self and pygame.display.get_init()
        if not open_here or self._surface.get_size() != (width, height):
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._surface = pygame.display.set_mode((width, height))
            Window._shown = self
        self._surface.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Close the window unless another ``Window`` has taken it over."""
        if Window._shown is self:
            self._pygame.display.quit()
            Window._shown = None
