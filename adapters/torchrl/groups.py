"""Those who share spaces: the agents of a role, or the one agent of each replica."""

from typing import Any, Final, NamedTuple, final

import gymnasium
import torch
from gymnasium.spaces import Dict
from tensordict import TensorDict
from torchrl.data import Binary, Composite, Unbounded

from gpu_envs.adapters.torchrl.specs import (
    MASK,
    OBSERVATION,
    action_spec,
    choices_of,
    first_actions,
    flag_spec,
    observation_specs,
)
from gpu_envs.engine.by_role import RoleView

ENDS = ("done", "terminated", "truncated")
"""TorchRL's names for the end of an episode; ``done`` is either of the others."""


class Specs(NamedTuple):
    """What TorchRL is told of an environment, or of one group of agents."""

    observation: Composite
    action: Composite
    reward: Composite
    done: Composite


class Fresh(NamedTuple):
    """Memory of one step."""

    observations: dict[str, torch.Tensor]
    """By TorchRL's keys."""
    reward: torch.Tensor
    """This and the ends have a last dimension of one, as TorchRL wants them."""
    terminated: torch.Tensor
    truncated: torch.Tensor
    action_mask: torch.Tensor | None
    """As the environment writes it, int8; None: there is none."""


@final
class Group:
    """Those who share spaces: their specs, and the memory of their steps.

    Attributes:
        lead: The dimensions before those of one agent's: replicas, and in teams agents.
        masked: Whether the rules say which actions are possible.
        choices: How many there are, for each number of an action.
    """

    def __init__(
        self,
        role: RoleView,
        lead: tuple[int, ...],
        precision: str,
        device: torch.device,
        *,
        categorical: bool,
        masked: bool = False,
    ) -> None:
        """Derives specs and shapes.

        Args:
            role: Whose group it is.
            lead: The dimensions before one agent's.
            precision: Of rewards.
            device: Where all is.
            categorical: Discrete actions are numbers, not one-hot.
            masked: The rules say which actions are possible.
        """
        observation, action = role.observation, role.action
        self.lead: Final = torch.Size(lead)
        self.masked: Final = masked
        self._device: Final = device
        self._reward_dtype: Final[torch.dtype] = getattr(torch, precision)
        self.column: Final = torch.Size((*lead, 1))
        self._by_key: Final = isinstance(observation, Dict)
        self._observations: Final = observation_specs(observation, self.lead, device)
        self._rows: Final = [(key, spec.shape, spec.dtype) for key, spec in self._observations.items()]
        self._action: Final = action_spec(action, self.lead, device, categorical=categorical)
        self.choices: Final = choices_of(action)
        self._one_hot: Final = not categorical and not isinstance(action, gymnasium.spaces.Box)
        self._first: Final = first_actions(action, device)

    def specs(self) -> Specs:
        """The specs by their keys."""
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
            Composite({name: flag_spec(self.column, self._device) for name in ENDS}, **batch),
        )

    def actions(self, given: torch.Tensor) -> torch.Tensor:
        """Actions as the environment takes them."""
        if self._one_hot:
            given = self._action.to_categorical(given, safe=False)
        return given if self._first is None else given + self._first

    def fresh(self) -> Fresh:
        """Allocates what a step writes."""
        device, column = self._device, self.column
        mask = (*self.lead, sum(self.choices)) if self.masked else None
        return Fresh(
            {key: torch.empty(row, dtype=dtype, device=device) for key, row, dtype in self._rows},
            torch.empty(column, dtype=self._reward_dtype, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
            None if mask is None else torch.empty(mask, dtype=torch.int8, device=device),
        )

    def keyed(self, observations: Any, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """What the environment shows, by TorchRL's keys.

        Args:
            observations: A tensor, or tensors by the keys of a Dict.
            mask: Which actions are possible, int8; None: that is not said.
        """
        seen = dict(observations) if self._by_key else {OBSERVATION: observations}
        return seen if mask is None else seen | {MASK: mask.view(torch.bool)}

    def places(self, fresh: Fresh) -> tuple[Any, Any, Any, Any]:
        """Where the environment is to write: observations, rewards, terminations, truncations."""
        lead, seen = self.lead, fresh.observations if self._by_key else fresh.observations[OBSERVATION]
        return seen, fresh.reward.view(lead), fresh.terminated.view(lead), fresh.truncated.view(lead)

    def stepped(self, fresh: Fresh) -> dict[str, torch.Tensor]:
        """What a step wrote, by TorchRL's keys."""
        return {
            **fresh.observations,
            **({} if fresh.action_mask is None else {MASK: fresh.action_mask.view(torch.bool)}),
            "reward": fresh.reward,
            "done": fresh.terminated | fresh.truncated,
            "terminated": fresh.terminated,
            "truncated": fresh.truncated,
        }

    def tensordict(self, tensors: dict[str, torch.Tensor]) -> TensorDict:
        """A TensorDict of tensors that fit."""
        return unchecked(tensors, self.lead, self._device)


def no_ends(shape: torch.Size, device: torch.device) -> dict[str, torch.Tensor]:
    """The ends after a reset."""
    return dict(zip(ENDS, torch.zeros((len(ENDS), *shape), dtype=torch.bool, device=device).unbind(), strict=True))


def unchecked(tensors: dict[str, Any], lead: torch.Size, device: torch.device) -> TensorDict:
    """A TensorDict of what is known to fit: to look at it again is what takes long in making one."""
    return TensorDict._new_unsafe(tensors, batch_size=lead, device=device)
