"""Teams behind PettingZoo's interfaces: one replica for its tests and tools, and many as dicts of agents.

Importing registers every team with PettingZoo as ``gpu_envs/<id>``, and gives each a namespace here, such as
``tag_continuous_v0``, with ``env``, ``raw_env``, ``parallel_env`` and ``vector_env``.
"""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import gpu_envs
from gpu_envs.registry.known import NAMESPACE, lasting, registered
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
    """Makes one replica in which all agents act at once.

    Args:
        id: The environment, such as ``TagContinuous-v0``.
        **kwargs: What ``TeamEnv`` takes.

    Returns:
        A PettingZoo ``ParallelEnv``.
    """
    if "num_envs" in kwargs:
        raise TypeError("parallel_env makes one replica and takes no num_envs; vector_env(id, num_envs) makes many")
    return TeamEnv(id, **kwargs)


def env(id: str, **kwargs: Any) -> AECEnv:
    """The same with agents that act one after another: PettingZoo's ``AECEnv``."""
    return OrderEnforcingWrapper(raw_env(id, **kwargs))


def raw_env(id: str, **kwargs: Any) -> AECEnv:
    """The same as ``env``, without the wrapper that enforces the order of calls."""
    return TurnEnv(parallel_env(id, **kwargs))


def vector_env(id: str, num_envs: int = 1, **kwargs: Any) -> TeamVectorEnv:
    """Makes many replicas whose arrays are handed out agent by agent.

    Args:
        id: The environment, such as ``TagContinuous-v0``.
        num_envs: How many replicas.
        **kwargs: What ``TeamVectorEnv`` takes.
    """
    return TeamVectorEnv(id, num_envs, **kwargs)


_MAKERS: dict[str, Callable[..., Any]] = {
    "env": env,
    "raw_env": raw_env,
    "parallel_env": parallel_env,
    "vector_env": vector_env,
}


def publish() -> None:
    """Tells PettingZoo of all registered teams, and names them here. Those that were known stay as they are."""
    for spec in registered():
        if isinstance(spec, TeamSpec):
            _publish(spec)


def _publish(spec: TeamSpec) -> None:
    name, short = f"{NAMESPACE}/{spec.id}", short_name(spec.id)
    for kind, known, maker in (("aec", aec_registry, "env"), ("parallel", parallel_registry, "parallel_env")):
        if name not in known:
            # without max_cycles: PettingZoo would hand that on even where the user gives an episode_length
            register_with_pettingzoo(kind, name, entry_point=f"{__name__}:{maker}", kwargs={"id": lasting(spec.id)})
    if short not in globals():
        module = types.ModuleType(f"{__name__}.{short}", spec.description)
        for maker, function in _MAKERS.items():
            setattr(module, maker, functools.partial(function, spec.id))
        sys.modules[module.__name__] = module  # so that an import statement finds it too
        globals()[short] = module


def withdraw(id: str) -> None:
    """Takes back what was told of a team."""
    name, short = f"{NAMESPACE}/{id}", short_name(id)
    for known in (aec_registry, parallel_registry):
        known.pop(name, None)
    if sys.modules.pop(f"{__name__}.{short}", None) is not None:
        globals().pop(short, None)


def __getattr__(name: str) -> Any:
    """The namespace of a team that was registered later than this module was imported."""
    gpu_envs.ids()  # those of other distributions too
    publish()
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


publish()
