"""Work that is recorded once as a CUDA graph and then replayed, or done anew each time where that cannot be."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Work: TypeAlias = Callable[[], None]


def why_eager(device: str, asked: bool | None) -> str:
    """Why work cannot be recorded; empty where it can."""
    if asked is False:
        return "graphs are turned off"
    if device == "cpu":
        if asked:
            raise ValueError("graphs=True needs a CUDA device; leave it out, or give device='cuda'")
        return "there are no CUDA graphs on a CPU"
    return ""


def record(works: Sequence[Work]) -> list[Work]:
    """Records each as a graph of its own; they share memory, and are to be replayed in this order.

    All must have run before, so that everything they need is compiled, loaded and allocated.

    Raises:
        RuntimeError: One of them does what a graph cannot: synchronise, or copy from the host.
    """
    graphs: list[torch.cuda.CUDAGraph] = []
    torch.cuda.synchronize()
    for work in works:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
                work()
        except RuntimeError:
            # Where a capture fails, torch's generator may go on believing that it is being captured.
            generator: Any = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        graphs.append(graph)
    torch.cuda.synchronize()
    return [graph.replay for graph in graphs]
