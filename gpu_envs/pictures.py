"""Drawings of environments: shapes in world units, for all replicas at once.

A spec's ``Drawing`` maps states to a ``Picture``, which is painted to frames or written to a page for a browser.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.documented import documented

__all__ = [
    "BLACK",
    "WHITE",
    "Colour",
    "Drawing",
    "Params",
    "Picture",
    "Shape",
    "State",
    "bar",
    "box",
    "disc",
    "discs",
    "line",
    "per_replica",
    "placed",
    "polygon",
    "repeat",
]

Colour: TypeAlias = tuple[int, int, int]
"""Red, green and blue from 0 to 255."""

WHITE: Colour = (255, 255, 255)
"""White, the default background."""
BLACK: Colour = (0, 0, 0)
"""Black."""

MAX_CORNERS = 8
"""Maximum number of corners of a polygon."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Shape:
    """Shapes of one kind and colour in each replica, drawn in order."""

    kind: str
    """``polygon`` (convex, filled), ``line`` (from point to point, with round ends) or ``disc``."""
    points: np.ndarray
    """Corners of polygons, points of lines, or centres of discs, ``[replicas, shapes, points, 2]``."""
    colour: Colour
    """Colour of all shapes."""
    size: float = 0.0
    """Width of lines or radius of discs, in world units; at least a pixel is painted."""
    shown: np.ndarray | None = None
    """Mask of the shapes to draw, ``[replicas, shapes]``; None draws all."""


def polygon(points: Any, colour: Colour, shown: Any = None) -> Shape:
    """Return filled convex polygons.

    Args:
        points: Corners, clockwise or counterclockwise, ``[replicas, shapes, corners, 2]``.
        colour: Colour of all polygons.
        shown: Mask of the polygons to draw, ``[replicas, shapes]``; None draws all.
    """
    array = np.asarray(points, np.float64)
    if not 3 <= array.shape[-2] <= MAX_CORNERS:
        raise ValueError(f"a polygon has {array.shape[-2]} corners; give 3 to {MAX_CORNERS}")
    return _shape("polygon", array, colour, 0.0, shown)


def line(points: Any, width: float, colour: Colour, shown: Any = None) -> Shape:
    """Return lines from point to point.

    Args:
        points: Points of the lines, ``[replicas, shapes, points, 2]``.
        width: Width in world units.
        colour: Colour of all lines.
        shown: Mask of the lines to draw, ``[replicas, shapes]``; None draws all.
    """
    return _shape("line", np.asarray(points, np.float64), colour, width, shown)


def disc(centres: Any, radius: float, colour: Colour, shown: Any = None) -> Shape:
    """Return discs.

    Args:
        centres: Centres, ``[replicas, shapes, 2]``.
        radius: Radius in world units.
        colour: Colour of all discs.
        shown: Mask of the discs to draw, ``[replicas, shapes]``; None draws all.
    """
    return _shape("disc", np.asarray(centres, np.float64)[..., None, :], colour, radius, shown)


def discs(centres: Any, radii: Any, colour: Colour, shown: Any = None) -> tuple[Shape, ...]:
    """Return discs whose radius may differ between replicas: one ``Shape`` for each distinct radius.

    Args:
        centres: Centres, ``[replicas, shapes, 2]``.
        radii: Radius in world units: one number, or ``[replicas]``.
        colour: Colour of all discs.
        shown: Mask of the discs to draw, ``[replicas, shapes]``; None draws all.
    """
    count, shapes = np.shape(centres)[:2]
    by_replica = per_replica(radii, count)
    mask = np.broadcast_to(True if shown is None else np.asarray(shown, bool), (count, shapes))
    return tuple(
        disc(centres, radius, colour, mask & (by_replica == radius)[:, None])
        for radius in np.unique(by_replica).tolist()
    )


def _shape(kind: str, points: np.ndarray, colour: Colour, size: float, shown: Any) -> Shape:
    """Return a ``Shape`` with a mask ``[replicas, shapes]`` or None; raise a ValueError for points of a wrong shape."""
    if points.ndim != 4 or points.shape[-1] != 2:
        expected = "[replicas, shapes, points, 2]; centres of discs are [replicas, shapes, 2]"
        raise ValueError(f"a {kind}'s points have shape {points.shape}; expected {expected}")
    mask = None if shown is None else np.broadcast_to(np.asarray(shown, bool), points.shape[:2])
    return Shape(kind, points, colour, float(size), mask)


@final
@documented
@dataclasses.dataclass(frozen=True)
class Picture:
    """The drawn shapes of all replicas at one time."""

    view: tuple[float, float, float, float]
    """Visible part of the world: left, bottom, right, top."""
    shapes: tuple[Shape, ...]
    """Shapes from back to front."""
    background: Colour = WHITE
    """Background colour."""

    def __post_init__(self) -> None:
        """Check the view and the number of replicas."""
        left, bottom, right, top = self.view
        if not (left < right and bottom < top):
            raise ValueError(f"the view is {self.view}; give (left, bottom, right, top), left < right, bottom < top")
        replicas = [len(shape.points) for shape in self.shapes]
        if len(set(replicas)) != 1:
            raise ValueError(f"the shapes have {replicas} replicas; give at least one shape, all with equal numbers")


State: TypeAlias = Mapping[str, np.ndarray]
"""State fields by name, ``[replicas]``, or ``[replicas, agents]`` for fields of agents."""

Params: TypeAlias = Mapping[str, Any]
"""Parameters by name: one value, or ``[replicas]``."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Drawing:
    """A function that draws an environment, with the size and rate of its frames."""

    draw: Callable[[State, Params], Picture]
    """Function from states and parameters of some replicas to their picture. The shapes of a replica must not depend on
    the other replicas: all share one view, so scale shapes by the replica's parameters."""
    size: tuple[int, int] = (500, 500)
    """Width and height in pixels, with the aspect ratio of the view."""
    frames_a_second: int = 30
    """Frames per second in real time."""


def placed(points: Any, x: Any, y: Any, angle: Any = 0.0) -> np.ndarray:
    """Return copies of a figure's points, rotated by an angle and moved to each (x, y).

    Args:
        points: Points of the figure, ``[points, 2]``. It is rotated about (0, 0).
        x: Horizontal positions, ``[replicas]`` or ``[replicas, shapes]``.
        y: Vertical positions.
        angle: Counterclockwise angles in radians.

    Returns:
        Points, ``[replicas, shapes, points, 2]``.
    """
    x, y, angle = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (x, y, angle)))
    if x.ndim == 1:
        x, y, angle = x[:, None], y[:, None], angle[:, None]
    figure = np.asarray(points, np.float64)
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    across, up = figure[:, 0], figure[:, 1]
    return np.stack([x[..., None] + cos * across - sin * up, y[..., None] + sin * across + cos * up], -1)


def bar(x: Any, y: Any, angle: Any, start: Any, end: Any, width: float) -> np.ndarray:
    """Return the corners of a rectangular bar in each replica.

    Args:
        x: Horizontal position of the pivot, ``[replicas]``.
        y: Vertical position of the pivot, ``[replicas]``.
        angle: Direction of the bar in radians, counterclockwise from the right.
        start: Distance from the pivot to the start of the bar: one number, or ``[replicas]``.
        end: Distance from the pivot to the end of the bar.
        width: Width of the bar.

    Returns:
        Corners, ``[replicas, 1, 4, 2]``.
    """
    x, y, angle, start, end = np.broadcast_arrays(
        *(np.asarray(value, np.float64) for value in (x, y, angle, start, end))
    )
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    along, across = np.stack([start, end, end, start], -1), np.array([-1, -1, 1, 1]) * width / 2
    return np.stack([x[:, None] + cos * along - sin * across, y[:, None] + sin * along + cos * across], -1)[:, None]


def per_replica(value: Any, replicas: int) -> np.ndarray:
    """Return a parameter as an array with one value per replica, ``[replicas]``."""
    return np.broadcast_to(np.asarray(value, np.float64), (replicas,))


def box(left: float, bottom: float, right: float, top: float) -> np.ndarray:
    """Return the corners of a rectangle, ``[4, 2]``."""
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]], np.float64)


def repeat(points: Any, replicas: int) -> np.ndarray:
    """Return a figure, ``[points, 2]``, repeated for all replicas: ``[replicas, 1, points, 2]``."""
    figure = np.asarray(points, np.float64)
    return np.broadcast_to(figure, (replicas, 1, *figure.shape))
