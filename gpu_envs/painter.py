"""Paints pictures into pixels, on the device that the environment is on."""

from collections.abc import Callable
from typing import Any, final

import numpy as np

from gpu_envs.backend import open_backend
from gpu_envs.codegen.structs import Struct
from gpu_envs.pictures import MOST_CORNERS, Picture, Shape
from gpu_envs.programs import Shape as Compiled
from gpu_envs.programs import program_of

PAINT_CALL = Struct.of(
    "PaintCall",
    "float",
    ("Index", "rows"),
    ("const int*", "kinds"),
    ("const float*", "points"),
    ("const float*", "bounds"),
    ("const float*", "radii"),
    ("const u8*", "colours"),
    ("const u8*", "background"),
    ("u8*", "pixels"),
    ("Index", "shapes"),
    ("int", "corners"),
    ("int", "width"),
    ("int", "height"),
)

DISC, SEGMENT = 1, 2
"""Kinds of shapes in ``paint.cuh``; a polygon's is the number of its corners, nothing's is 0."""

_EDGE = 1.0
"""How many pixels beyond its edge a shape may still leave a trace."""


@final
class Painter:
    """Paints pictures of replicas, each into pixels of its own."""

    def __init__(self, device: str) -> None:
        """Compiles the kernel.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        self._backend = open_backend(device, 1)
        self._arrays = self._backend.arrays("numpy" if device == "cpu" else "cupy")
        program = program_of(("paint.cuh",), {"paint": PAINT_CALL}, Compiled("", weight=64))
        self._kernels = self._backend.load(program)
        self._call: Any = program.calls["paint"]()
        self._launches: dict[int, Callable[[int], None]] = {}

    def paint(self, picture: Picture, size: tuple[int, int]) -> np.ndarray:
        """Returns RGB pixels, ``[replicas, height, width, 3]`` uint8.

        Args:
            picture: What to paint.
            size: Width and height; the view's proportions.
        """
        width, height = size
        parts = [_flattened(shape, picture.view, size) for shape in picture.shapes]
        replicas = len(picture.shapes[0].points)
        kinds, points, radii, colours = (np.concatenate(column, 1) for column in zip(*parts, strict=True))
        bounds = _bounds(points, radii)
        call, arrays = self._call, self._arrays
        held = [
            arrays.full_of(np.ascontiguousarray(values))
            for values in (kinds, points, bounds, radii, colours, np.array(picture.background, np.uint8))
        ]
        names = ("kinds", "points", "bounds", "radii", "colours", "background")
        for name, array in zip(names, held, strict=True):
            setattr(call, name, arrays.address(array))
        pixels = arrays.empty((replicas, height, width, 3), "uint8")
        call.pixels = arrays.address(pixels)
        call.rows, call.shapes, call.corners = replicas * height, kinds.shape[1], MOST_CORNERS
        call.width, call.height = width, height
        launch = self._kernels.bind("paint", call, replicas * height)
        launch(arrays.stream())
        return arrays.read(pixels)


def _flattened(
    shape: Shape, view: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kinds, points, radii and colours in pixels, ``[replicas, rows, ...]``: a row for each disc, segment, polygon."""
    left, bottom, right, _ = view
    scale = size[0] / (right - left)
    given = shape.points
    pixels = np.stack([(given[..., 0] - left) * scale, size[1] - (given[..., 1] - bottom) * scale], -1)
    shown = np.ones(given.shape[:2], bool) if shape.shown is None else shape.shown
    if shape.kind == "line":  # a segment from each point to the next
        pixels = np.stack([pixels[:, :, :-1], pixels[:, :, 1:]], 3)
        shown = np.broadcast_to(shown[:, :, None], pixels.shape[:3]).reshape(len(given), -1)
        pixels = pixels.reshape(len(given), -1, 2, 2)
    kind, radius = SEGMENT, shape.size * scale / 2
    if shape.kind == "disc":
        kind, radius = DISC, shape.size * scale
    elif shape.kind == "polygon":
        kind, radius = given.shape[2], 0.0
        pixels = _counterclockwise(pixels)
    rows = pixels.shape[:2]
    corners = np.zeros((*rows, MOST_CORNERS, 2), np.float32)
    corners[:, :, : pixels.shape[2]] = pixels
    corners[:, :, pixels.shape[2] :] = pixels[:, :, -1:]
    colours = np.broadcast_to(np.array(shape.colour, np.uint8), (*rows, 3))
    return np.where(shown, kind, 0).astype(np.int32), corners, np.full(rows, radius, np.float32), colours


def _counterclockwise(pixels: np.ndarray) -> np.ndarray:
    """The corners in the order in which the kernel takes what is to the left of an edge for the inside."""
    after = np.roll(pixels, -1, 2)
    twice_area = (pixels[..., 0] * after[..., 1] - after[..., 0] * pixels[..., 1]).sum(2)
    return np.where((twice_area < 0)[..., None, None], pixels[:, :, ::-1], pixels)


def _bounds(points: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """The box around each shape: left, top, right, bottom."""
    margin = (radii + _EDGE)[..., None]
    return np.concatenate([points.min(2) - margin, points.max(2) + margin], -1).astype(np.float32)
