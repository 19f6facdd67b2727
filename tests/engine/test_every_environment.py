"""Every registered environment, in the quick tests too: it compiles, resets and steps within its spaces."""

import numpy as np
import pytest
from harness import Make
from registered import draw, numpy_by_role, placed

import gpu_envs
from gpu_envs.engine.by_role import ByRole


@pytest.mark.every_environment
@pytest.mark.parametrize("env_id", gpu_envs.ids())
def test_it_steps_within_its_spaces(make: Make, env_id: str) -> None:
    env = make(env_id, 3, device="cpu")
    roles = ByRole(env).roles
    observations, _ = env.reset(seed=1)
    for actions in [*draw(env, 3), None]:
        for role, values in numpy_by_role(env, observations).items():
            space = roles[role].observation
            rows = values.reshape(-1, *(space.shape or ()))
            assert all(space.contains(row) for row in rows), role
        if actions is not None:
            observations, rewards, *_ = env.step(placed(env, actions))
            assert all(np.isfinite(values).all() for values in numpy_by_role(env, rewards).values())
