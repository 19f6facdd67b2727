"""Every block of Python in the README runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL) if README.is_file() else []

NEEDED = {
    "torch": "torch",
    "pettingzoo": "pettingzoo",
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "rsl_rl": "rsl_rl",
    "gpu_envs.wrappers": "torch",
}
"""By a word of a block: the library it cannot do without."""


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, on whatever device is here."""
    for word, library in NEEDED.items():
        if word in block:
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)  # for what a block writes
    file = tmp_path / "block.py"  # rules in Python are read from where they are written
    file.write_text(block)
    exec(compile(block, str(file), "exec"), {})


def test_there_are_blocks() -> None:
    """The README shows how each interface is used."""
    assert len(BLOCKS) >= 5
