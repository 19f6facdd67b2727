"""References and tolerances for gradients of wide networks."""

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
"""Approximate number of roundings of a forward and backward pass through three hidden layers."""
REORDERED_SUM_ERROR = 1e-3
"""Tolerance for sums in another order; leaving out a unit of 64 of 3,000 samples would change a sum by 0.15."""

FEW_BLOCKS = 4
"""So few blocks that each has many tiles of a few thousand rows, with a partial tile at the end."""


def record_layers(module: nn.Module) -> dict[nn.Module, tuple[Any, Any]]:
    """Returns a dict that a forward pass fills with inputs and outputs of the layers."""
    layers: dict[nn.Module, tuple[Any, Any]] = {}

    def record(layer: nn.Module, inputs: Any, output: Any) -> None:
        output.retain_grad()
        layers[layer] = inputs[0].detach(), output

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            layer.register_forward_hook(record)
    return layers


def gradient_sizes(layers: dict[nn.Module, tuple[Any, Any]]) -> dict[int, Any]:
    """The root of the sum of squares of the terms of each parameter's gradient, by id of the parameter.

    Roundings of many samples cancel as the samples do: tolerances are in units of these sizes.
    """
    sizes: dict[int, Any] = {}
    for layer, (inputs, output) in layers.items():
        squares = output.grad.square()
        if isinstance(layer, nn.LayerNorm):
            normalised = nn.functional.layer_norm(inputs, layer.normalized_shape)
            sizes[id(layer.weight)] = (squares * normalised.square()).sum(0).sqrt()
        else:
            sizes[id(layer.weight)] = (squares.T @ inputs.square()).sqrt()
        sizes[id(layer.bias)] = squares.sum(0).sqrt()
    return sizes


def gradient_tolerance(precision: str, activation: str) -> float:
    """The tolerance of gradients of many samples, relative to their sizes.

    A rounding may move a pre-activation across relu's corner, which changes the slope of a few samples completely.
    """
    tolerance = ROUNDINGS * ROUNDING[precision]
    return 0.5 * tolerance**0.5 if activation == "relu" else tolerance


def check_flat(names: list[str], gradient: Any, grads: list[Any], sizes: list[Any], tolerance: float) -> None:
    """Asserts that a flat gradient is close to the gradients of all parameters, relative to ``sizes``."""
    offset = 0
    for name, grad, size in zip(names, grads, sizes, strict=True):
        part = gradient[offset : offset + grad.numel()].view(grad.shape)
        offset += grad.numel()
        error, allowed = torch.linalg.norm(part - grad), tolerance * torch.linalg.norm(size) + 1e-6
        assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


def split_like(flat: Any, parts: list[Any]) -> list[Any]:
    """Splits a flat buffer into the shapes of parameters."""
    sizes = [part.numel() for part in parts]
    return [numbers.view(part.shape) for numbers, part in zip(flat[: sum(sizes)].split(sizes), parts, strict=True)]


def check_backward_with_forward(
    functions: Any, gradient: Any, inputs: Any, grad_outputs: Any, outputs: Any, grad_inputs: Any | None
) -> None:
    """Asserts that ``backward`` with a forward pass equals two separate calls, and that ``weights=False`` writes none.

    Args:
        functions: The functions, after a forward pass of ``inputs``.
        gradient: The tensor that receives the gradients of the weights.
        inputs: Inputs of the functions.
        grad_outputs: Gradients of the outputs, without curvatures.
        outputs: Outputs of ``inputs``.
        grad_inputs: Gradients of the inputs from ``grad_outputs``; None: the functions have none.
    """
    curvatures = (torch.rand_like(grad_outputs) < 0.5).float()
    functions.backward(torch.where(curvatures > 0, grad_outputs + outputs, grad_outputs))
    expected = gradient.clone()
    written = torch.full_like(outputs, torch.nan)
    functions.backward(grad_outputs, (inputs, written, curvatures))
    assert torch.equal(written, outputs)
    assert torch.equal(gradient, expected)
    if grad_inputs is not None:
        forward = (inputs, written.fill_(torch.nan), None)
        input_gradient = torch.full_like(grad_inputs, torch.nan)
        functions.backward(grad_outputs, forward, grad_inputs=input_gradient, weights=False)
        assert torch.equal(written, outputs)
        assert torch.equal(input_gradient, grad_inputs)
        assert torch.equal(gradient, expected)
