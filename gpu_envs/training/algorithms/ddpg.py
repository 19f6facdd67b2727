"""Deep deterministic policy gradient (Lillicrap et al. 2016)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Deterministic


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DDPG(Deterministic):
    """DDPG: as TD3, but with one critic, without target policy smoothing and without delayed actor updates."""

    name: ClassVar[str] = "ddpg"
    critics: ClassVar[int] = 1
