"""Who acts while a replay is recorded, where it is neither a function of the user's nor a run: random actions."""

import copy
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.random_actions import choices, drawn_among
from gpu_envs.seeds import derived_seed

AnyEnv: TypeAlias = Any
"""A ``VectorEnv`` or a ``MultiAgentEnv``."""


@final
class RandomActions:
    """Draws actions as samples of the spaces, which stay as they are; with action masks among the possible ones."""

    def __init__(self, env: AnyEnv, seed: int) -> None:
        """Copies the spaces: their own random numbers are the user's.

        Args:
            env: Where they are taken.
            seed: Of the actions.
        """
        self._by_role = view = ByRole(env)
        self._numbers = np.random.default_rng(derived_seed(seed, "possible actions"))
        self._spaces = copy.deepcopy(view.split(env.action_space if view.alone else env.action_spaces))
        for role, space in self._spaces.items():
            purpose = "random actions", "" if view.alone else role
            space.seed(derived_seed(seed, *purpose) % 2**31)  # Gymnasium's seeds have so many bits

    def __call__(self, observations: Any) -> Any:
        """Actions as the environment takes them."""
        del observations
        masks = {role: to_numpy(mask) for role, mask in self._by_role.action_masks.items()}
        return self._by_role.join(
            {role: self._possible(role, masks[role]) for role in masks}
            or {role: space.sample() for role, space in self._spaces.items()}
        )

    def _possible(self, role: str, mask: np.ndarray) -> Any:
        space = self._by_role.roles[role].action
        return drawn_among(space, mask, self._numbers.random((*mask.shape[:-1], len(choices(space)))))
