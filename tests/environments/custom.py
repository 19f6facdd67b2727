"""The environments that live only in ``custom_envs``, registered by their places as a user would."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import gpu_envs

FOLDER = Path(__file__).parent / "custom_envs"


def place(source: str) -> str:
    """Where a spec is, as users name it: ``path/to/file.py:NAME``."""
    return str(FOLDER / source)


COURIER = gpu_envs.spec(place("courier.py:COURIER_V0")).id
FORAGERS = gpu_envs.spec(place("foragers.py:FORAGERS_V0")).id
REGATTA = gpu_envs.spec(place("regatta.py:REGATTA_V0")).id
WARP_TAG = gpu_envs.spec(place("warp_drive_tag.py:TAG")).id

SINGLE = (COURIER, REGATTA)
TEAMS = (FORAGERS, WARP_TAG)
ALL = (*SINGLE, *TEAMS)


def possible(rng: np.random.Generator, masks: np.ndarray) -> Any:
    """One of the possible actions each, ``[...]``, of masks of one Discrete space ``[..., n]``."""
    return np.where(masks != 0, rng.random(masks.shape), -1).argmax(-1)


def drawn(env: Any, rng: np.random.Generator, infos: dict[str, Any]) -> Any:
    """Random actions for a step, possible ones where there are masks."""
    masks = infos.get("action_mask")
    if isinstance(env, gpu_envs.MultiAgentEnv):
        return {
            role: _of(space, rng, env.num_envs, env.counts[role])
            if masks is None or not isinstance(space, spaces.Discrete)
            else possible(rng, masks[role])
            for role, space in env.single_action_spaces.items()
        }
    return _of(env.single_action_space, rng, env.num_envs) if masks is None else possible(rng, masks)


def _of(space: spaces.Space[Any], rng: np.random.Generator, *shape: int) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, shape)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (*shape, len(space.nvec)))
    return rng.uniform(-1, 1, (*shape, *(space.shape or ()))).astype(np.float32)
