"""Figures of the README: the table of speeds, and single figures in sentences."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.comparisons import envpool_one_core
from benchmarks.pages.results import document, results
from benchmarks.pages.steps import compile_range, graph_step_us, step_us
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
    "hand-written Numba-CUDA, without episode returns, `final_obs` or `reset(seed=...)`": ("numba", None),
}
"""Section and variant of the results by the label of the row."""


def speeds(page: Path) -> str:
    """Return the table of CartPole's steps per second, each library at its fastest number of replicas."""
    sections, rows = document("peers_cuda")["sections"], []
    for label, (section, variant) in LIBRARIES.items():
        kind = {"task": "CartPole-v1", "variant": variant, "device": "cpu" if "NumPy" in label else "cuda"}
        rows_of_section = sections[section]["results"]["rows"]
        of_kind = [row for row in rows_of_section if kind.items() <= row.items() and "failed" not in row]
        single = max(row["env_steps_per_s"] for row in of_kind if row["way"] in ("host", "step"))
        fused = [row["env_steps_per_s"] for row in of_kind if row["way"] == "fused"]
        rows.append((label, format_short(single), format_short(max(fused)) if fused else ""))
    gpu = sections["ours"]["machine"]["gpu"]
    link = os.path.relpath(DOCS / "benchmarks.md", page.parent)
    head = (f"CartPole, steps per second, [on an {gpu}]({link}#peers-on-a-gpu) and its host", "one step per call")
    return table((*head, "128 steps per call"), rows)


def _seconds_to_solve(library: str) -> str:
    return f"{results('training_cuda', 'solve')[library]['median_s']:.3f} s"


def _ppo_rate(library: str) -> str:
    return f"{format_short(results('training_cuda', 'throughput')['float32_1'][library]['steps_per_s'])} steps/s"


FIGURES: Mapping[str, tuple[Callable[[], str], str]] = {
    "cartpole-seconds": (lambda: _seconds_to_solve("ours"), "benchmarks.md#training-on-a-gpu"),
    "cartpole-seconds-jax": (lambda: _seconds_to_solve("jax"), "benchmarks.md#training-on-a-gpu"),
    "ppo-rate": (lambda: _ppo_rate("ours"), "benchmarks.md#training-on-a-gpu"),
    "ppo-rate-jax": (lambda: _ppo_rate("jax"), "benchmarks.md#training-on-a-gpu"),
    "step-us": (lambda: f"{step_us()} us", "benchmarks.md#steps-on-a-gpu"),
    "graph-step-us": (lambda: f"{graph_step_us()} us", "benchmarks.md#steps-on-a-gpu"),
    "compile-seconds": (compile_range, "benchmarks.md#compilation"),
    "envpool-ratios": (lambda: f"{envpool_one_core()} times", "benchmarks.md#peers-on-a-gpu"),
}
"""Figures of sentences: their text, and the place of the measurement in ``docs/``."""


def figure(name: str) -> Callable[[Path], str]:
    """Return the generator of a figure, a link to its measurement."""
    text, place = FIGURES[name]
    return lambda page: f"[{text()}]({os.path.relpath(DOCS / place, page.parent)})"


GENERATORS: Mapping[str, Callable[[Path], str]] = {"speeds": speeds, **{name: figure(name) for name in FIGURES}}
"""Generators by the name of their block in the pages."""
