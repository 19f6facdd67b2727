"""The kernels of small networks, against torch in float64.

Tolerances are multiples of the rounding of a product's operands, relative to the sum of magnitudes of a result's terms.
The gradient of the first layer has about twelve roundings, and the hardware's tanh adds a few of the same size.
"""

import dataclasses
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fused_cases import CASES, NetworkCase, scale_of  # noqa: E402
from harness import HAS_CUDA  # noqa: E402

from gpu_envs.training.algorithms import A2C, PPO  # noqa: E402
from gpu_envs.training.algorithms.base import LOG_STD_RANGE  # noqa: E402
from gpu_envs.training.engines.base import ActRequest, Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.engines.kernels import ARITHMETIC  # noqa: E402
from gpu_envs.training.engines.ops import Ops, Samples  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam, Step  # noqa: E402
from gpu_envs.training.engines.small import SmallNetworks  # noqa: E402

cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")

ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8, "float32": 2.0**-18}
"""Relative rounding of an operand; for float32 of sums of 64 products in the order of the tensor cores."""

ROUNDINGS = 16


# --- the oracle ---


@dataclasses.dataclass(frozen=True)
class Pass:
    """A forward pass of a network: its outputs, and the inputs and pre-activations of all layers."""

    outputs: Any
    inputs: list[Any]
    sums: list[Any]


def parameters_of(case: NetworkCase, flat: Any) -> dict[str, list[Any]]:
    parts = iter(flat[case.head.log_stds :].split([torch.Size(s).numel() for v in case.shapes().values() for s in v]))
    return {part: [next(parts).view(shape) for shape in shapes] for part, shapes in case.shapes().items()}


def forward(case: NetworkCase, weights: list[Any], observations: Any) -> Pass:
    act = torch.tanh if case.activation == "tanh" else torch.relu
    inputs, sums = [observations], []
    for layer in range(3):
        sums.append(inputs[-1] @ weights[2 * layer].T + weights[2 * layer + 1])
        sums[-1].retain_grad()
        inputs.append(act(sums[-1]))
    return Pass(sums[-1], inputs[:3], sums)


def log_prob_and_entropy(case: NetworkCase, flat: Any, outputs: Any, actions: Any) -> tuple[Any, Any]:
    parts: list[Any]
    if case.head.kind == "discrete":
        parts = [torch.distributions.Categorical(logits=part) for part in outputs.split(case.head.sizes, 1)]
    else:
        std = flat[: case.head.log_stds].clamp(*LOG_STD_RANGE).exp()
        parts = [torch.distributions.Normal(outputs[:, d], std[d]) for d in range(case.head.width)]
    starts = case.head.starts or (0,) * case.head.width
    log_prob = sum(part.log_prob(actions[:, d] - starts[d]) for d, part in enumerate(parts))
    return log_prob, sum(part.entropy() for part in parts)


@dataclasses.dataclass
class Data:
    flat: Any
    observations: Any
    batch: Samples
    scalars: Any
    scale: tuple[Any, Any] | None = None


def data(case: NetworkCase, samples: int, seed: int = 0, alive: bool = False, device: str = "cuda") -> Data:
    """Random weights and samples. No ratio is near the clip range's bounds, where rounding would decide."""
    g = torch.Generator().manual_seed(seed)
    flat = torch.randn(case.network("tf32").parameters, generator=g)
    for part in parameters_of(case, flat).values():
        for layer in range(3):
            part[2 * layer].mul_(1.0 / part[2 * layer].shape[1] ** 0.5)
            part[2 * layer + 1].mul_(0.1)
    flat[: case.head.log_stds] *= 0.3
    observations = torch.randn(samples, case.features, generator=g)
    head = case.head
    if head.kind == "box":
        actions = torch.randn(samples, head.width, generator=g)
    else:
        draws = [torch.randint(s, (samples,), generator=g) + b for s, b in zip(head.sizes, head.starts, strict=True)]
        actions = torch.stack(draws, 1).int()
    exact = flat.double()
    actor = forward(case, [p.requires_grad_() for p in parameters_of(case, exact)["actor"]], observations.double())
    log_probs, _ = log_prob_and_entropy(case, exact, actor.outputs, actions.double())
    ratio = torch.tensor([0.5, 0.9, 1.0, 1.1, 1.6])[torch.randint(5, (samples,), generator=g)]
    batch = Samples(
        actions=actions.to(device),
        log_probs=(log_probs - ratio.log()).float().detach().to(device),
        advantages=(torch.randn(samples, generator=g) + 0.2).to(device),
        returns=(2 * torch.randn(samples, generator=g)).to(device),
        values=torch.randn(samples, generator=g).to(device),
        alive=(torch.rand(samples, generator=g) < 0.7).to(device) if alive else None,
    )
    return Data(flat.to(device), observations.to(device), batch, torch.tensor([0.1, 0.8, 0.02, 0.2], device=device))


def reference(case: NetworkCase, given: Data, indices: Any, algorithm: PPO | A2C) -> tuple[list[Any], list[Any], Any]:
    """The gradient of each parameter, the sum of magnitudes of its terms, and the six sums."""
    chosen = torch.arange(len(given.observations)) if indices is None else indices.cpu().long()
    if given.batch.alive is not None:
        chosen = chosen[given.batch.alive.cpu()[chosen] != 0]
    flat = given.flat.cpu().double().requires_grad_()
    parameters = parameters_of(case, flat)
    observations = given.observations.cpu().double()[chosen]
    if given.scale is not None:
        mean, inverse = (part.cpu().double() for part in given.scale)
        observations = ((observations - mean) * inverse).clamp(-10, 10)
    of = {
        name: getattr(given.batch, name).cpu()[chosen].double()
        for name in ("actions", "log_probs", "advantages", "returns", "values")
    }
    mean, inverse, weight, clip = given.scalars.cpu().double()
    actor, critic = (forward(case, parameters[part], observations) for part in ("actor", "critic"))
    log_prob, entropy = log_prob_and_entropy(case, flat, actor.outputs, of["actions"])
    advantage, change = (of["advantages"] - mean) * inverse, log_prob - of["log_probs"]
    ratio = change.exp()
    policy = algorithm.policy_loss(log_prob, of["log_probs"], advantage)
    loss = algorithm.value_loss(critic.outputs[:, 0], of["values"], of["returns"])
    total: Any = algorithm.loss(policy, loss, entropy, float(weight)).sum()
    total.backward()
    magnitudes: list[Any] = []
    for network in (actor, critic):
        for inputs, sums in zip(network.inputs, network.sums, strict=True):
            magnitudes += [sums.grad.abs().T @ inputs.abs(), sums.grad.abs().sum(0)]
    grads = [part for parts in parameters_of(case, flat.grad).values() for part in parts]
    if case.head.log_stds:
        grads.append(flat.grad[: case.head.log_stds])
        std = flat[: case.head.log_stds].detach().clamp(*LOG_STD_RANGE).exp()
        distances = (of["actions"] - actor.outputs.detach()) / std
        magnitudes.append(((distances.square() + 1) * (advantage.abs() * ratio).detach().unsqueeze(1)).sum(0))
    totals = torch.stack(
        [
            *(policy.sum(), loss.sum(), entropy.sum(), (ratio - 1 - change).sum()),
            *(((ratio - 1).abs() > clip).double().sum() if isinstance(algorithm, PPO) else torch.zeros(()).double(),),
            torch.tensor(float(len(chosen))).double(),
        ]
    )
    return grads, magnitudes, totals.detach()


# --- values, actions and gradients ---


@cuda
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize(("name", "rows"), [*itertools.product(CASES, [1000]), ("CartPole", 1), ("CartPole", 70_001)])
def test_values(name: str, rows: int, precision: str) -> None:
    case = CASES[name]
    given = data(case, rows)
    values = torch.empty(rows, device="cuda")
    case.fused(precision, given.flat).values(ValueRequest(given.observations, values))
    again = torch.empty(rows, device="cuda")
    case.fused(precision, given.flat, few=True).values(ValueRequest(given.observations, again))
    assert torch.equal(values, again)
    weights = parameters_of(case, given.flat.cpu().double().requires_grad_())["critic"]
    expected = forward(case, weights, given.observations.cpu().double()).outputs[:, 0]
    # A value is a sum of `hidden` products with activations of at most 1 (relu: a few).
    size = weights[4].abs().sum(1).max() * (1 if case.activation == "tanh" else 4) + 1
    assert (values.cpu().double() - expected).abs().max() <= ROUNDINGS * ROUNDING[precision] * size


@cuda
@pytest.mark.parametrize("name", ["CartPole", "several", "wide"])
def test_values_of_indexed_rows(name: str) -> None:
    """Rows with a negative index are skipped."""
    case, rows = CASES[name], 3001
    given, g = data(case, 5 * rows), torch.Generator().manual_seed(0)
    indices = torch.randint(5, (rows,), generator=g) * rows + torch.arange(rows)
    skipped = torch.rand(rows, generator=g) < 0.7
    skipped[:200] = True
    indices = torch.where(skipped, -1, indices).cuda()
    fused, values = case.fused("tf32", given.flat), torch.empty(2, rows, device="cuda")
    fused.values(ValueRequest(given.observations, values[0], indices))
    fused.values(ValueRequest(given.observations[indices.clamp(min=0)].contiguous(), values[1]))
    assert torch.equal(values[0][~skipped.cuda()], values[1][~skipped.cuda()])
    given.observations.fill_(torch.nan)
    fused.values(ValueRequest(given.observations, values[1], torch.full_like(indices, -1)))  # reads no observation


@cuda
@pytest.mark.parametrize(("name", "rows"), [("CartPole", 70_001), ("Pendulum", 1), ("several", 100), ("wide", 3001)])
def test_the_largest_observation(name: str, rows: int) -> None:
    case = CASES[name]
    given, largest = data(case, rows), torch.zeros(1, device="cuda")
    fused, values = case.fused("tf32", given.flat), torch.empty(rows, device="cuda")
    observations = given.observations.clone()

    def largest_of(alive: Any = None) -> float:
        largest.zero_()
        fused.values(ValueRequest(observations, values, None, largest, alive))
        return float(largest.item())

    assert largest_of() == observations.abs().max().item()
    for row in {0, rows // 2, rows - 1}:
        observations.copy_(given.observations)
        for number in (-1e3, -torch.inf, torch.nan):
            observations[row, row % case.features] = number
            assert largest_of() == pytest.approx(abs(number), nan_ok=True)
            alive = torch.arange(rows, device="cuda") != row
            rest = observations[alive].abs()
            assert largest_of(alive) == (rest.max().item() if len(rest) else 0.0)
    observations.copy_(given.observations)
    largest.fill_(1e9)
    fused.values(ValueRequest(observations, values, None, largest))
    assert largest.item() == 1e9


@cuda
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize("name", CASES)
def test_actions_match_the_sampler(name: str, precision: str, greedy: bool) -> None:
    case, rows = CASES[name], 5001
    given, head = data(case, rows), CASES[name].head
    stream = torch.tensor([1234567, 89], device="cuda")
    weights = parameters_of(case, given.flat.cpu().double().requires_grad_())["actor"]
    outputs = forward(case, weights, given.observations.cpu().double()).outputs.detach()
    if head.kind == "box":
        log_std = given.flat[: head.width].clamp(*LOG_STD_RANGE).cpu().double()
        outputs = torch.cat((outputs, log_std.expand(rows, -1)), 1)

    def buffers() -> tuple[Any, Any, Any]:
        kind = torch.float32 if head.kind == "box" else torch.int32
        acted = torch.zeros(rows, head.width, device="cuda") if head.kind == "box" else None
        return torch.zeros(rows, head.width, dtype=kind, device="cuda"), torch.zeros(rows, device="cuda"), acted

    mine, expected = buffers(), buffers()
    fused = case.fused(precision, given.flat, few=greedy)
    fused.act(ActRequest(given.observations, *mine[:2], stream, 3, acted=mine[2], greedy=greedy))
    logits = outputs.float().cuda().contiguous()
    Ops(head, "cuda").sample(logits, *expected[:2], stream=stream, turn=3, acted=expected[2], greedy=greedy)
    size = weights[4].detach().abs().sum(1).max() * (4 if case.activation == "relu" else 1)
    tolerance = ROUNDINGS * ROUNDING[precision] * float(size)
    if head.kind == "box":
        assert (mine[0] - expected[0]).abs().max() <= tolerance
        assert mine[2] is not None
        assert (mine[2] - expected[2]).abs().max() <= 1.5 * tolerance  # the bounds are 3 apart
        assert (mine[1] - expected[1]).abs().max() <= max(tolerance, 1e-5)
        return
    same = (mine[0] == expected[0]).all(1)
    # Rounding decides between nearly equal logits, and if a random number is close to a cumulative probability.
    assert same.float().mean() > 1 - max(ROUNDINGS * ROUNDING[precision] * head.width, 0.002)
    assert (mine[1] - expected[1])[same].abs().max() <= 2 * head.width * tolerance + 1e-5


def check_gradients(
    case: NetworkCase, given: Data, indices: Any, algorithm: PPO | A2C, precision: str
) -> tuple[Any, Any]:
    results = []
    for few, rows in ((False, 2**31), (False, 2**31), (True, 2**31), (True, 1)):
        fused = case.fused(precision, given.flat, given.scale, few, rows)
        gradient, totals = fused.optimiser.gradient.fill_(torch.nan), torch.full((6,), torch.nan, device="cuda")
        fused.gradient(Minibatch(given.observations, given.batch, indices, algorithm, given.scalars), totals)
        results.append((gradient, totals))
    (gradient, totals), *others = results
    assert torch.equal(gradient, others[0][0])
    assert torch.equal(totals, others[0][1])
    grads, magnitudes, expected_sums = reference(case, given, indices, algorithm)
    tolerance = ROUNDINGS * ROUNDING[precision]
    scale = torch.tensor([1.0, 4.0, 1.0, 1.0, 0.0, 0.0]) * expected_sums[5] * (1 + 3 * case.head.width)
    for mine, sums in others:
        computed = [part for parts in parameters_of(case, mine.cpu().double()).values() for part in parts]
        computed.append(mine.cpu().double()[: case.head.log_stds])
        for number, (part, grad, size) in enumerate(zip(computed, grads, magnitudes, strict=False)):
            error, allowed = torch.linalg.norm(part - grad), tolerance * torch.linalg.norm(size) + 1e-6
            assert error <= allowed, f"parameter {number}: off by {error:.3g}, allowed {allowed:.3g}"
        assert ((sums.cpu().double() - expected_sums).abs() <= tolerance * scale).all(), (sums, expected_sums)
    return gradient, totals


@cuda
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize(
    ("name", "samples"), [*itertools.product(CASES, [3000]), *itertools.product(["CartPole"], [1, 15, 64, 65, 40_001])]
)
def test_gradients(name: str, samples: int, precision: str) -> None:
    check_gradients(CASES[name], data(CASES[name], samples), None, PPO(), precision)


@cuda
@pytest.mark.parametrize("algorithm", [A2C(value_weight=1.5), PPO(value_clip=0.3)])
@pytest.mark.parametrize("name", ["CartPole", "Pendulum"])
def test_gradients_of_minibatches_with_other_losses(name: str, algorithm: PPO | A2C) -> None:
    given = data(CASES[name], 5000)
    indices = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:3333].int().cuda()
    check_gradients(CASES[name], given, indices, algorithm, "float32")


@cuda
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize("name", ["CartPole", "narrow", "several"])
def test_inactive_agents_do_not_count(name: str, precision: str) -> None:
    given = data(CASES[name], 2000, alive=True)
    assert given.batch.alive is not None
    inactive = ~given.batch.alive
    given.observations[inactive] = torch.nan
    for tensor in (given.batch.log_probs, given.batch.advantages, given.batch.returns, given.batch.values):
        tensor[inactive] = torch.nan
    check_gradients(CASES[name], given, None, PPO(), precision)


@cuda
@pytest.mark.parametrize("alive", [False, True])
def test_observations_are_normalised(alive: bool) -> None:
    case = CASES["Acrobot"]
    given = data(case, 2000, alive=alive)
    given.scale = torch.randn(6, device="cuda"), torch.rand(6, device="cuda") * 5 + 0.5
    check_gradients(case, given, None, PPO(), "float32")
    scaled = ((given.observations - given.scale[0]) * given.scale[1]).clamp(-10, 10)
    values = torch.empty(2, 2000, device="cuda")
    case.fused("tf32", given.flat, scale=given.scale).values(ValueRequest(given.observations, values[0]))
    case.fused("tf32", given.flat).values(ValueRequest(scaled, values[1]))
    assert (values[0] - values[1]).abs().max() <= 0.02


# --- optimiser steps ---


class Learning:
    """Networks with an optimiser, and steps along the gradient of a minibatch."""

    def __init__(self, case: NetworkCase, given: Data, precision: str = "tf32", max_kl: float = 1e9) -> None:
        def tensor(value: float, count: int = 1, dtype: Any = torch.float32) -> Any:
            return torch.full((count,), value, dtype=dtype, device="cuda")

        self.given = given
        self.adam = Adam([torch.nn.Parameter(given.flat.clone())], device="cuda")
        self.fused = SmallNetworks(case.network(precision), "cuda", self.adam, scale_of(given.scale))
        self.outputs = {"norm": tensor(-1.0), "stop": tensor(0, dtype=torch.int32), "metrics": tensor(0.0, 6)}
        self.arguments = Step(tensor(0.01), 0.5, max_kl=max_kl, **self.outputs)

    def step(self, indices: Any = None, *, apart: bool = False) -> None:
        """Takes a step in two launches, or ``apart``: with a separate call for the gradient."""
        given = self.given
        minibatch = Minibatch(given.observations, given.batch, indices, PPO(), given.scalars)
        if apart:
            self.fused.gradient(minibatch, self.adam.totals)
            self.adam.step(self.arguments)
        else:
            self.fused.learn(minibatch, self.arguments)

    def state(self) -> dict[str, Any]:
        tensors = {"flat": self.adam.flat, "message": self.adam.message, **self.adam.state(), **self.outputs}
        return {name: tensor.clone() for name, tensor in tensors.items()}


def same_bits(one: Learning, other: Learning) -> None:
    state, expected = one.state(), other.state()
    assert [name for name, tensor in state.items() if not torch.equal(tensor, expected[name])] == []


@cuda
@pytest.mark.parametrize("samples", [1, 65, 3000, 40_001])
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize("name", CASES)
def test_steps_match_separate_launches(name: str, precision: str, samples: int) -> None:
    given = data(CASES[name], samples, alive=name == "several")
    together, apart = Learning(CASES[name], given, precision), Learning(CASES[name], given, precision)
    for step in range(3):
        chosen = torch.randperm(samples, generator=torch.Generator().manual_seed(step))[: 1 + samples // 2].int().cuda()
        before = together.state()
        together.step(chosen if step else None)
        apart.step(chosen if step else None, apart=True)
        same_bits(together, apart)
        assert not torch.equal(before["flat"], together.adam.flat)


@cuda
def test_a_stop_lasts_until_it_is_reset() -> None:
    given = data(CASES["Pendulum"], 3000)
    together, apart = (Learning(CASES["Pendulum"], given, max_kl=1e-4) for _ in range(2))
    for step in range(4):
        if step == 3:
            for each in (together, apart):
                each.outputs["stop"].zero_()
        before = together.state()
        together.step()
        apart.step(apart=True)
        same_bits(together, apart)
        assert together.outputs["stop"].item() == 1
        unchanged = ("flat", "means", "squares", "steps", "norm", "metrics")
        assert all(torch.equal(before[key], tensor) for key, tensor in together.state().items() if key in unchanged)


@cuda
@pytest.mark.parametrize("inactive", [False, True])
def test_no_step_without_samples(inactive: bool) -> None:
    given = data(CASES["CartPole"], 100, alive=True)
    learning = Learning(CASES["CartPole"], given)
    learning.step()
    before = learning.state()
    assert given.batch.alive is not None
    given.batch.alive.fill_(False)
    learning.step(None if inactive else torch.zeros(0, dtype=torch.int32, device="cuda"))
    after = learning.state()
    assert not after.pop("message").any()
    assert all(torch.equal(before[key], tensor) for key, tensor in after.items())


@cuda
def test_steps_in_a_cuda_graph_and_in_several_streams() -> None:
    given = data(CASES["Pendulum"], 16_384)
    recorded, eager = Learning(CASES["Pendulum"], given), Learning(CASES["Pendulum"], given)
    pieces = torch.arange(16_384, dtype=torch.int32, device="cuda").split(3000)

    def epoch(learning: Learning) -> None:
        for piece in pieces:
            learning.step(piece)

    streams: list[Any] = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            epoch(recorded)
        torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        epoch(recorded)
    for _ in range(3):
        graph.replay()
    for _ in range(5):
        for piece in pieces:
            eager.step(piece, apart=True)
    same_bits(recorded, eager)
