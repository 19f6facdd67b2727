"""Choices that an environment's action mask forbids: their logits are so low that they are never drawn."""

import itertools

import torch

from gpu_envs.training.operations.heads import Head

FORBIDDEN = -1e9
"""The logit of a forbidden choice: its probability is zero, and its logarithm still a number."""


def possible(action_mask: torch.Tensor, head: Head) -> torch.Tensor:
    """Which choices an action mask ``[..., head.parameters]`` leaves: where it leaves an element none, all of them."""
    allowed, found, first = action_mask != 0, [], 0
    for size, alike in itertools.groupby(head.sizes):  # elements with as many choices, one after another
        count = len(list(alike))
        part = allowed[..., first : first + count * size]
        elements = part.reshape(*part.shape[:-1], count, size)
        found.append((elements | ~elements.any(-1, keepdim=True)).flatten(-2))
        first += count * size
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def masked(parameters: torch.Tensor, action_mask: torch.Tensor | None, head: Head) -> torch.Tensor:
    """A distribution's parameters under a mask of their shape; no gradient reaches those of forbidden choices."""
    if action_mask is None:
        return parameters
    return torch.where(possible(action_mask, head), parameters, FORBIDDEN)
