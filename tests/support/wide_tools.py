"""What gradients of wide networks are compared with, and how closely."""

from typing import Any

import pytest
import torch
from harness import HAS_CUDA
from torch import nn

HOPPER = HAS_CUDA and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
no_other_gpu = pytest.mark.skipif(HAS_CUDA and not HOPPER, reason="needs a Hopper GPU or none")

ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8}
ROUNDINGS = 20
"""There are about as many on the way from an observation through three hidden layers and back."""
REORDERED_SUM_ERROR = 1e-3
"""By how much sums differ that are added up in another order; a unit of 64 samples among 3,000 counts for 0.15."""

FEW_BLOCKS = 4
"""Blocks to which some thousand rows give many tiles each, of which the last is not full."""


def record_layers(module: nn.Module) -> dict[nn.Module, tuple[Any, Any]]:
    """Inputs and outputs of its layers, once it has run."""
    kept: dict[nn.Module, tuple[Any, Any]] = {}

    def keep(layer: nn.Module, inputs: Any, output: Any) -> None:
        output.retain_grad()
        kept[layer] = inputs[0].detach(), output

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            layer.register_forward_hook(keep)
    return kept


def gradient_scales(kept: dict[nn.Module, tuple[Any, Any]]) -> dict[int, Any]:
    """Of the gradient by each parameter: the root of the sum of the squares of what it is the sum of.

    Roundings of many samples cancel as samples do: what is allowed grows no faster.
    """
    sizes: dict[int, Any] = {}
    for layer, (inputs, output) in kept.items():
        by = output.grad.square()
        if isinstance(layer, nn.LayerNorm):
            normalised = nn.functional.layer_norm(inputs, layer.normalized_shape)
            sizes[id(layer.weight)] = (by * normalised.square()).sum(0).sqrt()
        else:
            sizes[id(layer.weight)] = (by.T @ inputs.square()).sqrt()
        sizes[id(layer.bias)] = by.sum(0).sqrt()
    return sizes


def relative_tolerance(precision: str, activation: str) -> float:
    """How far gradients by many samples may be off, as a share of their sizes.

    Where a rounding takes a sum beyond relu's corner, a slope is wrong altogether: of so many, not by so much.
    """
    off = ROUNDINGS * ROUNDING[precision]
    return 0.5 * off**0.5 if activation == "relu" else off


def check_flat(names: list[str], gradient: Any, grads: list[Any], magnitudes: list[Any], off: float) -> None:
    at = 0
    for name, grad, size in zip(names, grads, magnitudes, strict=True):
        one = gradient[at : at + grad.numel()].view(grad.shape)
        at += grad.numel()
        error, allowed = torch.linalg.norm(one - grad), off * torch.linalg.norm(size) + 1e-6
        assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


def split_like(flat: Any, parts: list[Any]) -> list[Any]:
    """A buffer's numbers in the shapes of parameters."""
    sizes = [part.numel() for part in parts]
    return [one.view(part.shape) for one, part in zip(flat[: sum(sizes)].split(sizes), parts, strict=True)]


def check_recomputed_forward(
    functions: Any, gradient: Any, inputs: Any, by: Any, outputs: Any, grad_inputs: Any | None
) -> None:
    """Finds what two calls do, bit for bit, and leaves the gradient by the weights alone if it is not wanted.

    Args:
        functions: Whose last inputs were ``inputs``.
        gradient: Where they leave the gradient by their weights.
        inputs: Of both ways.
        by: The derivatives by the outputs, but for what follows from these.
        outputs: What ``inputs`` gave.
        grad_inputs: What ``by`` gave, if the gradient by inputs can be had.
    """
    curvatures = (torch.rand_like(by) < 0.5).float()
    functions.backward(torch.where(curvatures > 0, by + outputs, by))
    whole = gradient.clone()
    found = torch.full_like(outputs, torch.nan)
    functions.backward(by, (inputs, found, curvatures))
    assert torch.equal(found, outputs)
    assert torch.equal(gradient, whole)
    if grad_inputs is not None:
        wanted = torch.full_like(grad_inputs, torch.nan)
        functions.backward(by, (inputs, found.fill_(torch.nan), None), grad_inputs=wanted, weights=False)
        assert torch.equal(found, outputs)
        assert torch.equal(wanted, grad_inputs)
        assert torch.equal(gradient, whole)
