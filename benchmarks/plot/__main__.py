"""Plot the committed results: ``python -m benchmarks.plot``; needs matplotlib.

Writes ``results/*.png``. A plot without results is skipped, with a message that names the command for them.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import RESULTS
from gpu_envs.extras import extra

with extra("plot", "matplotlib", "PIL"):
    from matplotlib.figure import Figure

    from benchmarks.plot import peers, planning, scaling, style, training

Documents = Mapping[str, Any]


class Plot(NamedTuple):
    """A plot to draw."""

    needs: Mapping[str, tuple[str, ...]]
    """Required documents, and their required sections."""
    command: str
    """The command that measures them, after ``python -m benchmarks.``."""
    draw: Callable[[Documents], Figure]
    """Draws the plot from the documents by name."""
    optional: tuple[str, ...] = ()
    """Optional documents."""


def copy_bandwidth(documents: Documents) -> float | None:
    """Return the measured bandwidth of a copy on the GPU in bytes per second, None without a measurement."""
    measured = documents.get("throughput_cuda")
    return None if measured is None else float(measured["results"]["copy_bytes_per_s"])


PLOTS: Mapping[str, Plot] = {
    "scaling_cuda.png": Plot(
        {"scaling_cuda": ()},
        "throughput --device cuda",
        lambda documents: scaling.draw("cuda", documents["scaling_cuda"], copy_bandwidth(documents)),
        optional=("throughput_cuda",),
    ),
    "scaling_cpu.png": Plot(
        {"scaling_cpu": ()},
        "throughput --device cpu",
        lambda documents: scaling.draw("cpu", documents["scaling_cpu"], None),
    ),
    "peers_cuda.png": Plot(
        {"peers_cuda": ()}, "peers --device cuda", lambda documents: peers.draw(documents["peers_cuda"])
    ),
    "peers_cpu.png": Plot(
        {"peers_cpu": ()}, "peers --device cpu", lambda documents: peers.draw(documents["peers_cpu"])
    ),
    "training_cuda.png": Plot(
        {"training_cuda": ("solve", "throughput")},
        "training --device cuda --only solve throughput",
        lambda documents: training.solving_and_speed(documents["training_cuda"]),
    ),
    "tag_training.png": Plot(
        {"training_cuda": ("tag_learning",)},
        "training --device cuda --only tag_learning",
        lambda documents: training.survival(documents["training_cuda"]),
    ),
    "planning_trials.png": Plot(
        {"training_cpu": ("trials",)},
        "training --device cpu --only trials",
        lambda documents: planning.trials(documents["training_cpu"]),
    ),
    "planning_returns.png": Plot(
        {"training_cpu": ("trials",)},
        "training --device cpu --only trials",
        lambda documents: planning.returns(documents["training_cpu"]),
    ),
}


def missing_results(plot: Plot, documents: Documents) -> list[str]:
    """Return the missing documents and sections of a plot."""
    missing = []
    for name, sections in plot.needs.items():
        if name not in documents:
            missing.append(f"{name}.json")
        else:
            sections_present = documents[name].get("sections", {})
            missing += [f"{section} of {name}.json" for section in sections if section not in sections_present]
    return missing


def digest(plot: Plot, documents: Documents) -> str:
    """Return a hash of a plot's data; a file with another hash is out of date."""
    data: list[Any] = [documents.get(name) for name in plot.optional]
    for name, sections in plot.needs.items():
        document = documents[name]
        data += [document["sections"][section] for section in sections] if sections else [document]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def draw_all(results: Path, folder: Path, log: Callable[[str], None]) -> list[Path]:
    """Draw all plots whose results exist.

    Args:
        results: The folder of the JSON files.
        folder: The folder of the plots.
        log: Prints a line.
    """
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    written = []
    for name, plot in PLOTS.items():
        missing = missing_results(plot, documents)
        if missing:
            log(f"{name}: skipped, missing: {', '.join(missing)}; run python -m benchmarks.{plot.command}")
            continue
        with style.applied():
            style.save(plot.draw(documents), folder / name, f"of {digest(plot, documents)}")
        written.append(folder / name)
        log(f"wrote {folder / name}")
    return written


def main() -> None:
    """Draw all plots."""
    argparse.ArgumentParser(
        "python -m benchmarks.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    draw_all(RESULTS, RESULTS, print)


if __name__ == "__main__":
    main()
