"""The default policy run by kernels of our own, where it is small enough and the device is a GPU."""

from typing import final

import torch
from torch import nn

from gpu_envs.training.config import Config
from gpu_envs.training.fused import FusedNetworks, Places
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Networks
from gpu_envs.training.normalise import ObservationScale
from gpu_envs.training.ops import Batch, LossSettings
from gpu_envs.training.optimiser import Adam
from gpu_envs.training.policy import Perceptron


def why_unfused(
    module: nn.Module, features: int, head: Head, config: Config, device: str, *, masked: bool = False
) -> str:
    """Why a policy is run by torch; empty where it need not be.

    Args:
        module: The policy.
        features: Of an observation.
        head: What its outputs mean.
        config: The run.
        device: Where.
        masked: The environment has action masks, which the kernels know nothing of.

    Raises:
        ValueError: It must not be, and yet it cannot be fused.
    """
    if config.fused is False:
        reason = "fused is turned off"
    elif masked:
        reason = "the environment has action masks, which kernels of our own know nothing of"
    elif not isinstance(module, Perceptron):
        reason = "only the default policy with actor and critic apart has kernels of its own"
    else:
        reason = FusedNetworks.fits(head, features, config.hidden, config.activation, device, config.precision)
    if reason and config.fused:
        raise ValueError(f"fused=True, and {reason}; leave it out")
    return reason


@final
class FusedPerceptron(Networks):
    """A ``Perceptron`` whose parameters an optimiser keeps in one buffer."""

    acts_with_value = False

    def __init__(
        self, module: nn.Module, features: int, head: Head, optimiser: Adam, scale: ObservationScale | None,
        config: Config, device: str,
    ) -> None:  # fmt: skip
        """Finds the parameters in the buffer.

        Args:
            module: A ``Perceptron``.
            features: Of an observation.
            head: What its outputs mean.
            optimiser: Of its parameters.
            scale: Of observations.
            config: The run.
            device: A CUDA device.
        """
        self._optimiser = optimiser
        self._scale = (scale.mean, scale.inverse) if scale is not None else None
        starts: dict[str, int] = {}
        start = 0
        for name, parameter in module.named_parameters():
            starts[name] = start
            start += parameter.numel()
        self._kernels = FusedNetworks(
            head, features, config.hidden, config.activation, device, config.precision,
            _places(starts, "actor", starts.get("log_std", -1)), _places(starts, "critic", -1),
        )  # fmt: skip

    def act(
        self, observations: torch.Tensor, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Runs the actor and samples, in one launch."""
        assert values is None
        assert action_mask is None
        self._kernels.act(
            self._optimiser.flat, observations, actions, log_probs,
            stream=stream, turn=turn, acted=acted, greedy=greedy, scale=self._scale,
        )  # fmt: skip

    def values(self, observations: torch.Tensor, values: torch.Tensor) -> None:
        """Runs the critic, in one launch."""
        self._kernels.values(self._optimiser.flat, observations, values, scale=self._scale)

    def gradient(
        self, observations: torch.Tensor, batch: Batch, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        """Goes forth and back in one launch, and sums over blocks in another."""
        self._kernels.gradients(
            self._optimiser.flat, observations, batch, indices, settings, scalars, self._optimiser.gradient, totals,
            scale=self._scale,
        )  # fmt: skip


def _places(starts: dict[str, int], network: str, log_std: int) -> Places:
    """Where a network's layers begin: modules 0, 2 and 4 of its sequence are linear."""

    def at(layer: int, kind: str) -> int:
        return starts[f"{network}.{2 * layer - 2}.{kind}"]

    return Places(
        *(at(1, "weight"), at(1, "bias")), *(at(2, "weight"), at(2, "bias")), *(at(3, "weight"), at(3, "bias")), log_std
    )
