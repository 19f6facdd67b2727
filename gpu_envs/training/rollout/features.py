"""Observations as networks see them: rows of float32 features, whatever the space."""

import dataclasses
import math
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np
import torch

_SCALES = {"float32": 1.0, "int32": 1.0, "uint8": 1.0 / 255.0}
"""By the type of a Box: what its numbers are multiplied by."""


@final
class Piece(NamedTuple):
    """A Box of an observation, by its name in the Dict (empty: it is the observation), and its columns in the row."""

    key: str
    first: int
    last: int
    scale: float


@final
@dataclasses.dataclass(frozen=True)
class Flattening:
    """How observations become rows: a Dict's Boxes one after another in the order of its keys, images from 0 to 1."""

    features: int
    """Of a row."""
    shape: tuple[int, ...]
    """Of one observation, where the environment writes into the rows by itself."""
    pieces: tuple[Piece, ...]
    """What is copied into the rows; none where the environment writes there."""

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "Flattening":
        """Of a space of observations, if it can be flattened."""
        named = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"": space}
        pieces: list[Piece] = []
        first = 0
        for key, box in named.items():
            if not isinstance(box, gymnasium.spaces.Box) or np.dtype(box.dtype).name not in _SCALES:
                raise ValueError(
                    f"observations of {box} cannot be learnt from; give a Box of float32, uint8 or int32, or a "
                    "Dict of such"
                )
            last = first + math.prod(box.shape)
            pieces.append(Piece(key, first, last, _SCALES[np.dtype(box.dtype).name]))
            first = last
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32:
            return cls(first, space.shape, ())
        return cls(first, (), tuple(pieces))

    @classmethod
    def unless_plain(cls, space: gymnasium.Space[Any]) -> "tuple[int, Flattening | None]":
        """How many features an observation has, and how it becomes a row; None: it is one."""
        flattening = cls.of(space)
        return flattening.features, None if flattening.shape == (flattening.features,) else flattening

    def write(self, observations: Any, rows: torch.Tensor) -> None:
        """Copies observations, an array or a dict of arrays ``[num_envs, ...]``, into rows ``[num_envs, features]``."""
        for piece in self.pieces:
            source = observations[piece.key] if piece.key else observations
            torch.mul(source.reshape(rows.shape[0], -1), piece.scale, out=rows[:, piece.first : piece.last])

    def rows(self, observations: Any, lead: int) -> torch.Tensor:
        """Observations with ``lead`` dimensions before those of the space as rows ``[..., features]``, maybe a view."""
        first: torch.Tensor = observations[self.pieces[0].key] if self.pieces and self.pieces[0].key else observations
        if not self.pieces:
            return first.reshape(*first.shape[:lead], self.features)
        rows = first.new_empty((math.prod(first.shape[:lead]), self.features), dtype=torch.float32)
        self.write(observations, rows)
        return rows
