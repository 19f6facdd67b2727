"""An environment for TorchRL that returns constants: its step time is the overhead of TorchRL."""

from typing import Any, Final, final

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

FEATURES, ACTIONS = 4, 2
"""Sizes of CartPole."""


@final
class ConstantEnv(EnvBase):  # type: ignore[misc]  # TorchRL's types are not followed
    """CartPole's specs, and the same tensors at every step."""

    def __init__(self, num_envs: int, device: str | torch.device, episode_length: int | None = None) -> None:
        """Allocate the results of all steps.

        Args:
            num_envs: The number of replicas.
            device: The device of the tensors.
            episode_length: Length of the imitated episodes: one in ``episode_length`` replicas is done at each step,
                and TorchRL resets it; None: no replica is done.
        """
        super().__init__(device=device, batch_size=(num_envs,))
        lead, place = self.batch_size, self.device
        column = torch.Size((num_envs, 1))
        flag = Categorical(2, shape=column, dtype=torch.bool, device=place)
        limits = torch.tensor([4.8, float("inf"), 0.42, float("inf")], device=place)
        observed = Bounded(-limits, limits, device=place).expand(num_envs, FEATURES)
        self.observation_spec = Composite(observation=observed, shape=lead, device=place)
        self.action_spec = Categorical(ACTIONS, shape=lead, dtype=torch.int64, device=place)
        self.reward_spec = Unbounded(column, device=place)
        ends = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead, device=place)
        done = torch.zeros(column, dtype=torch.bool, device=place)
        if episode_length is not None:
            done[::episode_length] = True
        never = torch.zeros_like(done)
        observation = torch.zeros(num_envs, FEATURES, device=place)
        self._first: Final[dict[str, Any]] = {
            "observation": observation,
            "done": never,
            "terminated": never,
            "truncated": never,
        }
        self._next: Final[dict[str, Any]] = {
            "observation": observation,
            "reward": torch.ones(column, device=place),
            "done": done,
            "terminated": done,
            "truncated": never,
        }

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict.get("action")
        return TensorDict(self._next, batch_size=self.batch_size, device=self.device)

    def _reset(self, _: TensorDictBase | None = None, **__: Any) -> TensorDictBase:
        return TensorDict(self._first, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        """Do nothing: the environment is not random."""
