"""Every block of Python in the README runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL) if README.is_file() else []


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs(block: str) -> None:
    """As it stands, on whatever device is here."""
    for library in ("torch", "pettingzoo"):
        if library in block:
            pytest.importorskip(library)
    exec(compile(block, str(README), "exec"), {})


def test_there_are_blocks() -> None:
    """The README shows how each interface is used."""
    assert len(BLOCKS) >= 5
