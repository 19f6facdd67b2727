"""Paint pictures to pixels, on the environment's device."""

from typing import final

import numpy as np

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.pictures import MAX_CORNERS, Picture, Shape

PAINT_CALL = Struct.of(
    "PaintCall",
    "float",
    ("Index", "rows"),
    ("const int*", "kinds", ("replicas", "shapes")),
    ("const float*", "points", ("replicas", "shapes", "corners", 2)),
    ("const float*", "bounds", ("replicas", "shapes", 4)),
    ("const float*", "radii", ("replicas", "shapes")),
    ("const u8*", "colours", ("replicas", "shapes", 3)),
    ("const u8*", "background", (3,)),
    ("u8*", "pixels", ("replicas", "height", "width", 3)),
    ("Index", "shapes"),
    ("int", "corners"),
    ("int", "width"),
    ("int", "height"),
)

CONTINUED, NOTHING, DISC, SEGMENT = -1, 0, 1, 2
"""Kinds of shapes in ``paint.cuh``. The kind of a polygon is its number of corners."""

_MIN_RADIUS = 0.5
"""Minimum radius of a disc and half of the minimum width of a line, in pixels."""

_EDGE = 1.0
"""Margin around a shape whose pixels antialiasing may change, in pixels."""


def paint_program() -> Program:
    """Return the program of the painter's kernel."""
    return program_of(("paint.cuh",), {"paint": PAINT_CALL}, KernelSettings(weight=64))


@final
class Painter:
    """Paints one frame for each replica of a picture."""

    def __init__(self, device: str) -> None:
        backend = open_backend(device, 1)
        self._arrays = backend.arrays("numpy")
        (self._paint,) = load_kernels(backend, paint_program(), "numpy")
        self._paint.fill(corners=MAX_CORNERS)

    def paint(self, picture: Picture, size: tuple[int, int]) -> np.ndarray:
        """Return RGB pixels, ``[replicas, height, width, 3]`` uint8; ``size``: (width, height) in the view's ratio."""
        width, height = size
        replicas = len(picture.shapes[0].points)
        with np.errstate(all="ignore"):  # diverged states overflow float32
            parts = [_primitives(shape, picture.view, size) for shape in picture.shapes]
            kinds, points, radii, colours = (np.concatenate(column, 1) for column in zip(*parts, strict=True))
            bounds = _bounds(points, radii)
        background = np.array(picture.background, np.uint8)
        arrays = {"kinds": kinds, "points": points, "bounds": bounds, "radii": radii, "colours": colours}
        pixels = self._arrays.empty((replicas, height, width, 3), "uint8")
        self._paint.launch(
            replicas * height,
            rows=replicas * height,
            replicas=replicas,
            shapes=kinds.shape[1],
            width=width,
            height=height,
            pixels=pixels,
            background=self._arrays.from_numpy(background),
            **{name: self._arrays.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()},
        )
        return self._arrays.read(pixels)


def _primitives(
    shape: Shape, view: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return kinds, points, radii and colours, ``[replicas, n, ...]``, of a shape's n discs, segments or polygons."""
    left, bottom, right, _ = view
    scale = size[0] / (right - left)
    world, shown = shape.points, shape.shown
    if shown is None:
        shown = np.ones(world.shape[:2], bool)
    else:  # most shapes of a grid are hidden: each colour has a shape for each cell
        order = np.argsort(~shown, 1, kind="stable")[:, : shown.sum(1).max(initial=1)]
        world, shown = np.take_along_axis(world, order[..., None, None], 1), np.take_along_axis(shown, order, 1)
    pixels = np.stack([(world[..., 0] - left) * scale, size[1] - (world[..., 1] - bottom) * scale], -1)
    if shape.min_radius > 0:
        pixels = _enlarged(pixels, shape.min_radius)
    kinds: np.ndarray | int
    if shape.kind == "line":  # a segment from each point to the next
        radius = max(shape.size * scale / 2, _MIN_RADIUS)
        pixels = np.stack([pixels[:, :, :-1], pixels[:, :, 1:]], 3)
        if radius == _MIN_RADIUS:
            pixels = _snap_to_pixels(pixels, size)
        kinds = np.where(np.arange(pixels.shape[2]) == 0, SEGMENT, CONTINUED)
        kinds = np.broadcast_to(kinds, pixels.shape[:3]).reshape(len(world), -1)
        shown = np.broadcast_to(shown[:, :, None], pixels.shape[:3]).reshape(len(world), -1)
        pixels = pixels.reshape(len(world), -1, 2, 2)
    elif shape.kind == "disc":
        kinds, radius = DISC, max(shape.size * scale, shape.min_radius, _MIN_RADIUS)
    else:
        kinds, radius = world.shape[2], 0.0
        pixels = _counterclockwise(pixels)
    rows = pixels.shape[:2]
    corners = np.zeros((*rows, MAX_CORNERS, 2), np.float32)
    corners[:, :, : pixels.shape[2]] = pixels
    corners[:, :, pixels.shape[2] :] = pixels[:, :, -1:]
    colours = np.broadcast_to(np.array(shape.colour, np.uint8), (*rows, 3))
    return np.where(shown, kinds, NOTHING).astype(np.int32), corners, np.full(rows, radius, np.float32), colours


def _enlarged(pixels: np.ndarray, min_radius: float) -> np.ndarray:
    """Return the points, ``[..., points, 2]``, with figures below this radius enlarged about their centre."""
    centres = pixels.mean(-2, keepdims=True)
    radii = np.hypot(*np.moveaxis(pixels - centres, -1, 0)).max(-1)[..., None, None]
    enlarged = (radii < min_radius) & (radii > 0)
    return np.where(enlarged, centres + (pixels - centres) * min_radius / np.where(enlarged, radii, 1), pixels)


def _snap_to_pixels(segments: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return thin segments, vertical and horizontal ones moved to pixel centres; else both pixels would be grey."""
    snapped = segments.copy()
    vertical = segments[..., 0, 0] == segments[..., 1, 0]
    horizontal = segments[..., 0, 1] == segments[..., 1, 1]
    snapped[vertical, :, 0] = _pixel_centre(segments[vertical, :, 0], size[0])
    snapped[horizontal, :, 1] = size[1] - _pixel_centre(size[1] - segments[horizontal, :, 1], size[1])
    return snapped


def _pixel_centre(positions: np.ndarray, pixels: int) -> np.ndarray:
    """Return the centre of the pixel at each position; the end of the last pixel belongs to it."""
    tolerance = 1e-3  # rounding errors at a pixel's border must not select the pixel before it
    index = np.floor(positions + tolerance)
    return np.where(np.abs(positions - pixels) < tolerance, pixels - 1, index) + 0.5


def _counterclockwise(pixels: np.ndarray) -> np.ndarray:
    """Return the polygons' corners in the kernel's order, with the inside to the left of each edge."""
    following = np.roll(pixels, -1, 2)
    twice_area = (pixels[..., 0] * following[..., 1] - following[..., 0] * pixels[..., 1]).sum(2)
    return np.where((twice_area < 0)[..., None, None], pixels[:, :, ::-1], pixels)


def _bounds(points: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Return the bounding box of each disc, segment or polygon with its margin: left, top, right, bottom."""
    margin = (radii + _EDGE)[..., None]
    return np.concatenate([points.min(2) - margin, points.max(2) + margin], -1).astype(np.float32)
