"""An environment for rsl_rl that returns constants: its step time is the overhead of rsl_rl."""

from typing import Any, final

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

FEATURES, ACTIONS = 3, 1
"""Sizes of Pendulum."""


@final
class ConstantVecEnv(VecEnv):  # type: ignore[misc]  # rsl_rl's types are not followed
    """Pendulum's shapes, and the same tensors at every step."""

    def __init__(self, num_envs: int, device: str | torch.device) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, ACTIONS, 200
        self.device = torch.device(device)
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int32, device=self.device)
        observations = torch.zeros(num_envs, FEATURES, device=self.device)
        self._observations = TensorDict({"policy": observations}, batch_size=[num_envs], device=self.device)
        flags = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._rest = (torch.zeros(num_envs, device=self.device), flags, {"time_outs": flags.clone(), "log": {}})

    def get_observations(self) -> TensorDict:
        """Return the observations."""
        return self._observations

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the same tensors at every step."""
        return self._observations, *self._rest
