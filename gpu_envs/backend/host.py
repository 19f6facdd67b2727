"""The CPU backend: the machine's C++ compiler compiles the same headers, and kernels run on all cores."""

import contextlib
import ctypes
import functools
import importlib.resources
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, final

import numpy as np

from gpu_envs.backend.arrays import Arrays, NumpyArrays, TorchArrays, TorchArraysOfRuns
from gpu_envs.backend.background import available_threads
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.messages import compile_error
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.several import SeveralRuns, current_runs
from gpu_envs.backend.toolchain import build, find_compiler, start_build
from gpu_envs.errors import CompileError

MIN_STEPS_PER_THREAD = 8192
"""Steps of single replicas per thread below which waking a further thread costs more than it saves."""

MAX_THREADS = 1024
"""Maximum number of threads that share a launch: ``kMaxParts`` in ``threads.cpp``."""

_MIN_SHARE = 16
"""Replicas, a part of a tile: the smallest share of a thread in a launch of many steps with few replicas."""

TILE = 64
"""Replicas of a single agent that a thread steps as a tile: ``LANES`` in ``cpu.cuh``. Teams have tiles of 1."""


@functools.cache
def _pool() -> ctypes.CDLL:
    text = (importlib.resources.files("gpu_envs.backend") / "threads.cpp").read_text("utf-8")
    return build(text, "threads", ("-pthread",))


@final
class HostKernels(Kernels):
    """The kernels of a shared library."""

    def __init__(
        self,
        library: ctypes.CDLL,
        threads: int,
        flush: bool,
        weight: int = 1,
        tile: int = TILE,
        runs: SeveralRuns | None = None,
    ) -> None:
        """Stores the library and its launch settings.

        Args:
            library: The library.
            threads: Maximum number of threads of a launch.
            flush: Whether to flush denormals to zero.
            weight: The cost of a step, in steps of a single-agent environment.
            tile: Replicas per tile; each thread gets a multiple of it.
            runs: Runs for which each launch runs the kernel; None: it runs once.
        """
        self._library, self._threads, self._flush = library, threads, int(flush)
        self._weight, self._tile, self._runs = weight, tile, runs
        self._run = _pool().run
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_longlong,) * 2, *(ctypes.c_int,) * 2]
        self._run_several = _pool().run_several
        self._run_several.restype = None
        self._run_several.argtypes = [*(ctypes.c_void_p,) * 2, *(ctypes.c_longlong,) * 3, *(ctypes.c_int,) * 2]

    def bind(self, kernel: str, call: ctypes.Structure, count: int) -> Launch:
        """Returns a launch of the kernel over ``count`` replicas; small batches run on the calling thread."""
        function = ctypes.cast(getattr(self._library, f"kernel_{kernel}"), ctypes.c_void_p)
        argument, replicas = ctypes.c_void_p(ctypes.addressof(call)), ctypes.c_longlong(count)
        flush, run, tile = self._flush, self._run, self._tile
        if self._runs is not None:
            return self._launch_several(self._runs, function, call, count)

        if steps := {"rollout": "steps", "act_and_step": "horizon"}.get(kernel):

            def launch_steps(stream: int) -> None:
                del stream
                threads = self._threads_for(count * self._weight * getattr(call, steps))
                share = _MIN_SHARE * -(-count // (_MIN_SHARE * threads))
                run(function, argument, replicas, min(tile, share), threads, flush)

            return launch_steps
        threads = self._threads_for(count * self._weight)

        def launch_on_threads(stream: int, _keep: ctypes.Structure = call) -> None:
            del stream
            run(function, argument, replicas, tile, threads, flush)

        return launch_on_threads

    def _launch_several(self, runs: SeveralRuns, function: Any, call: ctypes.Structure, count: int) -> Launch:
        """Returns a launch for several runs: a thread runs the kernel for one run after the other."""

        def launch(stream: int) -> None:
            del stream
            structs = runs.calls(call)
            if runs.count > 1:
                structs = np.ascontiguousarray(structs[runs.active])
            distance = ctypes.sizeof(call)
            if len(structs):
                arguments = structs.ctypes.data, distance, len(structs), count, self._threads, self._flush
                self._run_several(function, *arguments)

        return launch

    def function(self, kernel: str) -> Any:
        """The library's function; it takes the struct's address, the first replica and the one after the last."""
        function = getattr(self._library, f"kernel_{kernel}")
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong], None
        return function

    def arguments(self, kernel: str, call: ctypes.Structure, count: int) -> dict[str, Any]:
        del kernel
        return {"args": (ctypes.addressof(call), 0, count)}

    def _threads_for(self, steps: int) -> int:
        return max(1, min(self._threads, steps // MIN_STEPS_PER_THREAD))


@final
class HostBackend(Backend):
    """The machine's CPU cores."""

    device = "cpu"
    traits = Device(on_gpu=False)

    def __init__(self, threads: int | None = None, extra_flags: Sequence[str] = ()) -> None:
        """Sets the number of threads, at most MAX_THREADS; None: one per core that this process may use."""
        self.threads = threads or min(available_threads(), MAX_THREADS)
        self._extra_flags = tuple(extra_flags)
        self._memory = 0
        self._runs = current_runs()

    def arrays(self, library: str) -> Arrays:
        """Host memory as NumPy arrays or torch tensors."""
        if library != "torch":
            return NumpyArrays()
        return TorchArrays("cpu") if self._runs is None else TorchArraysOfRuns("cpu", self._runs)

    def load(self, program: Program) -> Kernels:
        try:
            library = build(program.source, program.name, self._extra_flags)
        except CompileError as error:
            raise compile_error(program, error.output, shlex.join(find_compiler())) from None
        tile = TILE if program.grid is None else 1
        return HostKernels(library, self.threads, program.flush_denormals, program.weight, tile, self._runs)

    def start_compiling(self, program: Program) -> None:
        start_build(program.source, program.name, self._extra_flags)

    def memory(self) -> int:
        self._memory = self._memory or host_memory().total  # reading its files takes longer than a short rollout
        return self._memory


class HostMemory(NamedTuple):
    """Memory that this process may use, in bytes."""

    total: int
    """Used and free memory."""
    free: int
    """Unused memory, including the page cache."""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Returns the machine's total and free memory or, in a container with smaller limits, the container's.

    Inside a container, ``/proc/meminfo`` still describes the machine; the limit is in the files of its control group.

    Args:
        root: The folder that contains ``proc`` and ``sys``.
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
"""For control groups of version 2 and 1, by the controller in ``/proc/self/cgroup``: the root folder, the files with a
group's limit and usage, and the rows of ``memory.stat`` that count cached files."""


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
            for folder in (root / top / path for path in (group, *group.parents)):  # a container's may be the root
                with contextlib.suppress(OSError, ValueError):  # no such group, or no limit ("max")
                    limit, used = (int((folder / file).read_text("utf-8")) for file in (limit_file, usage_file))
                    rows = map(str.split, (folder / "memory.stat").read_text("utf-8").splitlines())
                    free = limit - used + sum(int(size) for row, size in rows if row in cached)
                    yield HostMemory(limit, max(0, free))
