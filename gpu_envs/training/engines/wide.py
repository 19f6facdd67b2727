"""Wide networks: perceptrons of up to three hidden layers in a few kernels per call, on a Hopper GPU."""

from collections.abc import Callable
from typing import Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import MemberValue
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
from gpu_envs.training.engines.kernels import load_filled, nets_of, scale_values
from gpu_envs.training.engines.ops import MAX_STAGED, MAX_UNROLLED, mask_bytes
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.wide_programs import ROWS, THREADS, UNIT, WARPS, WideNetwork
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Case, Perceptron, SharedPerceptron
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu")
PRECISIONS = ("tf32", "bf16")
WIDTHS = (64, 128, 192, 256)
"""Supported widths of a hidden layer."""
MAX_LAYERS = 3
MAX_FEATURES = 512
MAX_SAVED_BYTES = 2**30
"""Maximum bytes that an update saves for the gradient; larger minibatches are split."""
_PACK_BLOCKS = 4
"""Blocks per multiprocessor that pack weights."""

PACK = ("weights", "kernel_pack of wide/gradient.cuh, before networks run")
GRADIENT = "kernel_update of wide/update.cuh, kernel_gradient and kernel_reduce of wide/gradient.cuh"


@final
class WideEngine(KernelEngine):
    """Runs actors and critics of hidden layers up to 256 units, with a shared trunk or separate ones."""

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
        optimiser = make_optimiser(case, module, group)
        network = wide_network(case, module, open_backend(case.device).traits.processors)
        return WideNetworks(network, case.device, optimiser, scale)


def exceeded_limit(
    head: Head, features: int, hidden: tuple[int, ...], activation: str, precision: str, device: str
) -> str:
    """Returns a sentence on the first limit of the kernels that a network exceeds; empty: none."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability(torch.device(device).index) != (9, 0):
        return "the device's compute capability is not 9.0, which the kernels of wide networks need"
    if not 1 <= len(hidden) <= MAX_LAYERS or any(width not in WIDTHS for width in hidden):
        return f"hidden layers are {hidden}, not one to {MAX_LAYERS} of {', '.join(map(str, WIDTHS))}"
    if activation not in ACTIVATIONS:
        return f"the activation is {activation}, not {', '.join(ACTIVATIONS)}"
    if precision not in PRECISIONS:
        return f"the precision is {precision}, not {' or '.join(PRECISIONS)}"
    if features > MAX_FEATURES:
        return f"observations have {features} features, more than {MAX_FEATURES}"
    if head.parameters > MAX_STAGED:
        return f"the distribution has {head.parameters} parameters, more than {MAX_STAGED}"
    if head.width > MAX_UNROLLED:
        return f"actions have {head.width} elements, more than {MAX_UNROLLED}"
    return ""


def wide_network(case: Case, module: Perceptron | SharedPerceptron, processors: int) -> WideNetwork:
    """Returns the WideNetwork of a module, for which the wide kernels are compiled, with offsets in its flat buffer."""
    (nets, log_std), net = nets_of(module), case.network
    count = sum(parameter.numel() for parameter in module.parameters())
    return WideNetwork(case.head, case.features, nets, net.activation, net.precision, count, log_std, processors)


class WideKernels:
    """Perceptrons of up to three hidden layers in one flat buffer; gradients are deterministic."""

    def __init__(self, network: WideNetwork, device: str, flat: Tensor, gradient: Tensor, scale: Scale = None) -> None:
        """Starts to compile the kernels; ``gradient`` receives the gradients of all parameters, ``flat``.

        Raises:
            ValueError: Both a scale and gradients of inputs are given; these would ignore the scale.
        """
        if scale is not None and network.grad_inputs:
            raise ValueError(
                "scale is given, but gradients of inputs would ignore it: leave it out, and normalise the inputs before"
            )
        self.network: Final = network
        self._gradient: Final = gradient
        self._blocks: Final = network.processors
        self._saved: Tensor = flat.new_empty(0, dtype=torch.uint8)
        sizes, norms = network.sizes, (self._blocks, WARPS, network.sizes["warp_norm_sums"])
        self._kernels: Final = load_filled(
            open_backend(resolve_device(device)),
            network.programs().values(),
            **scale_values(scale),
            flat=flat,
            gradient=gradient,
            parameters=network.parameters,
            blocks=self._blocks,
            packed=flat.new_empty(sizes["packed_bytes"], dtype=torch.uint8),
            sums=flat.new_empty(self._blocks, sizes["block_sums"]),
            norm_sums=flat.new_empty(norms) if norms[-1] else None,
            partials=flat.new_empty(sizes["partials_size"]),
        )

    def _run_backward(
        self,
        count: int,
        members: Callable[[slice], dict[str, MemberValue]],
        totals: Tensor | None,
        *,
        weight_gradients: bool = True,
        weights_packed: bool = False,
    ) -> None:
        """Writes the gradient by three launches per slice of samples: both passes; gradients; sums over blocks.

        Args:
            count: Number of samples, at least 1.
            members: Returns the arguments of the first launch for a slice of the samples.
            totals: Receives the sums of the loss.
            weight_gradients: Whether to compute the gradients of the parameters, by the second and third launch.
            weights_packed: Whether the weights are packed already.
        """
        kernels, saved_unit_bytes = self._kernels, self.network.sizes["saved_unit_bytes"]
        max_rows = max(1, MAX_SAVED_BYTES // (2 * saved_unit_bytes)) * ROWS
        actors = self._blocks // len(self.network.nets)
        if not weights_packed:
            self._pack_weights()
        for first in range(0, count, max_rows):
            piece = slice(first, min(first + max_rows, count))
            units = -(-(piece.stop - piece.start) // ROWS) * (ROWS // UNIT)
            if len(self._saved) < units * saved_unit_bytes:  # reuses the memory of the largest piece so far
                self._saved = self._saved.new_empty(units * saved_unit_bytes)
            saved = {"units": units, "saved": self._saved, "saved_bytes": len(self._saved)}
            kernels["update"].launch(self._blocks, **members(piece), **saved, actors=actors)
            if not weight_gradients:
                continue
            kernels["gradient"].launch(self.network.sizes["gradient_blocks"], **saved)
            blocks = -(-(self.network.parameters + self.network.sizes["losses"]) // THREADS)
            flags = {"accumulate": int(first > 0), "last": int(piece.stop == count)}
            kernels["reduce"].launch(blocks, actors=actors, totals=totals, **flags)

    def _pack_weights(self) -> None:
        self._kernels["pack"].launch(_PACK_BLOCKS * self._blocks)

    def _blocks_for(self, rows: int) -> int:
        return min(self._blocks, -(-rows // ROWS))


@final
class WideNetworks(WideKernels, PolicyNetworks):
    """Runs the default policy with wide layers."""

    def __init__(self, network: WideNetwork, device: str, optimiser: Adam, scale: Scale = None) -> None:
        """Starts to compile the kernels; the optimiser has all parameters and receives the gradient."""
        super().__init__(network, device, optimiser.flat, optimiser.gradient, scale)
        self.acts_with_value = self.notes_largest = network.shared
        self.optimiser: Adam = optimiser

    def act(self, request: ActRequest) -> None:
        self._pack_weights()
        blocks, mask = self._blocks_for(request.observations.shape[0]), mask_bytes(request.action_mask)
        optional = {"values": request.values, "largest": request.largest, "alive": request.alive, "action_mask": mask}
        self._kernels["act"].launch(blocks, **request.members, **optional)

    def values(self, request: ValueRequest) -> None:
        self._pack_weights()
        self._kernels["values"].launch(self._blocks_for(len(request.values)), **request.members)

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        if minibatch.count == 0:
            self._gradient.zero_()
            totals.zero_()
            return

        def members(piece: slice) -> dict[str, MemberValue]:
            part = minibatch.sliced(piece)
            return {**part.members, "action_mask": mask_bytes(part.samples.action_mask)}

        self._run_backward(minibatch.count, members, totals)
