"""The painter against a rasteriser in NumPy, and with unusual or large pictures."""

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from gpu_envs.backend.toolchain import build
from gpu_envs.pictures import (
    BLACK,
    MAX_CORNERS,
    WHITE,
    Colour,
    Picture,
    Shape,
    box,
    disc,
    discs,
    line,
    polygon,
)
from gpu_envs.rendering.painter import Painter, paint_program

SUPERSAMPLING = 8
"""The reference samples this number squared of points per pixel."""


# --- reference ---


def reference(picture: Picture, size: tuple[int, int]) -> np.ndarray:
    """Return unrounded frames, ``[replicas, height, width, 3]``, with shapes blended by their share of points."""
    left, bottom, right, top = picture.view
    width, height = size
    across, down = (np.arange(n * SUPERSAMPLING) + 0.5 for n in (width, height))
    x = left + across[None, :] / (width * SUPERSAMPLING) * (right - left)
    y = bottom + (height * SUPERSAMPLING - down[:, None]) / (width * SUPERSAMPLING) * (right - left)
    replicas = len(picture.shapes[0].points)
    frames = np.broadcast_to(np.array(picture.background, float), (replicas, height, width, 3)).copy()
    for shape in picture.shapes:
        for replica, figures in enumerate(shape.points):
            for number, points in enumerate(figures):
                if shape.shown is not None and not shape.shown[replica, number]:
                    continue
                covered = inside(shape, points, x, y).reshape(height, SUPERSAMPLING, width, SUPERSAMPLING)
                share = covered.mean((1, 3))[..., None]
                frames[replica] += (np.array(shape.colour, float) - frames[replica]) * share
    assert top > bottom
    return frames


def inside(shape: Shape, points: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a mask of the sample points inside a figure."""
    if shape.kind == "disc":
        return np.asarray(np.hypot(x - points[0, 0], y - points[0, 1]) <= shape.size)
    if shape.kind == "line":
        near = [distance_to_segment(a, b, x, y) <= shape.size / 2 for a, b in itertools.pairwise(points)]
        return np.asarray(np.any(near, 0))
    crossings = np.zeros(np.broadcast_shapes(x.shape, y.shape), int)  # between a ray to the right and the outline
    for (ax, ay), (bx, by) in zip(points, np.roll(points, -1, 0), strict=True):
        spans = (ay <= y) != (by <= y)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings += spans & (x < ax + (y - ay) / (by - ay) * (bx - ax))
    return np.asarray(crossings % 2 == 1)


def distance_to_segment(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the distance of each sample point to a segment."""
    along = b - a
    share = np.clip(((x - a[0]) * along[0] + (y - a[1]) * along[1]) / max(along @ along, 1e-300), 0, 1)
    return np.asarray(np.hypot(x - a[0] - share * along[0], y - a[1] - share * along[1]))


SIZE = (60, 40)
VIEW = (-3.0, 1.0, 3.0, 5.0)
"""Ten pixels per unit."""


def colours(count: int, seed: int) -> list[Colour]:
    values = np.random.default_rng(seed).integers(0, 256, (count, 3)).tolist()
    return [(r, g, b) for r, g, b in values]


def random_points(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return points in the view and slightly outside of it."""
    return rng.uniform((-3.5, 0.5), (3.5, 5.5), (*shape, 2))


def random_polygons(rng: np.random.Generator, corners: int, *shape: int) -> np.ndarray:
    """Return convex polygons with corners on ellipses, clockwise or counterclockwise."""
    angles = np.sort(rng.uniform(0, 1, (*shape, corners)) * 0.6 + np.arange(corners), -1) / corners * 2 * np.pi
    angles = np.where(rng.random((*shape, 1)) < 0.5, angles, angles[..., ::-1])
    radii = rng.uniform(0.3, 1.5, (*shape, 1, 2))
    return np.asarray(random_points(rng, *shape)[..., None, :] + radii * np.stack([np.cos(angles), np.sin(angles)], -1))


def scene(kind: str, seed: int) -> Picture:
    """Return a random picture of three replicas."""
    rng = np.random.default_rng(seed)
    one, other, background = colours(3, seed)
    shown = rng.random((3, 4)) < 0.7
    shapes: tuple[Shape, ...]
    if kind == "disc":
        shapes = (disc(random_points(rng, 3, 4), 0.7, one, shown), disc(random_points(rng, 3, 2), 0.08, other))
    elif kind == "line":
        shapes = (line(random_points(rng, 3, 4, 4), 0.4, one, shown), line(random_points(rng, 3, 2, 2), 0.11, other))
    elif kind == "polygon":
        shapes = tuple(
            polygon(random_polygons(rng, corners, 3, 4), colour, shown)
            for corners, colour in zip((3, 4, 8), (one, other, BLACK), strict=True)
        )
    else:
        parts = [scene(each, seed + i) for i, each in enumerate(("disc", "polygon", "line", "disc"))]
        shapes = tuple(shape for part in parts for shape in part.shapes)
    return Picture(VIEW, shapes, background)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["disc", "line", "polygon", "all"])
def test_the_painter_agrees_with_a_rasteriser(kind: str, seed: int, device: str) -> None:
    picture = scene(kind, seed)
    frames = Painter(painter_device(device)).paint(picture, SIZE)
    assert frames.dtype == np.uint8
    expected = reference(picture, SIZE)
    assert frames.shape == expected.shape
    difference = np.abs(frames - expected)
    # The painter treats edges as vertical or horizontal within a pixel: for slanted edges, the coverage is wrong by up
    # to 1/12, at sharp corners by more.
    assert difference.mean() < 0.8
    assert np.percentile(difference, 99) < 12
    assert (difference > 70).mean() < 2e-4


def painter_device(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["disc", "line", "polygon", "all"])
def test_both_devices_paint_the_same_bytes(kind: str) -> None:
    pytest.importorskip("cupy")
    from gpu_envs.backend.driver import device_count

    if device_count() == 0:
        pytest.skip("needs a CUDA device")
    for seed in range(10):
        picture = scene(kind, seed)
        for size in (SIZE, (301, 199)):
            on_cpu, on_gpu = (Painter(device).paint(picture, size) for device in ("cpu", "cuda:0"))
            assert on_cpu.tobytes() == on_gpu.tobytes()


# --- pixels worked out by hand ---


def paint(shapes: tuple[Shape, ...], size: tuple[int, int] = (8, 6), background: Colour = WHITE) -> np.ndarray:
    """Return the red channel of a picture with one pixel per unit, top row first."""
    picture = Picture((0, 0, *size), shapes, background)
    return Painter("cpu").paint(picture, size)[..., 0]


def test_rectangle_edges() -> None:
    """Pixels are black inside the rectangle, and grey by their covered share at the edges."""
    expected = np.full((6, 8), 255, np.uint8)
    expected[6 - 3 : 6 - 1, 2:5] = 0  # rows from the top
    for corners in (box(2, 1, 5, 3), box(2, 1, 5, 3)[::-1]):
        np.testing.assert_array_equal(paint((polygon(corners, BLACK),))[0], expected)
    row = paint((polygon(box(2.5, 0, 4.25, 6), BLACK),))[0, 3]
    assert row.tolist() == [255, 255, 128, 0, 191, 255, 255, 255]


@pytest.mark.parametrize(
    ("position", "pixel"), [(0.0, 0), (1.0, 1), (1 - 1e-9, 1), (1 + 1e-9, 1), (2.3, 2), (2.7, 2), (6.0, 5)]
)
@pytest.mark.parametrize("horizontal", [True, False])
def test_a_thin_line_fills_one_row_or_column_of_pixels(position: float, pixel: int, horizontal: bool) -> None:
    """Also between two pixels, with rounding errors, and at the picture's border."""
    ends = np.array([[0.0, position], [6.0, position]])
    picture = paint((line(ends if horizontal else ends[:, ::-1], 0.1, BLACK),), (6, 6))[0]
    expected = np.full((6, 6), 255)
    expected[(5 - pixel, slice(None)) if horizontal else (slice(None), pixel)] = 0
    np.testing.assert_array_equal(picture, expected)


def test_thin_lines_and_small_discs_stay_visible() -> None:
    slanted = paint((line([[0, 0], [8, 6]], 1e-9, BLACK),))[0]
    assert (slanted.min(0) < 128).all()
    assert paint((disc(np.array([[[3.5, 2.5]]]), 1e-9, BLACK),))[0, 3, 3] == 0


def test_joints_of_a_line_are_no_darker_than_the_line() -> None:
    points = np.stack([np.linspace(0.7, 7.1, 30), np.linspace(0.4, 5.2, 30)], -1)
    one, many = (paint((line(ends, 1.5, BLACK),)).astype(int) for ends in (points[[0, -1]], points))
    assert np.abs(one - many).max() <= 2


def test_a_polygon_without_area_is_not_painted() -> None:
    assert (paint((polygon(np.full((1, 1, 4, 2), 3.5), BLACK),)) == 255).all()
    assert (paint((line(np.full((1, 1, 3, 2), 3.5), 1.0, BLACK),)) < 255).sum() == 1  # a dot


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e300])
@pytest.mark.parametrize("kind", ["disc", "line", "polygon"])
def test_a_diverged_shape_changes_no_other_shape(kind: str, value: float, device: str) -> None:
    """Other shapes and other replicas are painted as without it."""
    diverged = np.full((2, 1, 4, 2), 3.5) + np.array(box(-1, -1, 1, 1))
    diverged[0, 0, 1] = value
    shape = {
        "disc": disc(diverged[:, :, 1], 1.0, BLACK),
        "line": line(diverged, 1.0, BLACK),
        "polygon": polygon(diverged, BLACK),
    }[kind]
    mark = polygon([[box(0, 0, 1, 1)]] * 2, BLACK)
    frames = Painter(painter_device(device)).paint(Picture((0, 0, 8, 6), (shape, mark)), (8, 6))
    assert frames[0, 5, 0].tolist() == frames[1, 5, 0].tolist() == [0, 0, 0]
    alone = Painter(painter_device(device)).paint(
        Picture((0, 0, 8, 6), tuple(Shape(s.kind, s.points[1:], s.colour, s.size) for s in (shape, mark))), (8, 6)
    )
    np.testing.assert_array_equal(frames[1], alone[0])


# --- large ---


def test_more_than_2_gib_of_pixels() -> None:
    """Only the last row is painted: the memory of the other rows is never touched."""
    program = paint_program()
    library = build(program.source, program.name)
    width, height = 4096, 2**31 // (4096 * 3) + 8
    pixels = np.empty(height * width * 3, np.uint8)  # the system allocates pages at the first write
    assert pixels.size > 2**31
    arrays: dict[str, np.ndarray] = {
        "kinds": np.array([4], np.int32),
        "points": np.zeros((1, MAX_CORNERS, 2), np.float32),
        "bounds": np.array([[0, 0, width, 1e9]], np.float32),
        "radii": np.zeros(1, np.float32),
        "colours": np.array([10, 20, 30], np.uint8),
        "background": np.array([200, 210, 220], np.uint8),
    }
    arrays["points"][0, :4] = [[4.0, 0.0], [8.0, 0.0], [8.0, 1e9], [4.0, 1e9]]
    call: Any = program.calls["paint"]()
    for name, array in arrays.items():
        setattr(call, name, array.ctypes.data)
    call.pixels, call.rows, call.shapes, call.corners = pixels.ctypes.data, height, 1, MAX_CORNERS
    call.width, call.height = width, height
    kernel = library.kernel_paint
    kernel.argtypes, kernel.restype = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong], None
    kernel(ctypes.addressof(call), height - 1, height)
    row = pixels[-width * 3 :].reshape(width, 3)
    assert row[4:8].tolist() == [[10, 20, 30]] * 4
    assert (np.delete(row, range(4, 8), 0) == [200, 210, 220]).all()


def test_the_struct_counts_in_64_bits() -> None:
    """Products of rows and shapes exceed 32 bits."""
    fields: dict[str, Any] = {field[0]: field[1] for field in paint_program().calls["paint"]._fields_}
    assert fields["rows"] == fields["shapes"] == ctypes.c_longlong


# --- pictures ---


def test_discs_of_different_sizes() -> None:
    centres = np.full((3, 1, 2), (4.0, 3.0))
    shapes = discs(centres, [1.0, 2.0, 1.0], BLACK, [[True], [True], [False]])
    assert [shape.size for shape in shapes] == [1.0, 2.0]
    dark = (paint(shapes) < 128).sum((1, 2))
    assert dark[0] < dark[1]
    assert dark[2] == 0
    assert len(discs(centres, 1.0, BLACK)) == 1


def test_small_shapes_are_enlarged_to_their_minimum_radius() -> None:
    """They look like shapes of this radius about the same centre; larger shapes do not change."""
    square = box(-1, -1, 1, 1)
    strokes = np.array([[-1, -1], [1, 1]])
    radius = 2**0.5 * 2  # of a square with the side 4

    def made(size: float, min_radius: float) -> tuple[Shape, ...]:
        return (
            polygon(size * square + 8, (0, 90, 200), min_radius=min_radius),
            line(size * strokes + 8, 0.5, BLACK, min_radius=min_radius),
            disc(np.full((1, 1, 2), (8, 20)), 2**0.5 * size, BLACK, min_radius=min_radius),
        )

    small, enlarged, large = (paint(made(*given), (16, 28)) for given in ((0.25, 0), (0.25, radius), (2, 0)))
    assert (small != large).any()
    np.testing.assert_array_equal(enlarged, large)
    np.testing.assert_array_equal(paint(made(2, radius / 2), (16, 28)), large)
    point = polygon(np.full((1, 1, 4, 2), 8.0), BLACK, min_radius=3)  # without a shape that could be enlarged
    assert (paint((point,), (16, 28)) == 255).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: polygon(np.zeros((1, 1, 9, 2)), BLACK), "a polygon has 9 corners; give 3 to 8"),
        (lambda: polygon(np.zeros((1, 1, 2, 2)), BLACK), "a polygon has 2 corners; give 3 to 8"),
        (lambda: line(np.zeros((1, 2, 2)), 1, BLACK), r"shape \(1, 2, 2\); expected \[replicas, shapes, points, 2\]"),
        (lambda: disc(np.zeros((1, 2, 3)), 1, BLACK), "a disc's points"),
        (lambda: Picture((0, 0, 1, 1), ()), "give at least one shape, all with equal numbers"),
        (lambda: Picture((0, 0, 0, 1), (disc(np.zeros((1, 1, 2)), 1, BLACK),)), r"the view is .*; give \(left, bottom"),
        (
            lambda: Picture((0, 0, 1, 1), tuple(disc(np.zeros((n, 1, 2)), 1, BLACK) for n in (1, 3, 2))),
            r"the shapes have \[1, 3, 2\] replicas",
        ),
    ],
)
def test_error_messages(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
