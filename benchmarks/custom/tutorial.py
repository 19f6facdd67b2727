"""The files and commands of the tutorial in ``docs/your-own-environment.md``, as a reader would write and run them."""

import dataclasses
import re
from pathlib import Path
from typing import final

PAGE = Path(__file__).parent.parent.parent / "docs" / "your-own-environment.md"

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
    """The first that the paragraph before it names; empty for commands."""
    text: str


def blocks() -> list[CodeBlock]:
    """The tutorial's blocks, in order."""
    tutorial = _TUTORIAL.search(PAGE.read_text())
    assert tutorial is not None, f"{PAGE} has no tutorial"
    return [_block(match) for match in _BLOCK.finditer(tutorial[1])]


def _block(match: re.Match[str]) -> CodeBlock:
    named = _FILE.search(match["before"].rstrip().rpartition("\n\n")[2])
    return CodeBlock(match["kind"], named[1] if named is not None and match["kind"] != "sh" else "", match["text"])


def write(folder: Path) -> None:
    """Writes the tutorial's files into a folder."""
    for block in blocks():
        if block.file:
            (folder / block.file).write_text(block.text)
