"""Loads users' files and the modules next to them under unique names, and undoes the effects of a failed import."""

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

SOURCE_TEXTS: dict[Path, bytes] = {}
"""Text of each loaded file at its import, except for files that a warning has named."""
_MODULE_SPECS: dict[str, ModuleSpec] = {}
"""Module specs by their unique names; ``loader_state`` is the folder of the module."""
_CURRENT_IMPORT: contextvars.ContextVar[tuple[str, contextlib.ExitStack] | None] = contextvars.ContextVar(
    "current_import", default=None
)


def importing() -> str:
    """Returns the path of the file that is being imported; an empty string if none is."""
    current = _CURRENT_IMPORT.get()
    return current[0] if current else ""


def on_failure(undo: Callable[[], object]) -> None:
    """Registers a callback for the case that the current import fails; does nothing if there is none."""
    if current := _CURRENT_IMPORT.get():
        current[1].callback(undo)


@contextlib.contextmanager
def undo_on_failure(path: str = "") -> Iterator[None]:
    """Context that undoes registrations and imports, in reverse order, if it or a context around it fails."""
    outer = _CURRENT_IMPORT.get()
    with contextlib.ExitStack() as stack:
        token = _CURRENT_IMPORT.set((path, stack))
        try:
            yield
        finally:
            _CURRENT_IMPORT.reset(token)
        callbacks = stack.pop_all()
        if outer:
            outer[1].push(callbacks)


def load(path: Path) -> types.ModuleType:
    """Returns the module of a file, which is executed once per process."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    name = _unique_name(spec, path.parent)
    if name not in sys.modules:
        importlib.invalidate_caches()  # a module next to it may be new
    return importlib.import_module(name)


def _unique_name(spec: ModuleSpec, folder: Path) -> str:
    """Renames a module uniquely, as other folders may have the same name; returns the name, which ``_Finder`` knows."""
    locations = spec.submodule_search_locations
    if locations is not None:
        spec.submodule_search_locations = [*locations]  # a copy: namespace packages follow sys.path
    path = spec.origin or str(folder / spec.name)
    name = f"gpu_envs_file_{spec.name.replace('.', '_')}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    spec.name, spec.loader_state = name, folder
    _MODULE_SPECS.setdefault(name, spec)
    return name


def _sibling_module(folder: Path, name: str) -> ModuleSpec | None:
    """Returns the module in a folder that its files import by this name; None: they import it as other files do."""
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None or name == "gpu_envs" or name in sys.stdlib_module_names:
        return None
    if spec.origin is None:  # a namespace package: modules and packages precede it
        default = importlib.util.find_spec(name)
        return spec if default is None or default.origin is None else None
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return None if loaded and os.path.realpath(loaded) == os.path.realpath(spec.origin) else spec


def _import(
    folder: Path,
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    """``__import__`` of Python for files of a folder: modules next to them precede all others."""
    top, dot, rest = name.partition(".")
    sibling = None if level else _sibling_module(folder, top)
    if sibling is not None:
        name = f"{_unique_name(sibling, folder)}{dot}{rest}"
    return builtins.__import__(name, globals, locals, fromlist, level)


@final
class _Loader(SourceFileLoader):
    """Executes a file so that its import statements call ``_import``."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Compiles and executes the text: a ``.pyc`` could be outdated if the file was edited within a second."""
        text, folder = self.get_data(self.path), _MODULE_SPECS[self.name.partition(".")[0]].loader_state
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": functools.partial(_import, folder)}
        exec(self.source_to_code(text, self.path), vars(module))
        SOURCE_TEXTS[Path(self.path)] = text
        on_failure(functools.partial(_forget, self.name, Path(self.path)))


def _forget(name: str, file: Path) -> None:
    """Removes a module from ``sys.modules``, its package and ``SOURCE_TEXTS``, so that the file can be loaded again."""
    SOURCE_TEXTS.pop(file, None)
    sys.modules.pop(name, None)
    package, _, attribute = name.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(attribute, None)


@final
class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules that have a unique name, and their submodules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module with a unique name, or of its submodule, loaded by ``_Loader``; else None."""
        del target
        top, _, rest = fullname.partition(".")
        if top not in _MODULE_SPECS:
            return None
        spec = PathFinder.find_spec(fullname, path) if rest else _MODULE_SPECS[top]
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


_FINDER = _Finder()
