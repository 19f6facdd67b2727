"""Settings of a run in a TOML file, as ``gpu-envs train --config`` reads them and every run writes them."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_envs.training.run import MAPPINGS, NAMES, SETTINGS, Run, no_setting, split

SETTINGS_FILE = "run.toml"
"""In every run directory; ``gpu-envs train --config`` reads it."""

_HEAD = "# gpu-envs train --config FILE trains another run with these settings; its options overrule them."


def read(path: str | Path) -> dict[str, Any]:
    """Reads the settings of a file, by their flat names; ``Run.from_flat`` checks their values."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path} with settings")
    try:
        content = tomllib.loads(Path(path).read_text("utf-8-sig"))  # editors of Windows begin a file with a mark
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise ValueError(f"{path} is no TOML file: {error}") from None
    return flattened(content, path)


def flattened(content: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """The settings in a file's content, by their flat names; a table ``[runner]`` has those of that policy."""
    settings: dict[str, Any] = {}
    for name, value in content.items():
        if name in MAPPINGS and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {name} is {value!r}; give a table, [{name}]")
        if name in NAMES:
            settings[name] = _value(name, value)
        elif isinstance(value, Mapping):
            settings |= {f"{name}.{key}": _value(key, each) for key, each in value.items()}
        else:
            raise ValueError(f"{path}: {no_setting(name)}")
    return settings


def _value(name: str, value: Any) -> Any:
    """The word none stands for None, and ``1e6`` is a whole number too."""
    field = SETTINGS.get(name)
    if isinstance(value, float) and value.is_integer() and field is not None and field.kind is int:
        return int(value)
    return None if isinstance(value, str) and value == "none" else value


def load_settings(path: str | Path) -> Run:
    """Reads the run that a TOML file describes, such as the run.toml of every run directory."""
    return Run.from_flat(read(path))


def written(run: Run) -> str:
    """The text of a file with all settings of a run, for another one like it."""
    shared, tables = split(run.flat())
    tables = {name: shared[name] for name in MAPPINGS if shared[name]} | tables
    apart = ("gpus", "since", "run_dir", *MAPPINGS)  # of those another run has its own
    lines = [_HEAD, *(f"{name} = {_toml(value)}" for name, value in shared.items() if name not in apart)]
    for name, table in tables.items():
        lines += [f"\n[{_key(name)}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """A value as TOML writes it; strings and switches are those of JSON."""
    if hasattr(value, "tolist"):  # an array: a parameter's value for each replica
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return '"none"' if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
