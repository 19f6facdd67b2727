"""What a backend must do: give memory, compile a program, launch its kernels."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from gpu_envs.backend.arrays import Arrays
from gpu_envs.backend.program import Device, Program

Launch: TypeAlias = Callable[[int], None]
"""Runs a kernel on its struct as it stands now, on the stream with this handle."""


class Kernels(ABC):
    """The compiled kernels of one program."""

    @abstractmethod
    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares the launch of a kernel over ``count`` replicas with ``call``, which may change between launches."""

    @abstractmethod
    def function(self, kernel: str) -> Any:
        """The kernel itself: a ``cupy.RawKernel``, or a function of a shared library on the CPU."""

    @abstractmethod
    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        """What ``function`` takes to run over ``count`` replicas, by the names of a ``RawKernel``'s arguments."""


class Backend(ABC):
    """A device that runs kernels."""

    device: str
    """``cpu``, or ``cuda:`` and a number."""
    traits: Device
    """What generated code depends on."""

    @abstractmethod
    def arrays(self, library: str) -> Arrays:
        """Memory of this device, in the given array library."""

    @abstractmethod
    def load(self, program: Program) -> Kernels:
        """Compiles a program, or finds what an earlier compilation of the same left."""

    @abstractmethod
    def begin(self, program: Program) -> None:
        """Begins to compile what will be loaded later, beside what this process does."""

    @abstractmethod
    def memory(self) -> int:
        """How many bytes this device could give at most."""
