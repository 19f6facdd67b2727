"""``gpu-envs new``: an environment to begin with."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from gpu_envs import scaffold
from gpu_envs.cli.parser import OK, Parser, take_one
from gpu_envs.cli.report import say, this_program, wrapped

_NEW = """Write an environment of your own into a folder of its name: the rules, a spec that names all else,
and a test. It is a small one that works, to be changed into yours: a boat that keeps its place in
a current or, of a team, its crew.

Rules are in C++, compiled for GPUs and CPUs alike; with --python they are functions in Python,
which are translated to that and cost no more."""

_EXAMPLES = """examples:
  gpu-envs new my_env
  gpu-envs new envs/my_team --multi-agent --python"""


def new(words: Sequence[str]) -> int:
    """``gpu-envs new NAME``."""
    parser = Parser("gpu-envs new", "gpu-envs new NAME [--multi-agent] [--python]", _NEW, _EXAMPLES)
    parser.add_argument("--multi-agent", action="store_true", help="one with a team of agents")
    parser.add_argument("--python", action="store_true", help="with rules in Python")
    parser.add_debug()
    found, word = take_one(parser, words, "name")
    if found.help:
        return parser.show_help()
    if word is None:
        parser.error("what is it called? Give a name, such as my_env")
    folder = Path(word)
    files = scaffold.write(folder, team=found.multi_agent, python=found.python)
    say(wrapped([("wrote", str(file)) if file == files[0] else ("", str(file)) for file in files]))
    say(f"\nnext:\n{next_steps(folder, team=found.multi_agent)}")
    return OK


def next_steps(folder: Path, *, team: bool) -> str:
    """Commands that try out what was written."""
    name = folder.name
    run, goal = Path("runs") / name, 150 if team else 190
    place = shlex.quote(f"{folder / name}.py:{name.upper()}")
    program = this_program()
    train = f"  {program} train {place} --target-return {goal} --run-dir {run}"
    return f"{train}\n  {program} play {run} --trust\n  pytest {shlex.quote(str(folder))}"
