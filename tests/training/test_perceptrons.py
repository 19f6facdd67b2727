"""Perceptrons of the CPU beside torch in float64."""

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from wide_tools import check_both_ways  # noqa: E402

from gpu_envs.training.engines.functions import ACTIVATIONS, Form, Perceptrons  # noqa: E402
from gpu_envs.training.engines.kernels import Linear  # noqa: E402

LAYERS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def made(nets: int, sizes: tuple[int, ...], activation: str) -> tuple[list[Any], Any, Any]:
    """Modules in float64, all of their weights in float32, and where those lie."""
    modules, flat, places, at = [], [], [], 0
    for _ in range(nets):
        layers: list[nn.Module] = []
        own = []
        for inputs, outputs in itertools.pairwise(sizes):
            linear = nn.Linear(inputs, outputs)
            layers += [linear, LAYERS[activation]()]
            own.append(Linear(at, at + inputs * outputs, outputs, inputs))
            at += (inputs + 1) * outputs
            flat += [linear.weight.detach().flatten(), linear.bias.detach().clone()]
        modules.append(nn.Sequential(*layers[:-1]).double())
        places.append(tuple(own))
    return modules, torch.cat(flat), (tuple(places), at)


@pytest.mark.parametrize("rows", [1, 64, 201, 1000])
@pytest.mark.parametrize(("nets", "sizes"), [(1, (3, 64, 64, 2)), (2, (5, 30, 1)), (2, (9, 7, 22, 5, 3))])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_and_gradients_are_torchs(activation: str, nets: int, sizes: tuple[int, ...], rows: int) -> None:
    torch.manual_seed(3)
    modules, weights, (places, count) = made(nets, sizes, activation)
    grad_inputs = range(1, 3)
    gradient = torch.full_like(weights, torch.nan)
    functions = Perceptrons(Form(places, count, activation, grad_inputs), weights, gradient, rows, 2)
    inputs, grad_outputs = torch.randn(rows, sizes[0]), torch.randn(rows, nets, sizes[-1])
    own = [inputs.double().requires_grad_() for _ in modules]
    expected = torch.stack([module(given) for module, given in zip(modules, own, strict=True)], 1)
    outputs = torch.full((rows, nets, sizes[-1]), torch.nan)
    functions.outputs(inputs, outputs)
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-5, atol=2e-6)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    found = torch.autograd.grad((expected * grad_outputs).sum(), [*parameters, *own])
    of_inputs = torch.full((rows, nets, 2), torch.nan)
    functions.backward(grad_outputs, grad_inputs=of_inputs)
    for part, wanted in zip(gradient.split([p.numel() for p in parameters]), found, strict=False):
        assert (part.double() - wanted.flatten()).abs().max() <= 1e-5 * wanted.abs().max()
    wanted = torch.stack([each[:, 1:3] for each in found[len(parameters) :]], 1)
    torch.testing.assert_close(of_inputs.double(), wanted, rtol=1e-5, atol=1e-5)
    for threads in (1, 3):  # change no bit
        again, other = torch.empty_like(outputs), torch.empty_like(gradient)
        others = Perceptrons(Form(places, count, activation, grad_inputs), weights, other, rows, threads)
        others.outputs(inputs, again)
        others.backward(grad_outputs)
        assert torch.equal(again, outputs)
        assert torch.equal(other, gradient)
    check_both_ways(functions, gradient, inputs, grad_outputs, outputs, of_inputs)
