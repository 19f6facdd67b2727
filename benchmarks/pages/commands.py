"""What the page of the command line shows: the help of every command, as the command itself prints it."""

import contextlib
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_envs.cli import main
from gpu_envs.cli.commands import COMMANDS

COLUMNS = "80"
"""How wide the help is."""


def commands(_page: Path) -> str:
    """The help of all commands."""
    shown = [f"```text\n{printed(['--help'])}\n```"]
    shown += [f"## gpu-envs {name}\n\n```text\n{printed([name, '--help'])}\n```" for name in COMMANDS]
    return "\n\n".join(shown)


def printed(words: list[str]) -> str:
    """What a command prints, without colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(words)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).strip().splitlines())


MADE: Mapping[str, Callable[[Path], str]] = {"commands": commands}
"""By the name in the pages."""
