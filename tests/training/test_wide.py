"""The kernels of wide perceptrons as policies, against torch in float64.

Tolerances are in units of ``test_fused.py``.
"""

import copy
import dataclasses
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fused_cases import box, discrete, scale_of  # noqa: E402
from harness import HAS_CUDA  # noqa: E402
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing  # noqa: E402
from wide_tools import (  # noqa: E402
    FEW_BLOCKS,
    HOPPER,
    REORDERED_SUM_ERROR,
    ROUNDING,
    ROUNDINGS,
    check_flat,
    gradient_sizes,
    gradient_tolerance,
    hopper,
    no_other_gpu,
    record_layers,
    split_like,
)

from gpu_envs.training import A2C, PPO, Network  # noqa: E402
from gpu_envs.training.engines import wide as engine  # noqa: E402
from gpu_envs.training.engines.base import ActRequest, Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.engines.ops import Ops, Samples  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam  # noqa: E402
from gpu_envs.training.engines.wide import WideNetworks, wide_network  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.modules import default_policy  # noqa: E402
from gpu_envs.training.networks import Case as PolicyCase  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Case:
    head: Head
    features: int
    hidden: tuple[int, ...]
    shared: bool
    activation: str = "tanh"
    normalised: bool = False

    def policy(self, precision: str) -> PolicyCase:
        shape: dict[str, Any] = {"layer_norm": self.normalised, "shared_trunk": self.shared, "precision": precision}
        network = Network(hidden=self.hidden, activation=self.activation, **shape)
        return PolicyCase(PPO(), network, self.head, self.features, "cpu")

    def module(self) -> Any:
        module: Any = default_policy(self.policy("float32"), torch.Generator().manual_seed(1))
        g = torch.Generator().manual_seed(2)
        with torch.no_grad():  # nonzero biases and gains, and outputs that differ
            for name, parameter in module.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0, 0.1, generator=g)
                elif parameter.dim() == 1 and name != "log_std":
                    parameter.uniform_(0.5, 1.5, generator=g)
            last = module.heads if self.shared else module.actor[-1]
            last.weight.normal_(0, 0.06, generator=g)
        return module


CASES = {
    "Tag": Case(discrete(21, 21), 71, (256, 256), shared=True),
    "apart": Case(discrete(3, 5), 40, (128, 256), shared=False, activation="relu"),
    "box": Case(box(3), 17, (256,), shared=True, activation="elu"),
    "deep": Case(discrete(4), 72, (64, 192, 128), shared=True),
    "box apart": Case(box(6), 200, (256, 256), shared=False),
    "narrow": Case(discrete(2), 4, (64, 64), shared=True),
    "silu": Case(discrete(5), 33, (128, 128), shared=False, activation="silu"),
    "gelu": Case(box(2), 20, (192, 64), shared=True, activation="gelu"),
    "normalised": Case(discrete(4, 4), 71, (256, 256), shared=True, normalised=True),
    "normalised apart": Case(box(3), 30, (128, 64, 128), shared=False, activation="silu", normalised=True),
    "long": Case(discrete(6), 475, (256, 128), shared=True),  # nearly fills shared memory
    "two parts": Case(discrete(3), 256, (64,), shared=False),
    "many choices": Case(discrete(8, 80), 20, (256, 256), shared=True, activation="relu"),
    "short ring": Case(discrete(8, 80), 71, (256, 256), shared=True, activation="relu"),  # in bf16
    "alike": Case(box(2), 12, (128, 128, 128), shared=False, activation="silu"),
    "full lines": Case(discrete(7), 64, (128,), shared=False),  # features fill the padding: the ones need more
    "two alike": Case(discrete(3), 20, (128, 64, 64), shared=True, normalised=True),
}


@pytest.mark.slow
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(("Tag", precision) for precision in ROUNDING),
        *(("normalised", precision) for precision in ROUNDING),
        *(("box apart", "bf16"), ("apart", "bf16"), ("short ring", "bf16"), ("long", "tf32")),
    ],
)
def test_compiles(name: str, precision: str) -> None:
    case = CASES[name]
    network = wide_network(case.policy(precision), case.module(), 132)
    for program in network.programs().values():
        found = list(kernel_resources(compile_with_nvrtc(program.source).cubin))
        assert {f"kernel_{kernel}" for kernel in program.calls} <= {function for function, _, _ in found}


def test_exceeded_limits_are_named() -> None:
    good: dict[str, Any] = {
        "head": discrete(2),
        "features": 4,
        "hidden": (256, 256),
        "activation": "tanh",
        "precision": "tf32",
    }
    for wrong, word in (
        ({"hidden": (256, 256, 256, 256)}, "one to 3 of 64"),
        ({"hidden": (100,)}, "one to 3 of 64"),
        ({"activation": "softplus"}, "tanh, relu, elu"),
        ({"features": 513}, "more than 512"),
        ({"head": discrete(89)}, "more than 88"),
        ({"head": discrete(*[2] * 9)}, "more than 8"),
        ({"precision": "float32"}, "tf32 or bf16"),
    ):
        assert word in engine.exceeded_limit(**(good | wrong), device="cuda") or (HAS_CUDA and not HOPPER)


@dataclasses.dataclass
class Data:
    module: Any
    observations: Any
    batch: Samples
    scalars: Any
    scale: tuple[Any, Any] | None = None


def random_data(case: Case, samples: int, *, alive: bool = False, masked: bool = False, scaled: bool = False) -> Data:
    g = torch.Generator().manual_seed(5)
    module = case.module()
    observations = torch.randn(samples, case.features, generator=g)
    head, mask = case.head, None
    if head.kind == "box":
        actions = torch.randn(samples, head.width, generator=g)
    else:
        draws = [torch.randint(s, (samples,), generator=g) for s in head.sizes]
        if masked:
            mask = torch.rand(samples, head.parameters, generator=g) < 0.7
            for d, draw in enumerate(draws):
                mask[torch.arange(samples), sum(head.sizes[:d]) + draw] = True
        actions = torch.stack([draw + b for draw, b in zip(draws, head.starts, strict=True)], 1).int()
    scale = (torch.randn(case.features, generator=g), torch.rand(case.features, generator=g) + 0.5) if scaled else None
    data = Data(module, observations, Samples(*[observations] * 5), torch.tensor([0.1, 0.8, 0.02, 0.2]), scale)
    with torch.no_grad():
        outputs, _ = copy.deepcopy(module).double()(scaled_of(data, observations.double()))
    log_prob, _ = log_prob_and_entropy(head, outputs, actions, mask)
    ratio = torch.tensor([0.5, 0.9, 1.0, 1.1, 1.6])[torch.randint(5, (samples,), generator=g)]
    data.batch = Samples(
        actions=actions.cuda(),
        log_probs=(log_prob - ratio.log()).float().cuda(),
        advantages=(torch.randn(samples, generator=g) + 0.2).cuda(),
        returns=(2 * torch.randn(samples, generator=g)).cuda(),
        values=torch.randn(samples, generator=g).cuda(),
        alive=(torch.rand(samples, generator=g) < 0.7).cuda() if alive else None,
        action_mask=None if mask is None else mask.to(torch.int8).cuda(),
    )
    return data


def scaled_of(data: Data, observations: Any) -> Any:
    if data.scale is None:
        return observations
    mean, inverse = (part.double() for part in data.scale)
    return ((observations - mean) * inverse).clamp(-10, 10)


def log_prob_and_entropy(head: Head, outputs: Any, actions: Any, mask: Any) -> tuple[Any, Any]:
    if mask is not None:
        outputs = torch.where(mask, outputs, -1e9)
    if head.kind == "box":
        means, log_std = outputs.split(head.width, 1)
        parts = [torch.distributions.Normal(means[:, d], log_std[:, d].exp()) for d in range(head.width)]
        starts = (0,) * head.width
    else:
        parts = [torch.distributions.Categorical(logits=part) for part in outputs.split(head.sizes, 1)]
        starts = head.starts
    log_prob = sum(part.log_prob(actions[:, d] - starts[d]) for d, part in enumerate(parts))
    return log_prob, sum(part.entropy() for part in parts)


def wide_of(case: Case, data: Data, precision: str, blocks: int | None = None) -> tuple[WideNetworks, Adam]:
    module = copy.deepcopy(data.module).cuda()
    adam = Adam(list(module.parameters()), device="cuda")
    blocks = blocks or torch.cuda.get_device_properties(0).multi_processor_count
    network = wide_network(case.policy(precision), module, blocks)
    scale = data.scale and tuple(part.cuda() for part in data.scale)
    return WideNetworks(network, "cuda", adam, scale_of(scale)), adam


def reference(case: Case, data: Data, indices: Any, algorithm: PPO | A2C) -> tuple[list[Any], list[Any], Any]:
    """The gradient of each parameter, the size of its terms, and the six sums."""
    chosen = torch.arange(len(data.observations)) if indices is None else indices.cpu().long()
    if data.batch.alive is not None:
        chosen = chosen[data.batch.alive.cpu()[chosen]]
    module = copy.deepcopy(data.module).double()
    layers = record_layers(module)
    of = {
        name: getattr(data.batch, name).cpu()[chosen].double()
        for name in ("actions", "log_probs", "advantages", "returns", "values")
    }
    mask = None if data.batch.action_mask is None else data.batch.action_mask.cpu()[chosen] != 0
    outputs, value = module(scaled_of(data, data.observations.double()[chosen]))
    log_prob, entropy = log_prob_and_entropy(case.head, outputs, of["actions"], mask)
    mean, inverse, weight, clip = data.scalars.double()
    advantage, change = (of["advantages"] - mean) * inverse, log_prob - of["log_probs"]
    ratio = change.exp()
    policy = algorithm.policy_loss(log_prob, of["log_probs"], advantage)
    loss = algorithm.value_loss(value, of["values"], of["returns"])
    total: Any = algorithm.loss(policy, loss, entropy, float(weight)).sum()
    total.backward()
    sizes = gradient_sizes(layers)
    grads: list[Any] = [parameter.grad for parameter in module.parameters()]
    magnitudes = []
    for parameter in module.parameters():
        if id(parameter) in sizes:
            magnitudes.append(sizes[id(parameter)])
        else:
            distance = (of["actions"] - outputs.detach()[:, : case.head.width]) / outputs.detach()[
                :, case.head.width :
            ].exp()
            terms = (distance.square() + 1) * (advantage.abs() * ratio).detach().unsqueeze(1)
            magnitudes.append(terms.square().sum(0).sqrt())
    clipped = ((ratio - 1).abs() > clip).double().sum() if isinstance(algorithm, PPO) else torch.zeros(()).double()
    totals = [policy.sum(), loss.sum(), entropy.sum(), (ratio - 1 - change).sum(), clipped]
    return grads, magnitudes, torch.stack([*totals, torch.tensor(float(len(chosen))).double()]).detach()


def check_gradients(case: Case, data: Data, indices: Any, algorithm: PPO | A2C, precision: str) -> None:
    results = []
    for blocks in (None, None, FEW_BLOCKS):
        wide, adam = wide_of(case, data, precision, blocks)
        totals = torch.full((6,), torch.nan, device="cuda")
        adam.gradient.fill_(torch.nan)
        minibatch = Minibatch(data.observations.cuda(), data.batch, indices, algorithm, data.scalars.cuda())
        wide.gradient(minibatch, totals)
        results.append((adam.gradient.clone(), totals))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    grads, magnitudes, expected_sums = reference(case, data, indices, algorithm)
    names = [name for name, _ in data.module.named_parameters()]
    check_flat(names, results[2][0].cpu(), split_like(results[1][0].cpu(), grads), magnitudes, REORDERED_SUM_ERROR)
    tolerance = ROUNDINGS * ROUNDING[precision]
    scale = torch.tensor([1.0, 4.0, 1.0, 1.0, 0.0, 0.0]) * expected_sums[5] * (1 + 3 * case.head.width)
    for result in results[1:]:
        gradient, totals = (part.cpu().double() for part in result)
        check_flat(names, gradient, grads, magnitudes, gradient_tolerance(precision, case.activation))
        assert ((totals - expected_sums).abs() <= tolerance * scale).all(), (totals, expected_sums)


@hopper
@pytest.mark.parametrize(
    ("name", "samples", "precision"),
    [
        *itertools.product(CASES, [3000], ROUNDING),
        *itertools.product(["Tag"], [1, 64, 129, 40_001], ["bf16"]),
    ],
)
def test_gradients(name: str, samples: int, precision: str) -> None:
    check_gradients(CASES[name], random_data(CASES[name], samples), None, PPO(), precision)


@hopper
@pytest.mark.parametrize("algorithm", [A2C(value_weight=1.5), PPO(value_clip=0.3)])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "box", "apart"])
def test_gradients_of_minibatches_with_other_losses(name: str, precision: str, algorithm: PPO | A2C) -> None:
    data = random_data(CASES[name], 5000, scaled=True)
    indices = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:3333].int().cuda()
    check_gradients(CASES[name], data, indices, algorithm, precision)


@hopper
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "apart", "box apart"])
def test_inactive_agents_and_masked_choices_do_not_count(
    name: str, precision: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pieces:
        monkeypatch.setattr(engine, "MAX_SAVED_BYTES", 1)
    data = random_data(CASES[name], 2000, alive=True, masked=CASES[name].head.kind == "discrete")
    assert data.batch.alive is not None
    inactive = ~data.batch.alive
    data.observations[inactive.cpu()] = torch.nan
    for tensor in (data.batch.log_probs, data.batch.advantages, data.batch.returns, data.batch.values):
        tensor[inactive] = torch.nan
    indices = torch.randperm(2000, generator=torch.Generator().manual_seed(1))[:777].int().cuda()
    for chosen in (None, indices):
        check_gradients(CASES[name], data, chosen, PPO(), precision)


@hopper
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", CASES)
def test_actions_and_values_match_torch(name: str, precision: str, greedy: bool) -> None:
    case, rows = CASES[name], 5001
    data = random_data(case, rows, masked=case.head.kind == "discrete", scaled=name == "apart")
    wide, _ = wide_of(case, data, precision, FEW_BLOCKS if greedy else None)
    ops, head = Ops(case.head, "cuda"), case.head
    with torch.no_grad():
        outputs, value = copy.deepcopy(data.module).double()(scaled_of(data, data.observations.double()))
    kind = torch.float32 if head.kind == "box" else torch.int32
    stream = torch.tensor([1234567, 89], device="cuda")

    def buffers() -> tuple[Any, Any, Any]:
        acted = torch.zeros(rows, head.width, device="cuda") if head.kind == "box" else None
        return torch.zeros(rows, head.width, dtype=kind, device="cuda"), torch.zeros(rows, device="cuda"), acted

    mine, expected = buffers(), buffers()
    values = torch.zeros(rows, device="cuda")
    mask = data.batch.action_mask
    observations = data.observations.cuda()
    act_values = values if case.shared else None
    wide.act(ActRequest(observations, *mine[:2], stream, 3, act_values, mine[2], greedy, mask, first_row=7))
    ops.sample(
        outputs.float().cuda().contiguous(),
        *expected[:2],
        stream=stream,
        turn=3,
        acted=expected[2],
        greedy=greedy,
        action_mask=mask,
        first_row=7,
    )
    again = torch.zeros(rows, device="cuda")
    wide.values(ValueRequest(observations, again))
    assert not case.shared or torch.equal(values, again)
    indices = torch.randperm(rows, device="cuda")[:333]
    wide.values(ValueRequest(observations, values[:333], indices))
    assert torch.equal(values[:333], again[indices])
    tolerance = ROUNDINGS * ROUNDING[precision] * (4 if case.activation != "tanh" else 1)
    assert (again.cpu() - value).abs().max() <= tolerance * max(1.0, float(value.abs().max()))
    if head.kind == "box":
        assert (mine[0] - expected[0]).abs().max() <= tolerance
        assert mine[2] is not None
        assert (mine[2] - expected[2]).abs().max() <= 1.5 * tolerance  # the bounds are 3 apart
        return
    assert mask is None or all(
        mask[torch.arange(rows), sum(head.sizes[:d]) + mine[0][:, d].long() - head.starts[d]].all()
        for d in range(head.width)
    )
    same = (mine[0] == expected[0]).all(1)
    # Rounding decides between nearly equal logits, and if a random number is close to a cumulative probability.
    assert same.float().mean() > 1 - max(tolerance * head.width, 0.002)
    assert (mine[1] - expected[1])[same].abs().max() <= 2 * head.width * tolerance + 1e-5


@hopper
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "apart", "box"])
def test_the_largest_observation(name: str, precision: str) -> None:
    case, rows = CASES[name], 777
    data, largest = random_data(case, rows), torch.zeros(1, device="cuda")
    wide, _ = wide_of(case, data, precision)
    before, values = data.observations.cuda(), torch.empty(rows, device="cuda")
    observations = before.clone()

    def largest_of(alive: Any = None) -> float:
        largest.zero_()
        wide.values(ValueRequest(observations, values, None, largest, alive))
        return float(largest.item())

    assert largest_of() == observations.abs().max().item()
    for row in (0, rows // 2, rows - 1):
        observations.copy_(before)
        for number in (-1e3, -torch.inf, torch.nan):
            observations[row, row % case.features] = number
            assert largest_of() == pytest.approx(abs(number), nan_ok=True)
            alive = torch.arange(rows, device="cuda") != row
            assert largest_of(alive) == observations[alive].abs().max().item()


@hopper
def test_gradients_in_a_cuda_graph() -> None:
    case = CASES["Tag"]
    data = random_data(case, 1000)
    wide, adam = wide_of(case, data, "bf16")
    observations, scalars = data.observations.cuda(), data.scalars.cuda()
    totals = torch.zeros(2, 6, device="cuda")
    minibatch = Minibatch(observations, data.batch, None, PPO(), scalars)
    wide.gradient(minibatch, totals[0])
    directly = adam.gradient.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wide.gradient(minibatch, totals[1])
    adam.gradient.zero_()
    graph.replay()
    assert torch.equal(directly, adam.gradient)
    assert torch.equal(totals[0], totals[1])


@no_other_gpu
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("processors", [132, 78])
def test_gradients_use_all_processors(name: str, processors: int) -> None:
    """Except for fewer blocks than the slices of a layer, which all have equally many."""
    case = CASES[name]
    network = wide_network(case.policy("tf32"), case.module(), processors)
    layers = itertools.product(range(len(network.nets)), range(len(network.nets[0])))
    named_layers = [(f"NetOf<Shape, {net}>", layer) for net, layer in layers]
    slices = network.sizes_of({f"of_{n}": f"{net}::slices_of({layer})" for n, (net, layer) in enumerate(named_layers)})
    workers = network.sizes_of(
        {f"of_{n}": f"workers_of<{net}>({layer})" for n, (net, layer) in enumerate(named_layers)}
    )
    assert min(workers.values()) >= 1
    assert sum(workers[name] * slices[name] for name in slices) == network.sizes["gradient_blocks"]
    fewest = min(slices.values())
    assert processors - fewest < network.sizes["gradient_blocks"] <= processors
