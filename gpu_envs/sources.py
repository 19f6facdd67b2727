"""Where specs come from besides this package: Python files, modules, and installed distributions."""

import contextlib
import contextvars
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import itertools
import linecache
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import final

from gpu_envs.errors import SourceError, did_you_mean
from gpu_envs.spec import Spec

GROUP = "gpu_envs.environments"
"""The entry points by which distributions name their specs: ``name = "package.module:MY_ENV"``, or an iterable."""


@final
@dataclasses.dataclass(frozen=True)
class Reference:
    """What names a spec by its place: ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``."""

    place: str
    """The absolute path of a file, or the name of a module."""
    name: str
    """Of the spec there; empty where the file has but one."""

    @property
    def is_file(self) -> bool:
        """Whether the place is a file."""
        return self.place.endswith(".py")

    def __str__(self) -> str:
        """As it was given, but for the path, which is absolute."""
        return f"{self.place}:{self.name}" if self.name else self.place


@final
@dataclasses.dataclass(frozen=True)
class Origin:
    """Whence a spec came."""

    shown: str
    """For people."""
    reference: str = ""
    """What finds the spec in any process: an id or a reference. Empty where nothing does."""
    turn: int = 0
    """Which import of its file it was; 0: one that Python's own import statement made."""
    file: str = ""
    """The file that makes the spec."""

    def replaces(self, other: "Origin") -> bool:
        """Whether a spec from here is another's from there, edited and imported anew."""
        if not self.file or self.file != other.file:
            return False
        by_hand = (not self.reference, not other.reference)
        same_name = self.reference.rpartition(":")[2] == other.reference.rpartition(":")[2]
        return self.turn > other.turn or (by_hand != (True, True) and (any(by_hand) or same_name))


BY_HAND = Origin("registered by hand")


def parse(text: str) -> Reference | None:
    """Reads ``path/to/my_env.py:MY_ENV``, ``path/to/my_env.py`` or ``package.module:MY_ENV``; None: it is an id."""
    found = re.fullmatch(r"(?P<path>.+\.py)(?::(?P<name>.*))?", text)
    if found is not None:
        name = found["name"]
        if name is not None and not name.isidentifier():
            raise SourceError(f"{text!r}: behind the colon stands the name of a spec in that file, such as MY_ENV")
        return Reference(str(Path(found["path"]).expanduser().resolve()), name or "")
    place, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        return Reference(place, name)
    return None


def load(reference: Reference) -> tuple[Spec, Origin]:
    """Imports a file or module, and takes the spec out of it.

    Raises:
        FileNotFoundError: There is no such file.
        SourceError: It cannot be imported, or has no such spec.
    """
    module, turn = imported(reference)
    specs = specs_of(module)
    where = display(reference.place) if reference.is_file else f"the module {reference.place!r}"
    listed = f"Its specs are: {', '.join(specs)}" if specs else "It has no spec: assign an EnvSpec or a TeamSpec there"
    name = reference.name
    if not name:
        if len(specs) != 1:
            which = f"; say which, such as {where}:{next(iter(specs))}" if specs else ""
            raise SourceError(f"{where} has {len(specs)} specs{which}. {listed}")
        (name,) = specs
    if name not in vars(module):
        raise SourceError(f"{where} has no {name!r}{did_you_mean(name, specs)} {listed}")
    spec = getattr(module, name)
    if not isinstance(spec, Spec):
        raise SourceError(
            f"{where}:{name} is {_described(spec)}, not an EnvSpec or a TeamSpec{did_you_mean(name, specs)} {listed}"
        )
    found = str(Reference(reference.place, name))
    return spec, Origin(found, found, turn)


def load_all(reference: Reference) -> list[tuple[Spec, Origin]]:
    """All specs of a file or a module, whatever name the reference has."""
    module, _ = imported(reference)
    names = list(specs_of(module))
    if not names:
        return [load(reference)]  # says that there are none
    return [load(Reference(reference.place, name)) for name in names]


def specs_of(module: types.ModuleType) -> dict[str, Spec]:
    """The specs that a module's names stand for, each once; those of this package, which it may use, left out."""
    from gpu_envs.envs import ALL

    taken = {id(spec) for spec in ALL}
    found: dict[str, Spec] = {}
    for name, value in vars(module).items():
        if isinstance(value, Spec) and id(value) not in taken:
            taken.add(id(value))
            found[name] = value
    return found


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', value)}"
    return f"a {type(value).__name__}"


def display(path: str | Path) -> str:
    """A path as people read it: from the working folder where it lies therein."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


# --- importing ---

_FILES: dict[str, tuple[bytes, types.ModuleType, int]] = {}
"""By path: the text that was imported, the module, and which import it was."""
_TURNS = itertools.count(1)
_IMPORTING: contextvars.ContextVar[Origin] = contextvars.ContextVar("importing", default=BY_HAND)


def importing() -> Origin:
    """Whence a spec comes that is registered now: from the file that is being imported, or by hand."""
    return _IMPORTING.get()


def imported(reference: Reference) -> tuple[types.ModuleType, int]:
    """The module of a reference, and which import of it that is: a file is imported again when its text has changed."""
    return _file(Path(reference.place)) if reference.is_file else (_module(reference.place), 0)


def _file(path: Path) -> tuple[types.ModuleType, int]:
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        beside = [display(each) for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        shown = display(path)
        raise FileNotFoundError(f"there is no file {shown!r}{did_you_mean(shown, beside)}") from None
    known = _FILES.get(str(path))
    if known is not None and known[0] == text:
        return known[1], known[2]
    turn, name = next(_TURNS), _module_name(path)
    made = importlib.util.spec_from_file_location(name, path)
    assert made is not None
    module = importlib.util.module_from_spec(made)
    before = sys.modules.get(name)
    sys.modules[name] = module
    linecache.checkcache(str(path))
    origin = Origin(str(path), "", turn)
    try:
        with _beside(path.parent), _within(origin), explained(path.parent, display(path)):
            exec(compile(text, str(path), "exec"), vars(module))  # by the loader an old .pyc could be taken for it
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    _FILES[str(path)] = text, module, turn
    return module, turn


def _module_name(path: Path) -> str:
    """One that no other file or package has."""
    stem = re.sub(r"\W", "_", path.stem)
    return f"gpu_envs_file_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _module(name: str) -> types.ModuleType:
    with _importable(Path.cwd()):
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
    for name in [name for name, other in _SIBLINGS.items() if other != folder and _is_there(folder, name)]:
        del _SIBLINGS[name]
        sys.modules.pop(name, None)
    before = set(sys.modules)
    try:
        with _importable(folder):
            yield
    finally:
        for name in set(sys.modules) - before:
            place = getattr(sys.modules[name], "__file__", None)
            if place and Path(place).is_relative_to(folder) and _is_there(folder, name):
                _SIBLINGS[name] = folder


_SIBLINGS: dict[str, Path] = {}
"""Modules that were found beside a file, and the folder."""


def _is_there(folder: Path, name: str) -> bool:
    """Whether a folder has the file or the package of a module's first name."""
    first = folder / name.partition(".")[0]
    return first.with_suffix(".py").is_file() or first.is_dir()


@contextlib.contextmanager
def _within(origin: Origin) -> Iterator[None]:
    token = _IMPORTING.set(origin)
    try:
        yield
    finally:
        _IMPORTING.reset(token)


@contextlib.contextmanager
def explained(folder: Path | None, what: str) -> Iterator[None]:
    """Turns what the import of a user's file raises into a SourceError with the user's own line.

    Args:
        folder: Where his files are; None: wherever this package is not.
        what: What is imported.
    """
    try:
        yield
    except SourceError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit):
            hint = " (it ends the process: what is no definition belongs under if __name__ == '__main__')"
        elif isinstance(error, ImportError) and "relative import" in str(error):
            hint = " (a file of a package is named as a module: package.module:MY_ENV)"
        else:
            hint = ""
        kind = type(error).__name__
        if isinstance(error, SyntaxError) and error.filename:
            place, line, text = error.filename, error.lineno or 0, error.msg
        else:
            place, line = _own_line(error, folder)
            text = str(error)
        if not place:
            raise SourceError(f"{what} cannot be imported: {kind}: {text}{hint}") from error
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


# --- distributions ---


def installed() -> Iterable[importlib.metadata.EntryPoint]:
    """The entry points of all distributions that are installed, in the order of their names."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (distribution(point), point.name))


def of_distribution(point: importlib.metadata.EntryPoint) -> list[tuple[Spec, Origin]]:
    """The specs of an entry point; none, and a warning, where it does not import or names none."""
    shown = f"{distribution(point)} ({point.value})"
    try:
        with explained(None, shown):
            value = point.load()
        specs = [value] if isinstance(value, Spec) else list(value)
        wrong = next((each for each in specs if not isinstance(each, Spec)), None)
        if wrong is not None:
            raise SourceError(f"it names {_described(wrong)}, not an EnvSpec or a TeamSpec")
    except (SourceError, TypeError) as error:
        warnings.warn(f"the environments of {shown} are left out: {error}", stacklevel=2)
        return []
    return [(spec, Origin(shown, spec.id)) for spec in specs]


def distribution(point: importlib.metadata.EntryPoint) -> str:
    """The distribution that has an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"
