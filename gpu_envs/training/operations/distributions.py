"""What a policy's outputs say of actions, in plain torch: what the kernels of ``distributions.cuh`` compute."""

import math
from collections.abc import Sequence

import torch

from gpu_envs.training.operations.heads import Head

_FORBIDDEN = -1e9
"""The logit of a choice that a mask forbids: its probability is zero, and its logarithm still a number."""


def log_probs_and_entropies(
    head: Head, parameters: torch.Tensor, actions: torch.Tensor, action_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of each row's action, and the entropy of its distribution.

    Args:
        head: What the parameters mean.
        parameters: [B, P], the policy's outputs.
        actions: [B, W], as they are stored for the loss.
        action_mask: [B, P], zero where a choice is forbidden; None: all are allowed.
    """
    if head.kind == "box":
        mean, log_std = parameters.chunk(2, 1)
        distance = (actions - mean) * (-log_std).exp()
        half_log = 0.5 * math.log(2.0 * math.pi)
        return (-0.5 * distance.square() - log_std - half_log).sum(1), (log_std + 0.5 + half_log).sum(1)
    if action_mask is not None:
        parameters = torch.where(action_mask != 0, parameters, _FORBIDDEN)
    log_shares = [logits.log_softmax(1) for logits in torch.split(parameters, [*head.sizes], 1)]
    entropies = torch.stack([-(log_p.exp() * log_p).sum(1) for log_p in log_shares]).sum(0)
    return _of_choices(head, log_shares, actions).sum(0), entropies


def q_values_of(head: Head, values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The value of each row's action, from those of all choices, ``[B, P]``: the mean over its elements."""
    return _of_choices(head, torch.split(values, [*head.sizes], 1), actions).mean(0)


def _of_choices(head: Head, numbers: Sequence[torch.Tensor], actions: torch.Tensor) -> torch.Tensor:
    """The number of each element's choice, ``[W, B]``."""
    choices = [
        (actions[:, d] - start).long().clamp(0, size - 1).unsqueeze(1)
        for d, (start, size) in enumerate(zip(head.starts, head.sizes, strict=True))
    ]
    return torch.cat([each.gather(1, choice) for each, choice in zip(numbers, choices, strict=True)], 1).T
