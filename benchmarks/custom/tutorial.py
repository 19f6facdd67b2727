"""Extracts the files and commands of the pages in ``docs/`` whose blocks form programs."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import final

DOCS = Path(__file__).parent.parent.parent / "docs"
LANDER = DOCS / "your-own-environment.md"
CPP = DOCS / "rules-in-cpp.md"
COOKBOOK = DOCS / "cookbook.md"
EQUATIONS = DOCS / "from-equations-to-a-policy.md"
PAGES = (LANDER, CPP, COOKBOOK, EQUATIONS)

_BLOCK = re.compile(
    r"(?P<before>.*?)```(?P<kind>cpp|none|python|sh)\n(?P<text>.*?)```\n"
    r"(?:\n```text(?P<approximate> approximate)?\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
_FILE = re.compile(r"`(\w+\.(?:cuh|csv|py))`")


@final
@dataclasses.dataclass(frozen=True)
class CodeBlock:
    """A block of code."""

    kind: str
    """``cpp``, ``none`` (a file of data), ``python`` or ``sh``."""
    file: str
    """The first file name in the paragraph above the block, or the file of the previous block; empty for commands."""
    text: str
    output: str
    """The ``text`` block directly below, which the program or command prints; empty if there is none."""
    approximate: bool
    """Whether the output block starts with ``text approximate``: its numbers may differ."""


def blocks(page: Path) -> list[CodeBlock]:
    """Return the blocks of a page, in order."""
    code_blocks: list[CodeBlock] = []
    file = ""
    for match in _BLOCK.finditer(page.read_text()):
        if match["kind"] != "sh":
            file_name = _FILE.search(match["before"].rstrip().rpartition("\n\n")[2])
            file = file_name[1] if file_name is not None else file
        block_file = "" if match["kind"] == "sh" else file
        approximate = match["approximate"] is not None
        code_blocks.append(CodeBlock(match["kind"], block_file, match["text"], match["output"] or "", approximate))
    return code_blocks


def write(folder: Path, code_blocks: Iterable[CodeBlock]) -> None:
    """Write the files of code blocks into a folder; blocks of one file are joined."""
    texts: dict[str, list[str]] = {}
    for block in code_blocks:
        if block.file:
            texts.setdefault(block.file, []).append(block.text)
    for file, parts in texts.items():
        (folder / file).write_text("\n\n".join(parts))
