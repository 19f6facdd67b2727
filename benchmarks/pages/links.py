"""Links that need the repository's address: badges, notebooks on Colab, and issues. None before it is known."""

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {"first_steps": "first steps", "own_environment": "your own environment", "planning": "planning"}
"""Notebooks of ``examples/``, and their names in the pages."""


def github_path() -> str:
    """Return ``owner/name`` of the repository; empty while the address is a placeholder."""
    address: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    site, _, path = address.partition("https://github.com/")
    return path.strip("/") if not site else ""


def badges(_page: Path) -> str:
    """Return the badges: tests, newest version, documentation."""
    path = github_path()
    if not path:
        return ""
    name = path.rpartition("/")[2]
    workflow = f"https://github.com/{path}/actions/workflows/tests.yml"
    docs = f"{name.replace('_', '-')}.readthedocs.io"
    return " ".join(
        (
            f"[![tests]({workflow}/badge.svg)]({workflow})",
            f"[![version](https://img.shields.io/github/v/release/{path})](https://github.com/{path}/releases)",
            f"[![documentation](https://img.shields.io/badge/documentation-{docs.replace('-', '--')}-blue)](https://{docs})",
        )
    )


def notebooks(page: Path) -> str:
    """Return the list of notebooks, with their links to Colab."""
    folder = os.path.relpath(ROOT / "examples", page.parent)
    return "\n".join(
        f"* [{text}]({folder}/{name}.ipynb)" + (f" ([run it on Colab]({address}))" if address else "")
        for name, text in NOTEBOOKS.items()
        for address in [colab_address(name)]
    )


def issues(_page: Path) -> str:
    """Return the name of the page for issues, with its link."""
    path, name = github_path(), "the repository's issues page"
    return f"[{name}](https://github.com/{path}/issues)" if path else name


def colab(notebook: Path) -> str:
    """Return a notebook's own link to Colab."""
    address = colab_address(notebook.stem)
    return f"[Open this notebook in Colab]({address})" if address else ""


def colab_address(name: str) -> str:
    """Return the address of a notebook on Colab; empty while the repository's address is a placeholder."""
    path = github_path()
    return f"https://colab.research.google.com/github/{path}/blob/main/examples/{name}.ipynb" if path else ""


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "badges": badges,
    "notebooks": notebooks,
    "issues": issues,
    "colab": colab,
}
"""Generators by the name of their block in the pages."""
