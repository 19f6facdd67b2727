"""What a run asks of a policy that learns, whatever its algorithm."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import nn

from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import Algorithm
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.observations import Rows, Scale
from gpu_envs.training.operations.device_schedule import Target
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policies.case import Case
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.policy_rows import PolicyRows


@final
@dataclasses.dataclass(frozen=True)
class LearnerParts:
    """What a learner is made of."""

    policy_rows: PolicyRows
    """The agents it acts for."""
    module: nn.Module
    """Its weights."""
    networks: Any
    """What runs them: ``PolicyNetworks`` of on-policy algorithms, ``ActorCriticNetworks`` of off-policy ones."""
    scale: Scale
    """The running scale of observations; None: they are taken as they are."""
    case: Case
    """Its algorithm, and where it runs."""
    horizon: int
    """Steps between two updates."""
    seed: int
    """The run's."""
    limit: int | None
    """The step at which episodes are truncated; None: never."""
    group: Group
    """The processes that train together."""


class Learner(ABC):
    """One policy's storage, random numbers and update; everything on the device, nothing read back.

    Attributes:
        policy_rows: The agents it acts for.
        module: Its weights.
        networks: How that acts.
        algorithm: With the settings that are the policy's own.
        fallback_reason: Why torch computes it; empty where kernels do.
        figures: What the last iteration was like.
        names: Of the figures; None: of this algorithm it means nothing.
        schedules: The schedules of what changes as training goes on, each with where its value is to stand.
        scale: The running scale of observations; None: they are taken as they are.
        streams: The states of its random numbers, by what they are for.
        waits: So many iterations it collects before it learns again, and does not run in graphs.
    """

    networks: Networks
    algorithm: Algorithm
    figures: torch.Tensor
    names: tuple[str | None, ...]
    schedules: list[Target]
    waits: int = 0

    def __init__(self, parts: LearnerParts, turns: Mapping[str, int]) -> None:
        """Takes what all algorithms have; ``turns``: how often in an iteration it draws random numbers for what."""
        self.policy_rows, self.module, self.networks = parts.policy_rows, parts.module, parts.networks
        self.scale, self.horizon, self._limit, self._group = parts.scale, parts.horizon, parts.limit, parts.group
        self.fallback_reason = ""
        keys = [[derived_seed(parts.seed, purpose, self.policy_rows.name), 0] for purpose in turns]
        streams = torch.tensor(keys, device=parts.case.device)
        self.streams = dict(zip(turns, streams, strict=True))
        self._counters, self._turns = streams[:, 1], torch.tensor([*turns.values()], device=parts.case.device)

    def describe(self) -> dict[str, Any]:
        """The shapes of its weights, in which a checkpoint must agree."""
        return {name: list(tensor.shape) for name, tensor in self.module.state_dict().items()}

    @abstractmethod
    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> torch.Tensor:
        """Chooses actions in the horizon's step ``t``; returns the environment's, ``[rows, width]``."""

    @abstractmethod
    def conclude(self, storage: Mapping[str, RoleStorage]) -> None:
        """Takes in a horizon that is complete."""

    @abstractmethod
    def update(self) -> None:
        """Learns from what was taken in."""

    def count(self) -> None:
        """Takes note that an iteration is done."""
        self.waits = max(0, self.waits - 1)

    @property
    @abstractmethod
    def optimisers(self) -> Sequence[Adam]:
        """Its optimisers."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """What may show where a NaN came from, in the order in which it would spread."""

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """Copies of everything that the next iterations depend on.

        Args:
            whole: With a copy of the replay buffer, instead of the buffer itself.
        """
        del whole
        return {
            "module": {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()},
            "streams": {name: stream.clone() for name, stream in self.streams.items()},
            "observations": None if self.scale is None else self.scale.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        self.module.load_state_dict(state["module"])  # into an optimiser's flat buffer, of which they are views
        for name, stream in self.streams.items():
            stream.copy_(state["streams"][name])
        if self.scale is not None:
            self.scale.load(state["observations"])

    def _taken(self, storage: Mapping[str, RoleStorage], name: str) -> torch.Tensor:
        """The rows of what a horizon left, ``[steps, rows, ...]``."""
        return self.policy_rows.take({role: getattr(s, name) for role, s in storage.items()}, 1)

    def _alive(self, storage: Mapping[str, RoleStorage]) -> torch.Tensor | None:
        """Which agents are active before each step and after the last; None: all."""
        leaves = storage[self.policy_rows.parts[0].role.name].alive is not None
        return self._taken(storage, "alive") if leaves else None

    def _observed(self, storage: Mapping[str, RoleStorage]) -> Rows:
        """What is seen before each step and after the last, ``[horizon + 1, rows, features]``."""
        return self.policy_rows.observed({name: s.rows for name, s in storage.items()}, 1)

    def _seen_last(self, storage: Mapping[str, RoleStorage]) -> Rows:
        """What is seen at ends of episodes, ``[horizon, rows, features]``."""
        return self.policy_rows.observed({name: s.last_rows for name, s in storage.items()}, 1)

    def _end(self, observations: Rows, alive: torch.Tensor | None) -> None:
        """Ends an iteration: other random numbers, and what follows running statistics of flat observations."""
        self._counters.add_(self._turns)
        if self.scale is not None:
            self.scale.learn(observations, alive)
        for buffer in self.module.buffers():  # which a module may change as it goes, by what it has seen
            self._group.take_first(buffer)
