"""The default policy with wide layers run by kernels of our own, on a Hopper GPU."""

import functools
from typing import Final, final

import torch
from torch import nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import (
    MOST_STAGED,
    MOST_WRITTEN_OUT,
    OBSERVATION_LIMIT,
    SUMS,
    LossSettings,
    Samples,
    loss_members,
)
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.operations.wide_programs import REDUCE_THREADS, ROWS, UNIT, Linear, WideNetwork
from gpu_envs.training.policies.networks import Networks, sliced
from gpu_envs.training.policies.parts import Rows
from gpu_envs.training.policies.policy import Perceptron, SharedPerceptron

ACTIVATIONS = ("tanh", "relu", "elu")
PRECISIONS = ("tf32", "bf16")
WIDTHS = (64, 128, 192, 256)
"""Of a hidden layer."""
MOST_LAYERS = 3
MOST_FEATURES = 256
LEAST_STAGES = 2
"""Of the ring through which weights stream."""
MOST_KEPT = 2**30
"""Bytes that are kept on the way to a gradient; larger minibatches go in pieces."""


def why_not_wide(
    head: Head, features: int, hidden: tuple[int, ...], activation: str, precision: str, device: str
) -> str:
    """Why the kernels cannot run such networks on a CUDA device; empty where they can."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability(torch.device(device).index) != (9, 0):
        return "the device's compute capability is not 9.0, which kernels of wide networks are for"
    if not 1 <= len(hidden) <= MOST_LAYERS or any(width not in WIDTHS for width in hidden):
        return f"hidden layers are {hidden}, not one to {MOST_LAYERS} of {', '.join(map(str, WIDTHS))}"
    if activation not in ACTIVATIONS:
        return f"the activation is {activation}, not {', '.join(ACTIVATIONS)}"
    if precision not in PRECISIONS:
        return f"the precision is {precision}, not {' or '.join(PRECISIONS)}"
    if features > MOST_FEATURES:
        return f"observations have {features} features, more than {MOST_FEATURES}"
    if head.parameters > MOST_STAGED:
        return f"the distribution has {head.parameters} parameters, more than {MOST_STAGED}"
    if head.width > MOST_WRITTEN_OUT:
        return f"actions have {head.width} elements, more than {MOST_WRITTEN_OUT}"
    if _without_places(head, features, hidden, precision, shared=True).stages < LEAST_STAGES:
        return "they take more shared memory than blocks have"
    return ""


def wide_network(
    module: Perceptron | SharedPerceptron, head: Head, features: int, activation: str, precision: str, processors: int
) -> WideNetwork:
    """What is compiled in for a module whose parameters lie one after another."""
    starts: dict[int, int] = {}
    start = 0
    for parameter in module.parameters():
        starts[id(parameter)] = start
        start += parameter.numel()

    def places(layers: nn.Module) -> tuple[Linear, ...]:
        linear = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
        return tuple(
            Linear(starts[id(each.weight)], starts[id(each.bias)], each.out_features, each.in_features)
            for each in linear
        )

    if isinstance(module, SharedPerceptron):
        nets: tuple[tuple[Linear, ...], ...] = (places(module.trunk) + places(module.heads),)
    else:
        nets = (places(module.actor), places(module.critic))
    log_std = -1 if module.log_std is None else starts[id(module.log_std)]
    return WideNetwork(head, features, nets, activation, precision, start, log_std, processors)


def kept_of_row(head: Head, features: int, hidden: tuple[int, ...], precision: str, *, shared: bool) -> int:
    """Bytes that the gradient needs of each sample."""
    return _without_places(head, features, hidden, precision, shared=shared).kept_of_unit // UNIT


def _without_places(head: Head, features: int, hidden: tuple[int, ...], precision: str, *, shared: bool) -> WideNetwork:
    """What its sizes are known of."""
    layers = (features, *hidden)
    nothing = [Linear(0, 0, outs, ins) for ins, outs in zip(layers, (*hidden, 1), strict=True)]
    nets = (tuple(nothing),) * (1 if shared else 2)
    return WideNetwork(head, features, nets, "tanh", precision, 0)


@final
class WideNetworks(Networks):
    """Perceptrons of up to three hidden layers in one flat buffer; gradients are the same every time."""

    def __init__(
        self, network: WideNetwork, device: str, optimiser: Adam, scale: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> None:  # fmt: skip
        """The kernels are compiled when first needed.

        Args:
            network: What is compiled in.
            device: ``cuda`` or ``cuda:N``.
            optimiser: Has all parameters, and takes the gradient of the summed loss.
            scale: Mean and inverse deviation of observations, ``[features]`` each.
        """
        self.network: Final = network
        self.acts_with_value = self.notes_largest = network.shared
        self.optimiser: Adam = optimiser
        self._flat, self._gradient, self._scale = optimiser.flat, optimiser.gradient, scale
        self._backend: Final = open_backend(resolve_device(device))
        self._blocks: Final = network.processors
        self._packed: Final = torch.empty(network.packed_bytes, dtype=torch.uint8, device=self._backend.device)
        self._kept: torch.Tensor | None = None

    @functools.cached_property
    def _pack(self) -> Kernel:
        pack = load_kernels(self._backend, self.network.pack_program())[0]
        return pack.fill(flat=self._flat, packed=self._packed)

    @functools.cached_property
    def _forward(self) -> list[Kernel]:
        return load_kernels(self._backend, self.network.act_program())

    @functools.cached_property
    def _backward(self) -> list[Kernel]:
        network = self.network
        programs = (network.update_program(), network.gradient_program(), network.reduce_program())
        update, gradient, reduce = (load_kernels(self._backend, program)[0] for program in programs)
        partials = self._flat.new_empty(network.partials_size)
        sums = self._flat.new_empty(self._blocks, network.sums_of_block)
        update.fill(blocks=self._blocks, sums=sums)
        gradient.fill(partials=partials)
        reduce.fill(parameters=network.parameters, blocks=self._blocks, sums=sums, partials=partials, flat=self._flat)
        return [update, gradient, reduce]

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        rows = observations.shape[0]
        self._pack.launch(self._blocks)
        self._forward[0].launch(
            min(self._blocks, -(-rows // ROWS)), **self._common(observations), rows=rows, stream=stream,
            first_row=first_row, turn=turn, actions=actions, acted=acted, log_probs=log_probs, greedy=int(greedy),
            values=values, action_mask=_bytes(action_mask), largest=largest, alive=alive,
        )  # fmt: skip

    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        rows = len(values)
        self._pack.launch(self._blocks)
        self._forward[1].launch(
            min(self._blocks, -(-rows // ROWS)), **self._common(observations), rows=rows,
            samples=observations.shape[0], values=values, places=places, largest=largest, alive=alive,
        )  # fmt: skip

    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        """Goes forth and back in one launch, multiplies what that kept in another, and sums over blocks in a third."""
        count = observations.shape[0] if indices is None else len(indices)
        if count == 0:
            self._gradient.zero_()
            totals.zero_()
            return
        update, gradient, reduce = self._backward
        most = max(1, MOST_KEPT // (2 * self.network.kept_of_unit)) * ROWS
        self._pack.launch(self._blocks)
        for first in range(0, count, most):
            piece = slice(first, min(first + most, count))
            if indices is None:
                some, part, chosen = observations[piece], sliced(batch, piece), None
            else:
                some, part, chosen = observations, batch, indices[piece]
            rows = piece.stop - piece.start
            units = -(-rows // ROWS) * (ROWS // UNIT)
            kept = self._room(units * self.network.kept_of_unit)
            actors = self._blocks if self.network.shared else self._blocks // 2
            loss = loss_members(part, chosen, settings)
            update.launch(
                self._blocks, **self._common(some), **loss, scalars=scalars, actors=actors, units=units, kept=kept,
                kept_bytes=len(kept), action_mask=_bytes(part.action_mask),
            )  # fmt: skip
            gradient.launch(self.network.gradient_blocks, units=units, kept=kept, kept_bytes=len(kept))
            blocks = -(-(self.network.parameters + len(SUMS)) // REDUCE_THREADS)
            last = piece.stop == count
            reduce.launch(
                blocks, actors=actors, more=int(first > 0), last=int(last), gradient=self._gradient, totals=totals
            )

    def _room(self, count: int) -> torch.Tensor:
        """Memory for what a piece keeps: that of the largest so far."""
        if self._kept is None or len(self._kept) < count:
            self._kept = torch.empty(count, dtype=torch.uint8, device=self._backend.device)
        return self._kept

    def _common(self, observations: Rows) -> dict[str, MemberValue]:
        assert isinstance(observations, torch.Tensor)  # who shares observations has no kernels here
        if len(observations) >= 2**31:
            raise ValueError(f"there are {len(observations)} rows of observations; give fewer than 2^31")
        mean, inverse = self._scale or (None, None)
        return {
            "flat": self._flat, "packed": self._packed, "observations": observations, "mean": mean, "inverse": inverse,
            "limit": OBSERVATION_LIMIT,
        }  # fmt: skip


def _bytes(action_mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if action_mask is None else action_mask.view(torch.uint8)
