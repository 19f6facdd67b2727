"""Sources of specs outside this package: Python files, modules and installed distributions."""

import dataclasses
import re
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from gpu_envs.errors import SourceError, did_you_mean, display
from gpu_envs.registry.importing import import_file, import_module, source_errors
from gpu_envs.registry.loading import importing
from gpu_envs.specs.base import Spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpu_envs.environments"
"""Entry-point group for specs of distributions: ``name = "package.module:MY_ENV"``, or an iterable of specs."""


@final
@dataclasses.dataclass(frozen=True)
class SpecPath:
    """Path of a spec: ``path/to/my_env.py:MY_ENV``, ``package.module:MY_ENV``, or the folder of ``my_env.py``."""

    source: str
    """Absolute path of a file, or name of a module."""
    name: str
    """Name of the spec there; empty if the file has only one."""

    @property
    def is_file(self) -> bool:
        """Whether the source is a file."""
        return self.source.endswith(".py")

    def __str__(self) -> str:
        """The spec path, with an absolute file."""
        return f"{self.source}:{self.name}" if self.name else self.source


@final
@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a spec comes from."""

    shown: str
    """Description for messages."""
    reference: str = ""
    """Id or spec path that is valid in any process; empty if there is none."""
    file: str = ""
    """File that makes the spec."""

    def replaces(self, other: "Origin") -> bool:
        """Whether a spec of this origin replaces the other's: a copy, as one file was imported in two ways."""
        if not self.file or self.file != other.file:
            return False
        if not self.reference and not other.reference:  # both registered by the file: by two imports of it?
            return (self.shown == self.file) != (other.shown == self.file)
        same_name = self.reference.rpartition(":")[2] == other.reference.rpartition(":")[2]
        return same_name or not self.reference or not other.reference


BY_HAND = Origin("registered by hand")


def current_origin() -> Origin:
    """Returns the origin of a spec that is registered now: the file being imported, or ``BY_HAND``."""
    return Origin(importing()) if importing() else BY_HAND


def parse_spec_path(text: str) -> SpecPath | None:
    """Parses ``path/to/my_env.py:MY_ENV``, ``path/to/my_env.py`` or ``package.module:MY_ENV``. None: it is an id.

    A folder ``path/to/my_env`` stands for its file ``my_env.py``, as ``gpu-envs new`` writes it.
    """
    match = re.fullmatch(r"(?P<path>.+\.py)(?::(?P<name>.*))?", text)
    if match is not None:
        name = match["name"]
        if name is not None and not name.isidentifier():
            raise SourceError(f"{text!r}: after the colon, give a name in that file, such as MY_ENV")
        return SpecPath(str(Path(match["path"]).expanduser().resolve()), name or "")
    folder = Path(text).expanduser()
    if folder.name.isidentifier() and (folder / f"{folder.name}.py").is_file():
        return SpecPath(str((folder / f"{folder.name}.py").resolve()), "")
    source, separator, name = text.rpartition(":")
    if separator and name.isidentifier() and all(part.isidentifier() for part in source.split(".")):
        return SpecPath(source, name)
    return None


def load(spec_path: SpecPath) -> tuple[Spec, Origin]:
    """Imports a file or module, and returns the named spec and its origin; does not register it.

    Raises:
        FileNotFoundError: The file does not exist.
        SourceError: It cannot be imported, or has no such spec.
    """
    module = _imported(spec_path)
    specs = specs_of(module)
    source = display(spec_path.source) if spec_path.is_file else f"the module {spec_path.source!r}"
    available = (
        f"Its specs are: {', '.join(specs)}" if specs else "It has no spec: assign an EnvSpec or a TeamSpec to a name"
    )
    name = spec_path.name
    if not name:
        if len(specs) != 1:
            example = f"; name one, such as {source}:{next(iter(specs))}" if specs else ""
            raise SourceError(f"{source} has {len(specs)} specs{example}. {available}")
        (name,) = specs
    if name not in vars(module):
        raise SourceError(f"{source} has no {name!r}{did_you_mean(name, specs)} {available}")
    spec = getattr(module, name)
    if not isinstance(spec, Spec):
        raise SourceError(
            f"{source}:{name} is {_describe(spec)}, not an EnvSpec or a TeamSpec{did_you_mean(name, specs)} {available}"
        )
    full_path = str(SpecPath(spec_path.source, name))
    return spec, Origin(full_path, full_path)


def load_object(text: str) -> Any:
    """Imports ``path/to/file.py:NAME`` or ``package.module:NAME``, and returns the object.

    Raises:
        FileNotFoundError: The file does not exist.
        SourceError: It cannot be imported, or has no such name.
    """
    path = parse_spec_path(text)
    if path is None or not path.name:
        raise SourceError(f"{text!r} names no object; give path/to/file.py:NAME or package.module:NAME")
    module = _imported(path)
    if path.name not in vars(module):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise SourceError(f"{text.rpartition(':')[0]} has no {path.name!r}{did_you_mean(path.name, names)}")
    return getattr(module, path.name)


def load_all(spec_path: SpecPath) -> list[tuple[Spec, Origin]]:
    """Returns all specs of a file or module with their origins; a name in the spec path is ignored."""
    names = list(specs_of(_imported(spec_path)))
    if not names:
        return [load(spec_path)]  # raises: there are none
    return [load(SpecPath(spec_path.source, name)) for name in names]


def _imported(spec_path: SpecPath) -> types.ModuleType:
    return import_file(Path(spec_path.source)) if spec_path.is_file else import_module(spec_path.source)


def specs_of(module: types.ModuleType) -> dict[str, Spec]:
    """Returns the specs of a module by name, without duplicates and specs of ``gpu_envs.envs``."""
    from gpu_envs.envs import ALL

    seen_ids = {id(spec) for spec in ALL}
    specs: dict[str, Spec] = {}
    for name, value in vars(module).items():
        if isinstance(value, Spec) and id(value) not in seen_ids:
            seen_ids.add(id(value))
            specs[name] = value
    return specs


def _describe(value: object) -> str:
    """Describes a value in messages: ``the class X``, ``the function f`` or ``a X`` for other objects."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', value)}"
    return f"a {type(value).__name__}"


# --- distributions ---


def installed_entry_points() -> Iterable["EntryPoint"]:
    """Returns the entry points for environments, ``GROUP``, of installed packages, ordered by package and name."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda point: (distribution_name(point), point.name))


def load_entry_point(point: "EntryPoint") -> list[tuple[Spec, Origin]]:
    """Returns the specs of an entry point; none, with a warning, if it cannot be imported or names no spec."""
    description = f"{distribution_name(point)} ({point.value})"
    try:
        with source_errors(None, description):
            value = point.load()
        specs = [value] if isinstance(value, Spec) else list(value)
        invalid = next((value for value in specs if not isinstance(value, Spec)), None)
        if invalid is not None:
            raise SourceError(f"it contains {_describe(invalid)}, not an EnvSpec or a TeamSpec")
    except (SourceError, TypeError) as error:
        warnings.warn(f"the environments of {description} are ignored: {error}", stacklevel=2)
        return []
    return [(spec, Origin(description, spec.id)) for spec in specs]


def distribution_name(point: "EntryPoint") -> str:
    """Returns name and version of the distribution that has an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"
