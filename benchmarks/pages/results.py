"""The results in ``benchmarks/results``, and tables of their origins."""

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.tables import table
from benchmarks.record import RESULTS


@functools.cache
def document(name: str) -> dict[str, Any]:
    """Return the content of a file of results."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def results(name: str, section: str = "") -> dict[str, Any]:
    """Return the results of a file, or of one of its sections."""
    values: dict[str, Any] = origin(name, section)["results"]
    return values


def origin(name: str, section: str = "") -> dict[str, Any]:
    """Return a file's results, or those of one of its sections, with machine, versions, commit, command and date."""
    content: dict[str, Any] = document(name)["sections"][section] if section else document(name)
    return content


def device(name: str, section: str = "") -> str:
    """Return the name of the GPU or, without one, of the CPU that a file or a section was measured on."""
    machine = origin(name, section)["machine"]
    return str(machine["gpu"] or machine["cpu"])


def _all_origins() -> list[tuple[Path, str, dict[str, Any]]]:
    """Return path, section (empty for a file without sections) and content of all results."""
    return [
        (path, section, content)
        for path in sorted(RESULTS.glob("*.json"))
        for section, content in document(path.stem).get("sections", {"": document(path.stem)}).items()
    ]


def _machine(content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    cores = f"{machine['cores']} cores"
    return f"{machine['gpu']}, {cores}" if machine["gpu"] else f"{machine['cpu']}, {cores}"


def sources(_page: Path) -> str:
    """Return the table of all results, with their commands, machines, commits and dates."""
    rows = []
    for path, of_path in itertools.groupby(_all_origins(), key=lambda entry: entry[0]):
        sections_by_origin: dict[tuple[str, ...], list[str]] = {}
        for _, section, content in of_path:
            command = re.sub(r" --(commit|\w+-python) \S+", "", content["command"])
            key = (f"`{command}`", _machine(content), content["commit"][:7], content["date"][:10])
            sections_by_origin.setdefault(key, []).append(section)
        file = f"[{path.name}](../benchmarks/results/{path.name})"
        for row, sections in sections_by_origin.items():
            names = "" if len(sections_by_origin) == 1 else ", ".join(sections)
            rows.append((": ".join(filter(None, (file, names))), *row))
            file = ""
    return table(("file, and its sections", "command", "machine", "commit", "date"), rows)


_SOFTWARE = {
    "Python": "python",
    "C++ compiler": "compiler",
    "torch": "torch",
    "CuPy": "cupy-cuda13x",
    "NVRTC": "nvidia-cuda-nvrtc",
}
"""Columns of the table of machines, and the names of their versions."""


def machines(_page: Path) -> str:
    """Return the table of the machines, with their CPUs and versions."""
    rows: set[tuple[str, ...]] = set()
    for _, _, content in _all_origins():
        on_gpu, versions = content["machine"]["gpu"] is not None, content["versions"]
        found = (
            versions.get(name, "") if on_gpu or name not in ("cupy-cuda13x", "nvidia-cuda-nvrtc") else ""
            for name in _SOFTWARE.values()
        )
        software = (re.sub(r" \(.*\)", "", version) for version in found)
        rows.add((_machine(content), content["machine"]["cpu"], *software))
    return table(("machine", "CPU", *_SOFTWARE), sorted(rows, reverse=True))


GENERATORS: Mapping[str, Callable[[Path], str]] = {"sources": sources, "machines": machines}
"""Generators by the name of their block in the pages."""
