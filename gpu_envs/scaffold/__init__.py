"""Templates of ``gpu-envs new``: each folder has a working environment named my_env."""

import importlib.resources
import keyword
import re
import sys
from importlib.resources.abc import Traversable
from pathlib import Path

from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry

NAME = "my_env"
"""Name of the template environments."""

_LIBRARIES = frozenset({"cupy", "gpu_envs", "gymnasium", "numpy", "pettingzoo", "pytest", "torch"})


def write(folder: Path, *, team: bool = False, python: bool = False) -> list[Path]:
    """Write the files of a new environment into a folder, and return their paths.

    Args:
        folder: The folder, new or empty. Its name is the environment's name.
        team: Whether to write a multi-agent environment.
        python: Whether to write rules in Python, not in C++.

    Raises:
        ValueError: The name is not valid, or exists already.
        FileExistsError: The folder is not empty.
    """
    name = folder.name
    check_name(name)
    if env_id(name) in registry.ids():
        raise ValueError(f"the environment {env_id(name)!r} exists already; choose another name than {name!r}")
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is not empty; choose another name, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in _sources("team" if team else "single", python):
        path = folder / source.name.replace(NAME, name)
        path.write_text(_rename(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(path)
    return written


def _sources(kind: str, python: bool) -> list[Traversable]:
    """Return the files of a template. Rules in C++ and in Python share one test."""
    templates = importlib.resources.files(__name__)
    test = templates / kind / f"test_{NAME}.py"
    if python:
        return [templates / f"{kind}_python" / f"{NAME}.py", test]
    return [templates / kind / f"{NAME}.cuh", templates / kind / f"{NAME}.py", test]


def check_name(name: str) -> None:
    """Raise a ValueError unless the name is a valid module name that no module of Python or a library has."""
    suggestion = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    suggestion = re.sub(r"\W+", "_", suggestion).strip("_").lower()
    suggestion = f"env_{suggestion}" if suggestion[:1].isdigit() else suggestion
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        hint = did_you_mean(suggestion, [suggestion]) if suggestion and not keyword.iskeyword(suggestion) else "."
        raise ValueError(f"{name!r} is not a valid environment name: use a-z, 0-9 and '_', a letter first{hint}")
    if name in sys.stdlib_module_names or name in _LIBRARIES or name.startswith("test_"):
        raise ValueError(f"{name!r} is the name of another module; choose another name, such as {name + '_env'!r}")


def env_id(name: str) -> str:
    """Return the environment id for a module name: ``MyEnv-v0`` for my_env."""
    return f"{''.join(part.capitalize() for part in name.split('_'))}-v0"


def _rename(text: str, name: str) -> str:
    """Replace the name my_env in a file's text."""
    text = text.replace(env_id(NAME), env_id(name))
    return text.replace(NAME.upper(), name.upper()).replace(NAME, name)
