"""Draws how long runners of Tag last while a team trains: ``python -m benchmarks.curves`` writes an SVG file.

A hundred lines of SVG by hand, so that drawing needs no library.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, final

from benchmarks.record import RESULTS

PANEL = (330, 200)
"""Width and height within the axes."""
MARGIN = (52, 30, 14, 42)
"""Left, top, right, bottom."""
COLOURS = {"taggers": "#c0392b", "runners": "#2471a3"}
TICKS = 4
MOST_POINTS = 200


@final
class Panel:
    """One environment: survival against seconds of training."""

    def __init__(self, left: float, title: str, found: Mapping[str, Any]) -> None:
        """Finds the scales.

        Args:
            left: Where it begins.
            title: Above it.
            found: The section's results of this environment.
        """
        self._left, self._title, self._found = left + MARGIN[0], title, found
        self._seconds = max(found[team]["curve"][-1][0] for team in COLOURS)
        lengths = [length for team in COLOURS for _, length in found[team]["curve"]]
        self._random = float(found["random"]["evaluated"]["runner"]["length"])
        self._most = 1.05 * max(self._random, *lengths)

    def _at(self, seconds: float, length: float) -> str:
        x = self._left + PANEL[0] * seconds / self._seconds
        y = MARGIN[1] + PANEL[1] * (1 - length / self._most)
        return f"{x:.1f},{y:.1f}"

    def svg(self) -> list[str]:
        """Its elements."""
        right, bottom = self._left + PANEL[0], MARGIN[1] + PANEL[1]
        lines = [
            f'<text x="{self._left}" y="18" font-weight="bold">{self._title}</text>',
            f'<path d="M{self._left},{MARGIN[1]} V{bottom} H{right}" fill="none" stroke="#888"/>',
            f'<text x="{right}" y="{bottom + 34}" text-anchor="end">seconds of training, one H200</text>',
        ]
        for tick in range(TICKS + 1):
            share = tick / TICKS
            x, y = self._left + PANEL[0] * share, bottom - PANEL[1] * share
            lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{share * self._seconds:.2g}</text>')
            lines.append(
                f'<text x="{self._left - 6}" y="{y + 4:.1f}" text-anchor="end">{share * self._most:.0f}</text>'
            )
        level = f"M{self._at(0, self._random)} L{self._at(self._seconds, self._random)}"
        lines.append(f'<path d="{level}" stroke="#888" stroke-dasharray="4 3" fill="none"/>')
        for team, colour in COLOURS.items():
            points = thinned(self._found[team]["curve"])
            path = " ".join(self._at(seconds, length) for seconds, length in points)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        return lines


def thinned(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """The means of so few neighbours that a curve has at most ``MOST_POINTS``."""
    each = -(-len(curve) // MOST_POINTS)
    parts = [curve[first : first + each] for first in range(0, len(curve), each)]
    return [(part[-1][0], sum(length for _, length in part) / len(part)) for part in parts]


def drawing(sections: Mapping[str, Any]) -> str:
    """The whole picture."""
    environments = sections["tag_learning"]["results"]
    step = MARGIN[0] + PANEL[0] + MARGIN[2]
    height = MARGIN[1] + PANEL[1] + MARGIN[3] + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{step * len(environments)}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (name, found) in enumerate(environments.items()):
        lines += Panel(step * number, f"{name}: steps that a runner lasts", found).svg()
    x = MARGIN[0]
    words = {"taggers": "taggers learn, runners random", "runners": "runners learn, taggers random"}
    for team, colour in COLOURS.items():
        lines.append(f'<text x="{x}" y="{height - 8}" fill="{colour}">{words[team]}</text>')
        x += 190
    lines.append(f'<text x="{x}" y="{height - 8}" fill="#666">dashed: all random</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Reads the results, and writes the picture."""
    sections = json.loads((RESULTS / "training_cuda.json").read_text())["sections"]
    path = RESULTS / "tag_training.svg"
    path.write_text(drawing(sections))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
