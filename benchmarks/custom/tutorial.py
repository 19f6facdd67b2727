"""Extracts the files and commands of the tutorials in ``docs/``."""

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
    """The first file name in the paragraph above the block, or the file of the previous block; empty for commands."""
    text: str


def blocks() -> list[CodeBlock]:
    """Return the blocks of the tutorial "From nothing to a trained agent", in order."""
    tutorial = _TUTORIAL.search(PAGE.read_text())
    assert tutorial is not None, f"{PAGE} has no tutorial"
    return _blocks(tutorial[1])


def blocks_of_equations() -> list[CodeBlock]:
    """Return the blocks of the tutorial "From equations to a policy", in order."""
    return _blocks(EQUATIONS.read_text())


def _blocks(text: str) -> list[CodeBlock]:
    code_blocks: list[CodeBlock] = []
    file = ""
    for match in _BLOCK.finditer(text):
        if match["kind"] != "sh":
            file_name = _FILE.search(match["before"].rstrip().rpartition("\n\n")[2])
            file = file_name[1] if file_name is not None else file
        code_blocks.append(CodeBlock(match["kind"], "" if match["kind"] == "sh" else file, match["text"]))
    return code_blocks


def write(folder: Path, code_blocks: Iterable[CodeBlock] | None = None) -> None:
    """Write the files of code blocks, by default of ``blocks()``, into a folder; blocks of one file are joined."""
    texts: dict[str, list[str]] = {}
    for block in blocks() if code_blocks is None else code_blocks:
        if block.file:
            texts.setdefault(block.file, []).append(block.text)
    for file, parts in texts.items():
        (folder / file).write_text("\n\n".join(parts))
