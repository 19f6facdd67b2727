"""Imports users' files and modules, and reports errors with the user's line of code."""

import contextlib
import contextvars
import importlib
import linecache
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

from gpu_envs.errors import SourceError, did_you_mean, display
from gpu_envs.registry import loading

_WITHOUT_WORKING_FOLDER: contextvars.ContextVar[bool] = contextvars.ContextVar("without_working_folder", default=False)
"""Whether modules of the working folder are ignored."""
_LIBRARIES = {"site-packages", "dist-packages"}
"""Folders of installed packages, which a user's folder may contain, as in ``.venv``."""


def import_file(path: Path) -> types.ModuleType:
    """Returns the module of a file, which is imported once per process.

    A warning names files that were edited after the import. A failed import has no effects.

    Raises:
        FileNotFoundError: The file does not exist.
        SourceError: The file cannot be imported.
    """
    folder, name = path.parent, display(path)
    if not path.is_file():
        siblings = [display(file) for file in folder.glob("*.py")] if folder.is_dir() else []
        raise FileNotFoundError(f"there is no file {name!r}{did_you_mean(name, siblings)}")
    _warn_of_edits(folder)
    with loading.undo_on_failure(str(path)), source_errors(folder, name):
        return loading.load(path)


def _warn_of_edits(folder: Path) -> None:
    """Warns once about each file in a folder that was edited after the import."""
    for file, text in [*loading.SOURCE_TEXTS.items()]:
        if file.is_relative_to(folder) and file.is_file() and file.read_bytes() != text:
            loading.SOURCE_TEXTS.pop(file, None)
            warnings.warn(
                f"{display(file)} has changed since it was imported, and the change has no effect: restart this "
                "process (in a notebook, the kernel)",
                stacklevel=2,
            )


def import_module(name: str) -> types.ModuleType:
    """Imports and returns a module by name, also from the working folder, like ``python -m``.

    Raises:
        SourceError: The module does not exist, or cannot be imported.
    """
    with contextlib.nullcontext() if _WITHOUT_WORKING_FOLDER.get() else _importable(Path.cwd()):
        try:
            with source_errors(None, f"the module {name!r}"):
                return importlib.import_module(name)
        except SourceError as error:
            cause = error.__cause__
            missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
            if missing is None or not f"{name}.".startswith(f"{missing}."):
                raise
            file = Path(f"{name.replace('.', '/')}.py")
            hint = f"Did you mean {str(file)!r}, the file?" if file.is_file() else "To import a file, give its path."
            raise SourceError(
                f"there is no module {missing!r}: it is not installed, and not in {Path.cwd()}. {hint}"
            ) from cause


@contextlib.contextmanager
def without_working_folder() -> Iterator[None]:
    """Context without the working folder in the search path for modules."""
    saved, token = list(sys.path), _WITHOUT_WORKING_FOLDER.set(True)
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path.cwd()]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = saved
        _WITHOUT_WORKING_FOLDER.reset(token)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Context with a folder in the search path for modules."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


@contextlib.contextmanager
def source_errors(folder: Path | None, what: str) -> Iterator[None]:
    """Context that turns an exception of a user's import into a SourceError with the user's line of code.

    The line is in ``folder``. None: anywhere outside this package.
    """
    try:
        yield
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, SystemExit):
            hint = " (the file ends the process: put all but definitions under if __name__ == '__main__')"
        elif isinstance(error, ImportError) and "relative import" in str(error):
            hint = " (to import a file of a package, name the module: package.module:MY_ENV)"
        kind = type(error).__name__
        if isinstance(error, SyntaxError) and error.filename:
            file, line, text = error.filename, error.lineno or 0, error.msg
        else:
            file, line = _user_line(error, folder)
            text = re.sub(r"gpu_envs_file_(\w+)_[0-9a-f]{12}", r"\1", str(error))
        if not file:
            raise SourceError(f"{what} cannot be imported: {kind}: {text}{hint}") from error
        linecache.checkcache(file)
        source = linecache.getline(file, line).strip()
        code = f"\n    {source}" if source else ""
        raise SourceError(f"{display(file)}:{line}: {kind}: {text}{hint}{code}") from error


def _user_line(error: BaseException, folder: Path | None) -> tuple[str, int]:
    """Returns file and number of the user's last line in a traceback; an empty file if there is none."""
    package = Path(__file__).parents[1]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(package) or not path.is_file():
            continue
        if folder is None and "importlib" not in path.parts:
            return str(path), line
        if folder is not None and path.is_relative_to(folder) and not {*path.relative_to(folder).parts} & _LIBRARIES:
            return str(path), line
    return "", 0
