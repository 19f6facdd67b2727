"""The environments of ``custom_envs``, registered by the paths of their specs, as users do."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import gpu_envs

FOLDER = Path(__file__).parent / "custom_envs"


def spec_path(source: str) -> str:
    """Returns the path of a spec, ``path/to/file.py:NAME``."""
    return str(FOLDER / source)


CRANE = gpu_envs.spec(spec_path("crane.py:CRANE_V0")).id
COURIER = gpu_envs.spec(spec_path("courier.py:COURIER_V0")).id
FORAGERS = gpu_envs.spec(spec_path("foragers.py:FORAGERS_V0")).id
GREENHOUSE = gpu_envs.spec(spec_path("greenhouse.py:GREENHOUSE_V0")).id
REGATTA = gpu_envs.spec(spec_path("regatta.py:REGATTA_V0")).id
WARP_TAG = gpu_envs.spec(spec_path("warp_drive_tag.py:TAG")).id

SINGLE = (COURIER, CRANE, GREENHOUSE, REGATTA)
TEAMS = (FORAGERS, WARP_TAG)
ALL = (*SINGLE, *TEAMS)


def draw_possible_actions(env: Any, rng: np.random.Generator, infos: dict[str, Any]) -> Any:
    """Returns random actions for a step, only possible ones if there are masks."""
    masks = infos.get("action_mask")
    if isinstance(env, gpu_envs.MultiAgentEnv):
        return {
            role: _of(space, rng, (env.num_envs, env.counts[role]), None if masks is None else masks[role])
            for role, space in env.single_action_spaces.items()
        }
    return _of(env.single_action_space, rng, (env.num_envs,), masks)


def _of(space: Any, rng: np.random.Generator, shape: tuple[int, ...], mask: np.ndarray | None) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return rng.uniform(-1, 1, (*shape, *space.shape)).astype(np.float32)
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    if mask is None:
        return np.asarray(rng.integers(0, sizes, (*shape, len(sizes))).reshape(*shape, *space.shape) + space.start)
    orders = np.split(np.where(mask != 0, rng.random(mask.shape), -1), np.cumsum(sizes)[:-1], axis=-1)
    return np.asarray(np.stack([order.argmax(-1) for order in orders], -1).reshape(*shape, *space.shape) + space.start)
