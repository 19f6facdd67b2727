"""Pictures of replicas: frames made when they are looked at, many in one picture, and a window."""

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, final, overload

import gymnasium
import numpy as np

from gpu_envs.arrays import to_numpy
from gpu_envs.extras import extra
from gpu_envs.painter import Painter
from gpu_envs.pictures import Drawing, Picture

MODES = ("rgb_array", "tiled", "human")
"""One frame for each replica; one picture of many; that in a window."""

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
        """Keeps them.

        Args:
            drawing: How they are drawn.
            state: By field, arrays that nobody changes.
            params: By name, one value or one for each replica.
        """
        self._drawing, self._state, self._params = drawing, state, params
        self.replicas = len(next(iter(state.values())))

    def picture(self, replicas: np.ndarray) -> Picture:
        """What the replicas of these numbers look like."""
        state = {name: _real(values[replicas]) for name, values in self._state.items()}
        params = {n: v[replicas] if isinstance(v, np.ndarray) else v for n, v in self._params.items()}
        with np.errstate(all="ignore"):  # a state that is no number any more is drawn as far as it goes
            return self._drawing.draw(state, params)


def _real(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64) if values.dtype.kind == "f" else values


@final
class Frames(Sequence[np.ndarray]):
    """A frame for each replica, ``[height, width, 3]``, painted when asked for: as they were when rendered.

    A slice of it is of the same kind; ``numpy.array(frames)`` is ``[replicas, height, width, 3]``.
    """

    def __init__(
        self, snapshot: Snapshot, painter: Painter, size: tuple[int, int], numbers: range | None = None
    ) -> None:
        """Keeps what is needed to paint.

        Args:
            snapshot: What is painted.
            painter: Who paints.
            size: Of a frame, in pixels: width and height.
            numbers: Of the replicas; None: all.
        """
        self._snapshot, self._painter, self._size = snapshot, painter, size
        self._numbers = range(snapshot.replicas) if numbers is None else numbers

    def __len__(self) -> int:
        """The number of replicas."""
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
        """All of them: NumPy asks for this."""
        if copy is False:
            raise ValueError("frames are painted when they are looked at, so there is nothing to share: leave out copy")
        width, height = self._size
        pixels = np.empty((len(self), height, width, 3), np.uint8 if dtype is None else dtype)
        for start in range(0, len(self), _TOGETHER):
            part = self._numbers[start : start + _TOGETHER]
            pixels[start : start + len(part)] = self._paint(part)
        return pixels

    def __repr__(self) -> str:
        """Says how many there are, and how large."""
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


@final
class Renderer:
    """What ``render`` of an environment does."""

    def __init__(self, env_id: str, drawing: Drawing | None, mode: str | None, device: str) -> None:
        """Checks the mode.

        Args:
            env_id: For messages.
            drawing: How the environment is drawn; None: it is not.
            mode: As given to the environment.
            device: The environment's.
        """
        if mode is not None and (mode not in MODES or drawing is None):
            allowed = ", ".join(repr(m) for m in MODES) if drawing is not None else ""
            raise ValueError(
                f"render_mode is {mode!r}; {env_id} can be made with {allowed + ' or ' if allowed else ''}None"
                + (" only: its spec has no drawing" if drawing is None else "")
            )
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
        """Copies of the states, whatever is done with the environment later.

        Args:
            state: The live state.
            params: The parameters; arrays where replicas have their own.
            most: Of so many replicas at most, the first; None: of all.
        """
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
        """The frames, the picture of many, or None where a window shows it.

        Args:
            state: The live state.
            params: The parameters; arrays where replicas have their own.
        """
        assert self._drawing is not None
        if self.mode == "rgb_array":
            return Frames(self.snapshot(state, params), self.painter, self._drawing.size)
        picture = self.tile(self.snapshot(state, params, MOST_TILES))
        if self.mode == "tiled":
            return picture
        self._show(picture)
        return None

    def tile(self, snapshot: Snapshot, most: int = MOST_TILES) -> np.ndarray:
        """The first replicas in one picture."""
        assert self._drawing is not None
        numbers = np.arange(min(most, snapshot.replicas))
        return tiled(self.painter.paint(snapshot.picture(numbers), tile_size(self._drawing, len(numbers))))

    def _show(self, picture: np.ndarray) -> None:
        assert self._drawing is not None
        if self._window is None:
            self._window = Window(self._id, self._drawing.frames_a_second)
        self._window.show(picture)

    def close(self) -> None:
        """Closes the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None


def _held(value: Any, most: int | None) -> Any:
    array = to_numpy(value[:most]) if getattr(value, "shape", ()) else value
    return np.array(array) if isinstance(array, np.ndarray) else value


@final
class Window:
    """A window on the screen, by pygame, which has but one: of several, the one that shows something takes it over."""

    _shown: ClassVar["Window | None"] = None

    def __init__(self, title: str, frames_a_second: int) -> None:
        """Starts pygame; the window opens with the first picture."""
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
