"""The interface of a backend: it allocates memory, compiles a program and launches its kernels."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from gpu_envs.backend.arrays import Arrays
from gpu_envs.backend.program import Device, Program

Launch: TypeAlias = Callable[[int], None]
"""Launches a kernel with the current values of its argument struct, on the stream with this handle."""


class Kernels(ABC):
    """The compiled kernels of one program."""

    @abstractmethod
    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares launches of a kernel over ``count`` replicas.

        ``call`` is the kernel's argument struct; its members may change between launches.
        """

    @abstractmethod
    def function(self, kernel: str) -> Any:
        """The kernel as a ``cupy.RawKernel`` or, on the CPU, a ``ctypes`` function."""

    @abstractmethod
    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        """Keyword arguments of ``function(kernel)`` for ``count`` replicas, with the names that ``RawKernel`` has."""


class Backend(ABC):
    """A device that compiles and runs kernels."""

    device: str
    """``cpu`` or ``cuda:N``."""
    traits: Device
    """Properties of the device that generated code depends on."""

    @abstractmethod
    def arrays(self, library: str) -> Arrays:
        """Arrays on this device in an array library: ``numpy``, ``torch`` or ``cupy``."""

    @abstractmethod
    def load(self, program: Program) -> Kernels:
        """Compiles a program, or loads it from the cache folder, and returns its kernels."""

    @abstractmethod
    def start_compiling(self, program: Program) -> None:
        """Starts to compile a program in a background thread; ``load`` waits for it."""

    @abstractmethod
    def memory(self) -> int:
        """The device's total memory in bytes, or its limit."""
