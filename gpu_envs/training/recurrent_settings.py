"""Settings of a network's memory: a recurrent layer behind the hidden layers."""

import dataclasses
from typing import Any, ClassVar, final

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean

MAX_SIZE = 2**16


@dataclasses.dataclass(frozen=True)
class Memory:
    """A recurrent layer; ``GRU`` or ``LSTM``."""

    kind: ClassVar[str]
    """Name on the command line."""
    states: ClassVar[int]
    """Numbers that a unit keeps from step to step."""

    size: int = 64
    """Number of units."""

    def __post_init__(self) -> None:
        """Check the size."""
        if type(self.size) is not int or not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"the size of a memory is {self.size!r}; give an integer from 1 to {MAX_SIZE:,}")

    def __str__(self) -> str:
        """Return the text that ``of`` accepts."""
        return f"{self.kind}:{self.size}"

    @classmethod
    def of(cls, source: Any) -> "Memory":
        """Convert text such as ``gru:64``; ValueError for anything but such text, a GRU or an LSTM."""
        if isinstance(source, GRU | LSTM):
            return source
        allowed = "gru:N or lstm:N, such as gru:64"
        if not isinstance(source, str):
            raise ValueError(f"{source!r} is not a memory; give {allowed}")
        kind, colon, size = source.lower().partition(":")
        if kind not in MEMORIES:
            raise ValueError(f"{source!r} is not a memory{did_you_mean(kind, MEMORIES)} Allowed: {allowed}")
        try:
            return MEMORIES[kind](int(size)) if colon else MEMORIES[kind]()
        except ValueError:
            raise ValueError(f"{source!r} has no size from 1 to {MAX_SIZE:,}; give {allowed}") from None


@final
@documented
@dataclasses.dataclass(frozen=True)
class GRU(Memory):
    """A gated recurrent unit (Cho et al. 2014), in torch's variant."""

    kind: ClassVar[str] = "gru"
    states: ClassVar[int] = 1


@final
@documented
@dataclasses.dataclass(frozen=True)
class LSTM(Memory):
    """Long short-term memory (Hochreiter & Schmidhuber 1997)."""

    kind: ClassVar[str] = "lstm"
    states: ClassVar[int] = 2


MEMORIES: dict[str, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}
"""Kinds of memory by their names on the command line."""
