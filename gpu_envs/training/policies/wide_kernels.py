"""The kernels of wide perceptrons on a Hopper GPU: what policies and functions have in common."""

import functools
from collections.abc import Callable
from typing import Final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.training.operations.ops import OBSERVATION_LIMIT
from gpu_envs.training.operations.wide_programs import REDUCE_THREADS, ROWS, UNIT, WARPS, WideNetwork

MOST_KEPT = 2**30
"""Bytes that are kept on the way to a gradient; larger minibatches go in pieces."""
_PACK_BLOCKS = 4
"""Of each multiprocessor where weights are packed."""


class WideKernels:
    """Perceptrons of up to three hidden layers in one flat buffer; gradients are the same every time."""

    def __init__(
        self, network: WideNetwork, device: str, flat: torch.Tensor, gradient: torch.Tensor,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Begins to compile the kernels.

        Args:
            network: What is compiled in.
            device: ``cuda`` or ``cuda:N``.
            flat: All parameters.
            gradient: Receives the gradient by them.
            scale: Mean and inverse deviation of observations, ``[features]`` each.

        Raises:
            ValueError: There is a scale, and the gradient by inputs would not know of it.
        """
        if scale is not None and network.by_inputs:
            raise ValueError("the gradient by inputs is by what the network is given; scale the inputs before")
        self.network: Final = network
        self._flat, self._gradient, self._scale = flat, gradient, scale
        self._backend: Final = open_backend(resolve_device(device))
        self._blocks: Final = network.processors
        self._packed: Final = torch.empty(network.packed_bytes, dtype=torch.uint8, device=self._backend.device)
        self._kept: torch.Tensor | None = None
        for program in (
            network.update_program(), network.act_program(), network.gradient_program(), network.reduce_program(),
            network.pack_program(),
        ):  # fmt: skip
            self._backend.begin(program)

    @functools.cached_property
    def _pack(self) -> Kernel:
        pack = load_kernels(self._backend, self.network.pack_program())[0]
        return pack.fill(flat=self._flat, packed=self._packed)

    @functools.cached_property
    def _forward(self) -> list[Kernel]:
        return load_kernels(self._backend, self.network.act_program())

    @functools.cached_property
    def _update(self) -> Kernel:
        network = self.network
        norms = self._flat.new_empty(self._blocks, WARPS, network.norm_sums_of_warp) if network.normalises else None
        update = load_kernels(self._backend, network.update_program())[0]
        return update.fill(blocks=self._blocks, sums=self._sums, norm_sums=norms)

    @functools.cached_property
    def _sums(self) -> torch.Tensor:
        return self._flat.new_empty(self._blocks, self.network.sums_of_block)

    @functools.cached_property
    def _products(self) -> list[Kernel]:
        network, sums = self.network, self._sums
        gradient, reduce = (
            load_kernels(self._backend, program)[0]
            for program in (network.gradient_program(), network.reduce_program())
        )
        partials = self._flat.new_empty(network.partials_size)
        gradient.fill(partials=partials)
        reduce.fill(parameters=network.parameters, blocks=self._blocks, sums=sums, partials=partials, flat=self._flat)
        return [gradient, reduce]

    def _go_back(
        self, count: int, members: Callable[[slice], dict[str, MemberValue]], totals: torch.Tensor | None, *,
        weights: bool = True, packed: bool = False,
    ) -> None:  # fmt: skip
        """Goes forth and back in one launch, multiplies what that kept in another, and sums over blocks in a third.

        Args:
            count: Of samples, one or more.
            members: What the first launch is told of some of them.
            totals: Receives the sums of the loss.
            weights: Whether the gradient by the parameters is wanted.
            packed: The weights are those of the last launch.
        """
        most = max(1, MOST_KEPT // (2 * self.network.kept_of_unit)) * ROWS
        actors = self._blocks // len(self.network.nets)
        if not packed:
            self._pack_weights()
        for first in range(0, count, most):
            piece = slice(first, min(first + most, count))
            units = -(-(piece.stop - piece.start) // ROWS) * (ROWS // UNIT)
            kept = self._room(units * self.network.kept_of_unit)
            self._update.launch(
                self._blocks, **members(piece), actors=actors, units=units, kept=kept, kept_bytes=len(kept)
            )
            if not weights:
                continue
            gradient, reduce = self._products
            gradient.launch(self.network.gradient_blocks, units=units, kept=kept, kept_bytes=len(kept))
            reduce.launch(
                -(-(self.network.parameters + self.network.losses) // REDUCE_THREADS), actors=actors,
                more=int(first > 0), last=int(piece.stop == count), gradient=self._gradient, totals=totals,
            )  # fmt: skip

    def _pack_weights(self) -> None:
        self._pack.launch(_PACK_BLOCKS * self._blocks)

    def _room(self, count: int) -> torch.Tensor:
        """Memory for what a piece keeps: that of the largest so far."""
        if self._kept is None or len(self._kept) < count:
            self._kept = torch.empty(count, dtype=torch.uint8, device=self._backend.device)
        return self._kept

    def _common(self, observations: torch.Tensor) -> dict[str, MemberValue]:
        if len(observations) >= 2**31:
            raise ValueError(f"there are {len(observations)} rows of observations; give fewer than 2^31")
        mean, inverse = self._scale or (None, None)
        return {
            "flat": self._flat, "packed": self._packed, "observations": observations, "mean": mean, "inverse": inverse,
            "limit": OBSERVATION_LIMIT,
        }  # fmt: skip

    def _blocks_for(self, rows: int) -> int:
        return min(self._blocks, -(-rows // ROWS))
