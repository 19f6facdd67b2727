"""The command line: ``gpu-envs train``, ``gpu-envs list`` and so on; ``python -m gpu_envs`` is the same.

Exit codes:

    ====  =================================================================================
       0  done: all steps taken, or the return that was aimed at reached
       1  something failed that no option could have prevented; Python's traceback says what. Of
          gpu-envs check: something is wrong with the environment
       2  a mistake in what was asked for; the message says which, --debug shows where
     130  interrupted (Ctrl-C, SIGTERM); a training run has saved what it had, and --resume goes on
     141  nobody reads standard error any more, so the command gave up
    ====  =================================================================================
"""

import errno
import sys
from collections.abc import Sequence
from typing import Any

import gpu_envs
from gpu_envs.cli.commands import COMMANDS
from gpu_envs.cli.parser import INTERRUPTED, MISTAKE, OK, UNREAD, Parser, refuse_extras
from gpu_envs.cli.report import hush, say
from gpu_envs.errors import CompileError, DivergedError, NoCompilerError, UnknownEnvironmentError, did_you_mean
from gpu_envs.extras import MissingExtraError

_MISTAKES = (
    ValueError,
    TypeError,
    UnknownEnvironmentError,
    NoCompilerError,
    CompileError,
    DivergedError,
    MemoryError,
    BlockingIOError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
"""What settings, environments and run directories raise where the user can mend it."""

_FULL = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EROFS)
"""What else a file system may say that the user can mend."""


def main(arguments: Sequence[str] | None = None, *, trainer: Any = None) -> int:
    """Runs a command.

    Args:
        arguments: The words after the program's name; None: those it was started with.
        trainer: What has ``train``, ``resume`` and ``evaluate``; None: ``gpu_envs.training``.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        return _run([word for word in words if word != "--debug"], trainer)
    except _MISTAKES as error:
        if debug:
            raise
        say(f"gpu-envs: error: {error}", error=True)
        return MISTAKE
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            hush(sys.stdout)
            hush(sys.stderr)
            return UNREAD
        if debug or error.errno not in _FULL:
            raise
        say(f"gpu-envs: error: {error}", error=True)
        return MISTAKE
    except ImportError as error:
        # Anything else that cannot be imported is a fault of the installation or of ours: its traceback helps.
        if debug or not _is_optional(error):
            raise
        say(f"gpu-envs: error: {error}{_advice(error)}", error=True)
        return MISTAKE
    except KeyboardInterrupt:
        say("gpu-envs: interrupted", error=True)
        return INTERRUPTED


def _run(words: list[str], trainer: Any) -> int:
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]].run(words[1:], trainer)
    if words and not words[0].startswith("-"):
        raise ValueError(
            f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)} There are: {', '.join(COMMANDS)}"
        )
    listed = "\n".join(f"  {name:8}{command.summary}" for name, command in COMMANDS.items())
    parser = Parser("gpu-envs", "gpu-envs COMMAND ...", f"commands:\n{listed}\n\ngpu-envs COMMAND --help says more.")
    parser.add_argument("--version", action="store_true", help="print the version")
    found, extras = parser.parse_known_args(words)
    refuse_extras(parser, extras)
    if found.version:
        say(f"gpu_envs {gpu_envs.__version__}")
        return OK
    say(parser.format_help().rstrip("\n"), error=not found.help)
    return OK if found.help else MISTAKE


def _is_optional(error: ImportError) -> bool:
    if isinstance(error, MissingExtraError):
        return True
    return (error.name or "").partition(".")[0] == "torch" or "needs CuPy" in str(error)


def _advice(error: ImportError) -> str:
    if isinstance(error, MissingExtraError):
        return ""
    return "" if "needs CuPy" in str(error) else ". Training needs torch: pip install torch"


__all__ = ["INTERRUPTED", "MISTAKE", "OK", "main"]
