"""Who acts while a replay is recorded: nobody in particular, a function of the user's, or a run's policies."""

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.arrays import to_numpy
from gpu_envs.masks import choices, drawn_among
from gpu_envs.resets import derived_seed
from gpu_envs.vector_env import VectorEnv

if TYPE_CHECKING:
    from gpu_envs.training.runs import Loaded

Env: TypeAlias = Any
"""A ``VectorEnv`` or a ``MultiAgentEnv``."""


class Policy(ABC):
    """Acts in all replicas of an environment."""

    @abstractmethod
    def act(self, observations: Any) -> Any:
        """Returns actions as the environment takes them, for observations as it gave them."""

    @abstractmethod
    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Within it, it acts."""


@final
class Random(Policy):
    """Draws actions as samples of the spaces, which stay as they are; with action masks among the possible ones."""

    def __init__(self, env: Env, seed: int) -> None:
        """Copies the spaces: their own random numbers are the user's.

        Args:
            env: Where it acts.
            seed: Of the actions.
        """
        self._env = env
        if isinstance(env, VectorEnv):
            self._single = {"": env.single_action_space}
        else:
            self._single = dict(env.single_action_spaces)
        self._numbers = np.random.default_rng(derived_seed(seed, "possible actions"))
        spaces = {"": env.action_space} if isinstance(env, VectorEnv) else env.action_spaces
        self._spaces = {role: copy.deepcopy(space) for role, space in spaces.items()}
        for role, space in self._spaces.items():
            space.seed(derived_seed(seed, "random actions", role) % 2**31)  # of so many bits are Gymnasium's seeds

    def act(self, observations: Any) -> Any:
        """Samples."""
        del observations
        masks = self._env.action_mask
        if masks is None:
            drawn = {role: space.sample() for role, space in self._spaces.items()}
        else:
            by_role = {"": masks} if isinstance(self._env, VectorEnv) else masks
            drawn = {role: self._possible(to_numpy(by_role[role]), space) for role, space in self._single.items()}
        return drawn.get("", drawn)

    def _possible(self, mask: np.ndarray, space: gymnasium.Space[Any]) -> Any:
        return drawn_among(space, mask, self._numbers.random((*mask.shape[:-1], len(choices(space)))))

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Needs nothing."""
        return contextlib.nullcontext()


@final
class Given(Policy):
    """A function of the user's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        """Keeps it."""
        self._function = function

    def act(self, observations: Any) -> Any:
        """Calls it."""
        return self._function(observations)

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """What it needs is its own business."""
        return contextlib.nullcontext()


@final
class Trained(Policy):
    """The policies of a run, and those that take part in it."""

    def __init__(self, loaded: "Loaded", env: Env, seed: int, *, greedy: bool) -> None:
        """Gives everybody their seats.

        Args:
            loaded: The policies.
            env: Where they act; it gives torch's tensors.
            seed: Of the actions.
            greedy: Take the likeliest.
        """
        from gpu_envs.training.arena import roles_of
        from gpu_envs.training.evaluation import Cast

        self._loaded, self._env, self._seed, self._greedy = loaded, env, seed, greedy
        self._roles = roles_of(env)
        self._turn = 0
        self._cast = Cast(loaded.config, loaded.parts, loaded.networks, self._roles, env.num_envs, loaded.device, seed)

    def act(self, observations: Any) -> Any:
        """Asks the networks."""
        from gpu_envs.training.arena import ALONE, as_taken, masks_of, rows_of

        alone = isinstance(self._env, VectorEnv)
        given: Mapping[str, Any] = {ALONE: observations} if alone else observations
        rows = {role.name: rows_of(role, given[role.name], alone=alone) for role in self._roles}
        by_role = {name: own.unsqueeze(1) for name, own in rows.items()} if alone else rows
        actions = self._cast.act(self._turn, by_role, masks_of(self._env), greedy=self._greedy)
        self._turn += 1
        return as_taken(self._env, self._roles, actions)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Sets torch up as an evaluation does, and puts it back."""
        from gpu_envs.training.networks import matmul_precision
        from gpu_envs.training.process import RandomState, torch_threads

        config, device = self._loaded.config, self._loaded.device
        numbers = RandomState(derived_seed(self._seed, "modules"), device)
        with matmul_precision(config.precision), torch_threads(device, config.cpu_threads), numbers:
            yield
