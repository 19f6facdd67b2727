"""The interface of the modules ``*_loops``.

Each has a function ``loops(num_envs, device, steps)``; ``steps`` is the number of steps of a call.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Pair:
    """A loop of a library with several environments."""

    ours: Callable[[], object]
    """The loop with the adapter."""
    constant: Callable[[], object]
    """The loop with an environment that returns constants: the cost of the library alone."""
    endless: Callable[[], object] | None = None
    """Like ``constant``, but without ends of episodes; None: ``constant`` has none."""


@final
@dataclasses.dataclass(frozen=True)
class Loops:
    """The loops of a library that collect steps."""

    env_id: str
    """The environment's ID."""
    pairs: Mapping[str, Pair]
    """The loops by name."""
    close: Callable[[], object]
    """Closes the environments."""
