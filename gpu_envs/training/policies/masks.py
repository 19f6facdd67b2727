"""Choices that an environment's action mask forbids: their logits are so low that they are never drawn."""

import torch

from gpu_envs.training.operations.heads import Head

FORBIDDEN = -1e9
"""The logit of a forbidden choice: its probability is zero, and its logarithm still a number."""


def possible(action_mask: torch.Tensor, head: Head) -> torch.Tensor:
    """Which choices an action mask ``[..., head.parameters]`` leaves: where it leaves an element none, all of them."""
    allowed = action_mask != 0
    sizes = head.sizes
    if len(set(sizes)) == 1:  # one element, or several alike
        elements = allowed.view(*allowed.shape[:-1], len(sizes), sizes[0])
        return (elements | ~elements.any(-1, keepdim=True)).flatten(-2)
    parts = torch.split(allowed, list(sizes), -1)
    return torch.cat([part | ~part.any(-1, keepdim=True) for part in parts], -1)


def masked(parameters: torch.Tensor, action_mask: torch.Tensor | None, head: Head) -> torch.Tensor:
    """A distribution's parameters under a mask of their shape; no gradient reaches those of forbidden choices."""
    if action_mask is None:
        return parameters
    return torch.where(possible(action_mask, head), parameters, FORBIDDEN)
