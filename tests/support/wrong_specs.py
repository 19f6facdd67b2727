"""Valid specs, in which tests change fields to invalid values."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Field, Metric, Param, Role, TeamSpec

OBSERVATION = Box(-1, 1, (1,), np.float32)


def valid_env_spec(**changes: Any) -> EnvSpec:
    settings: dict[str, Any] = {
        "id": "Wrong-v0",
        "header": "cartpole.cuh",
        "state": ("x",),
        "params": {"count": Param(3, fixed=True), "speed": Param(1.0)},
        "metrics": {"position": Metric(), "angle": Metric()},
        "observation": OBSERVATION,
        "action": Discrete(2),
    }
    return EnvSpec(**settings | changes)


def valid_team_spec(**changes: Any) -> TeamSpec:
    settings: dict[str, Any] = {
        "id": "Wrong-v0",
        "header": "tag_grid.cuh",
        "state": {"x": Field()},
        "params": {"count": Param(3, fixed=True, positive=True), "speed": Param(1.0), "loose": Param(2)},
        "metrics": {"tags": Metric(), "survival": Metric()},
        "roles": (Role("dog", "count", OBSERVATION, Discrete(2)),),
    }
    return TeamSpec(**settings | changes)


def valid_roles(**changes: Any) -> tuple[Role]:
    settings: dict[str, Any] = {"name": "dog", "count": 2, "observation": OBSERVATION, "action": Discrete(2)}
    return (Role(**settings | changes),)
