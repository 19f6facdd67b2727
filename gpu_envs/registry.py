"""The environments by their ids, and the two ways to make one."""

import sys
from typing import Any

import gymnasium

from gpu_envs.errors import UnknownEnvironmentError, did_you_mean
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.spec import EnvSpec, Spec, TeamSpec
from gpu_envs.vector_env import VectorEnv

NAMESPACE = "gpu_envs"

_SPECS: dict[str, Spec] = {}


def register(spec: Spec) -> None:
    """Makes an environment known here, by its id; a single-agent one to Gymnasium too, as ``gpu_envs/<id>``.

    PettingZoo learns of those with a team of agents when ``gpu_envs.adapters.pettingzoo`` is imported.

    Args:
        spec: What the environment is. Registering an equal one again changes nothing.

    Raises:
        ValueError: The id belongs to another environment.
    """
    known = _SPECS.get(spec.id)
    if known is not None and known != spec:
        raise ValueError(f"the id {spec.id!r} is taken by another environment; give yours another name or version")
    _SPECS[spec.id] = spec
    if isinstance(spec, TeamSpec):
        publish = getattr(sys.modules.get("gpu_envs.adapters.pettingzoo"), "publish", None)
        if publish is not None:  # it has been imported, so PettingZoo knows of those before this one
            publish()
        return
    gymnasium.register(
        id=f"{NAMESPACE}/{spec.id}",
        entry_point="gpu_envs.adapters.gymnasium:SingleEnv",
        vector_entry_point="gpu_envs.registry:make_vector_env",
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        kwargs={"env_id": spec.id},
    )


def ids() -> list[str]:
    """The ids of all registered environments."""
    return sorted(_SPECS)


def spec(id: str) -> Spec:
    """The spec of an environment, by its id with or without ``gpu_envs/``; the newest version where none is named."""
    name = id.removeprefix(f"{NAMESPACE}/")
    if name in _SPECS:
        return _SPECS[name]
    raise UnknownEnvironmentError(
        f"there is no environment {id!r}{did_you_mean(name, _SPECS)} There are: {', '.join(ids())}"
    )


def env_spec(id: str) -> EnvSpec:
    """The spec of a single-agent environment."""
    found = spec(id)
    if not isinstance(found, EnvSpec):
        raise UnknownEnvironmentError(
            f"{found.id!r} has a team of agents: gpu_envs.make({found.id!r}), or gpu_envs.adapters.pettingzoo"
        )
    return found


def team_spec(id: str) -> TeamSpec:
    """The spec of an environment with a team of agents."""
    found = spec(id)
    if not isinstance(found, TeamSpec):
        raise UnknownEnvironmentError(f"{found.id!r} has one agent: gpu_envs.make({found.id!r}), or gymnasium.make_vec")
    return found


def make(id: str, num_envs: int = 1, **kwargs: Any) -> Any:
    """Makes a batch of environments; see ``VectorEnv`` and ``MultiAgentEnv`` for what may be given.

    Args:
        id: The environment, such as ``CartPole-v1``; ``gpu_envs.ids()`` lists them.
        num_envs: How many replicas.
        **kwargs: ``device``, ``output``, ``autoreset_mode``, ``precision``, ``max_episode_steps``, ``copy``,
            ``statistics``, ``threads``, ``block_size``, and the environment's own parameters.

    Returns:
        A ``VectorEnv``, which is Gymnasium's; of an environment with a team of agents, a ``MultiAgentEnv``.
    """
    found = spec(id)
    if isinstance(found, TeamSpec):
        return MultiAgentEnv(found, num_envs, **kwargs)
    return VectorEnv(env_spec(id), num_envs, **kwargs)


def make_vector_env(env_id: str, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """What ``gymnasium.make_vec`` calls."""
    return VectorEnv(env_spec(env_id), num_envs, **kwargs)
