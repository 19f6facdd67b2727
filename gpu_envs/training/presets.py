"""Settings that suit an environment, by its id and the preset's name."""

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "CartPole-v1": {"default": {"total_steps": 10_000_000, "num_envs": 4096, "learning_rate": "0:0.003,1:0"}},
}
"""Fields of ``Config``, by environment and name. The one called default is used where none is asked for."""
