"""Writes a replay as a video (mp4) or as an animated picture (gif)."""

import contextlib
import importlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from gpu_envs.extras import extra
from gpu_envs.rendering.frames import GAP, GAP_SHADE
from gpu_envs.rendering.painter import Painter
from gpu_envs.replays.files import replacing
from gpu_envs.replays.recorded import Recorded
from gpu_envs.training.record.summary import Progress

KINDS: Final = (".mp4", ".gif")
GIF_RATE: Final = 50
"""Frames a second at most: a gif counts in hundredths of a second, and viewers take one of them for ten."""

_COLOURS: Final = 255
"""Of a gif, whose pixels are bytes; one is left for what does not change."""
MOST_PIXELS: Final = 16384
"""Of a video, either way: more x264 does not take."""
MOST_RATE: Final = 1000
"""Frames a second."""
_TOGETHER: Final = 4096
"""Colours whose nearest is looked for at a time."""
_LOOKED_AT: Final = 16
"""Frames from which the colours of a gif are taken."""
_QUALITY: Final = "20"
"""What x264 calls the rate factor: lines stay sharp, and files small."""


def check(path: Path, fps: int | None, width: int | None = None) -> None:
    """Raises what is wrong with a video before there is anything to write: name, rate, width, a missing library."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"a video cannot be {str(path)!r}; its name ends in {' or '.join(KINDS)}")
    if fps is not None and not 1 <= fps <= MOST_RATE:
        raise ValueError(f"fps is {fps}; give a whole number from 1 to {MOST_RATE}")
    if width is not None and width > MOST_PIXELS:
        raise ValueError(f"width is {width}; a video has at most {MOST_PIXELS} pixels either way")
    if kind == ".gif" and fps is not None and fps > GIF_RATE:
        raise ValueError(f"fps is {fps}; a gif shows at most {GIF_RATE} frames a second, an mp4 more")
    _library("PIL.Image" if kind == ".gif" else "imageio_ffmpeg")


def _library(module: str) -> Any:
    with extra("video", "PIL", "imageio_ffmpeg"):
        return importlib.import_module(module)


def write(replay: Recorded, path: Path, width: int | None, fps: int | None, progress: bool | None) -> None:
    """Writes a video of all replicas side by side; see ``Replay.save_video``."""
    check(path, fps, width)
    size = replay.tile(width)
    columns = math.ceil(math.sqrt(replay.replicas))
    down = math.ceil(replay.replicas / columns) * (size[1] + GAP)
    if max(columns * (size[0] + GAP), down) > MOST_PIXELS:
        raise ValueError(f"a video has at most {MOST_PIXELS} pixels either way, and this would have more; lower width")
    bar = Progress(replay.frames, None if progress is None else not progress, unit="frames")
    with replacing(path) as partial:
        try:
            if path.suffix.lower() == ".gif":
                rate = min(GIF_RATE, replay.drawing.frames_a_second) if fps is None else fps
                _write_gif(replay, partial, size, rate, bar)
            else:
                _write_mp4(replay, partial, size, replay.drawing.frames_a_second if fps is None else fps, bar)
        finally:
            bar.close()


def _frames(replay: Recorded, size: tuple[int, int], bar: Progress) -> Iterator[np.ndarray]:
    painter, began = Painter(replay.device), time.perf_counter()
    for frame in range(replay.frames):
        yield replay.pixels(frame, painter, size)
        bar.update(frame + 1, (frame + 1) / max(1e-9, time.perf_counter() - began), {})


def _write_mp4(replay: Recorded, path: Path, size: tuple[int, int], fps: int, bar: Progress) -> None:
    frames = (_even(frame) for frame in _frames(replay, size, bar))
    first = next(frames)
    height, width, _ = first.shape
    options = ["-crf", _QUALITY, "-movflags", "+faststart"]
    writer = _library("imageio_ffmpeg").write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, quality=None, output_params=options
    )
    with contextlib.closing(writer):
        writer.send(None)
        writer.send(np.ascontiguousarray(first))
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))


def _even(frame: np.ndarray) -> np.ndarray:
    """With a row or a column more where their number is odd, as the videos that every player knows must not have it."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), constant_values=GAP_SHADE)


def _write_gif(replay: Recorded, path: Path, size: tuple[int, int], fps: int, bar: Progress) -> None:
    image = _library("PIL.Image")
    painter = Painter(replay.device)
    looked_at = np.unique(np.linspace(0, replay.frames - 1, _LOOKED_AT).astype(int))
    palette = _Palette([replay.pixels(int(frame), painter, size) for frame in looked_at])
    # when each frame begins, in hundredths of a second: what rounding takes from one frame is given to another
    begins = np.rint(np.arange(replay.frames + 1) * 100 / fps).astype(int)

    def image_of(frame: np.ndarray) -> Any:
        made = image.fromarray(palette.numbers(frame))
        made.putpalette(palette.colours.tobytes())
        return made

    images = map(image_of, _frames(replay, size, bar))
    next(images).save(
        path,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=(np.diff(begins) * 10).tolist(),
        loop=0,
        optimize=False,
    )


@final
class _Palette:
    """The commonest colours of some frames, and the nearest of them to any other.

    What is drawn has few colours, and many shades of them where one covers part of a pixel. Colours that stand for
    several, as pictures of the world need them, would tint the background.
    """

    def __init__(self, frames: Sequence[np.ndarray]) -> None:
        found = [np.unique(_packed(frame), return_counts=True) for frame in frames]
        colours, where = np.unique(np.concatenate([each for each, _ in found]), return_inverse=True)
        counts = np.bincount(where, np.concatenate([each for _, each in found]))
        self.colours = _unpacked(colours[np.argsort(-counts, kind="stable")[:_COLOURS]])
        self._known = np.full(2**24, -1, np.int16)

    def numbers(self, frame: np.ndarray) -> np.ndarray:
        """The number of each pixel's colour, ``[height, width]`` uint8."""
        packed = _packed(frame)
        new = np.unique(packed[self._known[packed] < 0])
        for some in np.array_split(new, len(new) // _TOGETHER + 1):
            apart = _unpacked(some)[:, None].astype(np.int32) - self.colours
            self._known[some] = (apart**2).sum(-1).argmin(1)
        numbers: np.ndarray = self._known[packed].astype(np.uint8)
        return numbers


def _packed(frame: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(frame.astype(np.int32), -1, 0)
    packed: np.ndarray = red << 16 | green << 8 | blue
    return packed


def _unpacked(colours: np.ndarray) -> np.ndarray:
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], -1).astype(np.uint8)
