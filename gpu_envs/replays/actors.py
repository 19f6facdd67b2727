"""Who acts while a replay is recorded, where it is no function of the user's: random actions, or a run's policies."""

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.random_actions import choices, drawn_among
from gpu_envs.seeds import derived_seed

if TYPE_CHECKING:
    from gpu_envs.training.runs import Loaded

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


@final
class TrainedPolicies:
    """The policies of a run, and those that take part in it."""

    def __init__(self, loaded: "Loaded", env: AnyEnv, seed: int, *, greedy: bool) -> None:
        """Says which policy acts for which agents.

        Args:
            loaded: The policies.
            env: Where they act; it gives torch's tensors.
            seed: Of the actions.
            greedy: Take the likeliest.
        """
        from gpu_envs.training.rollout.evaluation import ActingPolicies
        from gpu_envs.training.rollout.horizon_env import RoleTensors

        self._loaded, self._seed, self._greedy = loaded, seed, greedy
        self._tensors = RoleTensors(env)
        self._turn = 0
        self._policies = ActingPolicies(
            loaded.config, loaded.parts, loaded.networks, self._tensors.roles, env.num_envs, loaded.device, seed
        )

    def __call__(self, observations: Any) -> Any:
        """Actions as the environment takes them."""
        tensors = self._tensors
        seen, masks = tensors.observations(observations), tensors.action_masks()
        actions = self._policies.act(self._turn, seen, masks, greedy=self._greedy)
        self._turn += 1
        return tensors.taken(actions)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Sets torch up as an evaluation does, and puts it back."""
        from gpu_envs.training.process.settings import RandomState, alone, torch_threads

        config, device = self._loaded.config, self._loaded.device
        numbers = RandomState(derived_seed(self._seed, "modules"), device)
        with alone(), torch_threads(device, config.cpu_threads), numbers:
            yield
