"""Update the generated blocks of the documentation's pages: ``python -m benchmarks.pages``.

Blocks are between ``<!-- made: NAME -->`` and ``<!-- end -->``; their content comes from specs, results and commands. A
block on lines of its own has a line break after the first comment; a figure in a sentence has none.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages import (
    adapters,
    commands,
    comparisons,
    environments,
    headlines,
    links,
    measured,
    off_policy,
    results,
    several_gpus,
    steps,
    training,
)

DOCS = Path(__file__).parents[2] / "docs"

GENERATORS: Mapping[str, Callable[[Path], str]] = {
    **environments.GENERATORS,
    **results.GENERATORS,
    **steps.GENERATORS,
    **training.GENERATORS,
    **off_policy.GENERATORS,
    **several_gpus.GENERATORS,
    **comparisons.GENERATORS,
    **adapters.GENERATORS,
    **measured.GENERATORS,
    **headlines.GENERATORS,
    **links.GENERATORS,
    **commands.GENERATORS,
}
"""Functions by the name of the block; each takes the page's path and returns the block's text."""

_BLOCK = re.compile(r"(<!-- made: (\S+) -->(\n?)).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages and notebooks with generated blocks."""
    root = DOCS.parent
    paths = [root / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(root.glob("examples/*.ipynb"))]
    return [path for path in paths if not path.is_relative_to(DOCS / "_build") and _BLOCK.search(path.read_text())]


def regenerate(page: Path) -> str:
    """Return a page's text with updated blocks."""

    def updated(match: re.Match[str]) -> str:
        return f"{match[1]}{GENERATORS[match[2]](page).strip()}{match[3]}{match[4]}"

    return _BLOCK.sub(updated, page.read_text())


def main() -> None:
    """Update the pages."""
    argparse.ArgumentParser(
        "python -m benchmarks.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for page in pages():
        if (text := regenerate(page)) != page.read_text():
            page.write_text(text)


if __name__ == "__main__":
    main()
