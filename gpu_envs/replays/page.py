"""Writes a replay as a page: one file that any browser plays from the disk, without a network.

The page holds a description (JSON) and one block of bytes (deflated, in base64) with everything that has a value for
each frame. Coordinates are whole numbers of a small share of the view, as differences from one frame to the next, so
that what stands still costs next to nothing. ``recording.js`` reads the same.
"""

import base64
import dataclasses
import html
import importlib.resources
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from gpu_envs.pictures import Picture, Shape
from gpu_envs.rendering.frames import GAP, GAP_SHADE
from gpu_envs.replays.files import replacing
from gpu_envs.replays.recorded import FADED, Recorded
from gpu_envs.training.record.summary import COLOURS

FINENESS: Final = 2**14
"""So many places can be told apart across the view: several for each pixel of any screen."""

_COARSEST: Final = 2**16 - 2
"""Places across all that is drawn, where that is much more than the view."""

_COMPRESSION: Final = 9

SCRIPTS: Final = ("recording.js", "chart.js", "player.js")
"""In this order: each uses what those before it define."""


def check(path: Path) -> None:
    """Raises an error if a page cannot have that name."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page cannot be {str(path)!r}; its name ends in .html")


def write(replay: Recorded, path: Path, fps: int | None) -> None:
    """Writes the page; see ``Replay.save_html``."""
    check(path)
    with replacing(path) as partial:
        partial.write_text(text(replay, fps), encoding="utf-8")


def text(replay: Recorded, fps: int | None = None) -> str:
    """The page's text."""
    if fps is not None and fps < 1:
        raise ValueError(f"fps is {fps}; give a whole number from 1 up")
    block = Block()
    about = _described(replay, fps or replay.drawing.frames_a_second, block)
    parts = {
        "TITLE": html.escape(replay.title or replay.env),
        "STYLE": part("page.css"),
        "ABOUT": json.dumps(about, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "BYTES": base64.b64encode(zlib.compress(block.bytes(), _COMPRESSION)).decode(),
        "PLAYER": "\n".join(map(part, SCRIPTS)),
    }
    return filled(part("page.html"), parts)


def frame(replay: Recorded) -> str:
    """The page as a part of another, such as a notebook: in a frame, so that styles and scripts stay its own."""
    title = html.escape(replay.title or replay.env)
    return f'<iframe title="{title}" style="{_FRAME}" srcdoc="{html.escape(text(replay))}"></iframe>'


_FRAME: Final = "width: 100%; height: 40rem; border: 0"
"""Its style, until the page in it says how high it is."""


def part(name: str, package: str = "gpu_envs.replays") -> str:
    """The text of a file that pages are made of."""
    return (importlib.resources.files(package) / name).read_text(encoding="utf-8")


def filled(page: str, parts: Mapping[str, str]) -> str:
    """A page with its ``{{NAMES}}`` replaced."""
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], page)


@final
class Block:
    """Bytes, one array after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: np.ndarray) -> int:
        """Appends an array, little end first, and returns where it begins."""
        part = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
        begin = self._size
        self._parts.append(part)
        self._size += len(part)
        return begin

    def add_changes(self, values: np.ndarray) -> int:
        """Appends numbers of 16 bits as differences along the last axis: all their lower halves, then all upper ones.

        Small differences of either sign become small numbers, so that the upper halves are nearly all zero.
        """
        changes = np.diff(values, axis=-1, prepend=values.dtype.type(0)).astype(np.int16).astype(np.int32)
        folded = ((changes << 1) ^ (changes >> 15)).astype(np.uint16)
        begin = self.add((folded & 0xFF).astype(np.uint8))
        self.add((folded >> 8).astype(np.uint8))
        return begin

    def bytes(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)


def _described(replay: Recorded, fps: int, block: Block) -> dict[str, Any]:
    """The description; what has a value for each frame goes into the block."""
    pictures = [replay.picture(frame) for frame in range(replay.frames)]
    rewards = np.stack([values.T for values in replay.rewards.values()])
    colours = COLOURS[1:2] if len(replay.agents) == 1 else COLOURS
    layers = _layers(pictures, replay.env)
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, and no curve is drawn of it
        paid = rewards.astype(np.float32)
    about = {
        "title": replay.title or replay.env,
        "facts": _facts(replay),
        "fps": fps,
        "frames": replay.frames,
        "numbers": replay.numbers.tolist(),
        "last": replay.last.tolist(),
        "elapsed": replay.elapsed.tolist(),
        "pauses": replay.pauses,
        "roles": [
            {"name": name, "agents": agents, "colour": colours[i % len(colours)]}
            for i, (name, agents) in enumerate(replay.agents.items())
        ],
        "rewards": block.add(paid),
        "ends": block.add(replay.ends.T),
        "size": replay.drawing.size,
        "views": _views(pictures),
        "background": _css(pictures[0].background),
        "gap": GAP,
        "gapShade": _css((GAP_SHADE,) * 3),
        "faded": FADED,
        "layers": [layer.described(block, pictures[0].view) for layer in layers],
    }
    return about | (_metrics(replay, block) if replay.metrics else {})


def _metrics(replay: Recorded, block: Block) -> dict[str, Any]:
    """What is measured; what it comes to goes into the block."""
    before = max(2, len(replay.agents))
    with np.errstate(over="ignore"):
        values = np.stack([values.T for values in replay.metrics.values()]).astype(np.float32)
    return {
        "metrics": [
            {
                "name": name,
                "description": replay.measured[name].description,
                "reduce": replay.measured[name].reduce,
                "colour": COLOURS[(before + i) % len(COLOURS)],
            }
            for i, name in enumerate(replay.metrics)
        ],
        "measured": block.add(values),
    }


def _facts(replay: Recorded) -> list[tuple[str, str]]:
    """Names and values, save environment and run where the title names them."""
    title = replay.title or replay.env
    environment = {} if title.startswith(replay.env) else {"Environment": replay.env}
    facts = {**environment, **replay.facts}
    return [(name, value) for name, value in facts.items() if name != "Run" or not title.endswith(value)]


_COPIES = 8
"""Of the coordinates of a layer of shapes, while it is worked out."""
_MOST_BYTES = 8 * 2**30


def _views(pictures: Sequence[Picture]) -> list[list[float]]:
    """The view of each frame, or the one of all."""
    views = [list(map(float, picture.view)) for picture in pictures]
    return views[:1] if all(view == views[0] for view in views) else views


def _css(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


@final
@dataclasses.dataclass(frozen=True)
class Layer:
    """The same shapes of all frames."""

    kind: str
    colour: str
    size: float
    points: np.ndarray
    """``[replicas, shapes, points, 2, frames]``."""
    shown: np.ndarray
    """``[replicas, shapes, frames]``."""

    def described(self, block: Block, view: Sequence[float]) -> dict[str, Any]:
        """Its description; its coordinates go into the block.

        Of each shape there are the first point, and the others as seen from there: these stand still where a shape
        moves without turning.
        """
        replicas, shapes, points = self.points.shape[:3]
        shown = self.shown & np.isfinite(self.points).all((2, 3))
        held = _held(self.points, shown)
        found: dict[str, Any] = {
            "kind": self.kind,
            "colour": self.colour,
            "size": self.size,
            "replicas": replicas,
            "shapes": shapes,
            "points": points,
        }
        first, others = held[:, :, :1], held[:, :, 1:] - held[:, :, :1]
        for name, values in (("first", first), ("others", others)):
            if values.size:
                found[name] = _quantised(values, max(view[2] - view[0], view[3] - view[1]), block)
        if not shown.all():
            still = bool((shown == shown[..., :1]).all())
            kept = shown[..., :1] if still else shown
            changes = np.diff(kept.astype(np.int8), axis=-1, prepend=np.int8(0)) != 0
            found["shown"] = {"at": block.add(changes.astype(np.uint8)), "still": still}
        return found


def _held(points: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Lets shapes that are not shown stay where they were seen last, or will be seen first: that costs nothing."""
    frames = points.shape[-1]
    at = np.where(shown, np.arange(frames), -1)
    before = np.maximum.accumulate(at, -1)
    at = np.where(before >= 0, before, shown.argmax(-1)[..., None])
    taken = np.take_along_axis(points, at[:, :, None, None], -1)
    return np.where(np.expand_dims(shown.any(-1), (2, 3, 4)), taken, 0)


def _quantised(values: np.ndarray, extent: float, block: Block) -> dict[str, Any]:
    """Coordinates as whole numbers of 16 bits: what one counts, where they begin, and where they are in the block.

    What stands still is there once, as it is. Zero is always a whole number, so that an upright line stays upright.
    """
    low, high = float(values.min()), float(values.max())
    step = max(extent / FINENESS, (high - low) / _COARSEST)
    whole = np.rint(values / step).astype(np.int64)
    if (whole == whole[..., :1]).all():
        return {"still": True, "at": block.add(values[..., 0].astype(np.float64))}
    first = int(whole.min())
    return {"still": False, "first": first, "step": step, "at": block.add_changes((whole - first).astype(np.uint16))}


def _layers(pictures: Sequence[Picture], env: str) -> list[Layer]:
    """The shapes of all frames, layer by layer."""
    for picture in pictures:
        _check_same(pictures[0], picture, env)
    largest = max((shape.points.nbytes for shape in pictures[0].shapes), default=0) * len(pictures)
    if largest * _COPIES > _MOST_BYTES:
        raise MemoryError(
            f"a page of {len(pictures):,} frames needs about {largest * _COPIES / 2**30:.0f} GiB to be made; "
            "record fewer steps or replicas, or write a video"
        )
    found = []
    for number, first in enumerate(pictures[0].shapes):
        of_frames = [picture.shapes[number] for picture in pictures]
        points = np.stack([shape.points for shape in of_frames], -1)
        everywhere = np.ones(points.shape[:2], bool)
        shown = np.stack([everywhere if shape.shown is None else shape.shown for shape in of_frames], -1)
        if points.size:
            found.append(Layer(first.kind, _css(first.colour), first.size, points, shown))
    return found


def _check_same(first: Picture, other: Picture, env: str) -> None:
    """Refuses pictures that differ in more than where things are."""

    def style(shape: Shape) -> Mapping[str, Any]:
        return {"kind": shape.kind, "colour": shape.colour, "size": shape.size, "points": shape.points.shape}

    styles = [[style(shape) for shape in picture.shapes] for picture in (first, other)]
    if styles[0] == styles[1] and first.background == other.background:
        return
    differing = [f"{a} and then {b}" for a, b in zip(*styles, strict=False) if a != b]
    what = differing[0] if differing else f"{len(styles[0])} shapes and then {len(styles[1])}, or another background"
    raise ValueError(
        f"the drawing of {env} changes more than places from frame to frame, which a page cannot hold: {what}. "
        "Draw the same shapes in every frame, and hide some by `shown`; a video takes any"
    )
