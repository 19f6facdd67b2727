"""``Metrics``: what the rules measure of episodes, in C++."""

from collections.abc import Mapping

from gpu_envs.codegen.shared import selection
from gpu_envs.specs.base import Spec
from gpu_envs.specs.metrics import Metric

_REDUCTIONS = {"last": "OF_LAST", "mean": "OF_MEAN", "sum": "OF_SUM", "max": "OF_MAX"}


def totals(metrics: Mapping[str, Metric]) -> list[str]:
    """Those that have a total over the steps of an episode."""
    return [name for name, metric in metrics.items() if metric.reduce != "last"]


def metrics_part(spec: Spec, *, kept: bool, measured: bool, followed: bool = False) -> str:
    """``Metrics``, which names the numbers that ``measure`` writes, and how they are reduced.

    Args:
        spec: The environment.
        kept: They are measured; otherwise it is named for the rules' sake alone.
        measured: Each step writes what they come to so far.
        followed: It is told which turns of phases write them, in a build that follows that.
    """
    metrics, reduced = spec.metrics, totals(spec.metrics)
    places = ", ".join(f"{name}(at[{m}])" for m, name in enumerate(metrics))
    watched = [f'        watch(&this->{name}, "metrics.{name}");' for name in metrics]
    kinds = [_REDUCTIONS[metric.reduce] for metric in metrics.values()] or ["OF_LAST"]
    rows = [reduced.index(name) if name in reduced else 0 for name in metrics] or [0]
    return "\n".join(
        [
            f"enum MetricCounts : int {{ METRICS = {kept * len(metrics)}, TOTALS = {kept * len(reduced)} }};",
            f"constexpr bool MEASURED = {str(measured).lower()};  // each step writes what they come to so far",
            "struct Metrics {",
            *(f"    real& {name};" for name in metrics),
            *([f"    FN explicit Metrics(real* at) : {places} {{"] if metrics else []),
            *(["#ifdef TURNS", *watched, "#endif"] if followed and metrics else []),
            *(["    }"] if metrics else []),
            "};",
            "enum Reduction : int { OF_LAST, OF_MEAN, OF_SUM, OF_MAX };",
            f"FN constexpr Reduction reduction([[maybe_unused]] int m) {{ return {selection(kinds, 'm')}; }}",
            f"FN constexpr int total_of([[maybe_unused]] int m) {{ return {selection(rows, 'm')}; }}",
        ]
    )
