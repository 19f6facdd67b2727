"""The command line: ``gpu-envs train``, ``gpu-envs list`` and so on; ``python -m gpu_envs`` is the same.

Exit codes:

    ====  =================================================================================
       0  success: all steps are done, or the target return is reached
       1  a failure that no option prevents, with Python's traceback; of gpu-envs check: the
          environment has a mistake
       2  a mistake of the user, which the message names; --debug shows Python's traceback
     130  interrupted (Ctrl-C, SIGTERM, SIGHUP); a training run is saved, and --resume continues it
     141  standard error is closed
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
from gpu_envs.cli.launched import FAILURE, LOST_PEER, OUT_OF_MEMORY, USER_MISTAKE, launched, report_error
from gpu_envs.cli.parser import CLOSED_OUTPUT, FAILED, INTERRUPTED, MISTAKE, OK, Parser, refuse_arguments
from gpu_envs.cli.report import echo, flush_output, redirect_to_devnull
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

_LIBRARY_ERRORS = (
    UnknownEnvironmentError,
    NoCompilerError,
    CompileError,
    DivergedError,
    NotWrittenError,
    LostProcessError,
)
_PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
_USER_ERRORS = (ValueError, TypeError, MemoryError, BlockingIOError, *_LIBRARY_ERRORS, *_PATH_ERRORS)
"""Exceptions about settings, environments and run directories that the user can fix."""

_FILE_SYSTEM_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Codes of an OSError that the user can fix."""

_GC_THRESHOLD = 20_000
"""New objects before the garbage collector runs. Importing torch creates many and no cycles that matter: at Python's
default the collector takes half a second in all, the last time when the process ends."""


def main(arguments: Sequence[str] | None = None, *, trainer: Any = None) -> int:
    """Run the command in the arguments after the program's name, None: ``sys.argv[1:]``; return the exit code.

    ``trainer``: an object with ``train``, ``resume`` and ``evaluate``; None: ``gpu_envs.training``.
    """
    if arguments is not None:
        return _main(list(arguments), trainer)
    gc.set_threshold(_GC_THRESHOLD)
    _open_closed_streams()
    code = _main(sys.argv[1:], trainer)
    gc.freeze()
    flush_output()
    if launched() and code not in (OK, INTERRUPTED):  # threads of torch that wait for other processes would abort it
        os._exit(code)
    if code == INTERRUPTED:  # another Ctrl-C now ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise a file of the run gets file descriptor 2, and libraries write their error messages into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, errors="replace"))


def _main(argv: list[str], trainer: Any) -> int:
    """Run a command; print the message of an error that the user can fix, and raise others; return the exit code."""
    debug = "--debug" in argv
    try:
        return _run([word for word in argv if word != "--debug"], trainer, ["--debug"] * debug)
    except _USER_ERRORS as error:
        if debug:
            raise
        return _report_user_error(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            redirect_to_devnull(sys.stdout)
            redirect_to_devnull(sys.stderr)
            return CLOSED_OUTPUT
        if debug or error.errno not in _FILE_SYSTEM_ERRORS:
            raise
        return _report_user_error(error)
    except ImportError as error:
        has_advice = isinstance(error, MissingExtraError) or "needs CuPy" in str(error)
        # Any other failed import is a bug in the installation or in this package: show its traceback.
        if debug or not (has_advice or (error.name or "").partition(".")[0] == "torch"):
            raise
        return _report_user_error(error, "" if has_advice else ". Training needs torch: pip install 'gpu_envs[train]'")
    except KeyboardInterrupt:
        echo("gpu-envs: interrupted", error=True)
        return INTERRUPTED
    except Exception as error:
        if debug or not report_error("".join(traceback.format_exception(error)).strip(), FAILURE):
            raise
        return FAILED


def _run(argv: list[str], trainer: Any, debug: list[str]) -> int:
    """Run the command that is the first argument or, without one, ``gpu-envs`` itself; return the exit code."""
    command = argv[0] if argv else "-"
    if command in COMMANDS:
        return COMMANDS[command].run(argv[1:] + debug, trainer)
    if not command.startswith("-"):
        raise ValueError(
            f"there is no command {command!r}{did_you_mean(command, COMMANDS)} Commands: {', '.join(COMMANDS)}"
        )
    summaries = "\n".join(f"  {name:12}{command.summary}" for name, command in COMMANDS.items())
    description = f"commands:\n{summaries}\n\ngpu-envs COMMAND --help shows the options of a command."
    parser = Parser("gpu-envs", "gpu-envs COMMAND ...", description)
    parser.add_argument("--version", action="store_true", help="print the version")
    args, extras = parser.parse_known_args(argv)
    refuse_arguments(parser, extras)
    if args.version:
        echo(f"gpu_envs {gpu_envs.__version__}")
        return OK
    if args.help:
        return parser.show_help()
    echo(parser.format_help().rstrip("\n"), error=True)
    return MISTAKE


def _report_user_error(error: Exception, advice: str = "") -> int:
    """Write an error to the launcher's file or, without a launcher, to standard error; return the exit code."""
    kinds = {LostProcessError: LOST_PEER, MemoryError: OUT_OF_MEMORY}
    kind = next((kind for cause, kind in kinds.items() if isinstance(error, cause)), USER_MISTAKE)
    if not report_error(f"{error}{advice}", kind):
        echo(f"gpu-envs: error: {error}{advice}", error=True)
    return MISTAKE


__all__ = ["INTERRUPTED", "MISTAKE", "OK", "main"]
