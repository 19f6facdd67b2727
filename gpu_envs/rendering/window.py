"""A window that shows pixels."""

from typing import Any, ClassVar, final

import numpy as np

from gpu_envs.extras import extra


@final
class Window:
    """A pygame window. Pygame has only one: the ``Window`` that shows a picture takes it over from the others."""

    _shown: ClassVar["Window | None"] = None

    def __init__(self, title: str, frames_a_second: int) -> None:
        with extra("render", "pygame"):
            import pygame

        self._pygame: Any = pygame
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
