"""Who acts while a replay is recorded: nobody in particular, a function of the user's, or a run's policies."""

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

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
    """Draws actions as samples of the spaces, which stay as they are."""

    def __init__(self, env: Env, seed: int) -> None:
        """Copies the spaces: their own random numbers are the user's.

        Args:
            env: Where it acts.
            seed: Of the actions.
        """
        spaces = {"": env.action_space} if isinstance(env, VectorEnv) else env.action_spaces
        self._spaces = {role: copy.deepcopy(space) for role, space in spaces.items()}
        for role, space in self._spaces.items():
            space.seed(derived_seed(seed, "random actions", role) % 2**31)  # of so many bits are Gymnasium's seeds

    def act(self, observations: Any) -> Any:
        """Samples."""
        del observations
        drawn = {role: space.sample() for role, space in self._spaces.items()}
        return drawn.get("", drawn)

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
        from gpu_envs.training.arena import ALONE, as_taken

        alone = isinstance(self._env, VectorEnv)
        by_role: Mapping[str, Any] = {ALONE: observations.unsqueeze(1)} if alone else observations
        actions = self._cast.act(self._turn, by_role, greedy=self._greedy)
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
