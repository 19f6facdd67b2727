"""The Multi Particle Environments with the names, arguments and spaces of ``mpe2``.

``from gpu_envs.adapters.mpe import simple_tag_v3`` replaces ``from mpe2 import simple_tag_v3``.
"""

import sys
import types
from typing import Any, final

try:
    from pettingzoo import AECEnv
    from pettingzoo.utils.wrappers import OrderEnforcingWrapper
except ImportError as error:
    raise ImportError(
        "gpu_envs.adapters.mpe needs PettingZoo 1.27 or newer: pip install 'gpu_envs[pettingzoo]'"
    ) from error

from gpu_envs.adapters.mpe.env import ParticleEnv as ParticleEnv
from gpu_envs.adapters.pettingzoo.agents import short_name
from gpu_envs.adapters.pettingzoo.turns import TurnEnv
from gpu_envs.registry.catalog import team_spec


@final
class ParticleModule(types.ModuleType):
    """A module with the functions of ``mpe2``'s modules, available to import statements."""

    def __init__(self, env_id: str) -> None:
        """Create the module of an environment, such as ``SimpleTag-v3``, and add it to ``sys.modules``."""
        super().__init__(f"{__name__}.{short_name(env_id)}", team_spec(env_id).description)
        self.env_id = env_id
        sys.modules[self.__name__] = self

    def parallel_env(self, **kwargs: Any) -> ParticleEnv:
        """Create one replica as a ``ParallelEnv``; ``kwargs`` are arguments of ``ParticleEnv``."""
        return ParticleEnv(self.env_id, **kwargs)

    def env(self, **kwargs: Any) -> AECEnv:
        """Create one replica as a PettingZoo ``AECEnv``, whose agents act one after another."""
        return OrderEnforcingWrapper(self.raw_env(**kwargs))

    def raw_env(self, **kwargs: Any) -> AECEnv:
        """Create the environment of ``env`` without the wrapper that enforces the order of calls."""
        return TurnEnv(self.parallel_env(**kwargs))


simple_v3 = ParticleModule("Simple-v3")
simple_adversary_v3 = ParticleModule("SimpleAdversary-v3")
simple_crypto_v3 = ParticleModule("SimpleCrypto-v3")
simple_push_v3 = ParticleModule("SimplePush-v3")
simple_reference_v3 = ParticleModule("SimpleReference-v3")
simple_speaker_listener_v4 = ParticleModule("SimpleSpeakerListener-v4")
simple_spread_v3 = ParticleModule("SimpleSpread-v3")
simple_tag_v3 = ParticleModule("SimpleTag-v3")
simple_world_comm_v3 = ParticleModule("SimpleWorldComm-v3")
