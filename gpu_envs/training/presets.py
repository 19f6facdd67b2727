"""Presets: tuned settings of an environment, read from presets.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_envs.training.settings_file import flatten


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings by flat name of each environment's presets; a preset inherits from the preset ``like``."""
    tables = tomllib.loads(path.read_text("utf-8"))

    def settings(table: Mapping[str, Any]) -> dict[str, Any]:
        env, _, name = table.get("like", "").partition(".")
        own = flatten({key: value for key, value in table.items() if key != "like"}, path)
        return {**(settings(tables[env][name]) if env else {}), **own}

    tables_by_env = {env: presets for env, presets in tables.items() if env != "shared"}
    return {env: {name: settings(table) for name, table in presets.items()} for env, presets in tables_by_env.items()}


PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = _read(Path(__file__).with_suffix(".toml"))
"""For each environment and preset, the settings by flat name; the preset "default" is used unless another is named."""
