"""``gpu-envs new``: create the files of a new environment."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from gpu_envs import scaffold
from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo, program_command, wrap_table

_NEW = """Create a folder with a new environment: its rules, its spec, and a test. It starts as a small working
example, which you change: a boat that holds its position in a current or, for a team, its crew.

The rules are in C++, compiled for GPUs and CPUs. With --python they are Python functions, which are
translated to C++ and run as fast."""

_EXAMPLES = """examples:
  gpu-envs new my_env
  gpu-envs new envs/my_team --multi-agent --python"""


def new(argv: Sequence[str]) -> int:
    """``gpu-envs new NAME``: create the files of an environment; return the exit code."""
    parser = Parser("gpu-envs new", "gpu-envs new NAME [--multi-agent] [--python]", _NEW, _EXAMPLES)
    parser.add_argument("--multi-agent", action="store_true", help="create an environment with a team of agents")
    parser.add_argument("--python", action="store_true", help="write the rules in Python")
    parser.add_debug()
    args, path = parse_one(parser, argv, "name")
    if args.help:
        return parser.show_help()
    if path is None:
        parser.error("which name? Give a name for the environment, such as my_env")
    folder = Path(path)
    files = scaffold.write(folder, team=args.multi_agent, python=args.python)
    echo(wrap_table([("wrote", str(file)) if file == files[0] else ("", str(file)) for file in files]))
    echo(f"\nnext:\n{next_commands(folder, team=args.multi_agent)}")
    return OK


def next_commands(folder: Path, *, team: bool) -> str:
    """Return the shell commands that train, show and test the new environment, one per line."""
    name = folder.name
    run, target = Path("runs") / name, 150 if team else 190
    spec_path = shlex.quote(f"{folder / name}.py:{name.upper()}")
    program = program_command()
    train = f"  {program} train {spec_path} --target-return {target} --run-dir {run}"
    return f"{train}\n  {program} play {run}\n  pytest {shlex.quote(str(folder))}"
