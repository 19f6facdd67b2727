"""Sample multi-discrete actions with torch: ``python -m benchmarks.peers.torch_sampler`` prints a line of JSON.

``torch.distributions`` samples each element of the action and sums log-probabilities and entropies, without its
validation of arguments, which waits for the device.
"""

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributions import Categorical

from benchmarks.timing import capture_graph, device_milliseconds

Sampler = Callable[[torch.Tensor, Sequence[int]], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def by_distributions(
    logits: torch.Tensor, sizes: Sequence[int], draw: Callable[[Categorical], torch.Tensor] = Categorical.sample
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample actions ``[rows, elements]`` from logits ``[rows, sum(sizes)]``, with log-probabilities and entropies."""
    parts = [Categorical(logits=part, validate_args=False) for part in torch.split(logits, list(sizes), -1)]
    actions = [draw(part) for part in parts]
    log_probs = [part.log_prob(act) for part, act in zip(parts, actions, strict=True)]  # type: ignore[no-untyped-call]  # torch's
    entropies = [part.entropy() for part in parts]  # type: ignore[no-untyped-call]  # torch's
    add = torch.add
    return torch.stack(actions, -1), functools.reduce(add, log_probs), functools.reduce(add, entropies)


def by_exponential_race(logits: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do the same with actions from a race of exponential variables, which a CUDA graph can capture."""

    def draw(part: Categorical) -> torch.Tensor:
        return (part.probs / torch.empty_like(part.probs).exponential_()).argmax(-1)

    return by_distributions(logits, sizes, draw)


def eager(sampler: Sampler, logits: torch.Tensor, sizes: Sequence[int]) -> float:
    """Return the microseconds per call."""
    return device_milliseconds(lambda: sampler(logits, sizes), repeats=101) * 1e3


def graphed(sampler: Sampler, logits: torch.Tensor, sizes: Sequence[int], calls: int = 10) -> float | str:
    """Return the microseconds per call in a CUDA graph of several calls, or why the capture fails."""

    def several() -> None:
        for _ in range(calls):
            sampler(logits, sizes)

    sampler(logits, sizes)
    try:
        graph = capture_graph(several)
    except RuntimeError as error:
        return f"not possible: {str(error).splitlines()[0]}"
    return device_milliseconds(graph.replay, repeats=101, inner=calls) * 1e3


def measure(rows: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure each sampler; the capture that may fail comes last, as it can break later captures."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn((rows, sum(sizes)), device="cuda", generator=generator)
    return {
        "versions": {"torch": torch.__version__},
        "eager_us": eager(by_distributions, logits, sizes),
        "race_eager_us": eager(by_exponential_race, logits, sizes),
        "race_graph_us": graphed(by_exponential_race, logits, sizes),
        "graph_us": graphed(by_distributions, logits, sizes),
    }


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000 * 110, help="number of agents in all replicas")
    parser.add_argument("--sizes", type=int, nargs="+", default=[21, 21], help="number of choices of each element")
    options = parser.parse_args()
    print(json.dumps(measure(options.rows, options.sizes)))


if __name__ == "__main__":
    main()
