"""Sphinx configuration. The site contains these pages, some other pages of the repository, and docstrings.

Pages link to files by their paths in the repository, so that the links also work on GitHub.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock  # type: ignore[attr-defined]  # a documented name, re-exported
from sphinx.pycode import ModuleAnalyzer

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import gpu_envs  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
INCLUDED_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "kernels/README.md": "kernels.md",
    **{f"examples/{page.stem}.ipynb": f"notebooks/{page.name}" for page in DOCS.glob("notebooks/*.md")},
}
"""Pages and notebooks outside of ``docs/``, and the pages in ``docs/`` that include them."""
FIELDS_SECTION = "Attributes:"
"""Section of a docstring that lists fields, which autodoc lists too."""

project = "gpu_envs"
author = copyright = "the authors of gpu_envs"  # noqa: A001
version = release = gpu_envs.__version__
exclude_patterns = ["_build"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
highlight_language = "none"

# The documentation builds without the adapters' libraries; the classes that it shows then have placeholders as bases.
autodoc_mock_imports = [
    name
    for name in ("benchmarl", "mpe2", "pettingzoo", "rsl_rl", "skrl", "stable_baselines3", "tensordict", "torchrl")
    if importlib.util.find_spec(name) is None
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
autoclass_content = "both"
nitpick_ignore_regex = [(r"py:.*", r"(?!gpu_envs\.(\w+\.)?[A-Za-z]\w*$).*")]

myst_heading_anchors = 4

linkcheck_ignore = [rf"{re.escape(REPOSITORY)}/.*"]  # a test checks links to files of the repository

html_theme = "furo"
html_title = f"gpu_envs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


def rewrite_links(text: str, file: Path, page: Path) -> str:
    """Returns a file's Markdown with links that work on the site.

    Args:
        text: Markdown of the file.
        file: Path of the file in the repository.
        page: Path of the page that shows it.
    """

    def target(match: re.Match[str]) -> str:
        name, mark, anchor = match[2].partition("#")
        path = (file.parent / name).resolve()
        if not name or ":" in name or not path.is_relative_to(ROOT) or not path.exists():
            return match[0]
        repository_path = path.relative_to(ROOT).as_posix()
        linked_page = DOCS / INCLUDED_PAGES[repository_path] if repository_path in INCLUDED_PAGES else path
        if match[1].startswith("!") or (linked_page.is_file() and linked_page.is_relative_to(DOCS)):
            return f"{match[1]}({os.path.relpath(linked_page, page.parent)}{mark}{anchor})"
        return f"{match[1]}({REPOSITORY}/blob/main/{repository_path}{mark}{anchor})"

    return re.sub(r"(!?\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\])\(([^)\s]+)\)", target, text)


def read_page(_app: Sphinx, name: str, content: list[str]) -> None:
    """Rewrites the links of a page, and adds the table of its entries to a page of the reference."""
    page = DOCS / f"{name}.md"
    content[0] = DIRECTIVE.sub(hide_methods, add_table(rewrite_links(content[0], page, page)))


def read_included(_app: Sphinx, relative: Path, _name: str, content: list[str]) -> None:
    """Converts an included notebook to Markdown, and rewrites the links of an included page."""
    file = (DOCS / relative).resolve()
    text = notebook_text(content[0]) if file.suffix == ".ipynb" else content[0]
    content[0] = rewrite_links(text, file, DOCS / INCLUDED_PAGES[file.relative_to(ROOT).as_posix()])


def notebook_text(content: str, *, rich: bool = True) -> str:
    """Returns a notebook as Markdown: with ``rich`` tables and pictures of outputs, else their plain texts."""
    parts = []
    for cell in json.loads(content)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text).strip() for kind, text in output.get("data", {}).items()}
            if rich and "image/png" in data:
                parts.append(f"![{data['text/plain']}](data:image/png;base64,{data['image/png']})")
            elif rich and "text/html" in data:
                parts.append(f"```{{raw}} html\n{data['text/html']}\n```")
            else:
                parts.append(f"```text\n{data.get('text/plain') or ''.join(output['text']).strip()}\n```")
    return "\n\n".join(parts)


def read_docstring(_app: Sphinx, kind: str, _name: str, item: object, _options: object, lines: list[str]) -> None:
    """Removes the list of fields, which autodoc shows, and keeps napoleon from reading a type before each colon."""
    if kind in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # empty first line
    if "Returns:" in lines:
        lines.insert(lines.index("Returns:") + 1, "    \\")
    if kind == "class" and (dataclasses.is_dataclass(item) or hasattr(item, "_fields")) and FIELDS_SECTION in lines:
        del lines[lines.index(FIELDS_SECTION) :]


def read_signature(_app: Sphinx, kind: str, _name: str, item: object, *_rest: object) -> tuple[str, str] | None:
    """Hides signatures of dataclasses, which repeat the fields."""
    return ("", "") if kind == "class" and dataclasses.is_dataclass(item) else None


def read_references(_app: Sphinx, document: nodes.document) -> None:
    """Makes type references exact: by default Sphinx also matches attributes whose names end in the type's name."""
    for reference in document.findall(addnodes.pending_xref):
        if reference.get("refspecific") is False:
            del reference["refspecific"]


def write_markdown(app: Sphinx, error: Exception | None) -> None:
    """Writes every page as Markdown next to its HTML, and ``llms.txt``, which lists them."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for name in app.env.found_docs:
        page = DOCS / f"{name}.md"
        file = next((ROOT / path for path, including in INCLUDED_PAGES.items() if including == f"{name}.md"), page)
        text = notebook_text(file.read_text(), rich=False) if file.suffix == ".ipynb" else file.read_text()
        if file != page:
            text += page.read_text().partition("\n```\n")[2]  # below the directive
        text = re.sub(r"```{toctree}.*?\n```\n", "", rewrite_links(text, file, page), flags=re.DOTALL)
        text = re.sub(r"```{table}.*?\n\n(.*?)```", r"\1", add_table(text), flags=re.DOTALL)
        text = re.sub(r"```{eval-rst}\n(.*?)```", lambda m: describe(m[1]), text, flags=re.DOTALL)
        (out / f"{name}.md").write_text(f"{text.strip()}\n")
    contents = [f"# {project}\n\n> {PROJECT['description']}\n\n[The README](index.md) is the way in.\n"]
    for caption, names in re.findall(r":caption: (.*)\n:hidden:\n\n([^`]*)", (DOCS / "index.md").read_text()):
        links = (f"- [{app.env.titles[name].astext()}]({name}.md)\n" for name in names.split())
        contents.append(f"## {caption}\n\n{''.join(links)}")
    (out / "llms.txt").write_text("\n".join(contents))


DIRECTIVE = re.compile(r"\.\. auto(class|data|exception|function):: (\S+)(\n +:(?:methods|inherited-members):.*)?")
"""A directive of autodoc. The option ``:methods:`` is of this file: the methods to show, instead of all."""


def load(name: str, *, inherited: bool = False) -> tuple[Any, dict[str, Any]]:
    """Returns a documented object, and the documented methods and properties of a class by name."""
    module, _, item_name = name.rpartition(".")
    with mock(autodoc_mock_imports):
        item = getattr(importlib.import_module(module), item_name)
    bases = (item.__mro__[:-1] if inherited else (item,)) if inspect.isclass(item) else ()
    members = {n: getattr(item, n) for base in bases for n in vars(base) if n[0] != "_"}
    return item, {
        n: member
        for n, member in members.items()
        if (inspect.isroutine(inspect.getattr_static(item, n)) or isinstance(member, property))
        and inspect.getdoc(member)
    }


def entries(directives: str) -> dict[str, tuple[Any, str]]:
    """Returns what autodoc directives show by qualified name: objects, methods and properties, and their docstrings."""
    shown: dict[str, tuple[Any, str]] = {}
    for kind, name, option in DIRECTIVE.findall(directives):
        item, members = load(name, inherited=":inherited-members:" in option)
        module, _, item_name = name.rpartition(".")
        if kind == "data":
            shown[name] = None, "\n".join(ModuleAnalyzer.for_module(module).find_attr_docs()["", item_name]).strip()
        else:
            shown[name] = item, inspect.getdoc(item) or ""
        for member in re.findall(r"\w+", option)[1:] if ":methods:" in option else members:
            shown[f"{name}.{member}"] = members[member], inspect.getdoc(members[member]) or ""
    return shown


def hide_methods(directive: re.Match[str]) -> str:
    """Returns an autodoc directive with ``:exclude-members:`` instead of ``:methods:``."""
    if ":methods:" not in (directive[3] or ""):
        return directive[0]
    hidden = load(directive[2])[1].keys() - set(re.findall(r"\w+", directive[3])[1:])
    return f".. auto{directive[1]}:: {directive[2]}\n   :exclude-members: {', '.join(hidden)}"


def add_table(text: str) -> str:
    """Returns a page with a table of the entries of all its autodoc directives, if there are any, below its head."""
    if not DIRECTIVE.search(text):
        return text
    head, *sections = re.split(r"^(?=## |```{eval-rst})", text, flags=re.MULTILINE)
    rows = []
    for section in sections:
        if title := re.match(r"## (.+)", section):
            rows.append(f"| **{title[1]}** | |")
        names = {name for _, name, _ in DIRECTIVE.findall(section)}
        for name, (_, doc) in entries(section).items():
            short = name.split(".")[-1 if name in names else -2 :]
            summary = re.split(r"(?<=\.)\s+(?=[A-Z`])", doc.partition("\n\n")[0])[0]
            summary = " ".join(summary.replace("``", "`").replace("|", r"\|").split())
            rows.append(f"| [`{'.'.join(short)}`](#{name}) | {summary} |")
    table = "\n".join(["```{table}", ":class: entries", "", "| Name | Description |", "|---|---|", *rows, "```"])
    return f"{head}{table}\n\n{''.join(sections)}"


def describe(directives: str) -> str:
    """Returns the text that autodoc directives show, from signatures and docstrings."""
    names = {name for _, name, _ in DIRECTIVE.findall(directives)}
    return "\n\n".join(
        f"{'###' if name in names else '####'} {name}\n\n```text\n{name.split('.')[-1]}{signature(item)}\n\n{doc}\n```"
        for name, (item, doc) in entries(directives).items()
    )


def signature(item: Any) -> str:
    """Returns the signature of a function or class; empty for others, and for dataclasses, whose fields are listed."""
    if inspect.isroutine(item) or (inspect.isclass(item) and not dataclasses.is_dataclass(item)):
        with contextlib.suppress(TypeError, ValueError):
            return str(inspect.signature(item))
    return ""


def setup(app: Sphinx) -> None:
    """Registers the functions of this file as Sphinx event handlers, and hides the overloads of ``make``."""
    making = ModuleAnalyzer.for_module("gpu_envs.making")
    making.analyze()
    making.overloads.clear()  # long signatures that differ in the type of ``id``
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", read_docstring, priority=0)  # before napoleon
    app.connect("autodoc-process-signature", read_signature)
    app.connect("doctree-read", read_references)
    app.connect("build-finished", write_markdown)
