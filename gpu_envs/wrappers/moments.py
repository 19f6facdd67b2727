"""Running mean and variance on the device, and the base class of ``NormalizeObservation`` and ``NormalizeReward``."""

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
from gpu_envs.wrappers.blocks import ROWS, num_blocks, num_groups, program, rows_per_block

PARTS = (
    ("int*", "counts", ("blocks",)),
    ("double*", "means", ("blocks", "features")),
    ("double*", "squares", ("blocks", "features")),
)
"""Partial results of each block: number of counted rows, their mean, and the sum of squared deviations from it."""

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
    """Running mean, variance and number of samples in float64. All can be written in place at any time.

    Attributes:
        mean: Mean of each feature.
        var: Variance of each feature.
    """

    def __init__(self, epsilon: float = 1e-4, shape: Sequence[int] = (), device: str | torch.device = "cpu") -> None:
        """Start with mean 0 and variance 1, weighted like ``epsilon`` samples.

        Args:
            epsilon: Weight of the initial mean and variance.
            shape: Shape of a sample.
            device: Device of the tensors.
        """
        self.mean: Final = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.var: Final = torch.ones_like(self.mean)
        # one count per feature: with a shared count, a block would read what another block writes in the same launch
        self._counts: Final = torch.full((max(1, math.prod(shape)),), epsilon, dtype=torch.float64, device=device)

    @property
    def count(self) -> torch.Tensor:
        """Number of samples, float64 []: a view that updates in place. Do not write to it."""
        return self._counts[0]

    def members(self) -> dict[str, torch.Tensor]:
        """Return the flat tensors that kernels read and write."""
        return {"mean": self.mean.view(-1), "var": self.var.view(-1), "count": self._counts}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of ``mean``, ``var`` and ``count``."""
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a ``state_dict`` from any device into the tensors in place, which keep their addresses."""
        current = {"mean": self.mean, "var": self.var, "count": self.count}
        for name in state:
            if name not in current:
                raise ValueError(f"running statistics have no {name!r}{did_you_mean(name, current)}")
        loaded = {name: torch.as_tensor(state[name]) for name in current if name in state}
        for name, tensor in current.items():
            if name not in loaded or loaded[name].shape != tensor.shape:
                problem = f"has shape {list(loaded[name].shape)}" if name in loaded else "is missing"
                raise ValueError(f"{name!r} {problem}; these running statistics need shape {list(tensor.shape)}")
        self.mean.copy_(loaded["mean"])
        self.var.copy_(loaded["var"])
        self._counts.copy_(loaded["count"].to(self._counts).expand_as(self._counts))


class Normalizer(TorchWrapper):
    """Base class for wrappers with running statistics that can be frozen, saved and shared."""

    _applied: tuple[str, ...]
    """Statistics that the normalizing kernel reads."""

    def __init__(self, env: VectorEnv | TorchWrapper, epsilon: float) -> None:
        super().__init__(env)
        if epsilon <= 0:
            raise InvalidBound(f"epsilon is {epsilon}; give a number above 0: it prevents divisions by zero")
        self._epsilon: Final = float(epsilon)
        self.update_running_mean = True

    @property
    def epsilon(self) -> float:
        """Number added to the variance."""
        return self._epsilon

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of ``mean``, ``var`` and ``count``. The state of unfinished episodes is not included."""
        return self._rms.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy in the ``state_dict`` of a wrapper with any number of replicas on any device."""
        self._rms.load_state_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to a file."""
        torch.save({name: tensor.cpu() for name, tensor in self.state_dict().items()}, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read the statistics from a file written by ``save``."""
        self.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    # --- for subclasses ---

    def _load_kernels(
        self,
        headers: Sequence[str],
        calls: Mapping[str, Struct],
        shape: tuple[int, ...],
        types: Mapping[str, str] | None = None,
    ) -> tuple[Kernel, int]:
        """Compile kernels that measure blocks, merge their statistics and normalize; keep the last two.

        Returns:
            The measuring kernel, and the number of blocks of the measuring and the normalizing kernel.
        """
        rows, features = self.num_envs, math.prod(shape)
        per_block, groups = rows_per_block(rows), num_groups(features)
        blocks = num_blocks(rows, per_block)
        source = program(headers, calls, self._mode, features, per_block * features, types=types)
        measuring, self._merging, self._applying = load_kernels(self._backend, source)
        parts = {
            "blocks": blocks,
            "counts": self._zeros(blocks, dtype=torch.int32),
            "means": self._zeros(blocks, features, dtype=torch.float64),
            "squares": self._zeros(blocks, features, dtype=torch.float64),
        }
        measuring.fill(rows=rows, rows_of_block=per_block, **parts)
        self._merging.fill(rows=blocks, rows_of_block=blocks, **parts)
        self._applying.fill(rows=rows, rows_of_block=per_block, epsilon=self.epsilon)
        self._use_statistics(RunningMeanStd(shape=shape, device=self._torch_device))
        self._merge = self._merging.bind(groups)
        return measuring, blocks * groups

    def _use_statistics(self, statistics: RunningMeanStd) -> None:
        """Make the kernels read and update these statistics from now on."""
        self._rms, members = statistics, statistics.members()
        self._merging.fill(**members)
        self._applying.fill(**{name: members[name] for name in self._applied})

    def _replace_statistics(self, name: str, new: object) -> None:
        """Use other statistics, or raise an error if they have another type, shape or device."""
        current = self._rms.mean
        if not isinstance(new, RunningMeanStd):
            raise TypeError(f"{name} is {type(new).__name__}; give the {name} of another wrapper")
        if new.mean.shape != current.shape or new.mean.device != current.device:
            raise ValueError(
                f"{name} has shape {list(new.mean.shape)} on {new.mean.device}; this wrapper needs "
                f"{list(current.shape)} on {current.device}. Use load_state_dict to copy from another device"
            )
        self._use_statistics(new)
