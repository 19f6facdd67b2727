"""A run's use of torch and the device: memory, CUDA graphs, threads and random numbers.

Process-wide settings are changed only while a run computes, and restored afterwards.
"""

import contextlib
import functools
import gc
import itertools
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from gpu_envs.backend.background import available_threads
from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.host import host_memory
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.run import Run

USABLE_FRACTION = 0.9
"""Fraction of the free memory that a run may use."""

_COPIES = 7
"""Copies of weights: the initial ones, two of the flat buffer while it is made, two gradients, and two moments."""

_SAMPLE = 128
"""Approximate bytes per step and replica: observations, actions and values of an agent with few features."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}

_OUT_OF_MEMORY_MESSAGES = (
    *("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("Storage size calculation overflowed", "invalid storage size"),
)
"""Parts of error messages of allocators that raise no specific exception."""


@final
class ShortageError(MemoryError):
    """Too little memory; the message says which setting to lower."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of NumPy, CuPy or torch means too little memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_MESSAGES)


@contextlib.contextmanager
def explain_out_of_memory(config: Run, device: str) -> Iterator[None]:
    """Turn errors of allocators into a ShortageError that names the setting to lower, and a value that should fit.

    Contexts may be nested; the innermost explains the error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ShortageError) or not is_out_of_memory(error):
            raise
        match = re.search(r"allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
        requested = int(float(match[1]) * _UNITS.get(match[2], 1)) if match else 0
        if isinstance(error, torch.OutOfMemoryError):
            requested += torch.cuda.memory_allocated(device)
        raise ShortageError(_advice(config, requested, total_memory(device), device)) from error


def available_memory(device: str) -> int:
    """Return the free memory of a device in bytes, including torch's unused cache."""
    if device == "cpu":
        return host_memory().free
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def release_memory(device: str) -> None:
    """Free unused memory and the caches of torch and CuPy, so that other processes can use it, too."""
    gc.collect()  # Trainers are part of reference cycles, which only the garbage collector frees
    if device != "cpu":
        torch.cuda.empty_cache()
        if "cupy" in sys.modules:
            import_cupy().get_default_memory_pool().free_all_blocks()


def total_memory(device: str) -> int:
    """Return the total memory of a device in bytes."""
    return host_memory().total if device == "cpu" else int(torch.cuda.get_device_properties(device).total_memory)


def _advice(config: Run, requested: int, total: int, device: str) -> str:
    """Return the message of a ShortageError: the setting to lower, such as num_envs, and a value that should fit."""
    config = max(config.variants, key=_weights)
    weights = _weights(config)
    if weights > total * USABLE_FRACTION / 2:
        scale = math.sqrt(total * USABLE_FRACTION / 2 / weights)
        smaller = ",".join(str(max(1, int(width * scale))) for width in config.network.hidden)
        return (
            f"hidden layers of {', '.join(map(str, config.network.hidden))} need {weights / 2**30:,.1f} GiB for "
            f"training on {device}, which has {total / 2**30:,.1f} GiB: lower hidden to {smaller}"
        )
    needed = max(requested, _SAMPLE * config.replicas * config.horizon)
    fraction = min(0.5, USABLE_FRACTION * total / needed)
    capacity = f", which has {total / 2**30:,.1f} GiB" if requested else ""
    size = f"more than {requested / 2**30:,.1f} GiB" if requested else "more memory than is free"
    steps = f" with a horizon of {config.horizon}" if config.horizon > 1 else ""
    lower = [f"num_envs to {max(1, int(config.replicas * fraction)):,}"] if config.replicas > 1 else []
    lower += [f"horizon to {max(1, int(config.horizon * fraction))}"] if config.horizon > 1 else []
    rest = "memory that does not grow with them, such as for weights of hidden layers and other programs, stays in use"
    advice = f"lower {', or '.join(lower)} ({rest})" if lower else "use smaller hidden layers, or end other programs"
    need = f"{config.replicas:,} replicas{steps} need" if config.replicas > 1 else f"1 replica{steps} needs"
    return f"{need} {size} on {device}{capacity}: {advice}"


def _weights(config: Run) -> int:
    """Return the bytes for the weights between hidden layers, with gradients and moments."""
    weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise((1, *config.network.hidden, 1)))
    return 4 * _COPIES * (1 if config.network.shared_trunk else 2) * weights


def no_graphs_reason(device: str, graphs: bool | None) -> str:
    """Return why CUDA graphs cannot be used, empty if they can; ValueError if ``graphs`` requires them on a CPU."""
    if graphs and device == "cpu":
        raise ValueError("graphs=True needs a CUDA device; leave it out, or give device='cuda'")
    reason = "there are no CUDA graphs on a CPU" if device == "cpu" else ""
    return "graphs are turned off" if graphs is False else reason


def capture_graphs(
    functions: Sequence[Callable[[], None]], device: str, *, required: bool
) -> tuple[list[Callable[[], None]], str]:
    """Run functions once, capture each as a CUDA graph; return the graphs' replay functions and an empty reason.

    Graphs share memory: they must be replayed in this order. If a capture fails, the functions themselves and the
    reason are returned, or with ``required`` a RuntimeError is raised.
    """
    # not torch's default capture stream, which belongs to the first device that captured anything in this process
    stream, current = _side_stream(device), torch.cuda.current_stream(device)
    graphs: list[torch.cuda.CUDAGraph] = []
    reason = ""
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for function in functions:
            function()  # compiles, loads and allocates, which a capture does not allow
        torch.cuda.synchronize(stream.device)
        for function in functions:
            graph = torch.cuda.CUDAGraph()
            pool = graphs[0].pool() if graphs else None
            try:
                with _strict_capture(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                    function()
            except RuntimeError as error:
                # after a failed capture, torch's generator may still be in capture mode
                generator: Any = torch.cuda.default_generators[stream.device.index]
                generator.graphsafe_set_state(generator.clone_state())
                if is_out_of_memory(error):
                    raise
                if required:
                    raise RuntimeError(f"graphs=True cannot capture the run ({error}): leave graphs out") from error
                reason = f"it cannot be captured ({str(error).splitlines()[0]})"
                break
            graphs.append(graph)
        torch.cuda.synchronize(stream.device)
    current.wait_stream(stream)
    return (list(functions) if reason else [graph.replay for graph in graphs]), reason


Buffers: TypeAlias = Sequence[tuple[torch.nn.Module, str, torch.Tensor | None]]
"""Buffers of modules: the module that has it, its name, and the tensor."""


def buffers_of(modules: Iterable[torch.nn.Module]) -> Buffers:
    """Return all buffers of modules."""
    parts = [part for module in modules for part in module.modules()]
    return [(part, name, buffer) for part in parts for name, buffer in part._buffers.items()]


@torch.no_grad()
def adopt(buffers: Buffers) -> None:
    """Copy tensors that modules have assigned to buffers into the first ones, which CUDA graphs go on reading.

    Raises:
        ValueError: The assigned tensor has another shape or type.
    """
    for part, name, buffer in buffers:
        assigned = part._buffers[name]
        if assigned is buffer:
            continue
        if buffer is None or assigned is None or (buffer.shape, buffer.dtype) != (assigned.shape, assigned.dtype):
            was, now = (t if t is None else f"{t.dtype} of shape {[*t.shape]}" for t in (buffer, assigned))
            raise ValueError(
                f"the buffer {name!r} of {type(part).__name__} was {was} and is now {now}, but CUDA graphs and "
                "populations need one shape and type: register it as it is later, or train with graphs=False"
            )
        buffer.copy_(assigned)
        part._buffers[name] = buffer


@contextlib.contextmanager
def keeping(buffers: Buffers) -> Iterator[None]:
    """Adopt what modules assign to their buffers meanwhile."""
    try:
        yield
        adopt(buffers)
    finally:
        for part, name, buffer in buffers:
            part._buffers[name] = buffer


@functools.cache
def _side_stream(device: str) -> Any:
    """Return the device's capture stream; there is only one, because cuBLAS allocates a workspace for every stream."""
    stream: Any = torch.cuda.Stream  # untyped in some versions
    return stream(device)


@contextlib.contextmanager
def _strict_capture() -> Iterator[None]:
    """While torch captures a CUDA graph: raise an error if it is empty, and pause the garbage collector.

    The collector could destroy graphs of an old run, which CUDA does not allow during a capture.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty", UserWarning)
            yield
    except UserWarning as warning:
        raise AssertionError(f"the captured graph is empty: {warning}") from None
    finally:
        if enabled:
            gc.enable()


_EXCLUSIVE = threading.RLock()
"""Lock of the thread that makes, trains or evaluates policies."""


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Lock out other threads, which raise a RuntimeError: torch's settings and graph captures are process-wide.

    Inside, torch's default dtype is float32 and gradients are enabled, whatever the caller has set.
    """
    if not _EXCLUSIVE.acquire(blocking=False):
        raise RuntimeError(
            "another thread of this process is making, training or evaluating policies, and torch's random numbers, "
            "threads and graphs are process-wide: wait for it, or use one process for each"
        )
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with torch.inference_mode(False):  # also undoes no_grad
            yield
    finally:
        torch.set_default_dtype(dtype)
        _EXCLUSIVE.release()


@contextlib.contextmanager
def torch_threads(device: str, threads: int | None) -> Iterator[None]:
    """On the CPU set the number of torch's threads, at most one per core, and restore it; None: leave it unchanged."""
    before = torch.get_num_threads()
    if device == "cpu" and threads is not None:
        torch.set_num_threads(min(threads, available_threads()))  # more threads than cores would spin-wait
    try:
        yield
    finally:
        torch.set_num_threads(before)


def autocast_disabled(device: str) -> Any:
    """Return a context without the caller's ``torch.autocast``, which would change a run's precision."""
    return torch.autocast(torch.device(device).type, enabled=False)


@functools.cache
def warm_up_autograd(device: str) -> None:
    """Initialise cuBLAS in autograd's thread for a GPU; torch would otherwise warn at the first backward pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = torch.ones((8, 8), device=device, requires_grad=True)
        torch.autograd.grad((ones @ ones).sum(), ones)


@final
class RandomState:
    """A run's state of torch's global generators, which modules such as dropout use.

    As a context it replaces the process's state by the run's, and restores the process's afterwards. Inside, it may be
    entered again, which does nothing.
    """

    def __init__(self, seed: int, device: str, rank: int = 0, *when: str) -> None:
        """Derive the initial state from the run's seed, the rank of the process, and the strings ``when``."""
        self._generators = {"cpu": torch.default_generator}
        if device != "cpu":
            torch.cuda.current_device()  # initialises CUDA, which makes the generators
            self._generators["cuda"] = torch.cuda.default_generators[torch.device(device).index]
        derived = derived_seed(seed, "modules", *((rank,) if rank else ()), *when)
        generators = self._new_generators()
        self._states = {kind: generator.manual_seed(derived).get_state() for kind, generator in generators.items()}
        self._saved: dict[str, torch.Tensor] | None = None
        self._depth = 0

    def __enter__(self) -> None:
        """Save the process's state, and set the run's."""
        self._depth += 1
        if self._depth == 1:
            self._saved = self._current()
            self._set(self._states)

    def __exit__(self, *error: object) -> None:
        """Keep the run's state, and restore the process's."""
        self._depth -= 1
        if self._depth:
            return
        assert self._saved is not None
        self._states = self._current()
        self._set(self._saved)
        self._saved = None

    def state(self) -> dict[str, Any]:
        """Return the states of the run's generators."""
        return self._current() if self._saved is not None else dict(self._states)

    def load(self, state: dict[str, Any]) -> None:
        """Restore a result of ``state``, without other kinds of devices; CheckpointError if it is damaged."""
        states = self._states | {name: state[name].cpu() for name in self._states if name in state}
        try:
            for name, generator in self._new_generators().items():
                generator.set_state(states[name])
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's random states are damaged: {error}") from None
        self._states = states
        if self._saved is not None:
            self._set(self._states)

    def _new_generators(self) -> dict[str, torch.Generator]:
        """Return new generators of the same devices, for checking states without changing the process's."""
        return {kind: torch.Generator(generator.device) for kind, generator in self._generators.items()}

    def _current(self) -> dict[str, torch.Tensor]:
        return {kind: generator.get_state() for kind, generator in self._generators.items()}

    def _set(self, states: Mapping[str, torch.Tensor]) -> None:
        for kind, generator in self._generators.items():
            generator.set_state(states[kind])
