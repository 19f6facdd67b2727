"""The ``render`` method of environments: lazy frames, tiled images, and a window."""

import functools
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.pictures import Drawing
from gpu_envs.rendering.frames import MAX_TILES, Frames, Snapshot, tile_size, tiled
from gpu_envs.rendering.painter import Painter
from gpu_envs.rendering.window import Window

MODES = ("rgb_array", "tiled", "human")
"""Render modes: one frame per replica, one image with tiles of many replicas, or that image in a window."""


@final
class Renderer:
    """Implements ``render`` of environments."""

    def __init__(self, env_id: str, drawing: Drawing | None, mode: str | None, device: str) -> None:
        if mode is not None and (mode not in MODES or drawing is None):
            no_drawing = "None only: its spec has no drawing, which a page of gpu-envs play does not need"
            allowed = no_drawing if drawing is None else f"{', '.join(map(repr, MODES))} or None"
            raise ValueError(f"render_mode is {mode!r}; {env_id} can be made with {allowed}")
        self._id, self._drawing, self.mode, self._device = env_id, drawing, mode, device
        self._window: Any = None

    @property
    def metadata(self) -> dict[str, Any]:
        """Rendering entries of Gymnasium's metadata."""
        if self._drawing is None:
            return {"render_modes": []}
        return {"render_modes": list(MODES), "render_fps": self._drawing.frames_a_second}

    @functools.cached_property
    def painter(self) -> Painter:
        """Painter, compiled at first use."""
        return Painter(self._device)

    def snapshot(self, state: Mapping[str, Any], params: Mapping[str, Any], limit: int | None = None) -> Snapshot:
        """Return a copy of the states of all replicas, or of the first ``limit`` replicas."""
        assert self._drawing is not None
        copies = {name: np.array(to_numpy(values[:limit])) for name, values in state.items()}
        return Snapshot(self._drawing, copies, {n: _copy_param(v, limit) for n, v in params.items()})

    def check(self) -> None:
        """Raise Gymnasium's error if the environment was made without a render mode."""
        if self.mode is None:
            raise gymnasium.error.Error(
                f"{self._id} was made with render_mode=None and cannot be rendered; "
                f"make it with render_mode={MODES[0]!r}, {MODES[1]!r} or {MODES[2]!r}"
            )

    def render(self, state: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """Return frames in mode ``rgb_array``, an image in mode ``tiled``, or None in mode ``human``."""
        assert self._drawing is not None
        if self.mode == "rgb_array":
            return Frames(self.snapshot(state, params), self.painter, self._drawing.size)
        picture = self.tile(self.snapshot(state, params, MAX_TILES))
        if self.mode == "tiled":
            return picture
        if self._window is None:
            self._window = Window(self._id, self._drawing.frames_a_second)
        self._window.show(picture)
        return None

    def tile(self, snapshot: Snapshot, limit: int = MAX_TILES) -> np.ndarray:
        """Return an image with tiles of the first replicas."""
        assert self._drawing is not None
        numbers = np.arange(min(limit, snapshot.replicas))
        return tiled(self.painter.paint(snapshot.picture(numbers), tile_size(self._drawing, len(numbers))))

    def close(self) -> None:
        """Close the window, if any."""
        if self._window is not None:
            self._window.close()
            self._window = None


def _copy_param(value: Any, limit: int | None) -> Any:
    array = to_numpy(value[:limit]) if getattr(value, "shape", ()) else value
    return np.array(array) if isinstance(array, np.ndarray) else value
