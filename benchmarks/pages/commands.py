"""The help of every command, for the page of the command line."""

import contextlib
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_envs.cli import main
from gpu_envs.cli.commands import COMMANDS

COLUMNS = "80"
"""Width of the help, in characters."""


def commands(_page: Path) -> str:
    """Return the help of all commands."""
    blocks = [f"```text\n{run_command(['--help'])}\n```"]
    blocks += [f"## gpu-envs {name}\n\n```text\n{run_command([name, '--help'])}\n```" for name in COMMANDS]
    return "\n\n".join(blocks)


def run_command(arguments: list[str]) -> str:
    """Return the output of a command, without colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(arguments)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).strip().splitlines())


GENERATORS: Mapping[str, Callable[[Path], str]] = {"commands": commands}
"""Generators by the name of their block in the pages."""
