"""An environment for skrl that returns constants: its step time is the overhead of skrl."""

import types
from typing import Any, final

import gymnasium
import torch
from skrl.envs.wrappers.torch import Wrapper

FEATURES, ACTIONS = 4, 2
"""Sizes of CartPole."""


@final
class ConstantWrapper(Wrapper):  # type: ignore[misc]  # skrl's types are not followed
    """CartPole's spaces, and the same tensors at every step."""

    observation_space = gymnasium.spaces.Box(-float("inf"), float("inf"), (FEATURES,))
    action_space = gymnasium.spaces.Discrete(ACTIONS)
    state_space = None

    def __init__(self, num_envs: int, device: str | torch.device) -> None:
        super().__init__(types.SimpleNamespace(num_envs=num_envs, device=str(device)))
        flags = torch.zeros(num_envs, 1, dtype=torch.bool, device=self.device)
        self._observations = torch.zeros(num_envs, FEATURES, device=self.device)
        self._rest: tuple[Any, ...] = (torch.ones(num_envs, 1, device=self.device), flags, flags.clone(), {})

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the observations."""
        return self._observations, {}

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the same tensors at every step."""
        return self._observations, *self._rest

    def state(self) -> None:
        """Return None: there is no global state."""

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
