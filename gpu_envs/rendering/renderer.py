"""Pictures of replicas: frames made when they are looked at, many in one picture, and a window."""

import functools
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.pictures import Drawing
from gpu_envs.rendering.frames import MOST_TILES, Frames, Snapshot, tile_size, tiled
from gpu_envs.rendering.painter import Painter
from gpu_envs.rendering.window import Window

MODES = ("rgb_array", "tiled", "human")
"""One frame for each replica; one picture of many; that in a window."""


@final
class Renderer:
    """What ``render`` of an environment does."""

    def __init__(self, env_id: str, drawing: Drawing | None, mode: str | None, device: str) -> None:
        if mode is not None and (mode not in MODES or drawing is None):
            no_drawing = "None only: its spec has no drawing"
            allowed = no_drawing if drawing is None else f"{', '.join(map(repr, MODES))} or None"
            raise ValueError(f"render_mode is {mode!r}; {env_id} can be made with {allowed}")
        self._id, self._drawing, self.mode, self._device = env_id, drawing, mode, device
        self._window: Any = None

    @property
    def metadata(self) -> dict[str, Any]:
        """What Gymnasium wants to know."""
        if self._drawing is None:
            return {"render_modes": []}
        return {"render_modes": list(MODES), "render_fps": self._drawing.frames_a_second}

    @functools.cached_property
    def painter(self) -> Painter:
        """Compiled when the first picture is painted."""
        return Painter(self._device)

    def snapshot(self, state: Mapping[str, Any], params: Mapping[str, Any], most: int | None = None) -> Snapshot:
        """Copies of the live states of all replicas, or of the first ``most``."""
        assert self._drawing is not None
        held = {name: np.array(to_numpy(values[:most])) for name, values in state.items()}
        return Snapshot(self._drawing, held, {n: _held(v, most) for n, v in params.items()})

    def check(self) -> None:
        """Raises an error if there is no picture."""
        if self.mode is None:
            raise gymnasium.error.Error(
                f"{self._id} was made with render_mode=None: there is no picture; "
                f"make it with render_mode={MODES[0]!r}, {MODES[1]!r} or {MODES[2]!r}"
            )

    def render(self, state: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """The frames, the picture of many, or None where a window shows it."""
        assert self._drawing is not None
        if self.mode == "rgb_array":
            return Frames(self.snapshot(state, params), self.painter, self._drawing.size)
        picture = self.tile(self.snapshot(state, params, MOST_TILES))
        if self.mode == "tiled":
            return picture
        if self._window is None:
            self._window = Window(self._id, self._drawing.frames_a_second)
        self._window.show(picture)
        return None

    def tile(self, snapshot: Snapshot, most: int = MOST_TILES) -> np.ndarray:
        """The first replicas in one picture."""
        assert self._drawing is not None
        numbers = np.arange(min(most, snapshot.replicas))
        return tiled(self.painter.paint(snapshot.picture(numbers), tile_size(self._drawing, len(numbers))))

    def close(self) -> None:
        """Closes the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None


def _held(value: Any, most: int | None) -> Any:
    array = to_numpy(value[:most]) if getattr(value, "shape", ()) else value
    return np.array(array) if isinstance(array, np.ndarray) else value
