"""What an environment looks like: shapes in the world's own units, of all replicas at once.

A spec's ``Drawing`` turns states into a ``Picture``. From the same picture frames are painted, and pages are written
that play in a browser.
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
    "own",
    "placed",
    "polygon",
    "same",
]

Colour: TypeAlias = tuple[int, int, int]
"""Red, green, blue: 0 to 255."""

WHITE: Colour = (255, 255, 255)
"""The background where a picture names no other."""
BLACK: Colour = (0, 0, 0)
"""The darkest."""

MOST_CORNERS = 8
"""Of a polygon."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Shape:
    """Some shapes of one kind in each replica, drawn in order."""

    kind: str
    """``polygon`` (convex, filled), ``line`` (from point to point, with round ends) or ``disc``."""
    points: np.ndarray
    """``[replicas, shapes, points, 2]``: corners, points of the line, or the one centre."""
    colour: Colour
    """Of all of them."""
    size: float = 0.0
    """Of a line its width, of a disc its radius. Neither is painted narrower than a pixel, so that it stays seen."""
    shown: np.ndarray | None = None
    """``[replicas, shapes]``: which are there; None: all."""


def polygon(points: Any, colour: Colour, shown: Any = None) -> Shape:
    """Filled convex polygons.

    Args:
        points: ``[replicas, shapes, corners, 2]``, in either sense.
        colour: Of all.
        shown: ``[replicas, shapes]``; None: all are.
    """
    array = np.asarray(points, np.float64)
    if not 3 <= array.shape[-2] <= MOST_CORNERS:
        raise ValueError(f"a polygon has {array.shape[-2]} corners; 3 to {MOST_CORNERS} are possible")
    return _shape("polygon", array, colour, 0.0, shown)


def line(points: Any, width: float, colour: Colour, shown: Any = None) -> Shape:
    """Lines from point to point.

    Args:
        points: ``[replicas, shapes, points, 2]``.
        width: In the world's units.
        colour: Of all.
        shown: ``[replicas, shapes]``; None: all are.
    """
    return _shape("line", np.asarray(points, np.float64), colour, width, shown)


def disc(centres: Any, radius: float, colour: Colour, shown: Any = None) -> Shape:
    """Discs.

    Args:
        centres: ``[replicas, shapes, 2]``.
        radius: In the world's units.
        colour: Of all.
        shown: ``[replicas, shapes]``; None: all are.
    """
    return _shape("disc", np.asarray(centres, np.float64)[..., None, :], colour, radius, shown)


def discs(centres: Any, radii: Any, colour: Colour, shown: Any = None) -> tuple[Shape, ...]:
    """Discs whose radius may be each replica's own: a shape for each radius that there is.

    Args:
        centres: ``[replicas, shapes, 2]``.
        radii: One, or ``[replicas]``.
        colour: Of all.
        shown: ``[replicas, shapes]``; None: all are.
    """
    count, shapes = np.shape(centres)[:2]
    each = own(radii, count)
    there = np.broadcast_to(True if shown is None else np.asarray(shown, bool), (count, shapes))
    return tuple(
        disc(centres, radius, colour, there & (each == radius)[:, None]) for radius in np.unique(each).tolist()
    )


def _shape(kind: str, points: np.ndarray, colour: Colour, size: float, shown: Any) -> Shape:
    if points.ndim != 4 or points.shape[-1] != 2:
        raise ValueError(f"a {kind}'s points have shape {points.shape}; expected [replicas, shapes, points, 2]")
    there = None if shown is None else np.broadcast_to(np.asarray(shown, bool), points.shape[:2])
    return Shape(kind, points, colour, float(size), there)


@final
@documented
@dataclasses.dataclass(frozen=True)
class Picture:
    """What all replicas look like at one time."""

    view: tuple[float, float, float, float]
    """The part of the world that is seen: left, bottom, right, top."""
    shapes: tuple[Shape, ...]
    """From the hindmost to the foremost."""
    background: Colour = WHITE
    """Its colour."""

    def __post_init__(self) -> None:
        """Refuses what cannot be one picture."""
        left, bottom, right, top = self.view
        if not (left < right and bottom < top):
            raise ValueError(f"the view is {self.view}; expected left, bottom, right, top, in this order")
        replicas = [len(shape.points) for shape in self.shapes]
        if len(set(replicas)) != 1:
            raise ValueError(f"the shapes are of {replicas} replicas; expected at least one shape, and of each replica")


State: TypeAlias = Mapping[str, np.ndarray]
"""By field, ``[replicas]`` or, of agents, ``[replicas, agents]``."""

Params: TypeAlias = Mapping[str, Any]
"""By name: one value, or ``[replicas]``."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Drawing:
    """How an environment is drawn."""

    draw: Callable[[State, Params], Picture]
    """From states and parameters of some replicas to what they look like. A replica looks the same whatever others
    are drawn beside it: what differs between replicas is scaled to a view that does not."""
    size: tuple[int, int] = (500, 500)
    """Width and height in pixels; of the same proportions as the view."""
    frames_a_second: int = 30
    """At which time passes as in the world."""


def placed(points: Any, x: Any, y: Any, angle: Any = 0.0) -> np.ndarray:
    """A figure turned and moved to many places.

    Args:
        points: ``[points, 2]``: the figure around its own origin.
        x: Where to; any shape, ``[replicas]`` or ``[replicas, shapes]``.
        y: Where to.
        angle: By which it is turned, counterclockwise.

    Returns:
        ``[replicas, shapes, points, 2]``.
    """
    x, y, angle = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (x, y, angle)))
    if x.ndim == 1:
        x, y, angle = x[:, None], y[:, None], angle[:, None]
    figure = np.asarray(points, np.float64)
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    across, up = figure[:, 0], figure[:, 1]
    return np.stack([x[..., None] + cos * across - sin * up, y[..., None] + sin * across + cos * up], -1)


def bar(x: Any, y: Any, angle: Any, start: Any, end: Any, width: float) -> np.ndarray:
    """A straight bar in each replica, with square ends.

    Args:
        x: Where it is fixed, ``[replicas]``.
        y: Where it is fixed, ``[replicas]``.
        angle: In which direction it lies, counterclockwise from the right.
        start: Where it begins, from there in that direction: one number, or ``[replicas]``.
        end: Where it ends.
        width: Across.

    Returns:
        Its corners, ``[replicas, 1, 4, 2]``.
    """
    x, y, angle, start, end = np.broadcast_arrays(
        *(np.asarray(value, np.float64) for value in (x, y, angle, start, end))
    )
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    along, across = np.stack([start, end, end, start], -1), np.array([-1, -1, 1, 1]) * width / 2
    return np.stack([x[:, None] + cos * along - sin * across, y[:, None] + sin * along + cos * across], -1)[:, None]


def own(value: Any, replicas: int) -> np.ndarray:
    """A parameter of each replica, ``[replicas]``, whether or not they have it in common."""
    return np.broadcast_to(np.asarray(value, np.float64), (replicas,))


def box(left: float, bottom: float, right: float, top: float) -> np.ndarray:
    """The corners of an upright rectangle, ``[4, 2]``."""
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]], np.float64)


def same(points: Any, replicas: int) -> np.ndarray:
    """One figure, ``[points, 2]``, alike in all replicas: ``[replicas, 1, points, 2]``."""
    figure = np.asarray(points, np.float64)
    return np.broadcast_to(figure, (replicas, 1, *figure.shape))
