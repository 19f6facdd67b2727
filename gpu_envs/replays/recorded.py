"""What was recorded, frame by frame."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gpu_envs.pictures import Drawing, Picture
from gpu_envs.rendering.frames import GAP, Snapshot, tile_size, tiled
from gpu_envs.rendering.painter import Painter
from gpu_envs.specs.metrics import Metric

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
"""What became of a replica's episode in a step."""

FADED: Final = 0.5
"""Of a replica that is done: how much of the background is mixed into its last frame."""

LEAST_WIDTH: Final = 16
"""Of a replica in a picture, in pixels."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Some replicas of an environment, frame by frame: frame 0 is the beginning, frame ``t`` is after ``t`` steps.

    A replica that was recorded no longer than others keeps its last frame.
    """

    env: str
    """The environment's id."""
    drawing: Drawing
    """How it is drawn."""
    state: Mapping[str, np.ndarray]
    """By field, ``[frames, replicas, ...]``."""
    params: Mapping[str, Any]
    """By name, one value, or one for each replica."""
    rewards: Mapping[str, np.ndarray]
    """By role, ``[frames, replicas]``: of the step before the frame, the mean over the role's agents."""
    ends: np.ndarray
    """``[frames, replicas]``: whether the step before the frame ended an episode: ``GOES_ON``, ``TERMINATED`` or
    ``TRUNCATED``."""
    last: np.ndarray
    """``[replicas]``: each one's last frame."""
    agents: Mapping[str, int]
    """How many agents each role has."""
    numbers: np.ndarray
    """``[replicas]``: which they are in their environment."""
    elapsed: np.ndarray
    """``[replicas]``: steps of the episode that had passed before frame 0."""
    pauses: bool
    """After an episode's last frame comes the first of the next, where otherwise its first step is taken at once."""
    device: str = "cpu"
    """Where frames are painted."""
    title: str = ""
    """Says in a few words what it is."""
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What else is known of it."""
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By name, ``[frames, replicas]``: what the episode has of it if it ends with the step before the frame, as in
    ``infos["episode"]`` where it does; NaN where it has had no step."""
    measured: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """What they are."""
    drawn: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By name, ``[frames, replicas, ...]``: the parameters that are drawn for each episode, in force in the frame."""

    @property
    def frames(self) -> int:
        """How many there are."""
        return len(self.ends)

    @property
    def replicas(self) -> int:
        """How many were recorded."""
        return len(self.numbers)

    @property
    def steps(self) -> int:
        """How many were taken, at most, of a replica."""
        return self.frames - 1

    def returns(self) -> dict[str, np.ndarray]:
        """By role, the returns of all episodes that were recorded from beginning to end, replica after replica."""
        return {role: np.array(self._returns(rewards)) for role, rewards in self.rewards.items()}

    def _returns(self, rewards: np.ndarray) -> list[float]:
        found = []
        for replica in range(self.replicas):
            first = 1
            for end in np.flatnonzero(self.ends[:, replica]).tolist():
                if first > 1 or self.elapsed[replica] == 0:  # of one that had begun before, only a part is known
                    found.append(float(rewards[first : end + 1, replica].sum(dtype=np.float64)))
                first = end + 1
        return found

    def picture(self, frame: int) -> Picture:
        """What all replicas look like in a frame."""
        at = np.minimum(frame, self.last)
        numbers = np.arange(self.replicas)
        state, drawn = (
            {name: values[at, numbers] for name, values in kept.items()} for kept in (self.state, self.drawn)
        )
        return Snapshot(self.drawing, state, {**self.params, **drawn}).picture(numbers)

    def pixels(self, frame: int, painter: Painter, size: tuple[int, int]) -> np.ndarray:
        """All replicas in one picture, ``[height, width, 3]`` uint8.

        Args:
            frame: Which.
            painter: Paints them.
            size: Width and height of each.
        """
        picture = self.picture(frame)
        painted = painter.paint(picture, size)
        over = frame > self.last
        if over.any():
            background = np.array(picture.background, np.float64)
            painted[over] = np.rint(painted[over] * (1 - FADED) + background * FADED).astype(np.uint8)
        return tiled(painted)

    def tile(self, width: int | None = None) -> tuple[int, int]:
        """Width and height of each replica in a picture of all.

        Args:
            width: Of that picture; None: 1200, and less where they are few. A pixel may be lacking for each column.
        """
        if width is None:
            return tile_size(self.drawing, self.replicas)
        columns = math.ceil(math.sqrt(self.replicas))
        across = (width - (columns - 1) * GAP) // columns
        if across < LEAST_WIDTH:
            raise ValueError(
                f"width is {width}; {self.replicas} replicas side by side need at least "
                f"{columns * (LEAST_WIDTH + GAP) - GAP}"
            )
        return across, max(1, round(across * self.drawing.size[1] / self.drawing.size[0]))
