"""What a policy's module and the choice of its engine depend on."""

import dataclasses
from typing import final

from gpu_envs.training.algorithms import Algorithm
from gpu_envs.training.heads import Head
from gpu_envs.training.observations import Split
from gpu_envs.training.policy import Network


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """Settings of a policy, spaces of its agents, and its device."""

    algorithm: Algorithm
    network: Network
    head: Head
    features: int
    """Numbers of an observation."""
    device: str
    """``cpu`` or ``cuda:N``."""
    masked: bool = False
    """Whether the environment has action masks."""
    split: Split | None = None
    """How observations consist of two parts; None: they do not."""
    default: bool = True
    """Whether the module is the one that the settings describe."""
    samples: int = 2**31
    """Samples of a minibatch, about."""
    threads: int | None = None
    """Threads on the CPU, at most; None: one for each core."""
