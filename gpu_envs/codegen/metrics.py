"""``Metrics`` in C++: the metrics of episodes that rules compute."""

from collections.abc import Mapping

from gpu_envs.codegen.shared import selection
from gpu_envs.specs.base import Spec
from gpu_envs.specs.metrics import Metric

_REDUCTIONS = {"last": "OF_LAST", "mean": "OF_MEAN", "sum": "OF_SUM", "max": "OF_MAX"}


def totals(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the metrics whose reduction needs a total of the episode's steps: all but ``last``."""
    return [name for name, metric in metrics.items() if metric.reduce != "last"]


def metrics_part(spec: Spec, *, recorded: bool, running: bool, watched: bool = False) -> str:
    """Generate the C++ struct ``Metrics``, the numbers that ``measure`` writes, and their reductions over steps.

    Args:
        spec: The environment.
        recorded: Whether metrics are computed; if not, rules only need the struct to compile.
        running: Whether every step writes the metrics of the current episode.
        watched: Whether a checked build watches which iterations of phases write them.
    """
    metrics, reduced = spec.metrics, totals(spec.metrics)
    places = ", ".join(f"{name}(at[{m}])" for m, name in enumerate(metrics))
    watch_lines = [f'        watch(&this->{name}, "metrics.{name}");' for name in metrics]
    kinds = [_REDUCTIONS[metric.reduce] for metric in metrics.values()] or ["OF_LAST"]
    rows = [reduced.index(name) if name in reduced else 0 for name in metrics] or [0]
    return "\n".join(
        [
            f"enum MetricCounts : int {{ METRICS = {recorded * len(metrics)}, TOTALS = {recorded * len(reduced)} }};",
            f"constexpr bool RUNNING_METRICS = {str(running).lower()};  // after every step",
            "struct Metrics {",
            *(f"    real& {name};" for name in metrics),
            *([f"    FN explicit Metrics(real* at) : {places} {{"] if metrics else []),
            *(["#ifdef TURNS", *watch_lines, "#endif"] if watched and metrics else []),
            *(["    }"] if metrics else []),
            "};",
            "enum Reduction : int { OF_LAST, OF_MEAN, OF_SUM, OF_MAX };",
            f"FN constexpr Reduction reduction([[maybe_unused]] int m) {{ return {selection(kinds, 'm')}; }}",
            f"FN constexpr int total_of([[maybe_unused]] int m) {{ return {selection(rows, 'm')}; }}",
        ]
    )
