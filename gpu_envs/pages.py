"""Self-contained HTML pages: templates, a common head and style (``page.css``), and data for their scripts."""

import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Any


def read_asset(name: str, package: str = "gpu_envs") -> str:
    """Return the text of a file of a package."""
    return (importlib.resources.files(package) / name).read_text(encoding="utf-8")


def fill_template(template: str, parts: Mapping[str, str]) -> str:
    """Return the template with its ``{{NAMES}}`` replaced; ``HEAD`` begins a page, up to its own style."""
    text = template.replace("{{HEAD}}", read_asset("head.html") + read_asset("page.css"))
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], text)


def script_data(data: Any) -> str:
    """Return data as JSON for a script tag, which no text in it can end."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
