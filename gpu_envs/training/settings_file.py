"""Settings files (TOML): ``gpu-envs train --config`` reads them, and every run writes one."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_envs.training.run import MAPPINGS, NAMES, SETTINGS, Run, split_flat, unknown_setting_message

SETTINGS_FILE = "run.toml"
"""Name of the settings file in a run directory."""

_HEADER = "# gpu-envs train --config FILE trains another run with these settings; command-line options override them."


def read(path: str | Path) -> dict[str, Any]:
    """Read a settings file; return settings by flat name, whose values ``Run.from_flat`` validates."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"the settings file {path} does not exist")
    try:
        content = tomllib.loads(Path(path).read_text("utf-8-sig"))  # some Windows editors write a byte order mark
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise ValueError(f"{path} is not a valid TOML file: {error}") from None
    return flatten(content, path)


def flatten(content: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Convert a TOML file's content to flat names: ``tau`` in the table of a policy ``[runner]`` to ``runner.tau``."""
    settings: dict[str, Any] = {}
    for name, value in content.items():
        if name in MAPPINGS and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {name} is {value!r}; give a table, [{name}]")
        if name in NAMES:
            settings[name] = _value(name, value)
        elif isinstance(value, Mapping):
            settings |= {f"{name}.{key}": _value(key, item) for key, item in value.items()}
        else:
            raise ValueError(f"{path}: {unknown_setting_message(name)}")
    return settings


def _value(name: str, value: Any) -> Any:
    """Convert a TOML value: ``"none"`` becomes None, and a float such as ``1e6`` an int if the setting is one."""
    field = SETTINGS.get(name)
    if isinstance(value, float) and value.is_integer() and field is not None and field.kind is int:
        return int(value)
    return None if isinstance(value, str) and value == "none" else value


def load_settings(path: str | Path) -> Run:
    """Read a run from a TOML file, such as the run.toml of a run directory."""
    return Run.from_flat(read(path))


def to_toml(run: Run) -> str:
    """Return the text of a settings file, without what differs from run to run: ``run_dir``, ``gpus`` and ``since``."""
    shared, tables = split_flat(run.flat())
    tables = {name: shared[name] for name in MAPPINGS if shared[name]} | tables
    omitted = ("gpus", "since", "run_dir", *MAPPINGS)  # they differ from run to run, or have tables
    lines = [_HEADER, *(f"{name} = {_toml(value)}" for name, value in shared.items() if name not in omitted)]
    for name, table in tables.items():
        lines += [f"\n[{_key(name)}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """Format a value for TOML, whose strings and booleans are written as in JSON."""
    if hasattr(value, "tolist"):  # an array: a parameter with a value for each replica
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return '"none"' if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
