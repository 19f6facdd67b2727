"""The two ways to make an environment."""

from typing import Any, overload

from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.known import env_spec, spec
from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.vector_env import VectorEnv


@overload
def make(id: EnvSpec, num_envs: int = 1, **kwargs: Any) -> VectorEnv: ...
@overload
def make(id: TeamSpec, num_envs: int = 1, **kwargs: Any) -> MultiAgentEnv: ...
@overload
def make(id: str | Spec, num_envs: int = 1, **kwargs: Any) -> Any: ...
def make(id: str | Spec, num_envs: int = 1, **kwargs: Any) -> Any:
    """Makes a batch of environments; see ``VectorEnv`` and ``MultiAgentEnv`` for what may be given.

    Args:
        id: The environment, such as ``CartPole-v1``; ``gpu_envs.ids()`` lists them. Or the place of its spec:
            ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``. Or the spec itself, which is registered.
        num_envs: How many replicas.
        **kwargs: ``device``, ``output``, ``autoreset_mode``, ``precision``, ``max_episode_steps``, ``copy``,
            ``statistics``, ``threads``, ``block_size``, ``checking``, ``first_replica``, ``shared_observations``,
            ``active_heads``, ``observe_params``, ``render_mode``, and the environment's own parameters.

    Returns:
        A ``VectorEnv``, which is Gymnasium's; of an environment with a team of agents, a ``MultiAgentEnv``.
    """
    found = spec(id)
    if isinstance(found, TeamSpec):
        return MultiAgentEnv(found, num_envs, **kwargs)
    assert isinstance(found, EnvSpec)
    return VectorEnv(found, num_envs, **kwargs)


def make_vector_env(env_id: str, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """What ``gymnasium.make_vec`` calls."""
    return VectorEnv(env_spec(env_id), num_envs, **kwargs)
