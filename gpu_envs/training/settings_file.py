"""Settings of a run in a TOML file, as ``gpu-envs train --config`` reads them and every run writes them."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_envs.errors import did_you_mean
from gpu_envs.training.bounds import MAPPINGS, WHOLE
from gpu_envs.training.config import SETTINGS, Config

SETTINGS_FILE = "run.toml"
"""In the folder of every run; ``gpu-envs train --config`` reads it."""

_OF_ONE_RUN = ("gpus", "since", "run_dir")
"""What a run's file leaves out: another run has its own."""

_HEAD = "# gpu-envs train --config FILE trains another run with these settings; its options overrule them."


def read(path: str | Path) -> dict[str, Any]:
    """The settings that a file gives, or says what is wrong with it. Their values are for ``Config`` to check.

    A setting that may be absent is so by the word none; ``1e6`` is a whole number too.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path} with settings")
    try:
        given = tomllib.loads(Path(path).read_text("utf-8-sig"))  # Windows' editors begin a file with a mark
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML, or nested too deeply
        raise ValueError(f"{path} is no TOML file: {error}") from None
    for name in given:
        if name not in SETTINGS:
            raise ValueError(
                f"{path}: a training run has no setting {name!r}{did_you_mean(name, SETTINGS)} There are: "
                f"{', '.join(SETTINGS)}"
            )
    for name in MAPPINGS:
        if not isinstance(given.get(name, {}), Mapping):
            raise ValueError(f"{path}: {name} is {given[name]!r}; give a table, [{name}]")
    found = _read(given)
    own = {}
    for policy, each in given.get("policy_settings", {}).items():
        if not isinstance(each, Mapping):
            raise ValueError(f"{path}: policy_settings.{policy} is {each!r}; give a table, [policy_settings.{policy}]")
        own[policy] = _read(each)
    return found | ({"policy_settings": own} if own else {})


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        if name in WHOLE and isinstance(value, float) and value.is_integer():
            value = int(value)
        found[name] = None if isinstance(value, str) and value == "none" else value
    return found


def load_config(path: str | Path) -> Config:
    """Reads the run that a TOML file describes, such as the run.toml in the folder of every run."""
    return Config.from_json(read(path))


def written(config: Config) -> str:
    """The text of a file that says all settings of a run, so that another may be like it."""
    values = {name: value for name, value in config.to_json().items() if name not in _OF_ONE_RUN}
    return "\n".join([_HEAD, *_lines(values)]) + "\n"


def _lines(values: Mapping[str, Any], table: str = "") -> Iterator[str]:
    """The settings of a table, then those of the tables within."""
    if table and (not values or not all(isinstance(value, Mapping) for value in values.values())):
        yield f"\n[{table}]"
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{_key(name)} = {_toml(value)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{table}.{_key(name)}" if table else _key(name))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """A value as TOML writes it; strings and switches it has in common with JSON."""
    if hasattr(value, "tolist"):  # an array: a parameter's value for each replica
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return '"none"' if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
