"""What a run asks of torch and its device: memory, CUDA graphs, threads and random numbers.

What it changes of the process while it computes it puts back.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch

from gpu_envs.backend.background import available_threads
from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.host import host_memory
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.run import Run

USABLE_FRACTION = 0.9
"""So much of the device's memory is taken to be usable."""

_COPIES = 7
"""Of weights: as drawn, in the flat buffer twice while it is made, gradients twice, and two moments."""

_SAMPLE = 128
"""Bytes of a step of a replica, roughly: observations, actions and values of an agent that sees a few numbers."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}

_OUT_OF_MEMORY_MESSAGES = (
    *("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("Storage size calculation overflowed", "invalid storage size"),
)
"""What allocators say that have no exception of their own."""


@final
class ShortageError(MemoryError):
    """There is too little memory, and the message says what to lower."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of NumPy, CuPy or torch says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY_MESSAGES)


@contextlib.contextmanager
def explain_out_of_memory(config: Run, device: str) -> Iterator[None]:
    """Turns errors of allocators into a ShortageError that names the setting to lower, and a value that should fit.

    Within another the inner one, which knows more, explains.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ShortageError) or not is_out_of_memory(error):
            raise
        match = re.search(r"allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
        wanted = int(float(match[1]) * _UNITS.get(match[2], 1)) if match else 0
        if isinstance(error, torch.OutOfMemoryError):
            wanted += torch.cuda.memory_allocated(device)
        raise ShortageError(_advice(config, wanted, total_memory(device), device)) from error


def available_memory(device: str) -> int:
    """Returns the bytes of a device's memory that nothing uses."""
    if device == "cpu":
        return host_memory().free
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def release_memory(device: str) -> None:
    """Lets go of what is done with, so that it is free again, for other processes too."""
    gc.collect()  # a Trainer that is done with goes when cycles are looked for, and not before
    if device != "cpu":
        torch.cuda.empty_cache()
        if "cupy" in sys.modules:
            import_cupy().get_default_memory_pool().free_all_blocks()


def total_memory(device: str) -> int:
    """Returns the bytes of a device's memory, used or not."""
    return host_memory().total if device == "cpu" else int(torch.cuda.get_device_properties(device).total_memory)


def _advice(config: Run, wanted: int, total: int, device: str) -> str:
    """What was needed, and what to lower. Most memory grows with num_envs times horizon, but not all."""
    config = max(config.variants, key=_weights)
    weights = _weights(config)
    if weights > total * USABLE_FRACTION / 2:
        scale = math.sqrt(total * USABLE_FRACTION / 2 / weights)
        smaller = ",".join(str(max(1, int(width * scale))) for width in config.network.hidden)
        return (
            f"hidden layers of {', '.join(map(str, config.network.hidden))} need {weights / 2**30:,.1f} GiB to be "
            f"trained on {device}, which has {total / 2**30:,.1f} GiB: lower hidden to {smaller}"
        )
    needed = max(wanted, _SAMPLE * config.replicas * config.horizon)
    share = min(0.5, USABLE_FRACTION * total / needed)
    fewer = max(1, int(config.replicas * share))
    have = f", which has {total / 2**30:,.1f} GiB" if wanted else ""
    size = f"more than {wanted / 2**30:,.1f} GiB" if wanted else "more than there is"
    steps = f" for a horizon of {config.horizon}" if config.horizon > 1 else ""
    lower = [f"num_envs to {fewer:,}"] if config.replicas > 1 else []
    lower += [f"horizon to {max(1, int(config.horizon * share))}"] if config.horizon > 1 else []
    rest = "what does not grow with them, such as the weights of hidden layers and what other programs hold, stays"
    advice = f"lower {', or '.join(lower)} ({rest})" if lower else "use smaller hidden layers, or end other programs"
    need = f"{config.replicas:,} replicas{steps} need" if config.replicas > 1 else f"1 replica{steps} needs"
    return f"{need} {size} on {device}{have}: {advice}"


def _weights(config: Run) -> int:
    """The bytes that the weights between hidden layers take while they are trained."""
    between = sum(first * second for first, second in itertools.pairwise((1, *config.network.hidden, 1)))
    return 4 * _COPIES * (1 if config.network.shared_trunk else 2) * between


def no_graphs_reason(device: str, graphs: bool | None) -> str:
    """Why work cannot be recorded; empty where it can."""
    if graphs and device == "cpu":
        raise ValueError("graphs=True needs a CUDA device; leave it out, or give device='cuda'")
    reason = "there are no CUDA graphs on a CPU" if device == "cpu" else ""
    return "graphs are turned off" if graphs is False else reason


def capture_graphs(works: Sequence[Callable[[], None]], device: str, *, asked: bool) -> tuple[list[Callable[[], None]], str]:
    """Runs works once and records each as a graph; where that cannot be, returns them as they are, and the reason.

    Where the user asked for graphs that is an error. Graphs share memory, and are to be replayed in this order.
    """
    # torch's own stream for recording is of the first device that recorded anything in this process
    stream, current = _side_stream(device), torch.cuda.current_stream(device)
    graphs: list[torch.cuda.CUDAGraph] = []
    reason = ""
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for work in works:
            work()  # what it needs is compiled, loaded and allocated before anything is recorded
        torch.cuda.synchronize(stream.device)
        for work in works:
            graph = torch.cuda.CUDAGraph()
            pool = graphs[0].pool() if graphs else None
            try:
                with _strict_capture(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                    work()
            except RuntimeError as error:
                # Where a capture fails, torch's generator may go on believing that it is being captured.
                generator: Any = torch.cuda.default_generators[stream.device.index]
                generator.graphsafe_set_state(generator.clone_state())
                if is_out_of_memory(error):
                    raise
                if asked:
                    raise RuntimeError(f"graphs=True, and the run cannot be captured: {error}") from error
                reason = f"it cannot be captured ({str(error).splitlines()[0]})"
                break
            graphs.append(graph)
        torch.cuda.synchronize(stream.device)
    current.wait_stream(stream)
    return (list(works) if reason else [graph.replay for graph in graphs]), reason


@functools.cache
def _side_stream(device: str) -> Any:
    """The one stream on which a device's work is recorded: cuBLAS keeps memory for each that it ever worked on."""
    stream: Any = torch.cuda.Stream  # untyped in some versions
    return stream(device)


@contextlib.contextmanager
def _strict_capture() -> Iterator[None]:
    """Turns torch's warning of a graph without work, whose replays would do nothing, into an error.

    It also keeps the garbage collector from destroying an old run's graphs, which CUDA refuses during a capture.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty", UserWarning)
            yield
    except UserWarning as warning:
        raise AssertionError(f"nothing was recorded, and a replay would do nothing: {warning}") from None
    finally:
        if enabled:
            gc.enable()


_EXCLUSIVE = threading.RLock()
"""Held by the thread that computes."""


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Refuses to compute beside another thread: what is set here, and what is being captured, are the process's.

    Within, tensors are float32 and have gradients, whatever the caller has chosen of that.
    """
    if not _EXCLUSIVE.acquire(blocking=False):
        raise RuntimeError(
            "another thread of this process makes, trains or evaluates policies at this moment, and torch's random "
            "numbers, threads and graphs are the process's: wait for it, or use a process for each"
        )
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with torch.inference_mode(False):  # which also undoes no_grad
            yield
    finally:
        torch.set_default_dtype(dtype)
        _EXCLUSIVE.release()


@contextlib.contextmanager
def torch_threads(device: str, threads: int | None) -> Iterator[None]:
    """Lets torch use so many threads on the CPU, and puts the process's setting back; None: as it is."""
    before = torch.get_num_threads()
    if device == "cpu" and threads is not None:
        torch.set_num_threads(min(threads, available_threads()))  # torch's wait for one another, and keep their cores
    try:
        yield
    finally:
        torch.set_num_threads(before)


def autocast_disabled(device: str) -> Any:
    """Returns a context that turns the caller's ``torch.autocast`` off, which would change a run's precision."""
    return torch.autocast(torch.device(device).type, enabled=False)


@functools.cache
def warm_up_autograd(device: str) -> None:
    """Lets torch's thread for the way back meet a GPU: the first product there warns that it had not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = torch.ones((8, 8), device=device, requires_grad=True)
        torch.autograd.grad((ones @ ones).sum(), ones)


@final
class RandomState:
    """torch's own random numbers, which modules may use (dropout): within, those of the run; outside, the process's."""

    def __init__(self, seed: int, device: str, rank: int = 0, *when: str) -> None:
        """Starts those of one of the processes that train a run of this seed."""
        self._generators = {"cpu": torch.default_generator}
        if device != "cpu":
            torch.cuda.current_device()  # initialises CUDA: before, there are no generators
            self._generators["cuda"] = torch.cuda.default_generators[torch.device(device).index]
        first = derived_seed(seed, "modules", *((rank,) if rank else ()), *when)
        self._own = {kind: generator.manual_seed(first).get_state() for kind, generator in self._new_generators().items()}
        self._outside: dict[str, torch.Tensor] | None = None

    def __enter__(self) -> None:
        """Takes the process's aside."""
        self._outside = self._current()
        self._set(self._own)

    def __exit__(self, *error: object) -> None:
        """Puts them back."""
        assert self._outside is not None
        self._own = self._current()
        self._set(self._outside)
        self._outside = None

    def state(self) -> dict[str, Any]:
        """The state of the run's generators."""
        return self._current() if self._outside is not None else dict(self._own)

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from what ``state`` gave; of another kind of device, only what there is of this."""
        own = self._own | {name: state[name].cpu() for name in self._own if name in state}
        try:
            for name, generator in self._new_generators().items():
                generator.set_state(own[name])
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's random numbers are damaged: {error}") from None
        self._own = own
        if self._outside is not None:
            self._set(self._own)

    def _new_generators(self) -> dict[str, torch.Generator]:
        """Other generators of the same devices."""
        return {kind: torch.Generator(generator.device) for kind, generator in self._generators.items()}

    def _current(self) -> dict[str, torch.Tensor]:
        return {kind: generator.get_state() for kind, generator in self._generators.items()}

    def _set(self, states: Mapping[str, torch.Tensor]) -> None:
        for kind, generator in self._generators.items():
            generator.set_state(states[kind])
