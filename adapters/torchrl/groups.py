"""Specs and step memory of a group: the agents of a role, or the single agent of each replica."""

from typing import Any, Final, NamedTuple, final

import gymnasium
import torch
from gymnasium.spaces import Dict
from tensordict import TensorDict
from torchrl.data import Binary, Composite, Unbounded

from gpu_envs.adapters.torchrl import specs
from gpu_envs.adapters.torchrl.specs import MASK, OBSERVATION
from gpu_envs.engine.roles import RoleInfo

END_KEYS = ("done", "terminated", "truncated")
"""TorchRL's keys for the end of an episode; ``done`` is terminated or truncated."""


class Specs(NamedTuple):
    """TorchRL specs of an environment or of a group of agents."""

    observation: Composite
    action: Composite
    reward: Composite
    done: Composite


class StepMemory(NamedTuple):
    """Memory for the results of one step."""

    observations: dict[str, torch.Tensor]
    """Observations by TorchRL's keys."""
    reward: torch.Tensor
    """Rewards; like the ends with a last dimension of 1, as TorchRL requires."""
    terminated: torch.Tensor
    truncated: torch.Tensor
    action_mask: torch.Tensor | None
    """Action mask, int8; None if the environment has none."""


@final
class Group:
    """Agents with the same spaces.

    Attributes:
        lead: Leading dimensions of arrays: replicas and, for teams, agents.
        masked: Whether there is an action mask.
        choices: Number of choices of each element of an action.
    """

    def __init__(
        self,
        role: RoleInfo,
        lead: tuple[int, ...],
        precision: str,
        device: torch.device,
        *,
        categorical: bool,
        masked: bool = False,
    ) -> None:
        """Create the specs; ``categorical`` actions are numbers instead of one-hot vectors."""
        observation, action = role.observation, role.action
        self.lead: Final = torch.Size(lead)
        self.masked: Final = masked
        self._device: Final = device
        self._reward_dtype: Final[torch.dtype] = getattr(torch, precision)
        self.column: Final = torch.Size((*lead, 1))
        self._by_key: Final = isinstance(observation, Dict)
        self._observations: Final = specs.observation_specs(observation, self.lead, device)
        self._rows: Final = [(key, spec.shape, spec.dtype) for key, spec in self._observations.items()]
        self._action: Final = specs.action_spec(action, self.lead, device, categorical=categorical)
        self.choices: Final = specs.choices_of(action)
        self._one_hot: Final = not categorical and not isinstance(action, gymnasium.spaces.Box)
        self._first: Final = specs.action_offset(action, device)

    def specs(self) -> Specs:
        """Return the specs of observations (with the action mask), actions, rewards and ends of episodes."""
        batch = {"shape": self.lead, "device": self._device}
        reward = Unbounded(self.column, dtype=self._reward_dtype, device=self._device)
        observations = dict(self._observations)
        if self.masked:
            size = torch.Size((*self.lead, sum(self.choices)))
            observations[MASK] = Binary(shape=size, dtype=torch.bool, device=self._device)
        return Specs(
            Composite(observations, **batch),
            Composite({"action": self._action}, **batch),
            Composite({"reward": reward}, **batch),
            Composite({name: specs.flag_spec(self.column, self._device) for name in END_KEYS}, **batch),
        )

    def actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Convert TorchRL's actions to the environment's."""
        if self._one_hot:
            actions = self._action.to_categorical(actions, safe=False)
        return actions if self._first is None else actions + self._first

    def allocate(self) -> StepMemory:
        """Allocate memory for the results of a step: a tensor per result, uninitialised."""
        device, column = self._device, self.column
        mask = (*self.lead, sum(self.choices)) if self.masked else None
        return StepMemory(
            {key: torch.empty(row, dtype=dtype, device=device) for key, row, dtype in self._rows},
            torch.empty(column, dtype=self._reward_dtype, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
            None if mask is None else torch.empty(mask, dtype=torch.int8, device=device),
        )

    def keyed(self, observations: Any, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return observations (a tensor, or tensors by the keys of a Dict) and int8 action mask by TorchRL's keys."""
        tensors = dict(observations) if self._by_key else {OBSERVATION: observations}
        return tensors if mask is None else tensors | {MASK: mask.view(torch.bool)}

    def step_arrays(self, memory: StepMemory) -> tuple[Any, Any, Any, Any]:
        """Return the arrays for ``step(..., out=)``: observations, rewards, terminations, truncations."""
        lead, observations = self.lead, memory.observations if self._by_key else memory.observations[OBSERVATION]
        return observations, memory.reward.view(lead), memory.terminated.view(lead), memory.truncated.view(lead)

    def results(self, memory: StepMemory) -> dict[str, torch.Tensor]:
        """Return the tensors of the memory by TorchRL's keys, and ``done``."""
        return {
            **memory.observations,
            **({} if memory.action_mask is None else {MASK: memory.action_mask.view(torch.bool)}),
            "reward": memory.reward,
            "done": memory.terminated | memory.truncated,
            "terminated": memory.terminated,
            "truncated": memory.truncated,
        }

    def tensordict(self, tensors: dict[str, torch.Tensor]) -> TensorDict:
        """Return a TensorDict of tensors whose shapes and devices are known to be valid."""
        return unchecked(tensors, self.lead, self._device)


def not_done(shape: torch.Size, device: torch.device) -> dict[str, torch.Tensor]:
    """Return tensors of False for each of ``END_KEYS``, as after a reset."""
    flags = torch.zeros((len(END_KEYS), *shape), dtype=torch.bool, device=device)
    return dict(zip(END_KEYS, flags.unbind(), strict=True))


def unchecked(tensors: dict[str, Any], lead: torch.Size, device: torch.device) -> TensorDict:
    """Return a TensorDict without checking its tensors; the check takes most of the time of the constructor."""
    return TensorDict._new_unsafe(tensors, batch_size=lead, device=device)
