"""The kernels of wide functions, such as critics, against torch in float64.

Tolerances are in units of ``test_fused.py``.
"""

import copy
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing  # noqa: E402
from torch import nn  # noqa: E402
from wide_tools import (  # noqa: E402
    FEW_BLOCKS,
    REORDERED_SUM_ERROR,
    ROUNDING,
    ROUNDINGS,
    check_backward_with_forward,
    check_flat,
    gradient_sizes,
    gradient_tolerance,
    hopper,
    no_other_gpu,
    record_layers,
    split_like,
)

from gpu_envs.training.engines import wide as engine  # noqa: E402
from gpu_envs.training.engines.functions import Form, WideFunctions, function_network  # noqa: E402
from gpu_envs.training.engines.kernels import ParameterOffsets, layers_of  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam  # noqa: E402
from gpu_envs.training.engines.wide_programs import ROWS, THREADS, UNIT  # noqa: E402
from gpu_envs.training.observations import ObservationScale  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Function:
    features: int
    hidden: tuple[int, ...]
    outputs: int
    nets: int = 1
    activation: str = "elu"
    normalised: bool = False
    grad_inputs: range = range(0)

    def modules(self) -> Any:
        """The modules, with torch's initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.ModuleList(self._module() for _ in range(self.nets))

    def _module(self) -> nn.Sequential:
        kinds = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "silu": nn.SiLU}
        layers: list[nn.Module] = []
        for ins, outs in itertools.pairwise((self.features, *self.hidden)):
            layers += [
                nn.Linear(ins, outs),
                *([nn.LayerNorm(outs)] if self.normalised else []),
                kinds[self.activation](),
            ]
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1], self.outputs))

    def network(self, modules: Any, precision: str, processors: int = 132) -> Any:
        offsets = ParameterOffsets(modules.parameters())
        nets = tuple(layers_of(module, offsets) for module in modules)
        return function_network(Form(nets, offsets.end, self.activation, self.grad_inputs), precision, processors)


FUNCTIONS = {
    "critics": Function(23, (256, 256), 1, nets=2, activation="relu", grad_inputs=range(17, 23)),
    "normalised critics": Function(23, (256, 256), 1, nets=2, normalised=True, grad_inputs=range(17, 23)),
    "one": Function(300, (128,), 40, normalised=True),
    "actor": Function(17, (256, 128, 64), 12, activation="tanh", grad_inputs=range(17)),
    "silu": Function(9, (64, 128), 3, nets=2, activation="silu", grad_inputs=range(2, 5)),
    "alike": Function(6, (128, 128, 128), 2, nets=2, activation="relu", grad_inputs=range(2, 6)),
    "two alike": Function(5, (64, 64, 256), 1, activation="relu", grad_inputs=range(5)),
}


@pytest.mark.slow
@no_other_gpu
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
def test_functions_compile() -> None:
    case = FUNCTIONS["normalised critics"]
    network = case.network(case.modules(), "bf16")
    for name in ("act", "update", "reduce"):
        assert list(kernel_resources(compile_with_nvrtc(network.programs()[name].source).cubin))


@pytest.mark.slow
@no_other_gpu
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
def test_sizes_of_random_shapes() -> None:
    """C++ computes them, and asserts that rows and two stages of weights fit in shared memory."""
    drawn = np.random.default_rng(0)
    shapes: list[tuple[tuple[int, ...], int, int, int, bool]]
    shapes = [((256, 256, 256), 512, 88, 2, True)]  # the largest
    for _ in range(40):
        hidden = tuple(64 * int(width) for width in drawn.integers(1, 5, drawn.integers(1, 4)))
        features, outputs, nets = int(drawn.integers(1, 513)), int(drawn.integers(1, 89)), int(drawn.integers(1, 3))
        shapes.append((hidden, features, outputs, nets, bool(drawn.integers(2))))
    for (hidden, features, outputs, nets, normalised), precision in zip(shapes, itertools.cycle(["bf16", "tf32"])):
        case = Function(features, hidden, outputs, nets, normalised=normalised)
        network = case.network(case.modules(), precision)
        sizes, grids = network.sizes, [network.programs()[name].grid for name in ("act", "gradient")]
        assert all(0 < grid.shared_bytes <= 227 * 1024 for grid in grids)
        layers = list(itertools.pairwise((features, *hidden, outputs)))
        forward = sum(ins * -(-outs // 16) * 16 for ins, outs in layers) * {"bf16": 2, "tf32": 4}[precision]
        assert sizes["packed_bytes"] >= nets * forward
        assert sizes["saved_unit_bytes"] % (UNIT * 2) == 0
        assert sizes["warp_norm_sums"] == (2 * sum(hidden) if normalised else 0)
        assert sizes["gradient_blocks"] <= max(132, nets * sum(-(-max(layer) // 128) * 3 for layer in layers))
        assert sizes["partials_size"] >= sizes["gradient_blocks"] * 128 * 16
    constants = {"rows": "GROUP_TILE", "unit": "GROUP_ROWS", "threads": "THREADS"}
    assert network.sizes_of(constants) == {"rows": ROWS, "unit": UNIT, "threads": THREADS}


@no_other_gpu
def test_functions_that_do_not_fit_are_refused() -> None:
    critics = FUNCTIONS["critics"]
    for wrong, message in (
        ({"hidden": (100,)}, "cannot run the functions: hidden layers are"),
        ({"outputs": 89}, "more than 88"),
        ({"grad_inputs": range(20, 24)}, "consecutive inputs of 23"),
        ({"grad_inputs": range(0, 10, 2)}, "consecutive inputs of 23"),
    ):
        case = dataclasses.replace(critics, **wrong)
        with pytest.raises(ValueError, match=message):
            case.network(case.modules(), "bf16")


@no_other_gpu
def test_input_gradients_and_an_observation_scale_exclude_each_other() -> None:
    case, nothing = FUNCTIONS["critics"], torch.zeros(0)
    with pytest.raises(ValueError, match="leave it out, and normalise the inputs"):
        WideFunctions(case.network(case.modules(), "bf16"), "cuda", nothing, nothing, ObservationScale(1, "cpu"))


@hopper
@pytest.mark.parametrize("rows", [1, 3001])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, precision: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FUNCTIONS[name]
    modules, g = case.modules(), torch.Generator().manual_seed(4)
    inputs = torch.randn(rows, case.features, generator=g)
    grad_outputs = torch.randn(rows, case.nets, case.outputs, generator=g)
    exact = copy.deepcopy(modules).double()
    layers, exact_inputs = record_layers(exact), inputs.double().requires_grad_()
    expected: Any = torch.stack([module(exact_inputs) for module in exact], 1)
    grad_inputs = torch.stack(
        [
            torch.autograd.grad(expected[:, net], exact_inputs, grad_outputs[:, net].double(), retain_graph=True)[0][
                :, case.grad_inputs.start : case.grad_inputs.stop
            ]
            for net in range(case.nets)
        ],
        1,
    )
    expected.backward(grad_outputs.double())
    sizes = gradient_sizes(layers)
    expected, parameters = expected.detach(), list(exact.parameters())
    tolerance, results = ROUNDINGS * ROUNDING[precision], []
    row_tolerance = tolerance**0.5 if case.activation == "relu" else tolerance
    for max_bytes, blocks in ((2**30, None), (1, None), (2**30, FEW_BLOCKS)):  # at once, in pieces, and with few blocks
        monkeypatch.setattr(engine, "MAX_SAVED_BYTES", max_bytes)
        mine = copy.deepcopy(modules).cuda()
        adam = Adam(list(mine.parameters()), device="cuda")
        blocks = blocks or torch.cuda.get_device_properties(0).multi_processor_count
        network = case.network(mine, precision, blocks)
        functions = WideFunctions(network, "cuda", adam.flat, adam.gradient)
        outputs = torch.full((rows, case.nets, case.outputs), torch.nan, device="cuda")
        functions.outputs(inputs.cuda(), outputs)
        input_gradient = torch.full_like(grad_inputs, torch.nan, dtype=torch.float32, device="cuda")
        adam.gradient.fill_(torch.nan)
        functions.backward(grad_outputs.cuda(), grad_inputs=input_gradient if case.grad_inputs else None)
        results.append((outputs, input_gradient, adam.gradient.clone()))
        functions.backward(grad_outputs.cuda())  # without gradients of the inputs
        assert torch.equal(adam.gradient, results[-1][2])
        check_backward_with_forward(
            functions,
            adam.gradient,
            inputs.cuda(),
            grad_outputs.cuda(),
            outputs,
            input_gradient if case.grad_inputs else None,
        )
        adam.gradient.copy_(results[-1][2])
        names, terms = [name for name, _ in modules.named_parameters()], [sizes[id(p)] for p in parameters]
        flat, grads = adam.gradient.cpu().double(), [parameter.grad for parameter in parameters]
        grad_tolerance = gradient_tolerance(precision, case.activation) if rows > 1 else row_tolerance
        check_flat(names, flat, grads, terms, grad_tolerance)
        check_flat(names, flat, split_like(results[0][2].cpu().double(), grads), terms, REORDERED_SUM_ERROR)
    for outputs, input_gradient, _ in results[1:]:
        assert torch.equal(results[0][0], outputs)
        assert torch.equal(results[0][1], input_gradient)
    assert (results[0][0].cpu() - expected).abs().max() <= tolerance * max(1.0, float(expected.abs().max()))
    if case.grad_inputs:
        error = torch.linalg.norm(results[0][1].cpu() - grad_inputs)
        assert error <= row_tolerance * torch.linalg.norm(grad_inputs)
