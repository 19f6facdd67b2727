"""Random actions for replays."""

import copy
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.random_actions import choices, sample_masked
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.seeds import derived_seed

AnyEnv: TypeAlias = Any
"""A ``VectorEnv`` or a ``MultiAgentEnv``."""


@final
class RandomActions:
    """A policy that samples the action spaces, or the actions that action masks allow."""

    def __init__(self, env: AnyEnv, seed: int) -> None:
        """Copy the action spaces, so that the random state of the environment's spaces does not change."""
        self._by_role = view = RoleInterface(env)
        self._rng = np.random.default_rng(derived_seed(seed, "possible actions"))
        self._spaces = copy.deepcopy(view.split(env.action_space if view.single_agent else env.action_spaces))
        for role, space in self._spaces.items():
            purpose = "random actions", "" if view.single_agent else role
            space.seed(derived_seed(seed, *purpose) % 2**31)  # Gymnasium's largest seed

    def __call__(self, observations: Any) -> Any:
        """Return random actions in the environment's format."""
        del observations
        masks = {role: to_numpy(mask) for role, mask in self._by_role.action_masks.items()}
        return self._by_role.join(
            {role: self._sample_allowed(role, masks[role]) for role in masks}
            or {role: space.sample() for role, space in self._spaces.items()}
        )

    def _sample_allowed(self, role: str, mask: np.ndarray) -> Any:
        space = self._by_role.roles[role].action
        return sample_masked(space, mask, self._rng.random((*mask.shape[:-1], len(choices(space)))))
