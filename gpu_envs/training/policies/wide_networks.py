"""The default policy with wide layers run by kernels of our own, on a Hopper GPU."""

import dataclasses
from collections.abc import Iterable
from typing import final

import torch
from torch import nn

from gpu_envs.backend.launcher import MemberValue
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import MOST_STAGED, MOST_WRITTEN_OUT, LossSettings, Samples, loss_members
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.operations.wide_programs import UNIT, Linear, WideNetwork
from gpu_envs.training.policies.networks import PolicyNetworks, sliced
from gpu_envs.training.policies.parts import Rows
from gpu_envs.training.policies.policy import Perceptron, SharedPerceptron
from gpu_envs.training.policies.wide_kernels import WideKernels

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu")
PRECISIONS = ("tf32", "bf16")
WIDTHS = (64, 128, 192, 256)
"""Of a hidden layer."""
MOST_LAYERS = 3
MOST_FEATURES = 512
LEAST_STAGES = 2
"""Of the ring through which weights stream."""


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


class Places:
    """Where parameters that lie one after another begin."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.starts: dict[int, int] = {}
        self.end = 0
        for parameter in parameters:
            self.starts[id(parameter)] = self.end
            self.end += parameter.numel()

    def __getitem__(self, parameter: torch.Tensor) -> int:
        return self.starts[id(parameter)]


def layers_of(layers: nn.Module, places: Places) -> tuple[Linear, ...]:
    """The linear layers among a module's, each with the normalisation behind it."""
    found: list[Linear] = []
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            found.append(Linear(places[layer.weight], places[layer.bias], layer.out_features, layer.in_features))
        elif isinstance(layer, nn.LayerNorm):
            found[-1] = dataclasses.replace(found[-1], gain=places[layer.weight], shift=places[layer.bias])
    return tuple(found)


def wide_network(
    module: Perceptron | SharedPerceptron, head: Head, features: int, activation: str, precision: str, processors: int
) -> WideNetwork:
    """What is compiled in for a module whose parameters lie one after another."""
    places = Places(module.parameters())
    if isinstance(module, SharedPerceptron):
        nets: tuple[tuple[Linear, ...], ...] = (layers_of(module.trunk, places) + layers_of(module.heads, places),)
    else:
        nets = (layers_of(module.actor, places), layers_of(module.critic, places))
    log_std = -1 if module.log_std is None else places[module.log_std]
    return WideNetwork(head, features, nets, activation, precision, places.end, log_std, processors)


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
class WideNetworks(WideKernels, PolicyNetworks):
    """The default policy with wide layers."""

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
        super().__init__(network, device, optimiser.flat, optimiser.gradient, scale)
        self.acts_with_value = self.notes_largest = network.shared
        self.optimiser: Adam = optimiser

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        rows = observations.shape[0]
        self._pack_weights()
        self._forward[0].launch(
            self._blocks_for(rows), **self._common(_whole(observations)), rows=rows, stream=stream,
            first_row=first_row, turn=turn, actions=actions, acted=acted, log_probs=log_probs, greedy=int(greedy),
            values=values, action_mask=_bytes(action_mask), largest=largest, alive=alive,
        )  # fmt: skip

    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        del action_mask  # it does not change what they are worth
        rows = len(values)
        self._pack_weights()
        self._forward[1].launch(
            self._blocks_for(rows), **self._common(_whole(observations)), rows=rows,
            samples=observations.shape[0], values=values, places=places, largest=largest, alive=alive,
        )  # fmt: skip

    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        rows = _whole(observations)
        count = len(rows) if indices is None else len(indices)
        if count == 0:
            self._gradient.zero_()
            totals.zero_()
            return

        def members(piece: slice) -> dict[str, MemberValue]:
            if indices is None:
                some, part, chosen = rows[piece], sliced(batch, piece), None
            else:
                some, part, chosen = rows, batch, indices[piece]
            return {
                **self._common(some), **loss_members(part, chosen, settings), "scalars": scalars,
                "action_mask": _bytes(part.action_mask),
            }  # fmt: skip

        self._go_back(count, members, totals)


def _whole(observations: Rows) -> torch.Tensor:
    assert isinstance(observations, torch.Tensor)  # who shares observations has no kernels here
    return observations


def _bytes(action_mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if action_mask is None else action_mask.view(torch.uint8)
