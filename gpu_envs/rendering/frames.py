"""Frames of replicas, painted when they are looked at, and many of them tiled to one."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final, overload

import numpy as np

from gpu_envs.pictures import Drawing, Picture
from gpu_envs.rendering.painter import Painter

MOST_TILES = 64
"""Replicas in one picture."""

TILED_WIDTH = 1200
"""Of one picture of many replicas, in pixels; narrower where they are few."""

GAP = 2
"""Pixels between tiles."""

GAP_SHADE = 90

_TOGETHER = 64
"""Frames painted at a time, where many are asked for."""


@final
class Snapshot:
    """The states of all replicas at one time, and what they look like."""

    def __init__(self, drawing: Drawing, state: Mapping[str, np.ndarray], params: Mapping[str, Any]) -> None:
        self._drawing, self._state, self._params = drawing, state, params
        self.replicas = len(next(iter(state.values())))

    def picture(self, replicas: np.ndarray) -> Picture:
        """What the replicas of these numbers look like."""
        state = {name: values[replicas] for name, values in self._state.items()}
        state = {name: v.astype(np.float64) if v.dtype.kind == "f" else v for name, v in state.items()}
        params = {n: v[replicas] if isinstance(v, np.ndarray) else v for n, v in self._params.items()}
        with np.errstate(all="ignore"):  # a state that is no number any more is drawn as far as it goes
            return self._drawing.draw(state, params)


@final
class Frames(Sequence[np.ndarray]):
    """A frame for each replica, ``[height, width, 3]``, painted when asked for: as they were when rendered.

    A slice of it is of the same kind; ``numpy.array(frames)`` is ``[replicas, height, width, 3]``.
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
        """One frame; of a slice those of its replicas, which are not painted yet."""
        if isinstance(index, slice):
            return Frames(self._snapshot, self._painter, self._size, self._numbers[index])
        try:
            number = self._numbers[operator.index(index)]
        except IndexError:
            raise IndexError(f"there is no frame {index}: there are {len(self)}, one for each replica") from None
        return self._paint([number])[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        """Frame by frame; several are painted at a time."""
        for start in range(0, len(self), _TOGETHER):
            yield from self._paint(self._numbers[start : start + _TOGETHER])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("frames are painted when they are looked at, so there is nothing to share: leave out copy")
        width, height = self._size
        pixels = np.empty((len(self), height, width, 3), np.uint8 if dtype is None else dtype)
        for start in range(0, len(self), _TOGETHER):
            part = self._numbers[start : start + _TOGETHER]
            pixels[start : start + len(part)] = self._paint(part)
        return pixels

    def __repr__(self) -> str:
        return f"Frames({len(self)} of {self._size[0]} x {self._size[1]} pixels)"

    def _paint(self, numbers: Sequence[int]) -> np.ndarray:
        return self._painter.paint(self._snapshot.picture(np.array(numbers)), self._size)


def tile_size(drawing: Drawing, tiles: int) -> tuple[int, int]:
    """Width and height of a tile in a picture of so many."""
    columns = math.ceil(math.sqrt(tiles))
    width = min(drawing.size[0], (TILED_WIDTH - (columns - 1) * GAP) // columns)
    return width, max(1, round(width * drawing.size[1] / drawing.size[0]))


def tiled(frames: np.ndarray) -> np.ndarray:
    """Many frames as one: row by row, in about a square."""
    count, height, width, _ = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    whole = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), GAP_SHADE, np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        whole[top : top + height, left : left + width] = frame
    return whole
