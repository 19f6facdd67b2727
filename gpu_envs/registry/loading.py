"""Loads a user's file and the modules beside it under names of their own, and undoes what a failed import did."""

import builtins
import contextlib
import contextvars
import functools
import hashlib
import importlib.abc
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, final

TEXTS: dict[Path, bytes] = {}
"""The text of each loaded file as it was then; without the files that a warning has named."""
_FOUND: dict[str, ModuleSpec] = {}
"""Specs of modules and packages by the names that they have here; ``loader_state`` is the folder that they lie in."""
_NOW: contextvars.ContextVar[tuple[str, contextlib.ExitStack] | None] = contextvars.ContextVar("now", default=None)


def importing() -> str:
    """The file that is being imported by its path; empty where there is none."""
    now = _NOW.get()
    return now[0] if now else ""


def on_failure(undo: Callable[[], object]) -> None:
    """Calls ``undo`` if the import that is under way fails; does nothing without one."""
    if now := _NOW.get():
        now[1].callback(undo)


@contextlib.contextmanager
def undone_on_failure(path: str = "") -> Iterator[None]:
    """Undoes what is registered and loaded within it if it fails, or later what is around it, the last first."""
    around = _NOW.get()
    with contextlib.ExitStack() as stack:
        token = _NOW.set((path, stack))
        try:
            yield
        finally:
            _NOW.reset(token)
        done = stack.pop_all()
        if around:
            around[1].push(done)


def load(path: Path) -> types.ModuleType:
    """The module of a file, which runs once in a process."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    name = _named(found, path.parent)
    if name not in sys.modules:
        importlib.invalidate_caches()  # a file beside it may have been made just now
    return importlib.import_module(name)


def _named(found: ModuleSpec, folder: Path) -> str:
    """The name here of a module or package in a folder: other folders may have modules of its own name."""
    locations = found.submodule_search_locations
    if locations is not None:
        found.submodule_search_locations = [*locations]  # those of a folder without __init__.py follow sys.path
    place = found.origin or str(folder / found.name)
    name = f"gpu_envs_file_{found.name.replace('.', '_')}_{hashlib.sha256(os.fsencode(place)).hexdigest()[:12]}"
    found.name, found.loader_state = name, folder
    _FOUND.setdefault(name, found)
    return name


def _beside(folder: Path, name: str) -> ModuleSpec | None:
    """The module or package of a folder that its files mean by a name; None: they mean what any file would."""
    found = PathFinder.find_spec(name, [str(folder)])
    if found is None or name == "gpu_envs" or name in sys.stdlib_module_names:
        return None
    if found.origin is None:  # a folder without __init__.py: any module or package goes before it
        usual = importlib.util.find_spec(name)
        return found if usual is None or usual.origin is None else None
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return None if loaded and os.path.realpath(loaded) == os.path.realpath(found.origin) else found


def _import(
    folder: Path,
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    """Python's ``__import__`` for the files of a folder: modules beside them go before all others."""
    first, dot, rest = name.partition(".")
    found = None if level else _beside(folder, first)
    if found is not None:
        name = f"{_named(found, folder)}{dot}{rest}"
    return builtins.__import__(name, globals, locals, fromlist, level)


@final
class _Loader(SourceFileLoader):
    """Runs a file so that its import statements call ``_import``."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs the text itself: an old ``.pyc`` could be taken for one that was mended within the same second."""
        text, folder = self.get_data(self.path), _FOUND[self.name.partition(".")[0]].loader_state
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": functools.partial(_import, folder)}
        exec(self.source_to_code(text, self.path), vars(module))
        TEXTS[Path(self.path)] = text
        on_failure(functools.partial(_forget, self.name, Path(self.path)))


def _forget(name: str, file: Path) -> None:
    TEXTS.pop(file, None)
    sys.modules.pop(name, None)
    package, _, attribute = name.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(attribute, None)


@final
class _Finder(importlib.abc.MetaPathFinder):
    """Finds what ``_named`` has named, and what is in those packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec, whose loader is ``_Loader`` if it is a Python file."""
        del target
        first, _, rest = fullname.partition(".")
        if first not in _FOUND:
            return None
        found = PathFinder.find_spec(fullname, path) if rest else _FOUND[first]
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(fullname, found.loader.path)
        return found


_FINDER = _Finder()
