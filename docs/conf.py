"""Sphinx's settings. The site is made of these pages, of others of the repository, and of docstrings.

Pages link to one another and to files as they lie in the repository, so that they can be read there too.
"""

import contextlib
import dataclasses
import importlib
import inspect
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import gpu_envs  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "kernels/README.md": "kernels.md",
}
"""Pages that stand elsewhere in the repository, and the pages here that include them."""
FIELDS = "Attributes:"
"""Where a docstring names fields, which autodoc finds by itself."""

project = "gpu_envs"
author = copyright = "the authors of gpu_envs"  # noqa: A001
version = release = gpu_envs.__version__
exclude_patterns = ["_build"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
highlight_language = "none"

autodoc_default_options = {"members": True, "member-order": "bysource"}
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
autoclass_content = "both"
nitpick_ignore_regex = [(r"py:.*", r"(?!gpu_envs\.(\w+\.)?[A-Za-z]\w*$).*")]

myst_heading_anchors = 4

linkcheck_ignore = [rf"{re.escape(REPOSITORY)}/.*"]  # files of the repository, which a test looks for

html_theme = "furo"
html_title = f"gpu_envs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]


def relinked(text: str, file: Path, page: Path) -> str:
    """A file's text with links that lead somewhere from a page of the site.

    Args:
        text: Markdown.
        file: Where it stands in the repository.
        page: Where it is shown.
    """

    def target(match: re.Match[str]) -> str:
        name, mark, anchor = match[2].partition("#")
        path = (file.parent / name).resolve()
        if not name or "://" in name or not path.is_relative_to(ROOT) or not path.exists():
            return match[0]
        inside = path.relative_to(ROOT).as_posix()
        shown = DOCS / OUTSIDE[inside] if inside in OUTSIDE else path
        if match[1].startswith("!") or (shown.is_file() and shown.is_relative_to(DOCS)):
            return f"{match[1]}({os.path.relpath(shown, page.parent)}{mark}{anchor})"
        return f"{match[1]}({REPOSITORY}/blob/main/{inside}{mark}{anchor})"

    return re.sub(r"(!?\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\])\(([^)\s]+)\)", target, text)


def read_page(_app: Sphinx, name: str, content: list[str]) -> None:
    """Links of a page."""
    page = DOCS / f"{name}.md"
    content[0] = relinked(content[0], page, page)


def read_included(_app: Sphinx, file: Path, name: str, content: list[str]) -> None:
    """Links of a page that stands elsewhere."""
    content[0] = relinked(content[0], (DOCS / file).resolve(), DOCS / f"{name}.md")


def read_docstring(_app: Sphinx, kind: str, _name: str, item: object, _options: object, lines: list[str]) -> None:
    """Fields of dataclasses are shown one by one, with their types; napoleon takes what is before a colon for one."""
    if kind in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # an empty word
    if kind == "class" and (dataclasses.is_dataclass(item) or hasattr(item, "_fields")) and FIELDS in lines:
        del lines[lines.index(FIELDS) :]


def read_signature(_app: Sphinx, kind: str, _name: str, item: object, *_rest: object) -> tuple[str, str] | None:
    """Those of dataclasses would say all fields once more."""
    return ("", "") if kind == "class" and dataclasses.is_dataclass(item) else None


def read_references(_app: Sphinx, document: nodes.document) -> None:
    """A type is what has just that name, and not an attribute anywhere whose name ends so."""
    for reference in document.findall(addnodes.pending_xref):
        if reference.get("refspecific") is False:
            del reference["refspecific"]


def write_markdown(app: Sphinx, error: Exception | None) -> None:
    """Every page as Markdown beside its HTML, and ``llms.txt``, which lists them."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for name in app.env.found_docs:
        page = DOCS / f"{name}.md"
        text = re.sub(r"```{include} (\S+)\n```", lambda m: (DOCS / m[1]).read_text(), page.read_text())
        file = next((ROOT / outside for outside, inside in OUTSIDE.items() if inside == page.name), page)
        text = re.sub(r"```{toctree}.*?\n```\n", "", relinked(text, file, page), flags=re.DOTALL)
        text = re.sub(r"```{eval-rst}\n(.*?)```", lambda m: described(m[1]), text, flags=re.DOTALL)
        (out / f"{name}.md").write_text(f"{text.strip()}\n")
    contents = [f"# {project}\n\n> {PROJECT['description']}\n\n[The README](index.md) is the way in.\n"]
    for caption, names in re.findall(r":caption: (.*)\n:hidden:\n\n([^`]*)", (DOCS / "index.md").read_text()):
        links = (f"- [{app.env.titles[name].astext()}]({name}.md)\n" for name in names.split())
        contents.append(f"## {caption}\n\n{''.join(links)}")
    (out / "llms.txt").write_text("\n".join(contents))


def described(directives: str) -> str:
    """What autodoc would show, as ``help`` has it."""
    parts = []
    for name in re.findall(r"auto(?:class|exception|function):: (\S+)", directives):
        module, _, own = name.rpartition(".")
        item = getattr(importlib.import_module(module), own)
        members = {n: each for n, each in vars(item).items() if not n.startswith("_")} if inspect.isclass(item) else {}
        shown = {n: each for n, each in members.items() if inspect.isroutine(each) or isinstance(each, property)}
        texts = [f"{n}{arguments(each)}\n\n{inspect.getdoc(each)}" for n, each in {own: item, **shown}.items()]
        parts.append(f"### {name}\n\n```text\n" + "\n\n".join(texts) + "\n```")
    return "\n\n".join(parts)


def arguments(item: Any) -> str:
    """Those of a function or a class; empty for a property, and where fields say it."""
    with contextlib.suppress(TypeError, ValueError):
        return "" if dataclasses.is_dataclass(item) else str(inspect.signature(item))
    return ""


def setup(app: Sphinx) -> None:
    """Has texts changed as they are read."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", read_docstring, priority=0)  # before napoleon
    app.connect("autodoc-process-signature", read_signature)
    app.connect("doctree-read", read_references)
    app.connect("build-finished", write_markdown)
