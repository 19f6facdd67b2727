"""Conversion of Gymnasium spaces to TorchRL specs.

Spaces are of one agent; ``lead`` are the leading dimensions of values, ``device`` is their device.
"""

from collections.abc import Sequence
from typing import Any, final

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from torchrl.data import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded

from gpu_envs.specs.spaces import from_zero

OBSERVATION, MASK = "observation", "action_mask"
"""TorchRL's keys."""

RESERVED = ("action", "reward", "done", "terminated", "truncated", "next", MASK)
"""Keys that a Dict observation space cannot have."""


@final
class Choices(MultiCategorical):
    """A ``MultiCategorical`` with the same numbers of choices for all replicas and agents.

    ``MultiCategorical`` stores a spec for each element of each replica and agent, and samples them one by one, which
    takes seconds for a few hundred large teams. This class stores a spec for each element of one agent.
    """

    def __init__(
        self,
        nvec: Sequence[int] | torch.Tensor,
        shape: torch.Size | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.int64,
        mask: torch.Tensor | None = None,
        remove_singleton: bool = True,
    ) -> None:
        # MultiCategorical's methods pass an nvec with leading dimensions and equal rows
        rows = torch.as_tensor(nvec, device=device)
        one = rows[(0,) * (rows.ndim - 1)].clone()
        super().__init__(one, None, device, dtype, None, remove_singleton)
        self.shape = rows.shape if shape is None else torch.Size(shape)
        self.nvec = one.expand(self.shape)
        self.update_mask(mask)

    def clone(self) -> "Choices":
        """Return a copy with a copy of the mask."""
        mask = None if self.mask is None else self.mask.clone()
        return Choices(self.nvec, self.shape, self.device, self.dtype, mask, self.remove_singleton)


def box_spec(space: gymnasium.Space[Any], what: str, lead: torch.Size, device: torch.device) -> TensorSpec:
    """Return the spec of a Box; raise a TypeError that names the ``what`` space if it is none."""
    if not isinstance(space, Box):
        raise TypeError(
            f"the {what} space is {space}, but the TorchRL adapter supports only Box, for observations also a Dict of "
            "Boxes, and for actions also Discrete and one-dimensional MultiDiscrete: use one of these"
        )
    shape, dtype = torch.Size((*lead, *space.shape)), getattr(torch, space.dtype.name)
    if np.isinf(space.low).all() and np.isinf(space.high).all():
        return Unbounded(shape, dtype=dtype, device=device)
    low, high = (torch.tensor(bound, dtype=dtype, device=device) for bound in (space.low, space.high))
    # expanded instead of repeated, so that bounds use the memory of one agent
    return Bounded(low, high, shape=space.shape, dtype=dtype, device=device).expand(shape)


def observation_specs(space: gymnasium.Space[Any], lead: torch.Size, device: torch.device) -> dict[str, TensorSpec]:
    """Return a spec per key: ``observation``, or the keys of a Dict; raise a ValueError for keys of ``RESERVED``."""
    if not isinstance(space, Dict):
        return {OBSERVATION: box_spec(space, "observation", lead, device)}
    reserved = [key for key in space if key in RESERVED]
    if reserved:
        raise ValueError(
            f"the observation space has the keys {', '.join(map(repr, reserved))}, which TorchRL reserves: use other "
            f"names than {', '.join(RESERVED)}"
        )
    return {key: box_spec(part, f"observation's {key!r}", lead, device) for key, part in space.items()}


def choices_of(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """Return the number of choices of each element of an action; an empty tuple for continuous actions."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    return tuple(space.nvec.ravel().tolist()) if isinstance(space, MultiDiscrete) else ()


def nonempty_mask(mask: torch.Tensor, choices: Sequence[int]) -> torch.Tensor:
    """Return the mask with all choices valid where none is, as at the end of an episode, so that sampling works."""
    if len(choices) == 1:
        return mask | ~mask.any(-1, keepdim=True)
    return torch.cat([part | ~part.any(-1, keepdim=True) for part in torch.split(mask, list(choices), -1)], -1)


def action_spec(
    space: gymnasium.Space[Any], lead: torch.Size, device: torch.device, *, categorical: bool
) -> TensorSpec:
    """Return the spec of actions.

    Discrete actions are numbers from 0 if ``categorical``, whatever the space's ``start``, and one-hot otherwise.
    """
    spec: TensorSpec
    if isinstance(space, Discrete):
        spec = (Categorical if categorical else OneHot)(int(space.n), device=device, dtype=torch.int64)
    elif isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        spec = (Choices if categorical else MultiOneHot)(space.nvec.tolist(), device=device, dtype=torch.int64)
    else:
        return box_spec(space, "action", lead, device)
    return spec.expand((*lead, *spec.shape))


def action_offset(space: gymnasium.Space[Any], device: torch.device) -> torch.Tensor | None:
    """Return the offset to add to actions that start at 0, or None."""
    first = from_zero(space)[1]
    return None if first is None else torch.from_numpy(first).to(device)


def flag_spec(shape: Sequence[int], device: torch.device) -> TensorSpec:
    """Return a bool spec."""
    return Categorical(2, shape=torch.Size(shape), dtype=torch.bool, device=device)
