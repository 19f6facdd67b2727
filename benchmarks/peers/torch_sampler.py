"""Sampling several discrete actions by torch alone: ``python -m benchmarks.peers.torch_sampler``; a line of JSON.

For each element of the action an action is drawn, and log-probability and entropy are added up, by
``torch.distributions``, without its checks of arguments, which cost time and wait for the device.
"""

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributions import Categorical

from benchmarks.timing import graph_of, milliseconds

Sampler = Callable[[torch.Tensor, Sequence[int]], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def by_distributions(
    logits: torch.Tensor, sizes: Sequence[int], draw: Callable[[Categorical], torch.Tensor] = Categorical.sample
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Actions ``[rows, elements]``, log-probabilities and entropies ``[rows]``, from logits ``[rows, sum(sizes)]``."""
    parts = [Categorical(logits=part, validate_args=False) for part in torch.split(logits, list(sizes), -1)]
    actions = [draw(part) for part in parts]
    log_probs = [part.log_prob(act) for part, act in zip(parts, actions, strict=True)]  # type: ignore[no-untyped-call]  # torch's
    entropies = [part.entropy() for part in parts]  # type: ignore[no-untyped-call]  # torch's
    add = torch.add
    return torch.stack(actions, -1), functools.reduce(add, log_probs), functools.reduce(add, entropies)


def by_race(logits: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, with actions drawn by a race of exponentials, which a CUDA graph can hold."""

    def draw(part: Categorical) -> torch.Tensor:
        return (part.probs / torch.empty_like(part.probs).exponential_()).argmax(-1)

    return by_distributions(logits, sizes, draw)


def eager(sampler: Sampler, logits: torch.Tensor, sizes: Sequence[int]) -> float:
    """Microseconds of a call."""
    return milliseconds(lambda: sampler(logits, sizes), repeats=101) * 1e3


def graphed(sampler: Sampler, logits: torch.Tensor, sizes: Sequence[int], calls: int = 10) -> float | str:
    """Microseconds of a call in a CUDA graph of some calls, or why it cannot be captured."""

    def several() -> None:
        for _ in range(calls):
            sampler(logits, sizes)

    sampler(logits, sizes)
    try:
        graph = graph_of(several)
    except RuntimeError as error:
        return f"not possible: {str(error).splitlines()[0]}"
    return milliseconds(graph.replay, repeats=101, inner=calls) * 1e3


def measure(rows: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Microseconds of a call; what may fail comes last, as a failed capture can spoil what follows."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn((rows, sum(sizes)), device="cuda", generator=generator)
    return {
        "versions": {"torch": torch.__version__},
        "eager_us": eager(by_distributions, logits, sizes),
        "race_eager_us": eager(by_race, logits, sizes),
        "race_graph_us": graphed(by_race, logits, sizes),
        "graph_us": graphed(by_distributions, logits, sizes),
    }


def main() -> None:
    """Measures, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000 * 110, help="agents of all replicas")
    parser.add_argument("--sizes", type=int, nargs="+", default=[21, 21], help="choices of each element")
    options = parser.parse_args()
    print(json.dumps(measure(options.rows, options.sizes)))


if __name__ == "__main__":
    main()
