"""Gymnasium's spaces as TorchRL's specs.

Spaces are those of one agent; ``lead`` are the dimensions of values before the space's own, ``device`` is their place.
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
"""TorchRL's names."""

RESERVED = ("action", "reward", "done", "terminated", "truncated", "next", MASK)
"""Names that a key of a Dict cannot have."""


@final
class Choices(MultiCategorical):
    """Several whole numbers at once, as many to choose from for each replica and agent alike.

    ``MultiCategorical`` keeps an object for each number of each replica and agent, and draws them one at a time:
    seconds for a few hundred large teams. This one keeps an object for each number of one agent.
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
        # MultiCategorical hands its own class an nvec with further dimensions before the numbers, in which all agree
        given = torch.as_tensor(nvec, device=device)
        one = given[(0,) * (given.ndim - 1)].clone()
        super().__init__(one, None, device, dtype, None, remove_singleton)
        self.shape = given.shape if shape is None else torch.Size(shape)
        self.nvec = one.expand(self.shape)
        self.update_mask(mask)

    def clone(self) -> "Choices":
        """The same, with a mask of its own."""
        mask = None if self.mask is None else self.mask.clone()
        return Choices(self.nvec, self.shape, self.device, self.dtype, mask, self.remove_singleton)


def box_spec(space: gymnasium.Space[Any], what: str, lead: torch.Size, device: torch.device) -> TensorSpec:
    """The spec of a Box; the message says ``what`` it is a space of."""
    if not isinstance(space, Box):
        raise TypeError(f"the {what} space is {space}; TorchRL's interface is made for Box, Discrete and MultiDiscrete")
    shape, dtype = torch.Size((*lead, *space.shape)), getattr(torch, space.dtype.name)
    if np.isinf(space.low).all() and np.isinf(space.high).all():
        return Unbounded(shape, dtype=dtype, device=device)
    low, high = (torch.tensor(bound, dtype=dtype, device=device) for bound in (space.low, space.high))
    # expanded, not repeated: bounds take the memory of one agent's
    return Bounded(low, high, shape=space.shape, dtype=dtype, device=device).expand(shape)


def observation_specs(space: gymnasium.Space[Any], lead: torch.Size, device: torch.device) -> dict[str, TensorSpec]:
    """The specs by TorchRL's keys: ``observation``, or those of a Dict, as in TorchRL's own wrappers."""
    if not isinstance(space, Dict):
        return {OBSERVATION: box_spec(space, "observation", lead, device)}
    taken = [key for key in space if key in RESERVED]
    if taken:
        raise ValueError(
            f"the observation space has {', '.join(map(repr, taken))}, which TorchRL's TensorDicts have a meaning for; "
            f"give other names than {', '.join(RESERVED)}"
        )
    return {key: box_spec(part, f"observation's {key!r}", lead, device) for key, part in space.items()}


def choices_of(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """How many there are to choose from, for each number of an action; none where it is of real numbers."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    return tuple(space.nvec.ravel().tolist()) if isinstance(space, MultiDiscrete) else ()


def allowed(mask: torch.Tensor, choices: Sequence[int]) -> torch.Tensor:
    """A mask to draw from: where none of the choices is possible, as may be at an episode's end, all of them are."""
    if len(choices) == 1:
        return mask | ~mask.any(-1, keepdim=True)
    return torch.cat([part | ~part.any(-1, keepdim=True) for part in torch.split(mask, list(choices), -1)], -1)


def action_spec(
    space: gymnasium.Space[Any], lead: torch.Size, device: torch.device, *, categorical: bool
) -> TensorSpec:
    """The spec of the actions.

    If ``categorical``, discrete ones are numbers, which count from 0 even where those of the space do not; otherwise
    they are one-hot.
    """
    spec: TensorSpec
    if isinstance(space, Discrete):
        spec = (Categorical if categorical else OneHot)(int(space.n), device=device, dtype=torch.int64)
    elif isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        spec = (Choices if categorical else MultiOneHot)(space.nvec.tolist(), device=device, dtype=torch.int64)
    else:
        return box_spec(space, "action", lead, device)
    return spec.expand((*lead, *spec.shape))


def first_actions(space: gymnasium.Space[Any], device: torch.device) -> torch.Tensor | None:
    """What is added to numbers that count from 0; None: nothing."""
    first = from_zero(space)[1]
    return None if first is None else torch.from_numpy(first).to(device)


def flag_spec(shape: Sequence[int], device: torch.device) -> TensorSpec:
    """The spec of bools."""
    return Categorical(2, shape=torch.Size(shape), dtype=torch.bool, device=device)
