"""Environments to begin with: what ``gpu-envs new`` writes. Each folder has one that works, under the name my_env."""

import importlib.resources
import keyword
import re
import sys
from importlib.resources.abc import Traversable
from pathlib import Path

from gpu_envs.errors import did_you_mean
from gpu_envs.registry import known as registry

NAME = "my_env"
"""What the environments here are called."""

_LIBRARIES = frozenset({"cupy", "gpu_envs", "gymnasium", "numpy", "pettingzoo", "pytest", "torch"})


def write(folder: Path, *, team: bool = False, python: bool = False) -> list[Path]:
    """Writes an environment into a folder of its name.

    Args:
        folder: The folder, new or empty; its last part is the environment's name.
        team: It has a team of agents.
        python: Its rules are in Python.

    Returns:
        The files.

    Raises:
        ValueError: The name is not valid, or is taken.
        FileExistsError: The folder holds something already.
    """
    name = folder.name
    check_name(name)
    if env_id(name) in registry.ids():
        raise ValueError(f"there is an environment {env_id(name)!r} already; choose another name than {name!r}")
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there already, and not empty; choose another name, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in _sources("team" if team else "single", python):
        path = folder / source.name.replace(NAME, name)
        path.write_text(_named(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(path)
    return written


def _sources(kind: str, python: bool) -> list[Traversable]:
    """The files of an environment here; its test is the same whatever language the rules are in."""
    here = importlib.resources.files(__name__)
    test = here / kind / f"test_{NAME}.py"
    if python:
        return [here / f"{kind}_python" / f"{NAME}.py", test]
    return [here / kind / f"{NAME}.cuh", here / kind / f"{NAME}.py", test]


def check_name(name: str) -> None:
    """Refuses a name that a module cannot have, or that another module has."""
    suits = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    suits = re.sub(r"\W+", "_", suits).strip("_").lower()
    suits = f"env_{suits}" if suits[:1].isdigit() else suits
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        hint = did_you_mean(suits, [suits]) if suits and not keyword.iskeyword(suits) else "."
        raise ValueError(f"{name!r} is not a name for an environment: small letters, digits and '_'{hint}")
    if name in sys.stdlib_module_names or name in _LIBRARIES or name.startswith("test_"):
        raise ValueError(f"{name!r} is the name of another module; choose one of its own, such as {name + '_env'!r}")


def env_id(name: str) -> str:
    """The id of an environment whose module has this name: ``MyEnv-v0`` of my_env."""
    return f"{''.join(part.capitalize() for part in name.split('_'))}-v0"


def _named(text: str, name: str) -> str:
    """The text of a file with another name in place of my_env."""
    text = text.replace(env_id(NAME), env_id(name))
    return text.replace(NAME.upper(), name.upper()).replace(NAME, name)
