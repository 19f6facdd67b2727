"""The data of a replay."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gpu_envs.pictures import Drawing, Picture
from gpu_envs.rendering.frames import GAP, Snapshot, tile_size, tiled
from gpu_envs.rendering.painter import Painter
from gpu_envs.specs.metrics import Metric

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
"""Status of a replica's episode after a step."""

FADED: Final = 0.5
"""Share of the background colour that is mixed into the last frame of finished replicas."""

MIN_TILE_WIDTH: Final = 16
"""Minimum width of a replica in pixels."""


def require_drawing(drawing: Drawing | None, env: str) -> Drawing:
    """Return the drawing of an environment, or raise a ValueError if it has none."""
    if drawing is None:
        raise ValueError(
            f"{env} has no drawing, which videos and windows need: save a page, with charts of the state instead "
            "(gpu-envs play --html, Replay.save_html), or give the spec drawing=gpu_envs.pictures.Drawing(...)"
        )
    return drawing


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Data of some replicas: frame 0 is the first state, frame ``t`` is the state after ``t`` steps.

    Replicas that stop before others repeat their last frame.
    """

    env: str
    """Environment id."""
    drawing: Drawing | None
    """The environment's drawing; None: pages have charts of the state instead of pictures."""
    state: Mapping[str, np.ndarray]
    """State fields by name, ``[frames, replicas, ...]``."""
    params: Mapping[str, Any]
    """Parameters by name: one value, or one for each replica."""
    rewards: Mapping[str, np.ndarray]
    """Rewards by role, ``[frames, replicas]``, of the step before the frame, averaged over the role's agents."""
    ends: np.ndarray
    """``[frames, replicas]``: ``TERMINATED`` or ``TRUNCATED`` if the step before the frame ended an episode, else
    ``RUNNING``."""
    last: np.ndarray
    """``[replicas]``: last frame of each replica."""
    agents: Mapping[str, int]
    """Number of agents by role."""
    numbers: np.ndarray
    """``[replicas]``: numbers of the replicas in their environment."""
    elapsed: np.ndarray
    """``[replicas]``: steps of the first episode before frame 0."""
    pauses: bool
    """Whether an episode's initial state has a frame. It has none in SameStep mode."""
    device: str = "cpu"
    """Device that paints frames."""
    title: str = ""
    """Short description."""
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names and values for the reader, such as the seed."""
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Metrics by name, ``[frames, replicas]``, of the episode up to the frame: at its end the values in
    ``infos["episode"]``, before its first step NaN."""
    measured: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """Definitions of the metrics."""
    drawn: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Randomized parameters by name, ``[frames, replicas, ...]``, which change from episode to episode."""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.ends)

    @property
    def replicas(self) -> int:
        """Number of recorded replicas."""
        return len(self.numbers)

    @property
    def steps(self) -> int:
        """Largest number of steps of a replica."""
        return self.frames - 1

    @property
    def frames_a_second(self) -> int:
        """Frames per second in real time, or 30 without a drawing."""
        return 30 if self.drawing is None else self.drawing.frames_a_second

    def returns(self) -> dict[str, np.ndarray]:
        """Return the returns of all fully recorded episodes by role, replica after replica."""
        return {role: np.array(self._episode_returns(rewards)) for role, rewards in self.rewards.items()}

    def _episode_returns(self, rewards: np.ndarray) -> list[float]:
        """Return the sums of rewards, ``[frames, replicas]``, over fully recorded episodes, replica after replica."""
        returns = []
        for replica in range(self.replicas):
            first = 1
            for end in np.flatnonzero(self.ends[:, replica]).tolist():
                if first > 1 or self.elapsed[replica] == 0:  # skips episodes that started before the recording
                    returns.append(float(rewards[first : end + 1, replica].sum(dtype=np.float64)))
                first = end + 1
        return returns

    def picture(self, frame: int) -> Picture:
        """Return the picture of all replicas in a frame."""
        state, drawn = ({name: values[frame] for name, values in arrays.items()} for arrays in (self.state, self.drawn))
        snapshot = Snapshot(require_drawing(self.drawing, self.env), state, {**self.params, **drawn})
        return snapshot.picture(np.arange(self.replicas))

    def pixels(self, frame: int, painter: Painter, size: tuple[int, int]) -> np.ndarray:
        """Return a tiled image of all replicas, ``[height, width, 3]`` uint8; ``size``: width, height of a replica."""
        picture = self.picture(frame)
        pixels = painter.paint(picture, size)
        finished = frame > self.last
        if finished.any():
            background = np.array(picture.background, np.float64)
            pixels[finished] = np.rint(pixels[finished] * (1 - FADED) + background * FADED).astype(np.uint8)
        return tiled(pixels)

    def tile(self, width: int | None = None) -> tuple[int, int]:
        """Return the width and height of a replica in the tiled image.

        Args:
            width: Width of the image, rounded down to full tiles; None for 1200, or less for few replicas.
        """
        drawing = require_drawing(self.drawing, self.env)
        if width is None:
            return tile_size(drawing, self.replicas)
        columns = math.ceil(math.sqrt(self.replicas))
        across = (width - (columns - 1) * GAP) // columns
        if across < MIN_TILE_WIDTH:
            raise ValueError(
                f"width is {width}; {self.replicas} replicas need a width of at least "
                f"{columns * (MIN_TILE_WIDTH + GAP) - GAP}"
            )
        return across, max(1, round(across * drawing.size[1] / drawing.size[0]))
