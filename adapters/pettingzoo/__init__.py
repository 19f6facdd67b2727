"""PettingZoo: teams as a ``ParallelEnv`` or ``AECEnv`` of one replica, or as many replicas with dicts by agent.

Importing this module registers all teams with PettingZoo as ``gpu_envs/<id>``, and creates a module for each, such as
``tag_continuous_v0``, with ``env``, ``raw_env``, ``parallel_env`` and ``vector_env``.
"""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import gpu_envs
from gpu_envs.registry.catalog import NAMESPACE, portable_name, registered
from gpu_envs.specs.team import TeamSpec

try:
    from pettingzoo import AECEnv, aec_registry, parallel_registry
    from pettingzoo import register as register_with_pettingzoo
    from pettingzoo.utils.wrappers import OrderEnforcingWrapper
except ImportError as error:
    raise ImportError(
        "gpu_envs.adapters.pettingzoo needs PettingZoo 1.27 or newer: pip install 'gpu_envs[pettingzoo]'"
    ) from error

from gpu_envs.adapters.pettingzoo.agents import short_name
from gpu_envs.adapters.pettingzoo.one_replica import TeamEnv as TeamEnv
from gpu_envs.adapters.pettingzoo.replicas import TeamVectorEnv as TeamVectorEnv
from gpu_envs.adapters.pettingzoo.turns import TurnEnv as TurnEnv

__all__ = ["TeamEnv", "TeamVectorEnv", "TurnEnv", "env", "parallel_env", "raw_env", "vector_env"]


def parallel_env(id: str, **kwargs: Any) -> TeamEnv:
    """Create one replica as a PettingZoo ``ParallelEnv``; ``kwargs`` are arguments of ``TeamEnv``.

    Example:
        >>> from gpu_envs.adapters import pettingzoo
        >>> env = pettingzoo.parallel_env("SimpleTag-v3")
        >>> observations, infos = env.reset(seed=0)
        >>> env.agents
        ['adversary_0', 'adversary_1', 'adversary_2', 'agent_0']
    """
    if "num_envs" in kwargs:
        raise TypeError("parallel_env has one replica and no num_envs: use vector_env(id, num_envs) for many replicas")
    return TeamEnv(id, **kwargs)


def env(id: str, **kwargs: Any) -> AECEnv:
    """Create one replica as a PettingZoo ``AECEnv``, whose agents act one after another."""
    return OrderEnforcingWrapper(raw_env(id, **kwargs))


def raw_env(id: str, **kwargs: Any) -> AECEnv:
    """Create the environment of ``env`` without the wrapper that enforces the order of calls."""
    return TurnEnv(parallel_env(id, **kwargs))


def vector_env(id: str, num_envs: int = 1, **kwargs: Any) -> TeamVectorEnv:
    """Create many replicas whose results are dicts by agent; ``kwargs`` are arguments of ``TeamVectorEnv``."""
    return TeamVectorEnv(id, num_envs, **kwargs)


_MAKERS: dict[str, Callable[..., Any]] = {
    "env": env,
    "raw_env": raw_env,
    "parallel_env": parallel_env,
    "vector_env": vector_env,
}


def publish() -> None:
    """Register all new teams with PettingZoo, and create their modules."""
    for spec in registered():
        if isinstance(spec, TeamSpec):
            _publish(spec)


def _publish(spec: TeamSpec) -> None:
    """Register a team with PettingZoo and create its module, each unless it exists."""
    name, short = f"{NAMESPACE}/{spec.id}", short_name(spec.id)
    for kind, known, maker in (("aec", aec_registry, "env"), ("parallel", parallel_registry, "parallel_env")):
        if name not in known:
            # no max_cycles here: PettingZoo would pass it even if the user passes an episode_length
            register_with_pettingzoo(
                kind, name, entry_point=f"{__name__}:{maker}", kwargs={"id": portable_name(spec.id)}
            )
    if short not in globals():
        module = types.ModuleType(f"{__name__}.{short}", spec.description)
        for maker, function in _MAKERS.items():
            setattr(module, maker, functools.partial(function, spec.id))
        sys.modules[module.__name__] = module  # for import statements
        globals()[short] = module


def withdraw(id: str) -> None:
    """Unregister a team from PettingZoo, and remove its module."""
    name, short = f"{NAMESPACE}/{id}", short_name(id)
    for known in (aec_registry, parallel_registry):
        known.pop(name, None)
    if sys.modules.pop(f"{__name__}.{short}", None) is not None:
        globals().pop(short, None)


def __getattr__(name: str) -> Any:
    """Return the module of a team that was registered after this module was imported."""
    gpu_envs.ids()  # also loads environments of other distributions
    publish()
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


publish()
