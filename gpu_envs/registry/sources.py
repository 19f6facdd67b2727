"""Where specs come from besides this package: Python files, modules, and installed distributions."""

import dataclasses
import re
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, final

from gpu_envs.errors import SourceError, did_you_mean, display
from gpu_envs.registry.importing import explained, import_file, import_module
from gpu_envs.registry.loading import importing
from gpu_envs.specs.base import Spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpu_envs.environments"
"""The entry points by which distributions name their specs: ``name = "package.module:MY_ENV"``, or an iterable."""


@final
@dataclasses.dataclass(frozen=True)
class Reference:
    """What names a spec by its place: ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``."""

    place: str
    """The absolute path of a file, or the name of a module."""
    name: str
    """Of the spec there; empty where the file has only one."""

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
    """Where a spec comes from."""

    shown: str
    """For people."""
    reference: str = ""
    """What finds the spec in any process: an id or a reference. Empty where nothing does."""
    file: str = ""
    """The file that makes the spec."""

    def replaces(self, other: "Origin") -> bool:
        """Whether a spec from here is another's from there, made again as its file is a script or a module too."""
        if not self.file or self.file != other.file:
            return False
        if not self.reference and not other.reference:  # both are registered by the file itself: by its two imports?
            return (self.shown == self.file) != (other.shown == self.file)
        same_name = self.reference.rpartition(":")[2] == other.reference.rpartition(":")[2]
        return same_name or not self.reference or not other.reference


BY_HAND = Origin("registered by hand")


def origin_now() -> Origin:
    """The origin of a spec that is registered now: the file that is being imported, or by hand."""
    return Origin(importing()) if importing() else BY_HAND


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
    module = _imported(reference)
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
    return spec, Origin(found, found)


def load_all(reference: Reference) -> list[tuple[Spec, Origin]]:
    """All specs of a file or a module, whatever name the reference has."""
    names = list(specs_of(_imported(reference)))
    if not names:
        return [load(reference)]  # says that there are none
    return [load(Reference(reference.place, name)) for name in names]


def _imported(reference: Reference) -> types.ModuleType:
    return import_file(Path(reference.place)) if reference.is_file else import_module(reference.place)


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


# --- distributions ---


def installed() -> Iterable["EntryPoint"]:
    """The entry points of all distributions that are installed, in the order of their names."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda point: (distribution(point), point.name))


def of_distribution(point: "EntryPoint") -> list[tuple[Spec, Origin]]:
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


def distribution(point: "EntryPoint") -> str:
    """The distribution that has an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"
