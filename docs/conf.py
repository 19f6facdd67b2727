"""Sphinx's settings. The site is made of these pages, of others of the repository, and of docstrings.

Pages link to one another and to files as they lie in the repository, so that they can be read there too.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import gpu_envs  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository", "https://example.invalid/gpu_envs")
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "kernels/README.md": "kernels.md",
}
"""Pages that stand elsewhere in the repository, and the pages here that include them."""

project = "gpu_envs"
author = copyright = "the authors of gpu_envs"  # noqa: A001
version = release = gpu_envs.__version__
exclude_patterns = ["_build"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
highlight_language = "none"

myst_heading_anchors = 4

html_theme = "furo"
html_title = f"gpu_envs {release}"


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


def setup(app: Sphinx) -> None:
    """Has texts changed as they are read."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
