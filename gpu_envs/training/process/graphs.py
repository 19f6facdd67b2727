"""Work that is recorded once as a CUDA graph and then replayed, or done anew each time where that cannot be."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from gpu_envs.training.process.memory import is_shortage

GraphWork: TypeAlias = Callable[[], None]


def why_eager(device: str, graphs: bool | None) -> str:
    """Why work cannot be recorded; empty where it can."""
    if graphs and device == "cpu":
        raise ValueError("graphs=True needs a CUDA device; leave it out, or give device='cuda'")
    reason = "there are no CUDA graphs on a CPU" if device == "cpu" else ""
    return "graphs are turned off" if graphs is False else reason


def captured(works: Sequence[GraphWork], device: str, *, asked: bool) -> tuple[list[GraphWork], str]:
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
                with _strictly(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                    work()
            except RuntimeError as error:
                # Where a capture fails, torch's generator may go on believing that it is being captured.
                generator: Any = torch.cuda.default_generators[stream.device.index]
                generator.graphsafe_set_state(generator.clone_state())
                if is_shortage(error):
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
def _strictly() -> Iterator[None]:
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
