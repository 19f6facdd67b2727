"""The CPU backend: the same headers, compiled by the machine's C++ compiler, on all cores."""

import contextlib
import ctypes
import functools
import importlib.resources
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, final

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
        return host_memory().total


class HostMemory(NamedTuple):
    """Memory that this process may use, in bytes."""

    total: int
    """All of it, used or not."""
    free: int
    """What nothing uses; files that the kernel caches count as free."""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Returns the machine's memory or, where a container limits it, what the limit leaves.

    ``/proc/meminfo`` is the machine's in a container, too; a limit is in the files of its control group.

    Args:
        root: The folder that has ``proc`` and ``sys``.
    """
    total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):  # macOS has no such file
        for line in (root / "proc/meminfo").read_text("utf-8").splitlines():  # see proc_meminfo(5)
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 2**10
    limits = [HostMemory(total, free), *_cgroup_memory(root)]
    return HostMemory(min(limit.total for limit in limits), min(limit.free for limit in limits))


_CGROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")),
    "memory": (
        *("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("total_active_file", "total_inactive_file"),
    ),
}
"""Version 2 and version 1 of control groups by their controller in ``/proc/self/cgroup``: their folder, the files of a
group's limit and usage, and the lines of ``memory.stat`` with cached files."""


def _cgroup_memory(root: Path) -> Iterator[HostMemory]:
    """Yields the memory of this process's control group and of each group above it that has a limit; see cgroups(7)."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # macOS has no control groups
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        group = PurePath(name.lstrip("/"))
        for controller in _CGROUPS.keys() & {*controllers.split(",")}:
            top, limit_file, usage_file, cached = _CGROUPS[controller]
            for folder in (root / top / each for each in (group, *group.parents)):  # a container's group may be the top
                with contextlib.suppress(OSError, ValueError):  # no such group, or "max": it has no limit
                    limit, used = (int((folder / file).read_text("utf-8")) for file in (limit_file, usage_file))
                    rows = map(str.split, (folder / "memory.stat").read_text("utf-8").splitlines())
                    free = limit - used + sum(int(size) for row, size in rows if row in cached)
                    yield HostMemory(limit, max(0, free))
