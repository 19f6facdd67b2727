"""Those who share spaces: the agents of a role, or the one agent of each replica."""

from typing import Any, Final, NamedTuple, final

import gymnasium
import torch
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded

from gpu_envs.adapters.torchrl.specs import action_spec, box_spec, first_actions, flag_spec

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

    observation: torch.Tensor
    reward: torch.Tensor
    """This and the ends have a last dimension of one, as TorchRL wants them."""
    terminated: torch.Tensor
    truncated: torch.Tensor


@final
class Group:
    """Those who share spaces: their specs, and the memory of their steps.

    Attributes:
        lead: The dimensions before those of one agent's: replicas, and in teams agents.
    """

    def __init__(
        self,
        observation: gymnasium.Space[Any],
        action: gymnasium.Space[Any],
        lead: tuple[int, ...],
        precision: str,
        device: torch.device,
        *,
        categorical: bool,
    ) -> None:
        """Derives specs and shapes.

        Args:
            observation: The space of one agent.
            action: The space of one agent.
            lead: The dimensions before it.
            precision: Of rewards.
            device: Where all is.
            categorical: Discrete actions are numbers, not one-hot.
        """
        self.lead: Final = torch.Size(lead)
        self._device: Final = device
        self._reward_dtype: Final[torch.dtype] = getattr(torch, precision)
        self._row: Final = torch.Size((*lead, *(observation.shape or ())))
        self.column: Final = torch.Size((*lead, 1))
        self._observation: Final = box_spec(observation, "observation", self.lead, device)
        self._action: Final = action_spec(action, self.lead, device, categorical=categorical)
        self._one_hot: Final = not categorical and not isinstance(action, gymnasium.spaces.Box)
        self._first: Final = first_actions(action, device)

    def specs(self) -> Specs:
        """The specs by their keys."""
        batch = {"shape": self.lead, "device": self._device}
        reward = Unbounded(self.column, dtype=self._reward_dtype, device=self._device)
        return Specs(
            Composite({"observation": self._observation}, **batch),
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
        return Fresh(
            torch.empty(self._row, dtype=torch.float32, device=device),
            torch.empty(column, dtype=self._reward_dtype, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
            torch.empty(column, dtype=torch.bool, device=device),
        )

    def tensordict(self, tensors: dict[str, torch.Tensor]) -> TensorDict:
        """A TensorDict of tensors that fit."""
        return unchecked(tensors, self.lead, self._device)


def no_ends(shape: torch.Size, device: torch.device) -> dict[str, torch.Tensor]:
    """The ends after a reset."""
    return dict(zip(ENDS, torch.zeros((len(ENDS), *shape), dtype=torch.bool, device=device).unbind(), strict=True))


def unchecked(tensors: dict[str, Any], lead: torch.Size, device: torch.device) -> TensorDict:
    """A TensorDict of what is known to fit: to look at it again is what takes long in making one."""
    return TensorDict._new_unsafe(tensors, batch_size=lead, device=device)
