"""The command line: ``gpu-envs train``, ``gpu-envs list`` and so on; ``python -m gpu_envs`` is the same.

Exit codes:

    ====  =================================================================================
       0  done: all steps taken, or the return that was aimed at reached
       1  something failed that no option could have prevented; Python's traceback says what. Of
          gpu-envs check: something is wrong with the environment
       2  a mistake in what was asked for; the message says which, --debug shows where
     130  interrupted (Ctrl-C, SIGTERM, SIGHUP); a training run has saved what it had, and --resume goes on
     141  standard error was closed, so the command gave up
    ====  =================================================================================
"""

import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import gpu_envs
from gpu_envs.cli.commands import COMMANDS
from gpu_envs.cli.launched import FELL, LOST, MISTOOK, SHORT, launched, tell_launcher
from gpu_envs.cli.parser import FAILED, INTERRUPTED, MISTAKE, OK, UNREAD, Parser, refuse_extras
from gpu_envs.cli.report import hush, say, say_the_rest
from gpu_envs.errors import (
    CompileError,
    DivergedError,
    LostProcessError,
    NoCompilerError,
    NotWrittenError,
    UnknownEnvironmentError,
    did_you_mean,
)
from gpu_envs.extras import MissingExtraError

_MISTAKES = (
    ValueError,
    TypeError,
    UnknownEnvironmentError,
    NoCompilerError,
    CompileError,
    DivergedError,
    NotWrittenError,
    MemoryError,
    BlockingIOError,
    LostProcessError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
"""What settings, environments and run directories raise where the user can mend it."""

_FULL = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What else a file system may say that the user can mend."""


_OBJECTS = 20_000
"""So many more of them, and cycles are looked for. What torch makes when it is imported has none that matter, and to
look through all of it again and again, at last when the process ends, would take half a second."""


def main(arguments: Sequence[str] | None = None, *, trainer: Any = None) -> int:
    """Runs a command.

    Args:
        arguments: The words after the program's name; None: those it was started with.
        trainer: What has ``train``, ``resume`` and ``evaluate``; None: ``gpu_envs.training``.

    Returns:
        The exit code.
    """
    if arguments is not None:
        return _main(list(arguments), trainer)
    gc.set_threshold(_OBJECTS)
    _open_closed_streams()
    code = _main(sys.argv[1:], trainer)
    gc.freeze()
    say_the_rest()
    if launched() and code not in (OK, INTERRUPTED):  # torch's threads, which wait for the others, abort an orderly end
        os._exit(code)
    if code == INTERRUPTED:  # another Ctrl-C finds nothing left to interrupt, and ends the process without a word
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _open_closed_streams() -> None:
    """Opens the null device in place of closed standard streams.

    Otherwise a file of the run would get the number 2, and what libraries write to standard error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="replace"))


def _main(words: list[str], trainer: Any) -> int:
    debug = "--debug" in words
    try:
        return _run([word for word in words if word != "--debug"], trainer, ["--debug"] * debug)
    except _MISTAKES as error:
        if debug:
            raise
        return _mistake(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            hush(sys.stdout)
            hush(sys.stderr)
            return UNREAD
        if debug or error.errno not in _FULL:
            raise
        return _mistake(error)
    except ImportError as error:
        own_advice = isinstance(error, MissingExtraError) or "needs CuPy" in str(error)
        # Anything else that cannot be imported is a fault of the installation or of ours: its traceback helps.
        if debug or not (own_advice or (error.name or "").partition(".")[0] == "torch"):
            raise
        return _mistake(error, "" if own_advice else ". Training needs torch: pip install 'gpu_envs[train]'")
    except KeyboardInterrupt:
        say("gpu-envs: interrupted", error=True)
        return INTERRUPTED
    except Exception as error:
        if debug or not tell_launcher("".join(traceback.format_exception(error)).strip(), FELL):
            raise
        return FAILED


def _run(words: list[str], trainer: Any, debug: list[str]) -> int:
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]].run(words[1:] + debug, trainer)
    if words and not words[0].startswith("-"):
        raise ValueError(
            f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)} There are: {', '.join(COMMANDS)}"
        )
    listed = "\n".join(f"  {name:12}{command.summary}" for name, command in COMMANDS.items())
    parser = Parser("gpu-envs", "gpu-envs COMMAND ...", f"commands:\n{listed}\n\ngpu-envs COMMAND --help says more.")
    parser.add_argument("--version", action="store_true", help="print the version")
    found, extras = parser.parse_known_args(words)
    refuse_extras(parser, extras)
    if found.version:
        say(f"gpu_envs {gpu_envs.__version__}")
        return OK
    if found.help:
        return parser.show_help()
    say(parser.format_help().rstrip("\n"), error=True)
    return MISTAKE


def _mistake(error: Exception, advice: str = "") -> int:
    kind = LOST if isinstance(error, LostProcessError) else SHORT if isinstance(error, MemoryError) else MISTOOK
    if not tell_launcher(f"{error}{advice}", kind):
        say(f"gpu-envs: error: {error}{advice}", error=True)
    return MISTAKE


__all__ = ["INTERRUPTED", "MISTAKE", "OK", "main"]
