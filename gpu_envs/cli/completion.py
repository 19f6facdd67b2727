"""``gpu-envs completion``: what a shell offers after the words of a command line so far."""

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from gpu_envs.cli.parser import OK, Parser, take_one
from gpu_envs.cli.report import say
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry

_COMPLETION = """Print what makes a shell complete commands, options, environments, presets and runs.

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
"""What each shell is to load."""


def completion(words: Sequence[str]) -> int:
    """``gpu-envs completion SHELL``; ``--after WORD ...`` is what the shell calls then."""
    if words and words[0] == "--after":
        say("\n".join(offered(words[1:])))
        return OK
    parser = Parser("gpu-envs completion", "gpu-envs completion SHELL", _COMPLETION, _EXAMPLES)
    parser.add_debug()
    found, shell = take_one(parser, words, "shell")
    if found.help:
        return parser.show_help()
    if shell not in SHELLS:
        parser.error(f"which shell? Give one of {', '.join(SHELLS)}{did_you_mean(shell or '', SHELLS)}")
    say(SHELLS[shell])
    return OK


def offered(words: Sequence[str]) -> list[str]:
    """What the last word, of which a part may be typed, can become; nothing where files are to be offered."""
    *before, last = words or [""]
    return [word for word in _possible(before, last) if word.startswith(last)]


def _possible(before: Sequence[str], last: str) -> list[str]:
    from gpu_envs.cli.commands import COMMANDS
    from gpu_envs.cli.settings import words_of
    from gpu_envs.training.run import OF_A_POLICY

    if not before:
        return list(COMMANDS)
    trains = before[0] in ("train", "tune")
    if last.startswith("-"):
        policy, dot, _ = last.rpartition(".")
        return [f"{policy}.{name.replace('_', '-')}" for name in OF_A_POLICY if trains] if dot else _options(before[0])
    match before[-1]:
        case "completion":
            return list(SHELLS)
        case "--preset":
            from gpu_envs.training.presets import PRESETS

            return sorted({name for word in before for name in PRESETS.get(word, {})} | {"none"})
        case "--device":
            return ["auto", "cpu", "cuda"]
        case "--resume" | "eval":
            return _runs()
        case "play":
            return _runs() + registry.ids()
        case option if option.startswith("-"):
            return words_of(option) if trains else []
        case _:
            return registry.ids()


def _runs() -> list[str]:
    return sorted(str(path.parent) for path in Path("runs").glob("*/config.json"))


def _options(command: str) -> list[str]:
    """The options that the help of a command names."""
    from gpu_envs.cli.commands import COMMANDS

    text = io.StringIO()
    if command in COMMANDS:
        with contextlib.redirect_stdout(text):
            COMMANDS[command].run(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text.getvalue().partition("options:\n")[2])))
