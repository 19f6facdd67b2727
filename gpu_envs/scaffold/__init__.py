"""Environments to begin with: what ``gpu-envs new`` writes. Each folder has one that works, under the name my_env."""

import importlib.resources
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_envs import registry
from gpu_envs.errors import did_you_mean

NAME = "my_env"
"""What the environments here are called."""

_KINDS: Mapping[tuple[bool, bool], str] = {
    (False, False): "single",
    (False, True): "single_python",
    (True, False): "team",
    (True, True): "team_python",
}
"""By whether it has a team, and rules in Python: the folder."""

_FILES = (f"{NAME}.cuh", f"{NAME}.py", f"test_{NAME}.py")

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
        ValueError: The name is none, or is taken.
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
    source = importlib.resources.files(f"{__name__}.{_KINDS[team, python]}")
    written = []
    for file in _FILES:
        if not (source / file).is_file():
            continue
        path = folder / file.replace(NAME, name)
        path.write_text(_named((source / file).read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(path)
    return written


def check_name(name: str) -> None:
    """Refuses a name that is none of a module, or another module's."""
    suits = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    suits = re.sub(r"\W+", "_", suits).strip("_").lower()
    suits = f"env_{suits}" if suits[:1].isdigit() else suits
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        hint = did_you_mean(suits, [suits]) if suits and not keyword.iskeyword(suits) else "."
        raise ValueError(f"{name!r} is no name for an environment: small letters, digits and '_'{hint}")
    if name in sys.stdlib_module_names or name in _LIBRARIES or name.startswith("test_"):
        raise ValueError(f"{name!r} is the name of another module; choose one of its own, such as {name + '_env'!r}")


def env_id(name: str) -> str:
    """The id of an environment whose module has this name: ``MyEnv-v0`` of my_env."""
    return f"{''.join(part.capitalize() for part in name.split('_'))}-v0"


def _named(text: str, name: str) -> str:
    """The text of a file with another name in place of my_env."""
    text = text.replace(env_id(NAME), env_id(name))
    return text.replace(NAME.upper(), name.upper()).replace(NAME, name)
