"""Wide networks: perceptrons of up to three hidden layers in a few kernels for each call, on a Hopper GPU."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Final, final

import torch
from torch import nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.training.algorithms import A2C, PPO
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.engines.base import (
    PERCEPTRON_SETTINGS,
    POLICY_LOSS_SETTINGS,
    STEP_KERNELS,
    ActRequest,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    ValueRequest,
    make_optimiser,
)
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Perceptron, SharedPerceptron
from gpu_envs.training.observations import OBSERVATION_LIMIT, Rows, Scale
from gpu_envs.training.operations.ops import MOST_STAGED, MOST_WRITTEN_OUT, flags, loss_members
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.operations.wide_programs import REDUCE_THREADS, ROWS, UNIT, WARPS, Linear, WideNetwork
from gpu_envs.training.policies.case import Case
from gpu_envs.training.process.group import Group

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu")
PRECISIONS = ("tf32", "bf16")
WIDTHS = (64, 128, 192, 256)
"""Of a hidden layer."""
MOST_LAYERS = 3
MOST_FEATURES = 512
MOST_KEPT = 2**30
"""Bytes that are kept on the way to a gradient; larger minibatches go in pieces."""
_PACK_BLOCKS = 4
"""Of each multiprocessor where weights are packed."""

PACK = ("weights", "kernel_pack of wide/gradient.cuh, before networks run")
GRADIENT = "kernel_update of wide/update.cuh, kernel_gradient and kernel_reduce of wide/gradient.cuh"


@final
class WideEngine(KernelEngine):
    """Actor and critic of hidden layers up to 256, with one trunk or with two."""

    name = "wide"
    learns = PolicyGradient
    algorithms = (PPO, A2C)
    settings = (*POLICY_LOSS_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm", "shared_trunk")
    kernels = (
        PACK,
        ("acting", "kernel_act of wide/act.cuh"),
        ("values", "kernel_values of wide/act.cuh"),
        ("gradient", GRADIENT),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        net = case.network
        if case.split is not None:
            return "agents share observations"
        return exceeded_limit(case.head, case.features, net.hidden, net.activation, net.precision, case.device)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        assert isinstance(module, Perceptron | SharedPerceptron)
        optimiser, net = make_optimiser(case, module, group), case.network
        processors = open_backend(case.device).traits.processors
        network = wide_network(module, case.head, case.features, net.activation, net.precision, processors)
        return WideNetworks(network, case.device, optimiser, None if scale is None else (scale.offset, scale.inverse))


def exceeded_limit(
    head: Head, features: int, hidden: tuple[int, ...], activation: str, precision: str, device: str
) -> str:
    """Which limit of the kernels such networks exceed; empty: none."""
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


class WideKernels:
    """Perceptrons of up to three hidden layers in one flat buffer; gradients are the same every time."""

    def __init__(
        self,
        network: WideNetwork,
        device: str,
        flat: torch.Tensor,
        gradient: torch.Tensor,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
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
            network.update_program(),
            network.act_program(),
            network.gradient_program(),
            network.reduce_program(),
            network.pack_program(),
        ):
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

    def _run_backward(
        self,
        count: int,
        members: Callable[[slice], dict[str, MemberValue]],
        totals: torch.Tensor | None,
        *,
        weights: bool = True,
        packed: bool = False,
    ) -> None:
        """Runs forward and backward in one launch, multiplies what it kept in another, sums over blocks in a third.

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
                -(-(self.network.parameters + self.network.losses) // REDUCE_THREADS),
                actors=actors,
                more=int(first > 0),
                last=int(piece.stop == count),
                gradient=self._gradient,
                totals=totals,
            )

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
            "flat": self._flat,
            "packed": self._packed,
            "observations": observations,
            "mean": mean,
            "inverse": inverse,
            "limit": OBSERVATION_LIMIT,
        }

    def _blocks_for(self, rows: int) -> int:
        return min(self._blocks, -(-rows // ROWS))


@final
class WideNetworks(WideKernels, PolicyNetworks):
    """The default policy with wide layers."""

    def __init__(
        self,
        network: WideNetwork,
        device: str,
        optimiser: Adam,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
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

    def act(self, request: ActRequest) -> None:
        self._pack_weights()
        self._forward[0].launch(
            self._blocks_for(request.observations.shape[0]),
            **self._common(_whole(request.observations)),
            **request.members,
            values=request.values,
            action_mask=flags(request.action_mask),
            largest=request.largest,
            alive=request.alive,
        )

    def values(self, request: ValueRequest) -> None:
        self._pack_weights()
        blocks = self._blocks_for(len(request.values))
        self._forward[1].launch(blocks, **self._common(_whole(request.observations)), **request.members)

    def gradient(self, minibatch: Minibatch, totals: torch.Tensor) -> None:
        if minibatch.count == 0:
            self._gradient.zero_()
            totals.zero_()
            return

        def members(piece: slice) -> dict[str, MemberValue]:
            part = minibatch.sliced(piece)
            return {
                **self._common(_whole(part.observations)),
                **loss_members(part.samples, part.indices, part.algorithm),
                "scalars": part.scalars,
                "action_mask": flags(part.samples.action_mask),
            }

        self._run_backward(minibatch.count, members, totals)


def _whole(observations: Rows) -> torch.Tensor:
    assert isinstance(observations, torch.Tensor)  # the engine refuses observations in parts
    return observations
