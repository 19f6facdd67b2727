"""Figures of the README: the table of speeds, and single figures in sentences."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.figures import document, results
from benchmarks.pages.tables import table
from benchmarks.record import format_short

DOCS = Path(__file__).parents[2] / "docs"

LIBRARIES = {
    "Gymnasium, NumPy: `AsyncVectorEnv`": ("gymnasium", "AsyncVectorEnv"),
    "Gymnasium, NumPy: `CartPoleVectorEnv`": ("gymnasium", "CartPoleVectorEnv"),
    "EnvPool, NumPy": ("envpool", "asynchronous"),
    "WarpDrive": ("warpdrive", None),
    "gymnax": ("gymnax", None),
    "hand-written JAX": ("jax", None),
    "torch operations, `torch.compile`": ("torch", "torch.compile"),
    "**gpu_envs**, NumPy, on the CPU": ("ours", None),
    "**gpu_envs**, arrays on the GPU": ("ours", None),
    "hand-written Numba-CUDA, without returns, final observations or seeds": ("numba", None),
}
"""Section and variant of the results by the label of the row."""


def speeds(page: Path) -> str:
    """Return the table of CartPole's steps per second, each library at its fastest number of replicas."""
    sections, rows = document("peers_cuda")["sections"], []
    for label, (section, variant) in LIBRARIES.items():
        of_library = sections[section]["results"]["rows"]
        numpy = "NumPy" in label
        by_way = {
            way: max(
                (
                    row["env_steps_per_s"]
                    for row in of_library
                    if row["task"] == "CartPole-v1"
                    and row["way"] == way
                    and row.get("variant") == variant
                    and (way != "host" or row["device"] == "cpu")
                ),
                default=0.0,
            )
            for way in (("host",) if numpy else ("step", "fused"))
        }
        cells = [format_short(by_way.get(way, 0)) if by_way.get(way) else "" for way in ("step", "fused")]
        rows.append((label, format_short(by_way["host"]) if numpy else cells[0], "" if numpy else cells[1]))
    gpu = sections["ours"]["machine"]["gpu"]
    link = os.path.relpath(DOCS / "benchmarks.md", page.parent)
    head = (f"CartPole, steps per second, [on an {gpu}]({link}#peers-on-a-gpu) and its host", "one step per call")
    return table((*head, "128 steps per call"), rows)


def _seconds_to_solve() -> str:
    return f"{results('training_cuda', 'solve')['ours']['median_s']:.3f} s"


FIGURES: Mapping[str, tuple[Callable[[], str], str]] = {
    "cartpole-seconds": (_seconds_to_solve, "benchmarks.md#training-on-a-gpu"),
}
"""Figures of sentences: their text, and the place of the measurement in ``docs/``."""


def figure(name: str) -> Callable[[Path], str]:
    """Return the generator of a figure, a link to its measurement."""
    text, place = FIGURES[name]
    return lambda page: f"[{text()}]({os.path.relpath(DOCS / place, page.parent)})"


GENERATORS: Mapping[str, Callable[[Path], str]] = {"speeds": speeds, **{name: figure(name) for name in FIGURES}}
"""Generators by the name of their block in the pages."""
