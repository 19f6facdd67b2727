"""The kernels of wide perceptrons as policies, against torch in float64.

Tolerances are counted as in ``test_fused.py``.
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
    gradient_scales,
    hopper,
    no_other_gpu,
    record_layers,
    relative_tolerance,
    split_like,
)

from gpu_envs.training import A2C, PPO, Network  # noqa: E402
from gpu_envs.training.engines import wide as engine  # noqa: E402
from gpu_envs.training.engines.base import ActRequest, Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.engines.ops import Ops, Samples  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam  # noqa: E402
from gpu_envs.training.engines.wide import WideNetworks, wide_network  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.networks import Case as PolicyCase  # noqa: E402
from gpu_envs.training.networks import default_policy  # noqa: E402


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
        with torch.no_grad():  # biases and gains that count, and outputs that differ
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
    "long": Case(discrete(6), 475, (256, 128), shared=True),  # fills its kilobytes of shared memory
    "two parts": Case(discrete(3), 256, (64,), shared=False),
    "many choices": Case(discrete(8, 80), 20, (256, 256), shared=True, activation="relu"),
    "short ring": Case(discrete(8, 80), 71, (256, 256), shared=True, activation="relu"),  # in bf16
    "alike": Case(box(2), 12, (128, 128, 128), shared=False, activation="silu"),
    "whole lines": Case(discrete(7), 64, (128,), shared=False),  # no room in them for a one
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


def test_says_why_networks_do_not_fit() -> None:
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
class Given:
    module: Any
    observations: Any
    batch: Samples
    scalars: Any
    scale: tuple[Any, Any] | None = None


def given_of(case: Case, samples: int, *, alive: bool = False, masked: bool = False, scaled: bool = False) -> Given:
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
    given = Given(module, observations, Samples(*[observations] * 5), torch.tensor([0.1, 0.8, 0.02, 0.2]), scale)
    with torch.no_grad():
        outputs, _ = copy.deepcopy(module).double()(scaled_of(given, observations.double()))
    log_prob, _ = log_prob_and_entropy(head, outputs, actions, mask)
    ratio = torch.tensor([0.5, 0.9, 1.0, 1.1, 1.6])[torch.randint(5, (samples,), generator=g)]
    given.batch = Samples(
        actions=actions.cuda(),
        log_probs=(log_prob - ratio.log()).float().cuda(),
        advantages=(torch.randn(samples, generator=g) + 0.2).cuda(),
        returns=(2 * torch.randn(samples, generator=g)).cuda(),
        values=torch.randn(samples, generator=g).cuda(),
        alive=(torch.rand(samples, generator=g) < 0.7).cuda() if alive else None,
        action_mask=None if mask is None else mask.to(torch.int8).cuda(),
    )
    return given


def scaled_of(given: Given, observations: Any) -> Any:
    if given.scale is None:
        return observations
    mean, inverse = (part.double() for part in given.scale)
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


def wide_of(case: Case, given: Given, precision: str, blocks: int | None = None) -> tuple[WideNetworks, Adam]:
    module = copy.deepcopy(given.module).cuda()
    adam = Adam(list(module.parameters()), device="cuda")
    blocks = blocks or torch.cuda.get_device_properties(0).multi_processor_count
    network = wide_network(case.policy(precision), module, blocks)
    scale = given.scale and tuple(part.cuda() for part in given.scale)
    return WideNetworks(network, "cuda", adam, scale_of(scale)), adam


def reference(case: Case, given: Given, indices: Any, algorithm: PPO | A2C) -> tuple[list[Any], list[Any], Any]:
    """The gradient of each parameter, the size of what it is the sum of, and the six sums."""
    chosen = torch.arange(len(given.observations)) if indices is None else indices.cpu().long()
    if given.batch.alive is not None:
        chosen = chosen[given.batch.alive.cpu()[chosen]]
    module = copy.deepcopy(given.module).double()
    kept = record_layers(module)
    of = {
        name: getattr(given.batch, name).cpu()[chosen].double()
        for name in ("actions", "log_probs", "advantages", "returns", "values")
    }
    mask = None if given.batch.action_mask is None else given.batch.action_mask.cpu()[chosen] != 0
    outputs, value = module(scaled_of(given, given.observations.double()[chosen]))
    log_prob, entropy = log_prob_and_entropy(case.head, outputs, of["actions"], mask)
    mean, inverse, weight, clip = given.scalars.double()
    advantage, change = (of["advantages"] - mean) * inverse, log_prob - of["log_probs"]
    ratio = change.exp()
    policy = algorithm.policy_loss(log_prob, of["log_probs"], advantage)
    loss = algorithm.value_loss(value, of["values"], of["returns"])
    total: Any = algorithm.loss(policy, loss, entropy, float(weight)).sum()
    total.backward()
    sizes = gradient_scales(kept)
    grads: list[Any] = [parameter.grad for parameter in module.parameters()]
    magnitudes = []
    for parameter in module.parameters():
        if id(parameter) in sizes:
            magnitudes.append(sizes[id(parameter)])
        else:
            distance = (of["actions"] - outputs.detach()[:, : case.head.width]) / outputs.detach()[
                :, case.head.width :
            ].exp()
            each = (distance.square() + 1) * (advantage.abs() * ratio).detach().unsqueeze(1)
            magnitudes.append(each.square().sum(0).sqrt())
    clipped = ((ratio - 1).abs() > clip).double().sum() if isinstance(algorithm, PPO) else torch.zeros(()).double()
    totals = [policy.sum(), loss.sum(), entropy.sum(), (ratio - 1 - change).sum(), clipped]
    return grads, magnitudes, torch.stack([*totals, torch.tensor(float(len(chosen))).double()]).detach()


def check_gradients(case: Case, given: Given, indices: Any, algorithm: PPO | A2C, precision: str) -> None:
    found = []
    for blocks in (None, None, FEW_BLOCKS):
        wide, adam = wide_of(case, given, precision, blocks)
        totals = torch.full((6,), torch.nan, device="cuda")
        adam.gradient.fill_(torch.nan)
        minibatch = Minibatch(given.observations.cuda(), given.batch, indices, algorithm, given.scalars.cuda())
        wide.gradient(minibatch, totals)
        found.append((adam.gradient.clone(), totals))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    grads, magnitudes, wanted = reference(case, given, indices, algorithm)
    names = [name for name, _ in given.module.named_parameters()]
    check_flat(names, found[2][0].cpu(), split_like(found[1][0].cpu(), grads), magnitudes, REORDERED_SUM_ERROR)
    off = ROUNDINGS * ROUNDING[precision]
    scale = torch.tensor([1.0, 4.0, 1.0, 1.0, 0.0, 0.0]) * wanted[5] * (1 + 3 * case.head.width)
    for each in found[1:]:
        gradient, totals = (part.cpu().double() for part in each)
        check_flat(names, gradient, grads, magnitudes, relative_tolerance(precision, case.activation))
        assert ((totals - wanted).abs() <= off * scale).all(), (totals, wanted)


@hopper
@pytest.mark.parametrize(
    ("name", "samples", "precision"),
    [
        *itertools.product(CASES, [3000], ROUNDING),
        *itertools.product(["Tag"], [1, 64, 129, 40_001], ["bf16"]),
    ],
)
def test_gradients(name: str, samples: int, precision: str) -> None:
    check_gradients(CASES[name], given_of(CASES[name], samples), None, PPO(), precision)


@hopper
@pytest.mark.parametrize("algorithm", [A2C(value_weight=1.5), PPO(value_clip=0.3)])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "box", "apart"])
def test_gradients_of_chosen_samples_by_other_losses(name: str, precision: str, algorithm: PPO | A2C) -> None:
    given = given_of(CASES[name], 5000, scaled=True)
    indices = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:3333].int().cuda()
    check_gradients(CASES[name], given, indices, algorithm, precision)


@hopper
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "apart", "box apart"])
def test_the_dead_and_the_forbidden_count_for_nothing(
    name: str, precision: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pieces:
        monkeypatch.setattr(engine, "MAX_SAVED_BYTES", 1)
    given = given_of(CASES[name], 2000, alive=True, masked=CASES[name].head.kind == "discrete")
    assert given.batch.alive is not None
    dead = ~given.batch.alive
    given.observations[dead.cpu()] = torch.nan
    for tensor in (given.batch.log_probs, given.batch.advantages, given.batch.returns, given.batch.values):
        tensor[dead] = torch.nan
    indices = torch.randperm(2000, generator=torch.Generator().manual_seed(1))[:777].int().cuda()
    for chosen in (None, indices):
        check_gradients(CASES[name], given, chosen, PPO(), precision)


@hopper
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", CASES)
def test_acts_and_values_as_torch_does(name: str, precision: str, greedy: bool) -> None:
    case, rows = CASES[name], 5001
    given = given_of(case, rows, masked=case.head.kind == "discrete", scaled=name == "apart")
    wide, _ = wide_of(case, given, precision, FEW_BLOCKS if greedy else None)
    ops, head = Ops(case.head, "cuda"), case.head
    with torch.no_grad():
        outputs, value = copy.deepcopy(given.module).double()(scaled_of(given, given.observations.double()))
    kind = torch.float32 if head.kind == "box" else torch.int32
    stream = torch.tensor([1234567, 89], device="cuda")

    def made() -> tuple[Any, Any, Any]:
        acted = torch.zeros(rows, head.width, device="cuda") if head.kind == "box" else None
        return torch.zeros(rows, head.width, dtype=kind, device="cuda"), torch.zeros(rows, device="cuda"), acted

    mine, theirs = made(), made()
    values = torch.zeros(rows, device="cuda")
    mask = given.batch.action_mask
    observations = given.observations.cuda()
    wanted = values if case.shared else None
    wide.act(ActRequest(observations, *mine[:2], stream, 3, wanted, mine[2], greedy, mask, first_row=7))
    ops.sample(
        outputs.float().cuda().contiguous(),
        *theirs[:2],
        stream=stream,
        turn=3,
        acted=theirs[2],
        greedy=greedy,
        action_mask=mask,
        first_row=7,
    )
    again = torch.zeros(rows, device="cuda")
    wide.values(ValueRequest(observations, again))
    assert not case.shared or torch.equal(values, again)
    places = torch.randperm(rows, device="cuda")[:333]
    wide.values(ValueRequest(observations, values[:333], places))
    assert torch.equal(values[:333], again[places])
    off = ROUNDINGS * ROUNDING[precision] * (4 if case.activation != "tanh" else 1)
    assert (again.cpu() - value).abs().max() <= off * max(1.0, float(value.abs().max()))
    if head.kind == "box":
        assert (mine[0] - theirs[0]).abs().max() <= off
        assert mine[2] is not None
        assert (mine[2] - theirs[2]).abs().max() <= 1.5 * off  # bounds 3 apart
        return
    assert mask is None or all(
        mask[torch.arange(rows), sum(head.sizes[:d]) + mine[0][:, d].long() - head.starts[d]].all()
        for d in range(head.width)
    )
    same = (mine[0] == theirs[0]).all(1)
    # Where two choices are nearly as likely, or a random number falls between two shares, a rounding decides.
    assert same.float().mean() > 1 - max(off * head.width, 0.002)
    assert (mine[1] - theirs[1])[same].abs().max() <= 2 * head.width * off + 1e-5


@hopper
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("name", ["Tag", "apart", "box"])
def test_the_largest_observation(name: str, precision: str) -> None:
    case, rows = CASES[name], 777
    given, largest = given_of(case, rows), torch.zeros(1, device="cuda")
    wide, _ = wide_of(case, given, precision)
    before, values = given.observations.cuda(), torch.empty(rows, device="cuda")
    seen = before.clone()

    def found(alive: Any = None) -> float:
        largest.zero_()
        wide.values(ValueRequest(seen, values, None, largest, alive))
        return float(largest.item())

    assert found() == seen.abs().max().item()
    for row in (0, rows // 2, rows - 1):
        seen.copy_(before)
        for number in (-1e3, -torch.inf, torch.nan):
            seen[row, row % case.features] = number
            assert found() == pytest.approx(abs(number), nan_ok=True)
            alive = torch.arange(rows, device="cuda") != row
            assert found(alive) == seen[alive].abs().max().item()


@hopper
def test_a_graph_of_it_can_be_replayed() -> None:
    case = CASES["Tag"]
    given = given_of(case, 1000)
    wide, adam = wide_of(case, given, "bf16")
    observations, scalars = given.observations.cuda(), given.scalars.cuda()
    totals = torch.zeros(2, 6, device="cuda")
    minibatch = Minibatch(observations, given.batch, None, PPO(), scalars)
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
def test_gradients_are_found_by_all_processors(name: str, processors: int) -> None:
    """As far as a layer's slices, which have as many each, let them."""
    case = CASES[name]
    network = wide_network(case.policy("tf32"), case.module(), processors)
    layers = itertools.product(range(len(network.nets)), range(len(network.nets[0])))
    of_layers = [(f"NetOf<Shape, {net}>", layer) for net, layer in layers]
    slices = network.sizes_of({f"of_{n}": f"{net}::slices_of({layer})" for n, (net, layer) in enumerate(of_layers)})
    workers = network.sizes_of({f"of_{n}": f"workers_of<{net}>({layer})" for n, (net, layer) in enumerate(of_layers)})
    assert min(workers.values()) >= 1
    assert sum(workers[name] * slices[name] for name in slices) == network.sizes["gradient_blocks"]
    fewest = min(slices.values())
    assert processors - fewest < network.sizes["gradient_blocks"] <= processors
