"""What every library's module of loops gives.

Its function ``loops`` is given the number of replicas, the device, and how many steps a call takes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Pair:
    """A loop of a library's own around several environments."""

    ours: Callable[[], object]
    """Around the adapter."""
    constant: Callable[[], object]
    """Around one that always gives the same tensors: what the library costs by itself."""
    endless: Callable[[], object] | None = None
    """The same where no episode ever ends, if ``constant`` has some end and that makes work for the library."""


@final
@dataclasses.dataclass(frozen=True)
class Loops:
    """A library's ways to collect steps."""

    env_id: str
    """The environment of ours."""
    pairs: Mapping[str, Pair]
    """By the name of the way. Each call takes as many steps as was asked for."""
    close: Callable[[], object]
    """Ends all of them."""
