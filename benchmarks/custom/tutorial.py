"""The files and commands of the tutorials in ``docs/``, as a reader would write and run them."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import final

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "your-own-environment.md"
EQUATIONS = DOCS / "from-equations-to-a-policy.md"

_TUTORIAL = re.compile(r"\n## From nothing to a trained agent\n(.*?)\n## ", re.DOTALL)
_BLOCK = re.compile(r"(?P<before>.*?)```(?P<kind>cpp|python|sh)\n(?P<text>.*?)```\n", re.DOTALL)
_FILE = re.compile(r"`(\w+\.(?:cuh|py))`")


@final
@dataclasses.dataclass(frozen=True)
class CodeBlock:
    """A block of code."""

    kind: str
    """``cpp``, ``python`` or ``sh``."""
    file: str
    """The first that the paragraph before it names, or else that of the block before; empty for commands."""
    text: str


def blocks() -> list[CodeBlock]:
    """The blocks of the tutorial from nothing to a trained agent, in order."""
    tutorial = _TUTORIAL.search(PAGE.read_text())
    assert tutorial is not None, f"{PAGE} has no tutorial"
    return _blocks(tutorial[1])


def blocks_of_equations() -> list[CodeBlock]:
    """The blocks of the tutorial from equations to a policy, in order."""
    return _blocks(EQUATIONS.read_text())


def _blocks(text: str) -> list[CodeBlock]:
    found: list[CodeBlock] = []
    file = ""
    for match in _BLOCK.finditer(text):
        if match["kind"] != "sh":
            named = _FILE.search(match["before"].rstrip().rpartition("\n\n")[2])
            file = named[1] if named is not None else file
        found.append(CodeBlock(match["kind"], "" if match["kind"] == "sh" else file, match["text"]))
    return found


def write(folder: Path, found: Iterable[CodeBlock] | None = None) -> None:
    """Writes the files of some blocks into a folder; None: of ``blocks()``. Blocks of a file follow one another."""
    texts: dict[str, list[str]] = {}
    for block in blocks() if found is None else found:
        if block.file:
            texts.setdefault(block.file, []).append(block.text)
    for file, parts in texts.items():
        (folder / file).write_text("\n\n".join(parts))
