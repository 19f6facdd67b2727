"""Running mean and variance on the device, and what the two normalising wrappers share."""

import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from gymnasium.error import InvalidBound

from gpu_envs.codegen.structs import Struct
from gpu_envs.errors import did_you_mean
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import TorchWrapper
from gpu_envs.wrappers.launches import ROWS, Launch, Launches, blocks_of, groups_of, rows_of_block

PARTS = (("int*", "counts"), ("double*", "means"), ("double*", "squares"))
"""What each block leaves: how many rows counted, their mean, and the sum of squares about it."""

MERGE_CALL = Struct.of(
    "MergeCall", "float", *ROWS, *PARTS, ("double*", "mean"), ("double*", "var"), ("double*", "count")
)


@final
class RunningMeanStd:
    """Mean, variance and number of samples, in float64 on a device. They may be written to in place at any time.

    Attributes:
        mean: Of each feature.
        var: The same.
    """

    def __init__(self, epsilon: float = 1e-4, shape: Sequence[int] = (), device: str | torch.device = "cpu") -> None:
        """Begins with mean 0 and variance 1, as if ``epsilon`` samples had said so.

        Args:
            epsilon: How much the beginning weighs.
            shape: Of a sample.
            device: Of the tensors.
        """
        self.mean: Final = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.var: Final = torch.ones_like(self.mean)
        # one for each feature, so that no block of a launch reads what another one writes
        self._counts: Final = torch.full((max(1, math.prod(shape)),), epsilon, dtype=torch.float64, device=device)

    @property
    def count(self) -> torch.Tensor:
        """How many samples there were, float64 []: live, to be read."""
        return self._counts[0]

    def members(self) -> dict[str, torch.Tensor]:
        """The memory that kernels work on."""
        return {"mean": self.mean, "var": self.var, "count": self._counts}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of ``mean``, ``var`` and ``count``."""
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``state_dict`` gave, here or elsewhere; the memory stays where it is."""
        own = {"mean": self.mean, "var": self.var, "count": self.count}
        for name in state:
            if name not in own:
                raise ValueError(f"running statistics have no {name!r}{did_you_mean(name, own)}")
        given = {name: torch.as_tensor(state[name]) for name in own if name in state}
        for name, tensor in own.items():
            if name not in given or given[name].shape != tensor.shape:
                found = f"has shape {list(given[name].shape)}" if name in given else "is missing"
                raise ValueError(f"{name!r} {found}; these running statistics need {list(tensor.shape)}")
        self.mean.copy_(given["mean"])
        self.var.copy_(given["var"])
        self._counts.copy_(given["count"].to(self._counts).expand_as(self._counts))


class Normalizer(TorchWrapper):
    """A wrapper with running statistics that can be frozen, saved and shared."""

    def __init__(self, env: VectorEnv | TorchWrapper, epsilon: float) -> None:
        """Takes the environment.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            epsilon: Added to the variance.
        """
        super().__init__(env)
        if epsilon <= 0:
            raise InvalidBound(f"epsilon is {epsilon}; give what is above 0: it keeps the division away from zero")
        self._epsilon: Final = float(epsilon)
        self._updates = True
        self._merge: Launch

    @property
    def epsilon(self) -> float:
        """What is added to the variance."""
        return self._epsilon

    @property
    def update_running_mean(self) -> bool:
        """Whether the statistics go on changing. A CUDA graph keeps what this was when it was captured."""
        return self._updates

    @update_running_mean.setter
    def update_running_mean(self, setting: bool) -> None:
        self._updates = bool(setting)

    @property
    @abstractmethod
    def _statistics(self) -> RunningMeanStd:
        """The statistics."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the statistics: ``mean``, ``var`` and ``count``. What replicas are midway in is not among them."""
        return self._statistics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``state_dict`` gave, of a wrapper around any number of replicas on any device."""
        self._statistics.load_state_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics to a file."""
        torch.save({name: tensor.cpu() for name, tensor in self.state_dict().items()}, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what ``save`` wrote."""
        self.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    # --- for those who derive from it ---

    def _partial_sums(self, features: int) -> dict[str, torch.Tensor]:
        """Memory for what each block leaves."""
        chunks = blocks_of(self.num_envs, rows_of_block(self.num_envs))
        return {
            "counts": self._empty(chunks, dtype=torch.int32),
            "means": self._empty(chunks, features, dtype=torch.float64),
            "squares": self._empty(chunks, features, dtype=torch.float64),
        }

    def _merging(
        self, launches: Launches, features: int, parts: Mapping[str, torch.Tensor], statistics: RunningMeanStd
    ) -> Launch:
        """The launch that takes in what the blocks left."""
        chunks = len(parts["counts"])
        whole = {"rows": chunks, "rows_of_block": chunks}
        return launches.of("merge", groups_of(features), **whole, **parts, **statistics.members())

    def _check_shared(self, name: str, given: object, own: RunningMeanStd) -> RunningMeanStd:
        """What is to be shared, once it fits."""
        if not isinstance(given, RunningMeanStd):
            raise TypeError(f"{name} is {type(given).__name__}; give the {name} of another wrapper")
        if given.mean.shape != own.mean.shape or given.mean.device != own.mean.device:
            raise ValueError(
                f"{name} has shape {list(given.mean.shape)} on {given.mean.device}, and this wrapper's has "
                f"{list(own.mean.shape)} on {own.mean.device}; for another device copy it, with load_state_dict"
            )
        return given
