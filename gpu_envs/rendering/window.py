"""A window that shows pixels."""

from typing import Any, ClassVar, final

import numpy as np

from gpu_envs.extras import extra


@final
class Window:
    """A window on the screen, by pygame, which has but one: of several, the one that shows something takes it over."""

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
        """Shows a picture, no sooner than it is time for it."""
        pygame = self._pygame
        height, width, _ = picture.shape
        mine = Window._shown is self and pygame.display.get_init()
        if not mine or self._surface.get_size() != (width, height):
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._surface = pygame.display.set_mode((width, height))
            Window._shown = self
        self._surface.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Closes it, if it is not another's by now."""
        if Window._shown is self:
            self._pygame.display.quit()
            Window._shown = None
