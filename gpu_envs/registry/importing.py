"""Imports files and modules of users, and tells what is wrong with them by their authors' own lines."""

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

_INSTALLED_ALONE: contextvars.ContextVar[bool] = contextvars.ContextVar("installed_alone", default=False)
"""Whether modules of the working folder are left out."""
_LIBRARIES = {"site-packages", "dist-packages"}
"""Folders of distributions, which may lie in the folder of a user's file, as in ``.venv``."""


def import_file(path: Path) -> types.ModuleType:
    """The module of a file, which is imported once in a process.

    A warning names files that were imported and have been edited since. A failed import leaves nothing behind.

    Raises:
        FileNotFoundError: There is no such file.
        SourceError: It cannot be imported.
    """
    folder, shown = path.parent, display(path)
    if not path.is_file():
        beside = [display(file) for file in folder.glob("*.py")] if folder.is_dir() else []
        raise FileNotFoundError(f"there is no file {shown!r}{did_you_mean(shown, beside)}")
    _warn_of_edits(folder)
    with loading.undone_on_failure(str(path)), explained(folder, shown):
        return loading.load(path)


def _warn_of_edits(folder: Path) -> None:
    """Warns once of each file in a folder that has been edited since it was imported."""
    for file, text in [*loading.TEXTS.items()]:
        if file.is_relative_to(folder) and file.is_file() and file.read_bytes() != text:
            loading.TEXTS.pop(file, None)
            warnings.warn(
                f"{display(file)} has changed since it was imported; the edit is not used: restart this process (in a "
                "notebook, the kernel) to use it",
                stacklevel=2,
            )


def import_module(name: str) -> types.ModuleType:
    """A module by its name; those in the working folder are found too, as by ``python -m``.

    Raises:
        SourceError: It is not there, or cannot be imported.
    """
    with contextlib.nullcontext() if _INSTALLED_ALONE.get() else _importable(Path.cwd()):
        try:
            with explained(None, f"the module {name!r}"):
                return importlib.import_module(name)
        except SourceError as error:
            cause = error.__cause__
            missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
            if missing is None or not f"{name}.".startswith(f"{missing}."):
                raise
            file = Path(f"{name.replace('.', '/')}.py")
            hint = f"Did you mean {str(file)!r}, the file?" if file.is_file() else "A file is named by its path."
            raise SourceError(
                f"there is no module {missing!r}: it is not installed, and not in {Path.cwd()}. {hint}"
            ) from cause


@contextlib.contextmanager
def installed_alone() -> Iterator[None]:
    """Within it, no module is found because it stands in the working folder."""
    before, token = list(sys.path), _INSTALLED_ALONE.set(True)
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path.cwd()]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        _INSTALLED_ALONE.reset(token)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Within it, modules of a folder can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


@contextlib.contextmanager
def explained(folder: Path | None, what: str) -> Iterator[None]:
    """Turns what the import of a user's file raises into a SourceError with the user's own line.

    It is one in ``folder``; None: anywhere outside this package.
    """
    try:
        yield
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, SystemExit):
            hint = " (it ends the process: put all but definitions under if __name__ == '__main__')"
        elif isinstance(error, ImportError) and "relative import" in str(error):
            hint = " (a file of a package is named as a module: package.module:MY_ENV)"
        kind = type(error).__name__
        if isinstance(error, SyntaxError) and error.filename:
            place, line, text = error.filename, error.lineno or 0, error.msg
        else:
            place, line = _own_line(error, folder)
            text = re.sub(r"gpu_envs_file_(\w+)_[0-9a-f]{12}", r"\1", str(error))
        if not place:
            raise SourceError(f"{what} cannot be imported: {kind}: {text}{hint}") from error
        linecache.checkcache(place)
        source = linecache.getline(place, line).strip()
        shown = f"\n    {source}" if source else ""
        raise SourceError(f"{display(place)}:{line}: {kind}: {text}{hint}{shown}") from error


def _own_line(error: BaseException, folder: Path | None) -> tuple[str, int]:
    """The last line of the user's own that led to an error; an empty path where there is none."""
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
