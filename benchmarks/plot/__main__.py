"""Draws the committed results: ``python -m benchmarks.plot`` writes ``results/*.png``; it needs matplotlib.

It writes ``docs/environments/*.png`` too, what the environments look like.

A picture whose results are missing is left out, with the command that makes them.
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

    from benchmarks.plot import environments, peers, planning, scaling, style, training

DOCS = Path(__file__).parents[2] / "docs"

Documents = Mapping[str, Any]


class Plot(NamedTuple):
    """A file to draw."""

    needs: Mapping[str, tuple[str, ...]]
    """Documents, and the sections of them that must be there."""
    command: str
    """What makes these, below ``python -m benchmarks``."""
    draw: Callable[[Documents], Figure]
    """Given the documents by name."""
    also: tuple[str, ...] = ()
    """Documents that it makes use of where they are there."""


def limit(documents: Documents) -> float | None:
    """Bytes a second of a copy on the CUDA device, where that has been measured."""
    measured = documents.get("throughput_cuda")
    return None if measured is None else float(measured["results"]["copy_bytes_per_s"])


PICTURES: Mapping[str, Plot] = {
    "environments.png": Plot({}, "plot", lambda _: environments.draw()),
    "scaling_cuda.png": Plot(
        {"scaling_cuda": ()},
        "throughput --device cuda",
        lambda found: scaling.draw("cuda", found["scaling_cuda"], limit(found)),
        also=("throughput_cuda",),
    ),
    "scaling_cpu.png": Plot(
        {"scaling_cpu": ()}, "throughput --device cpu", lambda found: scaling.draw("cpu", found["scaling_cpu"], None)
    ),
    "peers_cuda.png": Plot({"peers_cuda": ()}, "peers --device cuda", lambda found: peers.draw(found["peers_cuda"])),
    "peers_cpu.png": Plot({"peers_cpu": ()}, "peers --device cpu", lambda found: peers.draw(found["peers_cpu"])),
    "training_cuda.png": Plot(
        {"training_cuda": ("solve", "throughput")},
        "training --device cuda --only solve throughput",
        lambda found: training.solved_and_fast(found["training_cuda"]),
    ),
    "tag_training.png": Plot(
        {"training_cuda": ("tag_learning",)},
        "training --device cuda --only tag_learning",
        lambda found: training.survival(found["training_cuda"]),
    ),
    "planning_trials.png": Plot(
        {"training_cpu": ("trials",)},
        "training --device cpu --only trials",
        lambda found: planning.trials(found["training_cpu"]),
    ),
    "planning_returns.png": Plot(
        {"training_cpu": ("trials",)},
        "training --device cpu --only trials",
        lambda found: planning.returns(found["training_cpu"]),
    ),
}


def missing(picture: Plot, documents: Documents) -> list[str]:
    """The documents and sections that a plot needs and that are missing."""
    found = []
    for name, sections in picture.needs.items():
        if name not in documents:
            found.append(f"{name}.json")
        else:
            there = documents[name].get("sections", {})
            found += [f"{section} of {name}.json" for section in sections if section not in there]
    return found


def digest(picture: Plot, documents: Documents) -> str:
    """Of all that it shows: a picture that has another one is out of date."""
    shown: list[Any] = [documents.get(name) for name in picture.also]
    for name, sections in picture.needs.items():
        document = documents[name]
        shown += [document["sections"][section] for section in sections] if sections else [document]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw_all(results: Path, into: Path, log: Callable[[str], None]) -> list[Path]:
    """Draws what can be drawn.

    Args:
        results: The folder of the JSON files.
        into: Where the pictures go.
        log: Prints a line.
    """
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    written = []
    for name, picture in PICTURES.items():
        lacking = missing(picture, documents)
        if lacking:
            log(f"{name}: skipped, there is no {', no '.join(lacking)}: python -m benchmarks.{picture.command}")
            continue
        with style.styled():
            style.save(picture.draw(documents), into / name, f"of {digest(picture, documents)}")
        written.append(into / name)
        log(f"wrote {into / name}")
    return written


def main() -> None:
    """Draws them beside the results."""
    argparse.ArgumentParser(
        "python -m benchmarks.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    draw_all(RESULTS, RESULTS, print)
    for path in environments.write(DOCS / "environments"):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
