"""Writes into the documentation's pages what follows from specs, results and commands: ``python -m benchmarks.pages``.

It stands between ``<!-- made: NAME -->`` and ``<!-- end -->``, so that the pages can be read as they are.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages import commands, comparisons, environments, figures, off_policy, several_gpus

DOCS = Path(__file__).parents[2] / "docs"

MADE: Mapping[str, Callable[[Path], str]] = {
    **environments.MADE,
    **figures.MADE,
    **comparisons.MADE,
    **off_policy.MADE,
    **commands.MADE,
    **several_gpus.MADE,
}
"""By name: from the page to what stands there."""

_BLOCK = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages that have something made."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if not path.is_relative_to(DOCS / "_build")]
    return [path for path in found if _BLOCK.search(path.read_text())]


def remade(page: Path) -> str:
    """A page's text with what is made made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{MADE[match[2]](page).strip()}\n{match[3]}", page.read_text())


def main() -> None:
    """Writes the pages."""
    argparse.ArgumentParser(
        "python -m benchmarks.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for page in pages():
        page.write_text(remade(page))


if __name__ == "__main__":
    main()
