"""The pages: every block of Python runs, every link leads somewhere, and environments are as their specs say."""

import re
from pathlib import Path

import pytest

from benchmarks.custom import tutorial
from gpu_envs.envs import ALL
from gpu_envs.specs.base import Spec
from gpu_envs.specs.following import Derived

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "_build"
PAGES = (path for path in sorted((ROOT / "docs").rglob("*.md")) if not path.is_relative_to(SITE))
READ = [path for path in (ROOT / "README.md", *PAGES) if path.is_file()]
LINKING = [*READ, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md"))]

NEEDED = {
    "torch": "torch",
    "pettingzoo": "pettingzoo",
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "rsl_rl": "rsl_rl",
    "gpu_envs.wrappers": "torch",
    "gpu_envs.training": "torch",
}
"""By a word of a block: the library it cannot do without."""

SECTIONS = [
    "Parameters",
    "Observations",
    "Actions",
    "Rewards",
    "Ends",
    "Metrics",
    "What differs",
    "Training",
    "Measured",
]
"""Of an environment's page, below what it is."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks() -> dict[str, str]:
    """By page and number: the blocks of Python, except the tutorials', which tests of their own run."""
    others = {block.text for block in (*tutorial.blocks(), *tutorial.blocks_of_equations())}
    found = ((path, re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)) for path in READ)
    return {f"{named(path)}-{i}": text for path, texts in found for i, text in enumerate(texts) if text not in others}


BLOCKS = blocks()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
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
    """The pages show how each interface is used."""
    assert len(BLOCKS) >= 19


def anchors(path: Path) -> set[str]:
    """What follows # in links to a page's headings, as GitHub makes it of them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = (heading.lower() for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{named(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{named(page)} links to {link}, a heading that is not there"


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.id)
def test_an_environments_page_is_right(spec: Spec) -> None:
    """Its sections in order, every parameter and reset option with its default, and every metric."""
    text = (ROOT / "docs" / "environments" / f"{Path(str(spec.header)).stem}.md").read_text()
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == SECTIONS
    measured = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text.partition("## Metrics\n")[2], flags=re.MULTILINE))
    ways = {
        "last": "at its end",
        "mean": "mean of its steps",
        "sum": "sum of its steps",
        "max": "greatest of its steps",
    }
    assert {n: measured[n] for n in spec.metrics} == {n: ways[metric.reduce] for n, metric in spec.metrics.items()}
    table = text.partition("## Parameters")[2].partition("\n## ")[0]
    written = dict(re.findall(r"^\| `(\w+)` \*? ?\| `?([^|`]+?)`? \|", table, flags=re.MULTILINE))
    params = {**spec.params, **getattr(spec, "options", {})}
    assert written.keys() == params.keys()
    for name, param in params.items():
        if isinstance(param, Derived) or param.rank:
            assert written[name] == ("derived" if isinstance(param, Derived) else "an array"), name
        elif param.kind in ("bool", "choice"):
            assert written[name] == str(param.default), name
        else:
            assert float(written[name]) == pytest.approx(param.default, rel=1e-4), name
