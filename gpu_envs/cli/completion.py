"""``gpu-envs completion``: tab completion for bash, zsh and fish."""

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry

_COMPLETION = """Print a script that adds tab completion of commands, options, environments, presets and runs.

SHELL is bash, zsh or fish."""

_EXAMPLES = """examples:
  gpu-envs completion bash >> ~/.bashrc
  gpu-envs completion zsh >> ~/.zshrc
  gpu-envs completion fish > ~/.config/fish/completions/gpu-envs.fish"""

_BASH = """_gpu_envs() {
  local IFS=$'\\n'
  COMPREPLY=($(gpu-envs completion --after "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null))
}
complete -o default -F _gpu_envs gpu-envs"""

SHELLS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_BASH}",
    "fish": "complete -c gpu-envs -a '(gpu-envs completion --after (commandline -opc)[2..] (commandline -ct))'",
}
"""The completion script of each shell."""


def completion(argv: Sequence[str]) -> int:
    """``gpu-envs completion SHELL``: print a script; it calls ``--after WORD ...``, which prints the completions."""
    if argv and argv[0] == "--after":
        echo("\n".join(completions(argv[1:])))
        return OK
    parser = Parser("gpu-envs completion", "gpu-envs completion SHELL", _COMPLETION, _EXAMPLES)
    parser.add_debug()
    args, shell = parse_one(parser, argv, "shell")
    if args.help:
        return parser.show_help()
    if shell not in SHELLS:
        parser.error(f"which shell? Give {', '.join(SHELLS)}{did_you_mean(shell or '', SHELLS)}")
    echo(SHELLS[shell])
    return OK


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last word of a command line; empty: the shell completes file names."""
    *before, last = words or [""]
    return [word for word in _candidates(before, last) if word.startswith(last)]


def _candidates(before: Sequence[str], last: str) -> list[str]:
    """Return the words that may follow the words ``before``: options if ``last`` starts with ``-``."""
    from gpu_envs.cli.commands import COMMANDS
    from gpu_envs.cli.settings import choices_of
    from gpu_envs.training.run import POLICY_SETTINGS

    if not before:
        return list(COMMANDS)
    trains = before[0] in ("train", "tune")
    if last.startswith("-"):
        policy, dot, _ = last.rpartition(".")
        names = (name.replace("_", "-") for name in POLICY_SETTINGS)
        return [f"{policy}.{name}" for name in names if trains] if dot else _options(before[0])
    match before[-1]:
        case "completion":
            return list(SHELLS)
        case "--preset":
            from gpu_envs.training.presets import PRESETS

            return sorted({name for word in before for name in PRESETS.get(word, {})} | {"none"})
        case "--device":
            return ["auto", "cpu", "cuda"]
        case "--resume" | "eval" | "compare" | "export" | "tournament":
            return _runs()
        case "play":
            return _runs() + registry.ids()
        case option if option.startswith("-"):
            return choices_of(option) if trains else []
        case _:
            return registry.ids()


def _runs() -> list[str]:
    return sorted(str(path.parent) for path in Path("runs").glob("*/config.json"))


def _options(command: str) -> list[str]:
    """Return the options of a command, read from its help."""
    from gpu_envs.cli.commands import COMMANDS

    text = io.StringIO()
    if command in COMMANDS:
        with contextlib.redirect_stdout(text):
            COMMANDS[command].run(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text.getvalue().partition("options:\n")[2])))
