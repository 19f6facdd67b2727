"""The documentation: Python blocks run, links work, and generated tables are up to date."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from harness import restored_registry
from outputs import same_output

from benchmarks.custom import tutorial
from benchmarks.pages import links
from benchmarks.pages.__main__ import pages, regenerate
from gpu_envs.cli import main
from gpu_envs.envs import ALL

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "_build"
PAGES = (path for path in sorted((ROOT / "docs").rglob("*.md")) if not path.is_relative_to(SITE))
READ = [path for path in (ROOT / "README.md", *PAGES) if path.is_file()]
ENVIRONMENTS = [path for path in READ if path.parent.name == "environments"]
LINKING = [*READ, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md"))]

NEEDED = {
    "torch": "torch",
    "pettingzoo": "pettingzoo",
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "rsl_rl": "rsl_rl",
    "PIL": "PIL",
    "gpu_envs.wrappers": "torch",
    "gpu_envs.training": "torch",
}
"""Library that a block needs, by a word in the block."""

SECTIONS = [
    *("Parameters", "Observations", "Actions", "Rewards", "Ends", "Metrics", "What differs", "Training", "Measured")
]
"""Sections of an environment's page."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    """A Python block, and the ``text`` block directly below it, if the page shows the output."""

    code: str
    approximate: str
    """Not empty if the output block starts with ``text approximate``: its numbers may differ between machines."""
    output: str
    """``...`` stands for any text."""


BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text( approximate)?\n(.*?)```\n)?", re.DOTALL)


def blocks() -> dict[str, list[Block]]:
    """Returns the Python blocks of each page, except the tutorials', which other tests run."""
    tutorial_blocks = {block.text for page in tutorial.PAGES for block in tutorial.blocks(page)}
    page_blocks = {named(path): [Block(*found) for found in BLOCK.findall(path.read_text())] for path in READ}
    return {
        page: remaining
        for page, found in page_blocks.items()
        if (remaining := [block for block in found if block.code not in tutorial_blocks])
    }


BLOCKS = blocks()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=getattr(pytest.mark, "end_to_end" if page == "README.md" else "slow"))
        for page in BLOCKS
    ],
)
def test_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks run unchanged, in order, on the default device, and print what the page shows.

    A block that starts without an import continues the previous one. Blocks of missing libraries are left out.
    """
    missing = [word for word, library in NEEDED.items() if importlib.util.find_spec(library) is None]
    monkeypatch.chdir(tmp_path)  # blocks write files
    names: dict[str, object] = {}
    left_out = False
    for i, block in enumerate(BLOCKS[page]):
        if block.code.startswith(("import ", "from ")):
            names, left_out = {}, False
        left_out = left_out or any(word in block.code for word in missing)
        if left_out:
            continue
        file = tmp_path / f"block_{i}.py"  # the source of rules in Python must be in a file
        file.write_text(block.code)
        capsys.readouterr()
        exec(compile(block.code, str(file), "exec"), names)
        printed = capsys.readouterr().out
        as_shown = not block.output or same_output(block.output, printed, approximate=block.approximate != "")
        assert as_shown, f"{block.code}\nprinted\n{printed}"
    for shown in (ROOT / page).with_suffix("").glob("*.png"):  # a page's own folder has the pictures that it writes
        from PIL import Image

        pixels = [np.asarray(Image.open(path).convert("RGB")).astype(int) for path in (tmp_path / shown.name, shown)]
        assert pixels[0].shape == pixels[1].shape, f"copy {shown.name} from {tmp_path}"
        assert np.abs(pixels[0] - pixels[1]).max() <= 2, f"copy {shown.name} from {tmp_path}"


def test_there_are_blocks() -> None:
    """Blocks and their outputs are found, and a wrong output is noticed."""
    assert sum(len(found) for found in BLOCKS.values()) >= 40
    assert same_output("mean: ...\n[1 2]\n", "mean: 3.5\n[1  2]\n")
    assert not same_output("mean: 3.5\n", "mean: 3.6\n")
    assert same_output("mean: 3.5\n", "mean: 12\n", approximate=True)
    assert not same_output("mean: 3.5\n", "median: 3.5\n", approximate=True)


COMMAND = re.compile(r"```\n(gpu-envs [^\n]*)\n```\n\n```text approximate\n(.*?)```\n", re.DOTALL)
"""A command, and its output directly below."""


def commands(path: Path) -> list[str]:
    """Returns the lines that call ``gpu-envs``, except the tutorials', which other tests run."""
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith("gpu-envs ")]


@pytest.mark.parametrize("page", [page for page in READ if commands(page)], ids=named)
def test_commands_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options exist: a command parses them before ``--help`` prints."""
    monkeypatch.chdir(tmp_path)
    with restored_registry():
        assert main(["new", "my_env"]) == 0  # pages use its path
        for line in commands(page):
            assert main([*shlex.split(line, comments=True)[1:], "--help"]) == 0, line


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in READ if COMMAND.search(page.read_text())], ids=named)
def test_commands_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line, output in COMMAND.findall(page.read_text()):
        capsys.readouterr()
        assert main(shlex.split(line)[1:]) == 0
        printed = capsys.readouterr().out
        assert same_output(output, printed, approximate=True), f"{line}\nprinted\n{printed}"


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = (heading.lower() for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_work(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{named(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{named(page)} links to {link}, a missing heading"


@pytest.mark.parametrize("page", ENVIRONMENTS, ids=named)
def test_an_environments_page_has_its_sections(page: Path) -> None:
    """Sections are in order, and the page has a picture."""
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == SECTIONS
    assert re.findall(r"<!-- made: (\w+)", text)[:3] == ["facts", "parameters", "metrics"]
    assert page.with_suffix(".gif").read_bytes()[:4] == b"GIF8"


def test_every_environment_has_a_page() -> None:
    assert {page.stem for page in ENVIRONMENTS} == {Path(str(spec.header)).stem for spec in ALL}


def test_the_page_of_kernels_has_every_header() -> None:
    """Each folder's table lists exactly its headers."""
    kernels = ROOT / "kernels"
    text = (kernels / "README.md").read_text()
    for folder in {path.parent for path in kernels.rglob("*.cuh")}:
        table = text.partition(f"| `{folder.name}/` |")[2].partition("\n\n")[0] if folder != kernels else text
        listed, there = set(re.findall(r"`(\w+\.cuh)`", table)), {path.name for path in folder.glob("*.cuh")}
        assert there <= listed if folder == kernels else there == listed, named(folder)


@pytest.mark.usefixtures("builtin_registry")  # the help of commands names the environments that there are
@pytest.mark.parametrize("page", pages(), ids=named)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    """Of specs, results and commands the pages show what is there.

    Markdown reads a line that starts with a comment as HTML, so that a link in the line would not work.
    """
    assert regenerate(page) == page.read_text(), "run python -m benchmarks.pages"
    assert re.findall(r"^ *<!-- made: [^\n]*?-->[^\n]", page.read_text(), re.MULTILINE) == [], "wrap the line elsewhere"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("https://example.org/placeholder", ""),
        ("https://github.com/someone/gpu_envs", "someone/gpu_envs"),
        ("https://github.com/someone/gpu_envs/", "someone/gpu_envs"),
    ],
)
def test_badges_and_colab_need_the_repositorys_address(
    address: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{address}"\n')
    monkeypatch.setattr(links, "ROOT", tmp_path)
    assert links.github_path() == path
    assert links.badges(tmp_path / "README.md").count(f"https://github.com/{path}") == (3 if path else 0)
    assert (f"(https://github.com/{path}/issues)" in links.issues(tmp_path / "docs" / "faq.md")) == bool(path)
    lines = links.notebooks(tmp_path / "docs" / "page.md").splitlines()
    assert len(lines) == len(list((ROOT / "examples").glob("*.ipynb")))
    assert lines[0].startswith("* [first steps](../examples/first_steps.ipynb)")
    colab = f"https://colab.research.google.com/github/{path}/blob/main/examples/first_steps.ipynb"
    assert (colab in lines[0]) == bool(path)
    title = json.loads(regenerate(ROOT / "examples" / "first_steps.ipynb"))["cells"][0]["source"]
    assert (f"[Open this notebook in Colab]({colab})" in "".join(title)) == bool(path)
