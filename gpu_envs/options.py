"""What an environment of either kind is made with, besides its own parameters, and the rules between its choices."""

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from gymnasium.vector import AutoresetMode

from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS
from gpu_envs.errors import did_you_mean
from gpu_envs.simulation import NO_LIMIT

OUTPUTS = ("numpy", "torch", "cupy")


def check_num_envs(given: object) -> int:
    """Returns the number of replicas, or says what is wrong with it."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise ValueError(f"num_envs is {given!r}; a whole number from 1 up")
    return int(given)


def _check_choice(what: str, given: object, allowed: Sequence[str]) -> None:
    if given not in allowed:
        hint = did_you_mean(str(given), allowed)
        raise ValueError(f"{what} is {given!r}{hint} Allowed: {', '.join(repr(a) for a in allowed)}")


@final
@dataclasses.dataclass(frozen=True)
class Options:
    """The constructor's arguments as they were given: a pickle makes them anew, perhaps on another machine."""

    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``; not resolved."""
    output: str = "numpy"
    """The library of the arrays that come out."""
    autoreset_mode: str | AutoresetMode = "NextStep"
    """When an episode that ended is followed by the next."""
    precision: str = "float32"
    """Of state and reward."""
    max_episode_steps: int | None = None
    """Truncates at this step; -1: never; None: the environment's default."""
    copy: bool | None = None
    """Return fresh arrays; None: for NumPy only."""
    statistics: bool | None = None
    """Give ``infos["episode"]``; None: not for NumPy."""
    threads: int | None = None
    """On the CPU: the most threads to use; None: one for each core."""
    block_size: int | None = None
    """On CUDA: threads per block; None: the default."""
    checking: bool = False
    """Look at every number after every call, and raise a NotFiniteError for what is NaN or infinite."""

    def __post_init__(self) -> None:
        """Refuses an unknown mode at once; the rest waits for the device, in ``check``."""
        given = getattr(self.autoreset_mode, "value", self.autoreset_mode)
        _check_choice("autoreset_mode", given, AUTORESET_MODES)

    @property
    def mode(self) -> str:
        """The word for the autoreset mode."""
        return str(getattr(self.autoreset_mode, "value", self.autoreset_mode))

    @property
    def gives_copies(self) -> bool:
        """Whether fresh arrays are returned."""
        return self.output == "numpy" if self.copy is None else bool(self.copy)

    @property
    def gives_statistics(self) -> bool:
        """Whether ``infos["episode"]`` is given."""
        return self.output != "numpy" if self.statistics is None else bool(self.statistics)

    def check(self, device: str) -> None:
        """Raises a ValueError for what cannot be, or cannot be on this device.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        _check_choice("output", self.output, OUTPUTS)
        _check_choice("precision", self.precision, PRECISIONS)
        if device == "cpu" and self.output == "cupy":
            raise ValueError("output='cupy' needs device='cuda'; on the CPU use output='numpy' or 'torch'")
        if self.output == "numpy" and not self.gives_copies and device != "cpu":
            raise ValueError("copy=False with output='numpy' cannot be on CUDA: use output='torch' or 'cupy'")

    def library(self, device: str) -> str:
        """The library of the simulation's own arrays on this device."""
        if self.output != "numpy":
            return self.output
        return "numpy" if device == "cpu" else "cupy"

    def limit(self, default: int | None) -> int:
        """The step at which an episode is truncated, or ``NO_LIMIT``.

        Args:
            default: The environment's own limit; None: it has none.
        """
        given = self.max_episode_steps
        if given is None:
            return default or NO_LIMIT
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or (given < 1 and given != -1):
            raise ValueError(
                f"max_episode_steps is {given!r}; a whole number from 1 up, -1 for none, None for the default"
            )
        return NO_LIMIT if given == -1 else min(int(given), NO_LIMIT)
