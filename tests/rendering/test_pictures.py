"""Shapes, grids, and shapes that all replicas share."""

from typing import Any

import numpy as np
import pytest

from gpu_envs.pictures import (
    BLACK,
    WHITE,
    Drawing,
    Picture,
    Shape,
    at,
    bar,
    box,
    cells,
    disc,
    discs,
    heat_map,
    line,
    placed,
    polygon,
    rectangle,
)
from gpu_envs.rendering.frames import Snapshot
from gpu_envs.rendering.painter import Painter

RED, BLUE, GREY = (192, 57, 43), (36, 113, 163), (200, 200, 200)


def paint(picture: Picture, pixels: int) -> np.ndarray:
    """Returns frames with this number of pixels per unit."""
    left, bottom, right, top = picture.view
    return Painter("cpu").paint(picture, (round((right - left) * pixels), round((top - bottom) * pixels)))


# --- grids ---


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("colours", [{0: RED, 3: BLUE, -2: GREY}, [RED, None, BLACK], {True: BLUE, False: None}])
def test_each_cell_has_the_colour_of_its_value(colours: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    replicas, rows, columns = rng.integers(1, 7, 3).tolist()
    of_value = dict(enumerate(colours)) if isinstance(colours, list) else colours
    matrix = rng.choice([*of_value, 7], (replicas, rows, columns))
    if True in colours:
        matrix = matrix == 1
    frames = paint(Picture((0, 0, columns, rows), cells(matrix, colours)), 3)
    expected = [of_value.get(value) or WHITE for value in matrix.reshape(-1).tolist()]
    np.testing.assert_array_equal(frames[:, 1::3, 1::3].reshape(-1, 3), expected)  # the cells' central pixels
    assert (frames == frames[:, 1::3, 1::3].repeat(3, 1).repeat(3, 2)).all()  # all of their pixels


def test_a_grid_at_another_place_and_scale() -> None:
    """Two cells of side 2: the left one black, from (1, 3) to (3, 5)."""
    (shape,) = cells([[[1, 0]]], {1: BLACK}, corner=(1, 3), side=2.0)
    frames = paint(Picture((0, 0, 6, 6), (shape,)), 1)
    expected = np.full((6, 6), 255)
    expected[1:3, 1:3] = 0
    np.testing.assert_array_equal(frames[0, :, :, 0], expected)


def test_the_number_of_shapes_does_not_depend_on_the_values() -> None:
    """A page demands this of the pictures of all frames."""
    for matrix in (np.zeros((2, 3, 4), int), np.full((2, 3, 4), 9)):
        assert [shape.colour for shape in cells(matrix, (RED, BLUE))] == [RED, BLUE]
        assert len(heat_map(matrix, 0, 1, steps=5)) == 5


def test_a_heat_map_has_the_colours_between_two() -> None:
    """Eight steps of 1 from 0 to 8; numbers outside have the first or the last colour, and NaN none."""
    numbers = np.array([[[-np.inf, 0.0, 0.9, 1.1, 3.5, 7.9, 8.0, 1e300, np.nan]]])
    reds = [BLACK, BLACK, BLACK, (20, 0, 0), (60, 0, 0), (140, 0, 0), (140, 0, 0), (140, 0, 0), WHITE]
    shapes = heat_map(numbers, 0.0, 8.0, (BLACK, (140, 0, 0)), steps=8)
    assert paint(Picture((0, 0, 9, 1), shapes), 1)[0, 0].tolist() == [list(red) for red in reds]
    by_replica = heat_map(np.full((2, 1, 1), 3.5), [0.0, 3.0], [4.0, 7.0], (BLACK, WHITE), steps=2)
    assert paint(Picture((0, 0, 1, 1), by_replica, RED), 1)[:, 0, 0, 0].tolist() == [255, 0]


# --- rectangles and positions ---


def test_sides_are_numbers_or_by_replica_or_by_shape() -> None:
    by_replica, by_shape = np.array([1.0, 2.0, 3.0]), np.arange(6.0).reshape(3, 2)
    corners = rectangle(by_replica, 0, 7, by_shape, BLACK).points
    for replica in range(3):
        for shape in range(2):
            expected = box(by_replica[replica], 0, 7, by_shape[replica, shape])
            np.testing.assert_array_equal(corners[replica, shape], expected)
    assert rectangle(0, 1, 2, 3, BLACK).points.tolist() == [[box(0, 1, 2, 3).tolist()]]
    assert at(by_replica, 5).tolist() == [[[1, 5]], [[2, 5]], [[3, 5]]]
    assert at(0, by_shape)[..., 1].tolist() == by_shape.tolist()
    turned = placed([[2, 0]], 1, by_replica, np.pi / 2)
    np.testing.assert_allclose(turned[:, 0, 0], [[1, 3], [1, 4], [1, 5]])
    np.testing.assert_allclose(
        bar(1, 2, np.pi / 2, 0, by_shape, 2.0)[:, :, 1], np.stack([2 + 0 * by_shape, 2 + by_shape], -1)
    )


# --- shared shapes ---


SHARED = (
    polygon(box(0, 0, 1, 1), RED),
    rectangle(1, 0, 2, 1, RED),
    line([[0, 1.5], [3, 1.5]], 0.5, BLUE),
    disc((2.5, 0.5), 0.4, GREY),
    *discs([[[2.5, 0.5]]], 0.2, BLACK),
    *cells([[[0, 1, 1]]], (None, BLACK), corner=(0, 2)),
)


@pytest.mark.parametrize("also", [(), (disc(at([0.0, 1.0, 2.0], 1.0), 0.3, BLACK),)])
def test_shared_shapes_are_in_all_replicas(also: tuple[Shape, ...]) -> None:
    """Also if no shape follows from the state."""
    drawing = Drawing(lambda _state, _params: Picture((0, 0, 3, 3), (*SHARED, *also)))
    picture = Snapshot(drawing, {"x": np.zeros(3)}, {}).picture(np.arange(3))
    frames = paint(picture, 8)
    assert len(frames) == 3
    for replica, frame in enumerate(frames):
        own = [Shape(s.kind, s.points[replica : replica + 1], s.colour, s.size) for s in also]
        np.testing.assert_array_equal(paint(Picture((0, 0, 3, 3), (*SHARED, *own)), 8)[0], frame)


def test_masks_hide_shared_shapes() -> None:
    """By replica, and by shape."""
    by_replica = rectangle(0, 0, 1, 1, BLACK, [True, False])
    by_shape = polygon(placed(box(0, 0, 1, 1), [[1, 2]], 0), RED, [[False, True], [True, False]])
    frames = paint(Picture((0, 0, 3, 1), (by_replica, by_shape)), 1)
    assert frames[:, 0].tolist() == [[[0, 0, 0], [255] * 3, [*RED]], [[255] * 3, [*RED], [255] * 3]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cells(np.zeros((5, 9), int), [RED]),
            r"shape \(5, 9\); give \[replicas, rows, columns\]: matrix.reshape",
        ),
        (lambda: cells(np.zeros((5, 3, 3)), [RED]), "has type float64; give integers or bools, or use heat_map"),
        (lambda: cells(np.zeros((5, 3, 3), int), RED), "a colour is 192; give red, green and blue as integers"),  # type: ignore[arg-type]  # a mistake
        (lambda: cells(np.zeros((5, 3, 3), int), {"wall": RED}), "a colour for 'wall'; give colours for integers"),
        (lambda: heat_map(np.zeros((5, 9)), 0, 1), r"the matrix has shape \(5, 9\)"),
        (lambda: disc((0, 0), 1, "red"), "a colour is 'red'; give red"),  # type: ignore[arg-type]  # a mistake
        (lambda: disc((0, 0), 1, (0.5, 0.1, 0.1)), r"a colour is \(0.5, 0.1, 0.1\); .* such as"),  # type: ignore[arg-type]  # a mistake
        (lambda: Picture((0, 0, 1, 1), (disc((0, 0), 1, RED),), (0, 0, 256)), r"a colour is \(0, 0, 256\)"),
        (lambda: disc(np.zeros((64, 2)), 1, RED), r"shape \(64, 2\); expected \[replicas, shapes, 2\], or \[2\]"),
        (lambda: rectangle(0, 0, np.ones(3), np.ones((2, 3)), RED), r"right has shape \(3,\), top has shape \(2, 3\)"),
        (lambda: rectangle(0, 0, 1, np.ones((2, 3, 4)), RED), r"top has shape \(2, 3, 4\); give one number"),
        (
            lambda: disc(np.zeros((4, 2, 2)), 1, RED, np.ones(3)),
            r"shown has shape \(3,\), but .* 2 shapes of 4 replicas",
        ),
        (lambda: disc(np.zeros((4, 1, 2)), 1, RED, np.ones((4, 3))), r"shown has shape \(4, 3\), .* 1 shapes of 4"),
    ],
)
def test_error_messages(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_picture_of_a_wrong_number_of_replicas() -> None:
    drawing = Drawing(lambda _state, _params: Picture((0, 0, 1, 1), (disc(at([0.0, 1.0], 0), 1, RED),)))
    with pytest.raises(ValueError, match="a picture of 2 replicas for the states of 3; give points for each replica"):
        Snapshot(drawing, {"x": np.zeros(3)}, {}).picture(np.arange(3))
