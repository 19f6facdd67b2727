"""The CPU backend: the same headers, compiled by the machine's C++ compiler, on all cores."""

import ctypes
import functools
import importlib.resources
import os
import shlex
from collections.abc import Sequence
from typing import Any, final

from gpu_envs.backend.ahead import available_threads
from gpu_envs.backend.arrays import Arrays, NumpyArrays, TorchArrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.messages import compile_error
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import begin, build, find_compiler
from gpu_envs.errors import CompileError

LEAST_PER_THREAD = 8192
"""Steps of one replica below which waking a further thread costs more than it saves."""

MOST_THREADS = 1024
"""Threads of a process that may share a step: ``kMostParts`` in ``threads.cpp``."""

TILE = 64
"""Replicas that a thread steps together: ``LANES`` in ``cpu.cuh``. One with a team of agents is stepped alone."""


@functools.cache
def _pool() -> ctypes.CDLL:
    text = (importlib.resources.files("gpu_envs.backend") / "threads.cpp").read_text("utf-8")
    return build(text, "threads", ("-pthread",))


@final
class HostKernels(Kernels):
    """Functions of a shared library."""

    def __init__(self, library: ctypes.CDLL, threads: int, flush: bool, weight: int = 1, tile: int = TILE) -> None:
        """Keeps the library, and how to run it."""
        self._library = library
        self._threads = threads
        self._flush = int(flush)
        self._weight = weight
        self._tile = tile
        self._run = _pool().run
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_longlong,) * 2, *(ctypes.c_int,) * 2]

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Prepares a call of the kernel; small batches stay on the calling thread."""
        function = ctypes.cast(getattr(self._library, f"kernel_{kernel}"), ctypes.c_void_p)
        argument, replicas = ctypes.c_void_p(ctypes.addressof(call)), ctypes.c_longlong(count)
        flush, run, tile = self._flush, self._run, self._tile

        if kernel == "rollout":

            def launch_rollout(stream: int) -> None:
                del stream
                run(function, argument, replicas, tile, self._worthwhile(count * call.steps), flush)

            return launch_rollout
        threads = self._worthwhile(count * self._weight)

        def launch(stream: int, _keep: ctypes.Structure = call) -> None:
            del stream
            run(function, argument, replicas, tile, threads, flush)

        return launch

    def function(self, kernel: str) -> Any:
        """The function of the library: it takes the struct, the first replica and the one after the last."""
        found = getattr(self._library, f"kernel_{kernel}")
        found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong], None
        return found

    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        del kernel
        return {"args": (ctypes.addressof(call), 0, count)}

    def _worthwhile(self, steps: int) -> int:
        return max(1, min(self._threads, steps // LEAST_PER_THREAD))


@final
class HostBackend(Backend):
    """The machine's own cores."""

    device = "cpu"
    traits = Device(on_gpu=False)

    def __init__(self, threads: int | None = None, extra_flags: Sequence[str] = ()) -> None:
        """Chooses the number of threads, at most MOST_THREADS; None: every core this process may use."""
        self.threads = threads or min(available_threads(), MOST_THREADS)
        self._extra_flags = tuple(extra_flags)

    def arrays(self, library: str) -> Arrays:
        """Host memory as NumPy arrays or torch tensors."""
        return TorchArrays("cpu") if library == "torch" else NumpyArrays()

    def load(self, program: Program) -> Kernels:
        try:
            library = build(program.source, program.name, self._extra_flags)
        except CompileError as error:
            raise compile_error(program, error.output, shlex.join(find_compiler())) from None
        tile = TILE if program.grid is None else 1
        return HostKernels(library, self.threads, program.flush_denormals, program.weight, tile)

    def begin(self, program: Program) -> None:
        begin(program.source, program.name, self._extra_flags)

    def memory(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
