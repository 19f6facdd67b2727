"""Paints pictures into pixels, on the device that the environment is on."""

from typing import final

import numpy as np

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.pictures import MOST_CORNERS, Picture, Shape

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
"""Kinds of shapes in ``paint.cuh``; a polygon's is the number of its corners."""

_HAIRLINE = 0.5
"""Half the width of the thinnest line and the radius of the smallest disc, in pixels."""

_EDGE = 1.0
"""How many pixels beyond its edge a shape may still leave a trace."""


def paint_program() -> Program:
    """The program that paints."""
    return program_of(("paint.cuh",), {"paint": PAINT_CALL}, KernelSettings(weight=64))


@final
class Painter:
    """Paints pictures of replicas, each into pixels of its own."""

    def __init__(self, device: str) -> None:
        backend = open_backend(device, 1)
        self._arrays = backend.arrays("numpy")
        (self._paint,) = load_kernels(backend, paint_program(), "numpy")
        self._paint.fill(corners=MOST_CORNERS)

    def paint(self, picture: Picture, size: tuple[int, int]) -> np.ndarray:
        """Returns RGB pixels, ``[replicas, height, width, 3]`` uint8; ``size`` has the view's proportions."""
        width, height = size
        replicas = len(picture.shapes[0].points)
        with np.errstate(all="ignore"):  # what is nowhere near the picture may be out of the range of a float
            parts = [_flattened(shape, picture.view, size) for shape in picture.shapes]
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
            background=self._arrays.full_of(background),
            **{name: self._arrays.full_of(np.ascontiguousarray(values)) for name, values in arrays.items()},
        )
        return self._arrays.read(pixels)


def _flattened(
    shape: Shape, view: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kinds, points, radii and colours in pixels, ``[replicas, rows, ...]``: a row for each disc, segment, polygon."""
    left, bottom, right, _ = view
    scale = size[0] / (right - left)
    given = shape.points
    pixels = np.stack([(given[..., 0] - left) * scale, size[1] - (given[..., 1] - bottom) * scale], -1)
    shown = np.ones(given.shape[:2], bool) if shape.shown is None else shape.shown
    kinds: np.ndarray | int
    if shape.kind == "line":  # a segment from each point to the next
        radius = max(shape.size * scale / 2, _HAIRLINE)
        pixels = np.stack([pixels[:, :, :-1], pixels[:, :, 1:]], 3)
        if radius == _HAIRLINE:
            pixels = _on_pixels(pixels, size)
        kinds = np.where(np.arange(pixels.shape[2]) == 0, SEGMENT, CONTINUED)
        kinds = np.broadcast_to(kinds, pixels.shape[:3]).reshape(len(given), -1)
        shown = np.broadcast_to(shown[:, :, None], pixels.shape[:3]).reshape(len(given), -1)
        pixels = pixels.reshape(len(given), -1, 2, 2)
    elif shape.kind == "disc":
        kinds, radius = DISC, max(shape.size * scale, _HAIRLINE)
    else:
        kinds, radius = given.shape[2], 0.0
        pixels = _counterclockwise(pixels)
    rows = pixels.shape[:2]
    corners = np.zeros((*rows, MOST_CORNERS, 2), np.float32)
    corners[:, :, : pixels.shape[2]] = pixels
    corners[:, :, pixels.shape[2] :] = pixels[:, :, -1:]
    colours = np.broadcast_to(np.array(shape.colour, np.uint8), (*rows, 3))
    return np.where(shown, kinds, NOTHING).astype(np.int32), corners, np.full(rows, radius, np.float32), colours


def _on_pixels(segments: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Thin segments that lie along a row or a column are moved to its middle, or they would be grey over two."""
    moved = segments.copy()
    upright = segments[..., 0, 0] == segments[..., 1, 0]
    level = segments[..., 0, 1] == segments[..., 1, 1]
    moved[upright, :, 0] = _middle(segments[upright, :, 0], size[0])
    moved[level, :, 1] = size[1] - _middle(size[1] - segments[level, :, 1], size[1])
    return moved


def _middle(places: np.ndarray, pixels: int) -> np.ndarray:
    """The middle of the pixel that begins at a place or has it within; at the far end of the last, that one's."""
    tiny = 1e-3  # what rounding makes of a place between two pixels is no reason to jump from one to the other
    number = np.floor(places + tiny)
    return np.where(np.abs(places - pixels) < tiny, pixels - 1, number) + 0.5


def _counterclockwise(pixels: np.ndarray) -> np.ndarray:
    """The corners in the order in which the kernel takes what is to the left of an edge for the inside."""
    after = np.roll(pixels, -1, 2)
    twice_area = (pixels[..., 0] * after[..., 1] - after[..., 0] * pixels[..., 1]).sum(2)
    return np.where((twice_area < 0)[..., None, None], pixels[:, :, ::-1], pixels)


def _bounds(points: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """The box around each shape: left, top, right, bottom."""
    margin = (radii + _EDGE)[..., None]
    return np.concatenate([points.min(2) - margin, points.max(2) + margin], -1).astype(np.float32)
