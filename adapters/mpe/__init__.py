"""The Multi Particle Environments as PettingZoo's ``mpe2`` has them: its names, arguments and spaces.

``from gpu_envs.adapters.mpe import simple_tag_v3`` takes the place of ``from mpe2 import simple_tag_v3``.
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
from gpu_envs.registry.known import team_spec


@final
class ParticleModule(types.ModuleType):
    """A module of ``mpe2``'s kind, which an import statement finds too."""

    def __init__(self, env_id: str) -> None:
        """Gives it its name.

        Args:
            env_id: The environment that it makes, such as ``SimpleTag-v3``.
        """
        super().__init__(f"{__name__}.{short_name(env_id)}", team_spec(env_id).description)
        self.env_id = env_id
        sys.modules[self.__name__] = self

    def parallel_env(self, **kwargs: Any) -> ParticleEnv:
        """One replica in which all agents act at once; ``kwargs`` are what ``ParticleEnv`` takes."""
        return ParticleEnv(self.env_id, **kwargs)

    def env(self, **kwargs: Any) -> AECEnv:
        """The same with agents that act one after another: PettingZoo's ``AECEnv``."""
        return OrderEnforcingWrapper(self.raw_env(**kwargs))

    def raw_env(self, **kwargs: Any) -> AECEnv:
        """The same as ``env``, without the wrapper that enforces the order of calls."""
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
