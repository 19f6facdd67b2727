"""Lazily painted frames of replicas, and tiled images."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final, overload

import numpy as np

from gpu_envs.pictures import Drawing, Picture
from gpu_envs.rendering.painter import Painter

MAX_TILES = 64
"""Maximum number of replicas in a tiled image."""

TILED_WIDTH = 1200
"""Maximum width of a tiled image in pixels."""

GAP = 2
"""Pixels between tiles."""

GAP_SHADE = 90

_BATCH = 64
"""Number of frames painted by one launch."""


@final
class Snapshot:
    """Copied states of replicas, and their drawing."""

    def __init__(self, drawing: Drawing, state: Mapping[str, np.ndarray], params: Mapping[str, Any]) -> None:
        self._drawing, self._state, self._params = drawing, state, params
        self.replicas = len(next(iter(state.values())))

    def picture(self, replicas: np.ndarray) -> Picture:
        """Return the picture of the replicas with these numbers."""
        state = {name: values[replicas] for name, values in self._state.items()}
        state = {name: v.astype(np.float64) if v.dtype.kind == "f" else v for name, v in state.items()}
        params = {n: v[replicas] if isinstance(v, np.ndarray) else v for n, v in self._params.items()}
        with np.errstate(all="ignore"):  # diverged states have NaN and infinity
            return self._drawing.draw(state, params).for_replicas(len(replicas))


@final
class Frames(Sequence[np.ndarray]):
    """Sequence of the replicas' frames, ``[height, width, 3]``, painted at access from the states at ``render``.

    A slice is a ``Frames`` too. ``numpy.array(frames)`` is ``[replicas, height, width, 3]``.
    """

    def __init__(
        self, snapshot: Snapshot, painter: Painter, size: tuple[int, int], numbers: range | None = None
    ) -> None:
        self._snapshot, self._painter, self._size = snapshot, painter, size
        self._numbers = range(snapshot.replicas) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> "Frames": ...
    def __getitem__(self, index: int | slice) -> Any:
        """Paint one frame, or return the ``Frames`` of a slice without painting."""
        if isinstance(index, slice):
            return Frames(self._snapshot, self._painter, self._size, self._numbers[index])
        try:
            number = self._numbers[operator.index(index)]
        except IndexError:
            raise IndexError(f"frame {index} is out of range: there are {len(self)} frames, one per replica") from None
        return self._paint([number])[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over frames, painted in batches."""
        for start in range(0, len(self), _BATCH):
            yield from self._paint(self._numbers[start : start + _BATCH])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("frames are painted at access, so they have no memory to share: leave out copy=False")
        width, height = self._size
        pixels = np.empty((len(self), height, width, 3), np.uint8 if dtype is None else dtype)
        for start in range(0, len(self), _BATCH):
            part = self._numbers[start : start + _BATCH]
            pixels[start : start + len(part)] = self._paint(part)
        return pixels

    def __repr__(self) -> str:
        return f"Frames({len(self)} of {self._size[0]} x {self._size[1]} pixels)"

    def _paint(self, numbers: Sequence[int]) -> np.ndarray:
        return self._painter.paint(self._snapshot.picture(np.array(numbers)), self._size)


def tile_size(drawing: Drawing, tiles: int) -> tuple[int, int]:
    """Return the width and height of a tile in an image of this many tiles."""
    columns = math.ceil(math.sqrt(tiles))
    width = min(drawing.size[0], (TILED_WIDTH - (columns - 1) * GAP) // columns)
    return width, max(1, round(width * drawing.size[1] / drawing.size[0]))


def tiled(frames: np.ndarray) -> np.ndarray:
    """Return an image with the frames as tiles, row by row in a grid with about as many columns as rows."""
    count, height, width, _ = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    image = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), GAP_SHADE, np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        image[top : top + height, left : left + width] = frame
    return image
