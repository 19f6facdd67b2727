"""Samples from and insertions into a replay buffer on a GPU, compared with the bandwidth of a copy."""

from typing import Any

import torch

from benchmarks.throughput.on_cuda import copy_bandwidth
from benchmarks.timing import capture_graph, device_milliseconds
from benchmarks.training.plan import TrainingPlan
from gpu_envs.training.engines.off_policy import Transitions
from gpu_envs.training.rollout.replay import Replay, stride_of

SHAPES = ((3, 1), (6, 1), (17, 6))
"""Sizes of observations and actions; a transition of the second shape has 64 bytes."""
SIZES = ((4096, 257, 2**15), (2**16, 1025, 2**22))
"""Rows of the buffer (one per agent), slots of each, and transitions per sample."""
HORIZON = 32
CALLS = 20
"""Calls per CUDA graph."""


def replay(plan: TrainingPlan) -> dict[str, Any]:
    """Measure a sample and an insertion in CUDA graphs: microseconds, and share of the bandwidth of a copy."""
    bandwidth = copy_bandwidth()
    results: dict[str, Any] = {"copy_bytes_per_s": bandwidth}
    for features, width in SHAPES:
        for rows, slots, count in SIZES:
            measured = _measure(features, width, rows, slots, count, bandwidth)
            results[f"{features}+{width}_{count}"] = measured
            plan.log(
                f"{count:,} of {rows * (slots - 1):,} transitions of {features} features and {width} actions: "
                f"{measured['draw_us']:.1f} us, {measured['draw_share']:.0%} of a copy's bandwidth; "
                f"{HORIZON} steps inserted: {measured['insert_us']:.1f} us, {measured['insert_share']:.0%}"
            )
    return results


def _measure(features: int, width: int, rows: int, slots: int, count: int, bandwidth: float) -> dict[str, Any]:
    """Measure a full buffer, where one in a hundred steps ends an episode."""
    buffer = Replay(rows, slots, features, width, "cuda", limit=200)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(HORIZON, rows, *shape, device="cuda")

    observations = torch.rand(HORIZON + 1, rows, features, device="cuda")
    ended = random() < 0.01
    names = ("observations", "actions", "rewards", "terminations", "truncations", "alive", "final_obs")
    arrays = (observations, random(width), random(), ended, torch.zeros_like(ended), None, random(features))
    step = dict(zip(names, arrays, strict=True))
    for _ in range(-(-slots // HORIZON)):
        buffer.insert(HORIZON, **step)
    drawn, stream = Transitions.zeros(count, features, width, "cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")

    def draw() -> None:
        for turn in range(CALLS):
            buffer.draw(drawn, stream, turn, n_step=1, gamma=0.99)

    def insert() -> None:
        for _ in range(CALLS):
            buffer.insert(HORIZON, **step)

    draw()
    draw_us, insert_us = (1e3 * device_milliseconds(capture_graph(work).replay, inner=CALLS) for work in (draw, insert))
    read, written = 4 * (2 * features + width + 2), 4 * (2 * features + width + 2) + 1
    of_step = 4 * (features + width + 1) + 2 + 4 * stride_of(features, width)
    return {
        "rows": rows,
        "slots": slots,
        "count": count,
        "bytes_of_draw": count * (read + written),
        "draw_us": draw_us,
        "draw_share": count * (read + written) / (draw_us / 1e6) / bandwidth,
        "insert_us": insert_us,
        "insert_share": HORIZON * rows * of_step / (insert_us / 1e6) / bandwidth,
    }
