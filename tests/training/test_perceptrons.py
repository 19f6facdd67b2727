"""Perceptrons on a CPU against torch in float64."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from wide_tools import check_backward_with_forward  # noqa: E402

from gpu_envs.training.engines.functions import ACTIVATIONS, Form, Perceptrons  # noqa: E402
from gpu_envs.training.engines.kernels import Linear  # noqa: E402

LAYERS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def random_modules(nets: int, sizes: tuple[int, ...], activation: str) -> tuple[list[Any], Any, Any]:
    """Modules in float64, their weights in one float32 tensor, and the weights' offsets and number."""
    modules, flat, linears, offset = [], [], [], 0
    for _ in range(nets):
        layers: list[nn.Module] = []
        offsets = []
        for inputs, outputs in itertools.pairwise(sizes):
            linear = nn.Linear(inputs, outputs)
            layers += [linear, LAYERS[activation]()]
            offsets.append(Linear(offset, offset + inputs * outputs, outputs, inputs))
            offset += (inputs + 1) * outputs
            flat += [linear.weight.detach().flatten(), linear.bias.detach().clone()]
        modules.append(nn.Sequential(*layers[:-1]).double())
        linears.append(tuple(offsets))
    return modules, torch.cat(flat), (tuple(linears), offset)


@pytest.mark.parametrize("rows", [1, 64, 201, 1000])
@pytest.mark.parametrize(("nets", "sizes"), [(1, (3, 64, 64, 2)), (2, (5, 30, 1)), (2, (9, 7, 22, 5, 3))])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_and_gradients_match_torch(activation: str, nets: int, sizes: tuple[int, ...], rows: int) -> None:
    torch.manual_seed(3)
    modules, weights, (linears, count) = random_modules(nets, sizes, activation)
    grad_inputs = range(1, 3)
    gradient = torch.full_like(weights, torch.nan)
    functions = Perceptrons(Form(linears, count, activation, grad_inputs), weights, gradient, rows, 2)
    inputs, grad_outputs = torch.randn(rows, sizes[0]), torch.randn(rows, nets, sizes[-1])
    exact_inputs = [inputs.double().requires_grad_() for _ in modules]
    expected = torch.stack([module(x) for module, x in zip(modules, exact_inputs, strict=True)], 1)
    outputs = torch.full((rows, nets, sizes[-1]), torch.nan)
    functions.outputs(inputs, outputs)
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-5, atol=2e-6)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    grads = torch.autograd.grad((expected * grad_outputs).sum(), [*parameters, *exact_inputs])
    input_gradient = torch.full((rows, nets, 2), torch.nan)
    functions.backward(grad_outputs, grad_inputs=input_gradient)
    for part, grad in zip(gradient.split([p.numel() for p in parameters]), grads, strict=False):
        assert (part.double() - grad.flatten()).abs().max() <= 1e-5 * grad.abs().max()
    expected_inputs = torch.stack([grad[:, 1:3] for grad in grads[len(parameters) :]], 1)
    torch.testing.assert_close(input_gradient.double(), expected_inputs, rtol=1e-5, atol=1e-5)
    for threads in (1, 3):  # the same bits
        again, other_gradient = torch.empty_like(outputs), torch.empty_like(gradient)
        others = Perceptrons(Form(linears, count, activation, grad_inputs), weights, other_gradient, rows, threads)
        others.outputs(inputs, again)
        others.backward(grad_outputs)
        assert torch.equal(again, outputs)
        assert torch.equal(other_gradient, gradient)
    check_backward_with_forward(functions, gradient, inputs, grad_outputs, outputs, input_gradient)
