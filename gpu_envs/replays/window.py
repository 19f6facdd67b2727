"""Play a replay in a window."""

from gpu_envs.rendering.painter import Painter
from gpu_envs.rendering.window import Window, open_display
from gpu_envs.replays.recorded import Recorded


def play(replay: Recorded, width: int | None, fps: int | None) -> None:
    """Show all frames until the window is closed or Escape is pressed; see ``Replay.show``."""
    pygame = open_display()
    size = replay.tile(width)
    painter = Painter(replay.device)
    window = Window(replay.title or replay.env, fps or replay.frames_a_second)
    try:
        for frame in range(replay.frames):
            window.show(replay.pixels(frame, painter, size))
            keys = pygame.event.get((pygame.QUIT, pygame.KEYDOWN))
            if any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in keys):
                break
    finally:
        window.close()
