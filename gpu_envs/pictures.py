"""Drawings of environments: shapes in world units, for all replicas at once.

A spec's ``Drawing`` maps states to a ``Picture``, which is painted to frames or written to a page for a browser.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
    "at",
    "bar",
    "box",
    "cells",
    "disc",
    "discs",
    "heat_map",
    "line",
    "per_replica",
    "placed",
    "polygon",
    "rectangle",
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
    """Shapes of one kind and colour in each replica, drawn in order. A picture repeats shapes of one replica in all."""

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
    min_radius: float = 0.0
    """Minimum radius in pixels: smaller shapes are enlarged about their centre, to stay visible in small pictures."""


def polygon(points: Any, colour: Colour, shown: Any = None, *, min_radius: float = 0.0) -> Shape:
    """Return filled convex polygons.

    Args:
        points: Corners, clockwise or counterclockwise, ``[replicas, shapes, corners, 2]``, or ``[corners, 2]`` for one
            polygon that all replicas share.
        colour: Colour of all polygons.
        shown: Mask of the polygons to draw, ``[replicas]`` or ``[replicas, shapes]``; None draws all.
        min_radius: Minimum radius in pixels: smaller polygons are enlarged about their centre.
    """
    array = np.asarray(points, np.float64)
    if array.ndim > 1 and not 3 <= array.shape[-2] <= MAX_CORNERS:
        raise ValueError(f"a polygon has {array.shape[-2]} corners; give 3 to {MAX_CORNERS}")
    return _shape("polygon", array, colour, 0.0, shown, min_radius)


def rectangle(left: Any, bottom: Any, right: Any, top: Any, colour: Colour, shown: Any = None) -> Shape:
    """Return filled rectangles, such as a wall or the bars of a chart.

    Each side is one number, ``[replicas]`` or ``[replicas, shapes]``. If all are numbers, all replicas share the
    rectangle.

    Args:
        left: Horizontal position of the left side.
        bottom: Vertical position of the bottom.
        right: Horizontal position of the right side.
        top: Vertical position of the top.
        colour: Colour of all rectangles.
        shown: Mask of the rectangles to draw, ``[replicas]`` or ``[replicas, shapes]``; None draws all.
    """
    left, bottom, right, top = _per_shape(left=left, bottom=bottom, right=right, top=top)
    x, y = np.stack([left, right, right, left], -1), np.stack([bottom, bottom, top, top], -1)
    return polygon(np.stack([x, y], -1), colour, shown)


def line(points: Any, width: float, colour: Colour, shown: Any = None, *, min_radius: float = 0.0) -> Shape:
    """Return lines from point to point.

    Args:
        points: Points of the lines, ``[replicas, shapes, points, 2]``, or ``[points, 2]`` for one line that all
            replicas share.
        width: Width in world units.
        colour: Colour of all lines.
        shown: Mask of the lines to draw, ``[replicas]`` or ``[replicas, shapes]``; None draws all.
        min_radius: Minimum radius in pixels: shorter lines are enlarged about their centre.
    """
    return _shape("line", np.asarray(points, np.float64), colour, width, shown, min_radius)


def disc(centres: Any, radius: float, colour: Colour, shown: Any = None, *, min_radius: float = 0.0) -> Shape:
    """Return discs.

    Args:
        centres: Centres, ``[replicas, shapes, 2]`` as from ``at(x, y)``, or ``[2]`` for one disc that all replicas
            share.
        radius: Radius in world units.
        colour: Colour of all discs.
        shown: Mask of the discs to draw, ``[replicas]`` or ``[replicas, shapes]``; None draws all.
        min_radius: Minimum radius in pixels, for discs that stay visible in small pictures.
    """
    return _shape("disc", np.asarray(centres, np.float64)[..., None, :], colour, radius, shown, min_radius)


def discs(centres: Any, radii: Any, colour: Colour, shown: Any = None) -> tuple[Shape, ...]:
    """Return discs whose radius may differ between replicas: one ``Shape`` for each distinct radius.

    Args:
        centres: Centres, ``[replicas, shapes, 2]``.
        radii: Radius in world units: one number, or ``[replicas]``.
        colour: Colour of all discs.
        shown: Mask of the discs to draw, ``[replicas]`` or ``[replicas, shapes]``; None draws all.
    """
    by_replica, mask = _per_shape(radii=radii, shown=True if shown is None else shown)
    return tuple(
        disc(centres, radius, colour, (mask != 0) & (by_replica == radius)) for radius in np.unique(by_replica).tolist()
    )


def cells(
    matrix: Any,
    colours: Mapping[Any, Colour | None] | Sequence[Colour | None],
    *,
    corner: tuple[float, float] = (0.0, 0.0),
    side: float = 1.0,
) -> tuple[Shape, ...]:
    """Return the cells of a grid as coloured squares: one ``Shape`` for each colour.

    Row 0 is at the top. By default, column j is between x = j and j + 1, and the view of the grid is
    ``(0, 0, columns, rows)``: ``Picture((0, 0, columns, rows), (*cells(matrix, colours), ...))``.

    Args:
        matrix: Integers or bools, ``[replicas, rows, columns]``, or ``[1, rows, columns]`` if all replicas share them.
        colours: Colour of each value: a mapping, or a sequence that starts with the colour of 0. Cells with other
            values, or with the colour None, are not drawn.
        corner: Position of the grid's lower left corner.
        side: Side of a cell.
    """
    grid = np.asarray(matrix)
    if grid.ndim != 3:
        raise ValueError(
            f"the matrix has shape {grid.shape}; give [replicas, rows, columns]: matrix.reshape(-1, rows, columns) if "
            "its rows are in one dimension, matrix[None] if all replicas share it"
        )
    if grid.dtype.kind not in "iub":
        raise ValueError(f"the matrix has type {grid.dtype}; give integers or bools, or use heat_map for real numbers")
    rows, columns = grid.shape[1:]
    left, bottom = np.meshgrid(corner[0] + side * np.arange(columns), corner[1] + side * np.arange(rows)[::-1])
    squares = placed(box(0, 0, side, side), left.reshape(1, -1), bottom.reshape(1, -1))
    values = grid.reshape(len(grid), -1)
    items = list(colours.items() if isinstance(colours, Mapping) else enumerate(colours))
    wrong = [value for value, _ in items if not isinstance(value, int | np.integer | np.bool)]
    if wrong:
        raise ValueError(f"colours has a colour for {wrong[0]!r}; give colours for integers or bools")
    return tuple(polygon(squares, colour, values == value) for value, colour in items if colour is not None)


def heat_map(
    matrix: Any,
    low: Any,
    high: Any,
    colours: tuple[Colour, Colour] = (WHITE, (192, 57, 43)),
    *,
    steps: int = 16,
    corner: tuple[float, float] = (0.0, 0.0),
    side: float = 1.0,
) -> tuple[Shape, ...]:
    """Return the cells of a grid in colours between two, as ``cells`` does: one ``Shape`` for each step.

    Args:
        matrix: Real numbers, ``[replicas, rows, columns]``. Cells with NaN are not drawn.
        low: Number with the first colour, and smaller ones: one, or ``[replicas]``.
        high: Number with the second colour, and larger ones: one, or ``[replicas]``.
        colours: Colours of the lowest and the highest numbers.
        steps: Number of colours.
        corner: Position of the grid's lower left corner.
        side: Side of a cell.
    """
    first, last = (np.array(_colour(colour)) for colour in colours)
    low, high = (np.asarray(value, np.float64)[..., None, None] for value in (low, high))
    with np.errstate(all="ignore"):
        share = (np.asarray(matrix, np.float64) - low) / (high - low)
    step = np.where(np.isnan(share), -1, np.clip(share, 0, 1 - 1e-9) * steps).astype(int)
    palette = [_colour(np.rint(first + (last - first) * k / max(steps - 1, 1)).astype(int)) for k in range(steps)]
    return cells(step, palette, corner=corner, side=side)


def _shape(kind: str, points: np.ndarray, colour: Any, size: float, shown: Any, min_radius: float) -> Shape:
    """Return a ``Shape`` of checked arguments, with as many replicas as the points or the mask."""
    if points.ndim == 2:
        points = points[None, None]
    if points.ndim != 4 or points.shape[-1] != 2:
        if kind == "disc":
            given, expected = (*points.shape[:-2], points.shape[-1]), "[replicas, shapes, 2], or [2]"
        else:
            given, expected = points.shape, "[replicas, shapes, points, 2], or [points, 2]"
        raise ValueError(
            f"a {kind}'s points have shape {given}; expected {expected} for one {kind} that all replicas share"
        )
    if shown is None:
        return Shape(kind, points, _colour(colour), float(size), min_radius=float(min_radius))
    (mask,) = _per_shape(shown=shown)
    try:
        rows = np.broadcast_shapes(points.shape[:2], mask.shape)
    except ValueError:
        rows = ()
    if rows[1:] != points.shape[1:2]:
        raise ValueError(
            f"shown has shape {np.shape(shown)}, but there are {points.shape[1]} shapes of {len(points)} replicas; "
            "give [replicas] or [replicas, shapes]"
        )
    points = np.broadcast_to(points, (*rows, *points.shape[2:]))
    return Shape(kind, points, _colour(colour), float(size), np.broadcast_to(mask != 0, rows), float(min_radius))


def _colour(colour: Any) -> Colour:
    """Return a colour as a tuple; raise a ValueError for anything but three integers from 0 to 255."""
    parts = np.asarray(colour)
    if parts.shape != (3,) or parts.dtype.kind not in "iu" or parts.min() < 0 or parts.max() > 255:
        raise ValueError(
            f"a colour is {colour!r}; give red, green and blue as integers from 0 to 255, such as (36, 113, 163)"
        )
    red, green, blue = parts.tolist()
    return red, green, blue


def _per_shape(**values: Any) -> list[np.ndarray]:
    """Return numbers, arrays ``[replicas]`` and arrays ``[replicas, shapes]``, broadcast to ``[replicas, shapes]``."""
    arrays = [np.asarray(value, np.float64) for value in values.values()]
    columns = [array.reshape(-1, 1) if array.ndim < 2 else array for array in arrays]
    if all(array.ndim == 2 for array in columns):
        with contextlib.suppress(ValueError):
            return list(np.broadcast_arrays(*columns))
    given = ", ".join(f"{name} has shape {array.shape}" for name, array in zip(values, arrays, strict=True))
    raise ValueError(f"{given}; give one number, [replicas] or [replicas, shapes] for each")


@final
@documented
@dataclasses.dataclass(frozen=True)
class Picture:
    """The drawn shapes of all replicas at one time."""

    view: tuple[float, float, float, float]
    """Visible part of the world: left, bottom, right, top."""
    shapes: tuple[Shape, ...]
    """Shapes from back to front. Shapes that all replicas share are repeated for each of them."""
    background: Colour = WHITE
    """Background colour."""

    def __post_init__(self) -> None:
        """Check the view and the number of replicas, and repeat shapes that all replicas share."""
        left, bottom, right, top = self.view
        if not (left < right and bottom < top):
            raise ValueError(f"the view is {self.view}; give (left, bottom, right, top), left < right, bottom < top")
        _colour(self.background)
        replicas = [len(shape.points) for shape in self.shapes]
        if not replicas or set(replicas) - {1, max(replicas)}:
            raise ValueError(
                f"the shapes have {replicas} replicas; give at least one shape, all with equal numbers, or with 1 for "
                "shapes that all replicas share"
            )
        object.__setattr__(self, "shapes", tuple(_repeated(shape, max(replicas)) for shape in self.shapes))

    def for_replicas(self, replicas: int) -> "Picture":
        """Return the picture of this number of replicas, repeated if it is the same in all; else raise a ValueError."""
        given = len(self.shapes[0].points)
        if given not in (1, replicas):
            raise ValueError(
                f"the drawing returned a picture of {given} replicas for the states of {replicas}; give points for "
                "each replica, or for 1 if all replicas share a shape"
            )
        return dataclasses.replace(self, shapes=tuple(_repeated(shape, replicas) for shape in self.shapes))


def _repeated(shape: Shape, replicas: int) -> Shape:
    """Return the shape for this number of replicas, without copies of its arrays."""
    if len(shape.points) == replicas:
        return shape
    points = np.broadcast_to(shape.points, (replicas, *shape.points.shape[1:]))
    shown = None if shape.shown is None else np.broadcast_to(shape.shown, points.shape[:2])
    return dataclasses.replace(shape, points=points, shown=shown)


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
    legend: Mapping[str, Colour] = dataclasses.field(default_factory=dict, hash=False)
    """Colours of the drawn things by name, such as ``{"cart": BLACK}``, which pages show below the pictures."""


def at(x: Any, y: Any) -> np.ndarray:
    """Return the positions (x, y), ``[replicas, shapes, 2]``, for ``disc``.

    Args:
        x: Horizontal positions: one number, ``[replicas]`` or ``[replicas, shapes]``.
        y: Vertical positions.
    """
    return np.stack(_per_shape(x=x, y=y), -1)


def placed(points: Any, x: Any, y: Any, angle: Any = 0.0) -> np.ndarray:
    """Return copies of a figure's points, rotated by an angle and moved to each (x, y).

    Args:
        points: Points of the figure, ``[points, 2]``. It is rotated about (0, 0).
        x: Horizontal positions: one number, ``[replicas]`` or ``[replicas, shapes]``.
        y: Vertical positions.
        angle: Counterclockwise angles in radians.

    Returns:
        Points, ``[replicas, shapes, points, 2]``.
    """
    x, y, angle = (values[..., None] for values in _per_shape(x=x, y=y, angle=angle))
    figure = np.asarray(points, np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    across, up = figure[:, 0], figure[:, 1]
    return np.stack([x + cos * across - sin * up, y + sin * across + cos * up], -1)


def bar(x: Any, y: Any, angle: Any, start: Any, end: Any, width: float) -> np.ndarray:
    """Return the corners of rectangular bars; each argument is one number, ``[replicas]`` or ``[replicas, shapes]``.

    Args:
        x: Horizontal position of the pivot.
        y: Vertical position of the pivot.
        angle: Direction of the bar in radians, counterclockwise from the right.
        start: Distance from the pivot to the start of the bar.
        end: Distance from the pivot to the end of the bar.
        width: Width of the bar, one number.

    Returns:
        Corners, ``[replicas, shapes, 4, 2]``.
    """
    x, y, angle, start, end = _per_shape(x=x, y=y, angle=angle, start=start, end=end)
    x, y, cos, sin = (values[..., None] for values in (x, y, np.cos(angle), np.sin(angle)))
    along, across = np.stack([start, end, end, start], -1), np.array([-1, -1, 1, 1]) * width / 2
    return np.stack([x + cos * along - sin * across, y + sin * along + cos * across], -1)


def per_replica(value: Any, replicas: int) -> np.ndarray:
    """Return a parameter as an array with one value per replica, ``[replicas]``."""
    return np.broadcast_to(np.asarray(value, np.float64), (replicas,))


def box(left: float, bottom: float, right: float, top: float) -> np.ndarray:
    """Return the corners of a rectangle, ``[4, 2]``."""
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]], np.float64)
