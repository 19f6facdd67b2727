"""Write a replay as an HTML page: one file that browsers play from disk, without a network.

The page has a description (JSON) and one block of bytes (zlib, base64) with the data of all frames. Coordinates and the
values of charts are quantized, and stored as differences between frames, which compress to almost nothing for shapes at
rest. ``recording.js`` reads this format.
"""

import base64
import dataclasses
import html
import itertools
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from gpu_envs.pages import fill_template, read_asset, script_data
from gpu_envs.pictures import Drawing, Picture, Shape
from gpu_envs.rendering.frames import GAP, GAP_SHADE
from gpu_envs.replays.block import Block
from gpu_envs.replays.charts import metric_charts, state_charts
from gpu_envs.replays.files import replacing
from gpu_envs.replays.recorded import FADED, Recorded
from gpu_envs.training.record.summary import COLOURS

RESOLUTION: Final = 2**14
"""Quantization steps across the view: several for each pixel of a screen."""

_MAX_STEPS: Final = 2**16 - 2
"""Quantization steps across all coordinates, which fit 16 bits even if shapes lie far outside of the view."""

_COMPRESSION: Final = 9

SCRIPTS: Final = ("recording.js", "chart.js", "player.js")
"""The page's scripts in order: each uses definitions of the scripts before it."""


def check(path: Path) -> None:
    """Raise a ValueError if the file name does not end in .html or .htm."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page cannot be {str(path)!r}; its name ends in .html")


def write(replay: Recorded, path: Path, fps: int | None) -> None:
    """Write the page; see ``Replay.save_html``."""
    check(path)
    with replacing(path) as partial:
        partial.write_text(to_html(replay, fps), encoding="utf-8")


def to_html(replay: Recorded, fps: int | None = None) -> str:
    """Return the text of a page that plays the replay; raise a ValueError for an ``fps`` below 1."""
    if fps is not None and fps < 1:
        raise ValueError(f"fps is {fps}; give an integer of 1 or more")
    block = Block()
    about = _describe(replay, fps or replay.frames_a_second, block)
    parts = {
        "TITLE": html.escape(replay.title or replay.env),
        "ABOUT": script_data(about),
        "BYTES": base64.b64encode(zlib.compress(block.bytes(), _COMPRESSION)).decode(),
        "PLAYER": "\n".join(read_asset(name, __package__) for name in SCRIPTS),
    }
    return fill_template(read_asset("page.html", __package__), parts)


def to_iframe(replay: Recorded) -> str:
    """Return the page in an iframe, for a notebook or another page: their styles and scripts stay separate."""
    title = html.escape(replay.title or replay.env)
    return f'<iframe title="{title}" style="{_IFRAME_STYLE}" srcdoc="{html.escape(to_html(replay))}"></iframe>'


_IFRAME_STYLE: Final = "width: 100%; height: 40rem; border: 0"
"""Initial style: the page in the iframe sets the height later."""


def _describe(replay: Recorded, fps: int, block: Block) -> dict[str, Any]:
    """Return the page's description, and append the data of all frames to the block."""
    legend = {} if replay.drawing is None else replay.drawing.legend
    single = len(replay.agents) == 1
    colours = itertools.cycle(COLOURS[1:] if single else COLOURS)
    roles = [(name, agents, next(colours)) for name, agents in replay.agents.items()]
    with np.errstate(over="ignore"):  # values beyond float32 become infinite: they have no curve
        rewards = np.stack([values.T for values in replay.rewards.values()]).astype(np.float32)
    about: dict[str, Any] = {
        "title": replay.title or replay.env,
        "facts": _facts(replay),
        "fps": fps,
        "frames": replay.frames,
        "numbers": replay.numbers.tolist(),
        "last": replay.last.tolist(),
        "elapsed": replay.elapsed.tolist(),
        "pauses": replay.pauses,
        "roles": [
            {"name": name, "agents": agents, "colour": _css(legend[name]) if name in legend else colour}
            for name, agents, colour in roles
        ],
        "rewards": block.add(rewards),
        "ends": block.add(replay.ends.T),
        "metrics": [chart.describe(block, next(colours)) for chart in metric_charts(replay)],
    }
    if replay.drawing is not None:
        return about | {"picture": _describe_picture(replay, replay.drawing, block)}
    charts, omitted = state_charts(replay)
    return about | {"state": [chart.describe(block, next(colours)) for chart in charts], "omitted": omitted}


def _describe_picture(replay: Recorded, drawing: Drawing, block: Block) -> dict[str, Any]:
    """Return the description of the pictures, and append the coordinates of all frames to the block."""
    pictures = [replay.picture(frame) for frame in range(replay.frames)]
    layers = _layers(pictures, replay.env)
    return {
        "size": drawing.size,
        "legend": [(name, _css(colour)) for name, colour in drawing.legend.items()],
        "views": _views(pictures),
        "background": _css(pictures[0].background),
        "gap": GAP,
        "gapShade": _css((GAP_SHADE,) * 3),
        "faded": FADED,
        "layers": [layer.describe(block, pictures[0].view) for layer in layers],
    }


def _facts(replay: Recorded) -> list[tuple[str, str]]:
    """Return the replay's facts, without the environment and the run if the title has them."""
    title = replay.title or replay.env
    environment = {} if title.startswith(replay.env) else {"Environment": replay.env}
    facts = {**environment, **replay.facts}
    return [(name, value) for name, value in facts.items() if name != "Run" or not title.endswith(value)]


_COPIES = 8
"""Temporary copies of a layer's coordinates in memory."""
_MAX_BYTES = 8 * 2**30


def _views(pictures: Sequence[Picture]) -> list[list[float]]:
    """Return the view of each frame, or a single view that all frames share."""
    views = [list(map(float, picture.view)) for picture in pictures]
    return views[:1] if all(view == views[0] for view in views) else views


def _css(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


@final
@dataclasses.dataclass(frozen=True)
class Layer:
    """A ``Shape`` of a drawing over all frames."""

    kind: str
    colour: str
    size: float
    min_radius: float
    points: np.ndarray
    """``[replicas, shapes, points, 2, frames]``, or with a single frame if they never change."""
    shown: np.ndarray
    """``[replicas, shapes, frames]``."""

    def describe(self, block: Block, view: Sequence[float]) -> dict[str, Any]:
        """Return the layer's description, and append its coordinates to the block.

        Points after the first are stored relative to the first: they are constant for shapes that move without turning.
        """
        replicas, shapes, points = self.points.shape[:3]
        shown = self.shown & np.isfinite(self.points).all((2, 3))
        positions = _hold_hidden(self.points, shown)
        description: dict[str, Any] = {
            "kind": self.kind,
            "colour": self.colour,
            "size": self.size,
            "minRadius": self.min_radius,
            "replicas": replicas,
            "shapes": shapes,
            "points": points,
        }
        first, others = positions[:, :, :1], positions[:, :, 1:] - positions[:, :, :1]
        for name, values in (("first", first), ("others", others)):
            if values.size:
                description[name] = _quantize(values, max(view[2] - view[0], view[3] - view[1]), block)
        if not shown.all():
            still = bool((shown == shown[..., :1]).all())
            stored = shown[..., :1] if still else shown
            changes = np.diff(stored.astype(np.int8), axis=-1, prepend=np.int8(0)) != 0
            description["shown"] = {"at": block.add(changes.astype(np.uint8)), "still": still}
        return description


def _hold_hidden(points: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Return the points with hidden shapes held at their last or next shown position, which needs no bytes."""
    positions = points
    if points.shape[-1] > 1:
        source = np.where(shown, np.arange(points.shape[-1]), -1)
        last_shown = np.maximum.accumulate(source, -1)
        source = np.where(last_shown >= 0, last_shown, shown.argmax(-1)[..., None])
        positions = np.take_along_axis(points, source[:, :, None, None], -1)
    return np.where(np.expand_dims(shown.any(-1), (2, 3, 4)), positions, 0)


def _quantize(values: np.ndarray, extent: float, block: Block) -> dict[str, Any]:
    """Append coordinates to the block as multiples of a step in 16 bits; return step, first multiple and offset.

    Coordinates that never change are stored once, in float64. The multiples include 0: upright lines stay upright.
    """
    low, high = float(values.min()), float(values.max())
    step = max(extent / RESOLUTION, (high - low) / _MAX_STEPS)
    multiples = np.rint(values / step).astype(np.int64)
    if (multiples == multiples[..., :1]).all():
        return {"still": True, "at": block.add(values[..., 0].astype(np.float64))}
    first = int(multiples.min())
    offset = block.add_changes((multiples - first).astype(np.uint16))
    return {"still": False, "first": first, "step": step, "at": offset}


def _layers(pictures: Sequence[Picture], env: str) -> list[Layer]:
    """Return a layer for each shape of a drawing, with its points and visibility in all frames (one picture each)."""
    for picture in pictures:
        _check_style(pictures[0], picture, env)
    series = [[picture.shapes[number] for picture in pictures] for number in range(len(pictures[0].shapes))]
    moving = [any(not np.array_equal(shapes[0].points, shape.points) for shape in shapes) for shapes in series]
    largest = max(
        shapes[0].points.nbytes * (len(pictures) if moves else 1) for shapes, moves in zip(series, moving, strict=True)
    )
    if largest * _COPIES > _MAX_BYTES:
        raise MemoryError(
            f"a page of {len(pictures):,} frames needs about {largest * _COPIES / 2**30:.0f} GiB of memory to write; "
            "record fewer steps or replicas, or save a video"
        )
    layers = []
    for shapes, moves in zip(series, moving, strict=True):
        first = shapes[0]
        points = np.stack([shape.points for shape in (shapes if moves else shapes[:1])], -1)
        all_shown = np.ones(points.shape[:2], bool)
        shown = np.stack([all_shown if shape.shown is None else shape.shown for shape in shapes], -1)
        if points.size:
            layers.append(Layer(first.kind, _css(first.colour), first.size, first.min_radius, points, shown))
    return layers


def _check_style(first: Picture, other: Picture, env: str) -> None:
    """Raise an error if pictures differ in more than positions and visibility."""

    def style(shape: Shape) -> Mapping[str, Any]:
        fixed = {name: getattr(shape, name) for name in ("kind", "colour", "size", "min_radius")}
        return {**fixed, "points": shape.points.shape}

    styles = [[style(shape) for shape in picture.shapes] for picture in (first, other)]
    if styles[0] == styles[1] and first.background == other.background:
        return
    differing = [f"{a} and then {b}" for a, b in zip(*styles, strict=False) if a != b]
    change = differing[0] if differing else f"{len(styles[0])} shapes and then {len(styles[1])}, or another background"
    raise ValueError(
        f"the drawing of {env} changes between frames in more than positions, which a page cannot store: {change}. "
        "Draw the same shapes in every frame and hide some with `shown`, or save a video"
    )
