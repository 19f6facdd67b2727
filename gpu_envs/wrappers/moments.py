"""Running mean and variance on the device, and what the two normalising wrappers share."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from gymnasium.error import InvalidBound

from gpu_envs.backend.launcher import Kernel, load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.errors import did_you_mean
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, blocks_of, groups_of, program, rows_of_block

PARTS = (
    ("int*", "counts", ("blocks",)),
    ("double*", "means", ("blocks", "features")),
    ("double*", "squares", ("blocks", "features")),
)
"""What each block leaves: how many rows counted, their mean, and the sum of squares about it."""

MERGE_CALL = Struct.of(
    "MergeCall",
    "float",
    *ROWS,
    *PARTS,
    ("double*", "mean", ("features",)),
    ("double*", "var", ("features",)),
    ("double*", "count", ("features",)),
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
        """The memory that kernels work on: rows of numbers."""
        return {"mean": self.mean.view(-1), "var": self.var.view(-1), "count": self._counts}

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

    _applied: tuple[str, ...]
    """Which of the statistics what it gives depends on."""

    def __init__(self, env: VectorEnv | TorchWrapper, epsilon: float) -> None:
        super().__init__(env)
        if epsilon <= 0:
            raise InvalidBound(f"epsilon is {epsilon}; give what is above 0: it keeps the division away from zero")
        self._epsilon: Final = float(epsilon)
        self.update_running_mean = True

    @property
    def epsilon(self) -> float:
        """What is added to the variance."""
        return self._epsilon

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the statistics: ``mean``, ``var`` and ``count``. What replicas are midway in is not among them."""
        return self._rms.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies in what ``state_dict`` gave, of a wrapper around any number of replicas on any device."""
        self._rms.load_state_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics to a file."""
        torch.save({name: tensor.cpu() for name, tensor in self.state_dict().items()}, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what ``save`` wrote."""
        self.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    # --- for those who derive from it ---

    def _load(
        self,
        headers: Sequence[str],
        calls: Mapping[str, Struct],
        shape: tuple[int, ...],
        types: Mapping[str, str] | None = None,
    ) -> tuple[Kernel, int]:
        """Compiles the kernels that measure samples of this shape, merge what each block found, and apply it.

        Returns:
            The one that measures, and how many blocks it and the one that applies have.
        """
        rows, features = self.num_envs, math.prod(shape)
        each, groups = rows_of_block(rows), groups_of(features)
        blocks = blocks_of(rows, each)
        made = program(headers, calls, self._mode, features, each * features, types=types)
        measuring, self._merging, self._applying = load_kernels(self._backend, made)
        parts = {
            "blocks": blocks,
            "counts": self._empty(blocks, dtype=torch.int32),
            "means": self._empty(blocks, features, dtype=torch.float64),
            "squares": self._empty(blocks, features, dtype=torch.float64),
        }
        measuring.fill(rows=rows, rows_of_block=each, **parts)
        self._merging.fill(rows=blocks, rows_of_block=blocks, **parts)
        self._applying.fill(rows=rows, rows_of_block=each, epsilon=self.epsilon)
        self._adopt(RunningMeanStd(shape=shape, device=self._torch_device))
        self._merge = self._merging.bind(groups)
        return measuring, blocks * groups

    def _adopt(self, statistics: RunningMeanStd) -> None:
        """Makes its kernels work on these statistics."""
        self._rms, members = statistics, statistics.members()
        self._merging.fill(**members)
        self._applying.fill(**{name: members[name] for name in self._applied})

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
