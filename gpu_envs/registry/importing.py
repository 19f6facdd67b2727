"""Imports files and modules of others, and tells what is wrong with them by their authors' own lines."""

import contextlib
import contextvars
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from gpu_envs.errors import SourceError, did_you_mean, display

_FILES: dict[str, tuple[bytes, types.ModuleType, int]] = {}
"""By path: the text that was imported, the module, and which import it was."""
_SIBLINGS: dict[str, Path] = {}
"""Modules that were found beside a file, and the folder."""
_TEXTS: dict[Path, dict[Path, bytes]] = {}
"""By folder: its files that were imported as siblings, and their texts then."""
_TURNS = itertools.count(1)
_NOW: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar("now", default=("", 0))
_UNDO: contextvars.ContextVar[list[Callable[[], object]] | None] = contextvars.ContextVar("undo", default=None)
"""What to call if the import that goes on now fails."""
_INSTALLED_ALONE: contextvars.ContextVar[bool] = contextvars.ContextVar("installed_alone", default=False)
"""Whether modules of the working folder are left out."""


def importing() -> tuple[str, int]:
    """The file that is being imported now, and which import that is; an empty path and 0 where none is."""
    return _NOW.get()


def on_failure(undo: Callable[[], object]) -> None:
    """Has something called if the import that goes on now fails; where none goes on, nothing."""
    kept = _UNDO.get()
    if kept is not None:
        kept.append(undo)


@contextlib.contextmanager
def _undone_on_failure() -> Iterator[None]:
    """Calls what ``on_failure`` was given within it, the last first, if it fails."""
    kept: list[Callable[[], object]] = []
    token = _UNDO.set(kept)
    try:
        yield
    except BaseException:
        for undo in reversed(kept):
            undo()
        raise
    finally:
        _UNDO.reset(token)


def import_file(path: Path) -> tuple[types.ModuleType, int]:
    """The module of a file, and which import that is.

    The file is imported again when its text has changed, or that of a file beside it that was imported along. Of an
    import that fails nothing stays.

    Raises:
        FileNotFoundError: There is none.
        SourceError: It cannot be imported.
    """
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        beside = [display(each) for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        shown = display(path)
        raise FileNotFoundError(f"there is no file {shown!r}{did_you_mean(shown, beside)}") from None
    _forget_changed(path.parent)
    known = _FILES.get(str(path))
    if known is not None and known[0] == text:
        return known[1], known[2]
    turn, name = next(_TURNS), _module_name(path)
    made = importlib.util.spec_from_file_location(name, path)
    assert made is not None
    module = importlib.util.module_from_spec(made)
    before = sys.modules.get(name)
    sys.modules[name] = module
    token = _NOW.set((str(path), turn))
    try:
        with _undone_on_failure(), _beside(path.parent), explained(path.parent, display(path)):
            exec(compile(text, str(path), "exec"), vars(module))  # by the loader an old .pyc could be taken for it
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    finally:
        _NOW.reset(token)
    _FILES[str(path)] = text, module, turn
    return module, turn


def _module_name(path: Path) -> str:
    """One that no other file or package has."""
    stem = re.sub(r"\W", "_", path.stem)
    return f"gpu_envs_file_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def import_module(name: str) -> types.ModuleType:
    """A module by its name; those in the working folder are found too, as by ``python -m``.

    Raises:
        SourceError: It is not there, or cannot be imported.
    """
    with contextlib.nullcontext() if _INSTALLED_ALONE.get() else _importable(Path.cwd()):
        try:
            with _undone_on_failure(), explained(None, f"the module {name!r}"):
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
def _beside(folder: Path) -> Iterator[None]:
    """Within it, modules beside a file can be imported; those beside files elsewhere, of the same names, give way."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    for name in [name for name, other in _SIBLINGS.items() if other != folder and _is_there(folder, name)]:
        _forget(name)
    importlib.invalidate_caches()  # a file that was made just now is there too
    before, writes_none = set(sys.modules), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a text of the same length, saved in the same second, would be taken for it
    try:
        with _importable(folder):
            yield
    except BaseException:
        for name in _found_beside(folder, before):
            _forget(name)
        raise
    finally:
        sys.dont_write_bytecode = writes_none
        for name in _found_beside(folder, before):
            _note(folder, name, Path(str(sys.modules[name].__file__)))


def _found_beside(folder: Path, before: set[str]) -> list[str]:
    """The modules of a folder that were not there before."""
    if folder.name in ("site-packages", "dist-packages"):
        return []  # what is installed is Python's own
    places = {name: getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before}
    return [name for name, at in places.items() if at and Path(at).is_relative_to(folder) and _is_there(folder, name)]


def _note(folder: Path, name: str, file: Path) -> None:
    _SIBLINGS[name] = folder
    with contextlib.suppress(OSError):
        _TEXTS.setdefault(folder, {})[file] = file.read_bytes()


def _forget(name: str) -> None:
    _SIBLINGS.pop(name, None)
    sys.modules.pop(name, None)


def _forget_changed(folder: Path) -> None:
    """Lets all of a folder be imported anew, where a file changed that was imported along with another."""
    for file, text in _TEXTS.get(folder, {}).items():
        try:
            if file.read_bytes() == text:
                continue
        except OSError:
            pass
        break
    else:
        return
    del _TEXTS[folder]
    for name in [name for name, other in _SIBLINGS.items() if other == folder]:
        _forget(name)
    for path in [path for path in _FILES if Path(path).parent == folder]:
        del _FILES[path]


@final
class _Later(importlib.abc.MetaPathFinder):
    """Finds modules beside a file that was imported by its path, when its functions import them while they run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Asked last; looks beside the innermost of such files that is running."""
        del target
        folders = {Path(file).parent for file in _FILES}
        frame = sys._getframe(1) if path is None and folders else None
        while frame is not None:
            folder = Path(frame.f_code.co_filename).parent
            if folder in folders:
                found = importlib.machinery.PathFinder.find_spec(fullname, [str(folder)])
                if found is not None and found.origin is not None:
                    _note(folder, fullname, Path(found.origin))
                return found
            frame = frame.f_back
        return None


_FINDER = _Later()


def _is_there(folder: Path, name: str) -> bool:
    """Whether a folder has the file or the package of a module's first name."""
    first = folder / name.partition(".")[0]
    return first.with_suffix(".py").is_file() or first.is_dir()


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
            text = str(error)
        if not place:
            raise SourceError(f"{what} cannot be imported: {kind}: {text}{hint}") from error
        linecache.checkcache(place)
        source = linecache.getline(place, line).strip()
        shown = f"\n    {source}" if source else ""
        raise SourceError(f"{display(place)}:{line}: {kind}: {text}{hint}{shown}") from error


def _own_line(error: BaseException, folder: Path | None) -> tuple[str, int]:
    """The last line of the user's own that led to an error; an empty path where there is none."""
    ours = Path(__file__).parent
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename)
        if folder is not None and path.is_relative_to(folder) and not path.is_relative_to(ours):
            return str(path), line
        if folder is None and path.is_file() and not path.is_relative_to(ours) and "importlib" not in path.parts:
            return str(path), line
    return "", 0
