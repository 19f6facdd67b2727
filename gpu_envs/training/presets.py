"""Presets: settings that suit an environment, read from presets.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_envs.training.settings_file import flattened


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    tables = tomllib.loads(path.read_text("utf-8"))

    def settings(table: Mapping[str, Any]) -> dict[str, Any]:
        env, _, name = table.get("like", "").partition(".")
        own = flattened({key: value for key, value in table.items() if key != "like"}, path)
        return {**(settings(tables[env][name]) if env else {}), **own}

    return {
        env: {name: settings(table) for name, table in presets.items()}
        for env, presets in tables.items()
        if env != "shared"
    }


PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = _read(Path(__file__).with_suffix(".toml"))
"""Settings by their flat names, by environment and preset. The preset "default" is used if none is asked for."""
