"""Write a replay as a video (mp4 or gif)."""

import contextlib
import importlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from gpu_envs.extras import extra
from gpu_envs.progress import Progress
from gpu_envs.rendering.frames import GAP, GAP_SHADE
from gpu_envs.rendering.painter import Painter
from gpu_envs.replays.files import replacing
from gpu_envs.replays.recorded import Recorded

KINDS: Final = (".mp4", ".gif")
MAX_GIF_FPS: Final = 50
"""Maximum frames per second of a gif: delays are in hundredths of a second, and viewers slow a delay of 1 to 10."""

_GIF_COLOURS: Final = 255
"""Maximum number of colours of a gif; Pillow needs index 255 for unchanged pixels."""
MAX_PIXELS: Final = 16384
"""Maximum width and height of a video, a limit of x264."""
MAX_FPS: Final = 1000
"""Maximum frames per second of a video."""
_COLOURS_PER_SEARCH: Final = 4096
"""Number of colours in one search for nearest colours, which limits memory."""
_PALETTE_FRAMES: Final = 16
"""Number of frames that a gif's palette is computed from."""
_QUALITY: Final = "20"
"""Rate factor of x264, which keeps lines sharp and files small."""


def check(path: Path, fps: int | None, width: int | None = None) -> None:
    """Raise an error for a wrong file name, rate or width, or for a missing library, before anything is written."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"a video cannot be {str(path)!r}; its name ends in {' or '.join(KINDS)}")
    if fps is not None and not 1 <= fps <= MAX_FPS:
        raise ValueError(f"fps is {fps}; give a number from 1 to {MAX_FPS}")
    if width is not None and width > MAX_PIXELS:
        raise ValueError(f"width is {width}; give at most {MAX_PIXELS} pixels")
    if kind == ".gif" and fps is not None and fps > MAX_GIF_FPS:
        raise ValueError(f"fps is {fps}; a gif has at most {MAX_GIF_FPS} frames per second: give fewer, or save an mp4")
    _import("PIL.Image" if kind == ".gif" else "imageio_ffmpeg")


def _import(module: str) -> Any:
    with extra("video", "PIL", "imageio_ffmpeg"):
        return importlib.import_module(module)


def write(replay: Recorded, path: Path, width: int | None, fps: int | None, progress: bool | None) -> None:
    """Write a video of all replicas side by side; see ``Replay.save_video``."""
    check(path, fps, width)
    tile_size = replay.tile(width)
    columns = math.ceil(math.sqrt(replay.replicas))
    height = math.ceil(replay.replicas / columns) * (tile_size[1] + GAP)
    if max(columns * (tile_size[0] + GAP), height) > MAX_PIXELS:
        raise ValueError(f"the video would be wider or higher than {MAX_PIXELS} pixels; give a smaller width")
    bar = Progress(replay.frames, None if progress is None else not progress, unit="frames")
    with replacing(path) as partial:
        try:
            if path.suffix.lower() == ".gif":
                rate = min(MAX_GIF_FPS, replay.frames_a_second) if fps is None else fps
                _write_gif(replay, partial, tile_size, rate, bar)
            else:
                _write_mp4(replay, partial, tile_size, replay.frames_a_second if fps is None else fps, bar)
        finally:
            bar.close()


def _frames(replay: Recorded, tile_size: tuple[int, int], bar: Progress) -> Iterator[np.ndarray]:
    """Yield images with a tile per replica; ``tile_size`` is (width, height)."""
    painter, start = Painter(replay.device), time.perf_counter()
    for frame in range(replay.frames):
        yield replay.pixels(frame, painter, tile_size)
        bar.update(frame + 1, (frame + 1) / max(1e-9, time.perf_counter() - start), {})


def _write_mp4(replay: Recorded, path: Path, tile_size: tuple[int, int], fps: int, bar: Progress) -> None:
    """Encode the frames with x264, padded to even sizes, one frame in memory at a time."""
    frames = (_pad_to_even(frame) for frame in _frames(replay, tile_size, bar))
    first = next(frames)
    height, width, _ = first.shape
    options = ["-crf", _QUALITY, "-movflags", "+faststart"]
    writer = _import("imageio_ffmpeg").write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, quality=None, output_params=options
    )
    with contextlib.closing(writer):
        writer.send(None)
        writer.send(np.ascontiguousarray(first))
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))


def _pad_to_even(frame: np.ndarray) -> np.ndarray:
    """Return the frame with odd heights and widths padded by a pixel: the format that all players support is even."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), constant_values=GAP_SHADE)


def _write_gif(replay: Recorded, path: Path, tile_size: tuple[int, int], fps: int, bar: Progress) -> None:
    """Write the frames with one palette for all, computed from some of them."""
    image = _import("PIL.Image")
    painter = Painter(replay.device)
    sample = np.unique(np.linspace(0, replay.frames - 1, _PALETTE_FRAMES).astype(int))
    palette = _Palette([replay.pixels(int(frame), painter, tile_size) for frame in sample])
    # rounded start times in hundredths of a second: rounding errors of durations would add up
    starts = np.rint(np.arange(replay.frames + 1) * 100 / fps).astype(int)

    def to_indexed_image(frame: np.ndarray) -> Any:
        indexed = image.fromarray(palette.indices(frame))
        indexed.putpalette(palette.colours.tobytes())
        return indexed

    images = map(to_indexed_image, _frames(replay, tile_size, bar))
    next(images).save(
        path,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=(np.diff(starts) * 10).tolist(),
        loop=0,
        optimize=False,
    )


@final
class _Palette:
    """The palette of a gif: the (at most 255) most frequent colours of sampled frames.

    Drawings have few colours, and blends of them at edges. Averaged palette colours, as for photographs, would tint the
    background.
    """

    def __init__(self, frames: Sequence[np.ndarray]) -> None:
        histograms = [np.unique(_pack(frame), return_counts=True) for frame in frames]
        colours, inverse = np.unique(np.concatenate([values for values, _ in histograms]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([numbers for _, numbers in histograms]))
        self.colours = _unpack(colours[np.argsort(-counts, kind="stable")[:_GIF_COLOURS]])
        self._nearest = np.full(2**24, -1, np.int16)  # index by packed colour; -1 is not computed yet

    def indices(self, frame: np.ndarray) -> np.ndarray:
        """Return the index of the nearest palette colour of each pixel, ``[height, width]`` uint8."""
        packed = _pack(frame)
        new = np.unique(packed[self._nearest[packed] < 0])
        for some in np.array_split(new, len(new) // _COLOURS_PER_SEARCH + 1):
            difference = _unpack(some)[:, None].astype(np.int32) - self.colours
            self._nearest[some] = (difference**2).sum(-1).argmin(1)
        indices: np.ndarray = self._nearest[packed].astype(np.uint8)
        return indices


def _pack(frame: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(frame.astype(np.int32), -1, 0)
    packed: np.ndarray = red << 16 | green << 8 | blue
    return packed


def _unpack(colours: np.ndarray) -> np.ndarray:
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], -1).astype(np.uint8)
