"""Sampling of actions, and the loss: probabilities, frequencies and gradients against torch's distributions.

And the same bits on all devices.
"""

import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from fused_cases import box
from harness import assert_same_bits
from trainers import EPS, SPACES, WIDE_BOX

torch = pytest.importorskip("torch")

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training.algorithms import A2C, PPO  # noqa: E402
from gpu_envs.training.engines.ops import Ops, Samples  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402

Tensor = Any


class Draws:
    """The outputs of one call of the sampler."""

    def __init__(
        self,
        name: str,
        parameters: Tensor,
        device: str,
        key: int = 1,
        counter: int = 0,
        turn: int = 0,
        first_row: int = 0,
        greedy: bool = False,
        threads: int | None = None,
        mask: Tensor | None = None,
    ) -> None:
        head = Head.of(SPACES[name])
        rows, place = len(parameters), resolve_device(device)
        kind = torch.int32 if head.kind == "discrete" else torch.float32
        self.actions = torch.empty(rows, head.width, dtype=kind, device=place)
        self.acted = torch.empty(rows, head.width, device=place) if head.kind == "box" else None
        self.log_probs, self.entropies = torch.empty(rows, device=place), torch.empty(rows, device=place)
        Ops(head, device, threads).sample(
            parameters.to(place),
            self.actions,
            self.log_probs,
            stream=torch.tensor([key, counter], device=place),
            turn=turn,
            acted=self.acted,
            entropies=self.entropies,
            greedy=greedy,
            first_row=first_row,
            action_mask=None if mask is None else mask.to(place),
        )

    def bits(self) -> list[Tensor]:
        outputs = [self.actions, self.log_probs, self.entropies, *([] if self.acted is None else [self.acted])]
        return [array.cpu() for array in outputs]


def same(one: Draws, other: Draws) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.bits(), other.bits(), strict=True))


def random_parameters(name: str, rows: int, seed: int = 0) -> Tensor:
    head = Head.of(SPACES[name])
    scale = 2.0 if head.kind == "discrete" else 0.5
    return scale * torch.randn(rows, head.parameters, generator=torch.Generator().manual_seed(seed))


def distributions(head: Head, logits: Tensor, mask: Tensor | None) -> list[Any]:
    """torch's distributions, with -inf for masked choices; if all are masked, they are equally probable."""
    parts = (logits if mask is None else torch.where(mask != 0, logits, -math.inf)).split(head.sizes, 1)
    alike = [torch.where(part.isneginf().all(1, keepdim=True), 0.0, part) for part in parts]
    return [torch.distributions.Categorical(logits=part) for part in alike]


def log_prob_and_entropy(head: Head, parameters: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    if head.kind == "box":
        normal = torch.distributions.Normal(parameters[:, : head.width], parameters[:, head.width :].exp())
        return normal.log_prob(actions).sum(1), normal.entropy().sum(1)
    parts = distributions(head, parameters, mask)
    chosen = [part.log_prob(actions[:, d] - head.starts[d]) for d, part in enumerate(parts)]
    return torch.stack(chosen).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_and_entropies(name: str, device: str) -> None:
    """Without masks, and with masks that forbid all choices of some elements; masked actions would have -inf."""
    head, parameters = Head.of(SPACES[name]), random_parameters(name, 999)
    some = (torch.rand(parameters.shape, generator=torch.Generator().manual_seed(1)) < 0.4).to(torch.int8)
    some[500] = 0
    for mask in (None, some) if head.kind == "discrete" else (None,):
        drawn = Draws(name, parameters, device, mask=mask)
        log_probs, entropies = log_prob_and_entropy(head, parameters.double(), drawn.actions.cpu(), mask)
        # For each element: a logit minus the maximum, below 32, is rounded once; the sum of exponentials once per
        # choice; exp and log have an error of one ulp (2 EPS); the sum of exponentials times logits has the same.
        tolerance = head.width * 32 * 2 * EPS + sum(head.sizes) * 4 * EPS * math.log(max(head.sizes))
        if head.kind == "box":
            # Squared distances below 6: differences of numbers up to 12, over standard deviations within 2 ulp.
            tolerance = head.width * 6 * (12 + 6 * 4) * EPS + head.width**2 * 20 * EPS
        assert (drawn.log_probs.cpu() - log_probs).abs().max() < tolerance
        assert (drawn.entropies.cpu() - entropies).abs().max() < tolerance
    if head.kind == "discrete":
        assert same(Draws(name, parameters, device), Draws(name, parameters, device, mask=torch.ones_like(some)))


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", [name for name in SPACES if Head.of(SPACES[name]).kind == "discrete"])
def test_frequencies_of_choices(name: str, device: str) -> None:
    """Many draws from one distribution, without and with a mask."""
    head, rows = Head.of(SPACES[name]), 20_000
    logits, mask = 0.5 * random_parameters(name, 1), torch.ones(1, head.parameters, dtype=torch.int8)
    mask[0, [0, head.parameters // 2, -1]] = 0
    for some in (None, mask):
        masks = None if some is None else some.repeat(rows, 1)
        actions = Draws(name, logits.repeat(rows, 1), device, mask=masks).actions.cpu() - torch.tensor(head.starts)
        for d, part in enumerate(distributions(head, logits.double(), some)):
            expected = rows * part.probs[0]
            counts = torch.bincount(actions[:, d], minlength=head.sizes[d])
            allowed = expected > 0
            assert not counts[~allowed].any()
            freedom = int(allowed.sum()) - 1
            pearson = ((counts - expected)[allowed] ** 2 / expected[allowed]).sum()
            # 6 standard deviations of Pearson's statistic, doubled for its skewness
            assert pearson <= freedom + 2 * 6 * (2 * freedom) ** 0.5 + 1e-9


def test_elements_are_independent(device: str) -> None:
    rows = 100_000
    actions = Draws("multidiscrete", torch.zeros(rows, 52), device).actions.cpu()
    pairs = torch.bincount(actions[:, 0] * 21 + actions[:, 4], minlength=441)  # words of two Philox calls
    near = torch.bincount(actions[:, 1] * 2 + actions[:, 2], minlength=6)  # words of one call
    # With 440 degrees of freedom the statistic's standard deviation is sqrt(880) = 30: 6 of them, doubled for skewness.
    assert ((pairs - rows / 441) ** 2 / (rows / 441)).sum() < 440 + 2 * 6 * 30
    assert ((near - rows / 6) ** 2 / (rows / 6)).sum() < 60


def test_gaussian_samples_are_normal_and_independent(device: str) -> None:
    rows = 100_000
    parameters = torch.tensor([0.0, 1.0, -2.0, 0.5, 3.0, 0.0, -1.0, 1.0, -2.0, 0.5])
    drawn = Draws("box", parameters.repeat(rows, 1), device).actions.cpu().double()
    normal = (drawn - parameters[:5]) / parameters[5:].exp()
    # The distance between empirical and true distribution exceeds this with probability 1e-9 (Dvoretzky, Kiefer &
    # Wolfowitz; Massart): 2 exp(-2 n d^2).
    max_distance = math.sqrt(math.log(2 / 1e-9) / (2 * rows))
    steps = torch.arange(1, rows + 1) / rows
    for d in range(5):
        ordered = normal[:, d].sort().values
        assert (0.5 * (1 + torch.erf(ordered / math.sqrt(2))) - steps).abs().max() < max_distance + 1 / rows
    correlation = normal.T @ normal / rows - torch.eye(5)
    assert (correlation - correlation.diag().diag()).abs().max() < 6 / math.sqrt(rows)


def test_actions_of_a_box_are_within_its_bounds(device: str) -> None:
    drawn = Draws("box", random_parameters("box", 5000) * 3, device)
    low, high = torch.as_tensor(WIDE_BOX.low), torch.as_tensor(WIDE_BOX.high)
    assert drawn.acted is not None
    acted = drawn.acted.cpu()
    assert ((low <= acted) & (acted <= high)).all()
    expected = low + (drawn.actions.cpu().clip(-1, 1) + 1) * (high - low) / 2
    assert (acted - expected).abs().max() < 4 * 7 * EPS
    assert (acted == low).any(0).all()
    assert (acted == high).any(0).all()


@pytest.mark.parametrize("name", SPACES)
def test_greedy(name: str, device: str) -> None:
    head, parameters = Head.of(SPACES[name]), random_parameters(name, 200)
    if head.kind == "discrete":
        parameters = parameters.round()  # many logits are equal: the first of them is taken
        parts = parameters.split(head.sizes, 1)
        expected = torch.stack([torch.from_numpy(part.numpy().argmax(1)) for part in parts], 1)
        expected = expected.int() + torch.tensor(head.starts, dtype=torch.int32)
    else:
        expected = parameters[:, : head.width]
    assert torch.equal(Draws(name, parameters, device, greedy=True).actions.cpu(), expected)


@pytest.mark.parametrize("greedy", [False, True])
def test_certain_and_impossible_choices(greedy: bool, device: str) -> None:
    logits = torch.full((7, 7), -math.inf)
    logits.fill_diagonal_(-1e30)
    drawn = Draws("discrete", logits, device, greedy=greedy)
    assert drawn.actions[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert drawn.log_probs.tolist() == drawn.entropies.tolist() == [0.0] * 7


def test_a_choice_of_probability_zero_is_never_taken(device: str) -> None:
    # The uniform number, of 24 bits, is zero in one of 2^24 rows. Only then a choice with probability e^-17 < 2^-24 is
    # taken, which shows that zero occurs here; a choice of probability zero is not taken.
    place, rows = resolve_device(device), 2**20
    ops, stream = Ops(Head.of(gymnasium.spaces.Discrete(2)), device), torch.tensor([4, 0], device=place)
    actions, log_probs = torch.empty(rows, 1, dtype=torch.int32, device=place), torch.empty(rows, device=place)
    taken = {}
    for logit in (-17.0, -math.inf):
        logits = torch.tensor([logit, 0.0], device=place).repeat(rows, 1)
        taken[logit] = 0
        for first in range(0, 2**25, rows):
            ops.sample(logits, actions, log_probs, stream=stream, turn=0, first_row=first)
            taken[logit] += int((actions == 0).sum())
    assert taken[-17.0] > 0
    assert taken[-math.inf] == 0


@pytest.mark.parametrize("greedy", [False, True])
def test_nan_logits_give_actions_within_range(greedy: bool, device: str) -> None:
    rng = np.random.default_rng(0)
    logits = rng.choice(np.array([math.nan, math.inf, -math.inf, 3e38, -3e38, 0], np.float32), size=(5000, 52))
    logits[:2] = [[math.nan], [-math.inf]]
    actions = Draws("multidiscrete", torch.from_numpy(logits), device, greedy=greedy).actions.cpu()
    assert (actions[:2] == 0).all()
    assert (actions >= 0).all()
    assert (actions < torch.tensor([21, 3, 2, 5, 21])).all()


@pytest.mark.parametrize("name", SPACES)
def test_samples_have_the_same_bits_on_every_device_and_for_any_split_of_rows(name: str, device: str) -> None:
    parameters = random_parameters(name, 30_001)
    assert same(Draws(name, parameters, "cpu", turn=5, threads=1), Draws(name, parameters, device, turn=5, threads=2))
    parameters = parameters[:1000].contiguous()
    full = Draws(name, parameters, device, first_row=2**32 - 1000).bits()
    for first, last in ((0, 1), (1, 130), (130, 1000)):
        part = Draws(name, parameters[first:last].contiguous(), device, first_row=2**32 - 1000 + first).bits()
        assert all(torch.equal(array[first:last], rows) for array, rows in zip(full, part, strict=True))


def test_random_numbers_differ_by_key_turn_and_row(device: str) -> None:
    parameters = torch.zeros(500, 10)  # standard normal distributions
    first = Draws("box", parameters, device)
    others = [
        Draws("box", parameters, device, turn=1),
        Draws("box", parameters, device, key=2),
        Draws("box", parameters, device, key=1 + 2**32),
        Draws("box", parameters, device, counter=2**32),
        Draws("box", parameters, device, first_row=500),
    ]
    everything = torch.cat([draw.actions.cpu().ravel() for draw in [first, *others]])
    # Of 15,000 numbers with 24 or more random bits, 15000^2 / 2 / 2^24 = 7 pairs are equal by chance.
    assert len(everything.unique()) > 15_000 - 40
    assert same(Draws("box", parameters, device, counter=7), Draws("box", parameters, device, counter=3, turn=4))


def test_normal_numbers_of_another_type_are_refused(device: str) -> None:
    ops, stream = Ops(box(2), device), torch.tensor([3, 4], device=resolve_device(device))
    numbers = torch.zeros((5, 2), device=resolve_device(device))
    with pytest.raises(ValueError, match="float64"):
        ops.normal(numbers.double(), stream=stream, turn=0)
    ops.normal(numbers, stream=stream, turn=0)
    again = torch.zeros_like(numbers)
    ops.normal(again, stream=stream, turn=0, buffers=ops.normal_buffers(5))
    assert torch.equal(again, numbers)
    assert numbers.any()


def test_heads_of_spaces() -> None:
    assert Head.of(gymnasium.spaces.Discrete(3, start=-1)) == Head("discrete", (3,), (-1,), (), (), True)
    assert (Head.of(WIDE_BOX).parameters, Head.of(WIDE_BOX).width) == (10, 5)
    assert Head.of(SPACES["multidiscrete"]).parameters == 52
    for space in (
        gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
        gymnasium.spaces.Box(-1, 1, (2, 2)),
        gymnasium.spaces.Box(-1, 1, (2,), np.float64),
        gymnasium.spaces.MultiBinary(3),
    ):
        with pytest.raises(ValueError, match="is not supported; give the environment a Discrete"):
            Head.of(space)


# --- the loss ---

HEADS = {
    "discrete": Head.of(gymnasium.spaces.Discrete(6, start=-2)),
    "wide": Head.of(gymnasium.spaces.Discrete(150)),
    "multidiscrete": Head.of(gymnasium.spaces.MultiDiscrete([5, 2, 9], start=[1, 0, -3])),
    "many": Head.of(gymnasium.spaces.MultiDiscrete([7] * 12 + [2] * 9)),  # a GPU's warp has one row
    "more": Head.of(gymnasium.spaces.MultiDiscrete([5] * 40 + [2] * 11)),  # each thread has several elements
    "long": Head.of(gymnasium.spaces.MultiDiscrete([3, 95, 130])),  # rows stay in global memory
    "box": Head.of(gymnasium.spaces.Box(-1, 1, (3,))),
}
CASES = [*((name, False) for name in HEADS), *((name, True) for name in HEADS if name != "box")]
"""Heads, and whether there are masks."""
SETTINGS: dict[str, PPO | A2C] = {
    "ppo": PPO(value_weight=0.5),
    "ppo, values clipped": PPO(value_clip=0.2, value_weight=0.7),
    "a2c": A2C(value_weight=1.5),
}
SCALARS = [0.3, 1.7, 0.05, 0.2]
"""Mean and inverse standard deviation of advantages, entropy weight, clip range."""


@dataclasses.dataclass
class Case:
    """Outputs of a policy, and samples of a slightly different policy."""

    head: Head
    parameters: Tensor
    values: Tensor
    batch: Samples


def case(name: str, samples: int = 1000, *, masked: bool = False) -> Case:
    """A random case; some masks forbid all choices of an element."""
    head, generator = HEADS[name], torch.Generator().manual_seed(samples)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    parameters, mask = normal(samples, head.parameters), None
    if head.kind == "discrete":
        allowed = torch.ones(samples, head.parameters)
        if masked:
            mask = (torch.rand(samples, head.parameters, generator=generator) < 0.4).to(torch.int8)
            mask[samples // 2] = 0
            allowed = mask.float()
        parts = [torch.where(part.any(1, keepdim=True), part, 1.0) for part in allowed.split(head.sizes, 1)]
        actions = torch.cat([torch.multinomial(part, 1, generator=generator) for part in parts], 1)
        actions = (actions + torch.tensor(head.starts)).int()
    else:
        actions = parameters[:, : head.width] + parameters[:, head.width :].exp() * normal(samples, head.width)
    values = normal(samples)
    arrays = (normal(samples), normal(samples), normal(samples), values + 0.3 * normal(samples))
    batch = Samples(actions, *arrays, action_mask=mask)
    log_probs = log_prob_and_entropy(head, parameters, actions, mask)[0] + 0.3 * batch.log_probs
    return Case(head, parameters, values, dataclasses.replace(batch, log_probs=log_probs))


def expected_of(case: Case, algorithm: PPO | A2C) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of parameters and values, and the sums, in float64."""
    batch, mean, inverse, entropy_weight, clip = case.batch, *SCALARS
    parameters, values = case.parameters.double().requires_grad_(), case.values.double().requires_grad_()
    old, advantages, returns, old_values = (
        t.double() for t in (batch.log_probs, batch.advantages, batch.returns, batch.values)
    )
    log_prob, entropy = log_prob_and_entropy(case.head, parameters, batch.actions, batch.action_mask)
    ratio = (log_prob - old).exp()
    advantages = (advantages - mean) * inverse
    clipped = ((ratio - 1).abs() > clip).double() * isinstance(algorithm, PPO)
    policy = algorithm.policy_loss(log_prob, old, advantages)
    value = algorithm.value_loss(values, old_values, returns)
    total: Any = algorithm.loss(policy, value, entropy, entropy_weight).sum()
    total.backward()
    kl = ratio - 1 - (log_prob - old)
    sums = torch.stack([policy, value, entropy, kl, clipped, torch.ones_like(ratio)]).detach()
    return parameters.grad, values.grad, sums


def kernel_outputs(
    case: Case, indices: Tensor | None, algorithm: PPO | A2C, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    place = torch.device(resolve_device(device))
    parts = {f.name: getattr(case.batch, f.name) for f in dataclasses.fields(Samples)}
    moved: dict[str, Any] = {name: None if part is None else part.to(place) for name, part in parts.items()}
    batch = Samples(**moved)
    parameters, values = case.parameters.to(place), case.values.to(place)
    # NaN: kernels must not read their outputs
    outputs = [torch.full_like(parameters, math.nan), torch.full_like(values, math.nan)]
    outputs.append(torch.full((6, len(values)), math.nan, device=place))
    rows = None if indices is None else indices.to(place)
    scalars = torch.tensor(SCALARS, device=place)
    Ops(case.head, device).loss(parameters, values, batch, rows, algorithm, scalars, *outputs)
    return outputs[0].cpu(), outputs[1].cpu(), outputs[2].cpu()


def compare(case: Case, computed: tuple[Tensor, Tensor, Tensor], algorithm: PPO | A2C) -> None:
    (grad_parameters, grad_values, sums), expected = computed, expected_of(case, algorithm)
    # Log-probabilities: each element has the error of some roundings of numbers below 32, and of sums of 150
    # exponentials; a Gaussian's are squared distances in standard deviations with an error of 2 ulp.
    error = case.head.width * 64 * EPS + max(case.head.sizes) * 2 * EPS
    # They enter through a ratio below e^1.5, times an advantage below 8; a Gaussian's are divided by standard
    # deviations and multiplied by squared distances, and the gradient is proportional to both.
    weight = 8 * math.exp(1.5)
    bound = weight * error + 32 * EPS * expected[0].abs()
    assert ((grad_parameters - expected[0]).abs() <= bound).all()
    assert (grad_values - expected[1]).abs().max() < 32 * EPS * algorithm.value_weight
    assert (sums[0] - expected[2][0]).abs().max() < weight * error + 32 * EPS * expected[2][0].abs().max()
    assert (sums[1] - expected[2][1]).abs().max() < 64 * EPS * 8
    assert (sums[2] - expected[2][2]).abs().max() < error
    assert (sums[3] - expected[2][3]).abs().max() < weight * error
    assert torch.equal(sums[4:], expected[2][4:].float())
    if case.batch.action_mask is not None:
        assert not grad_parameters[case.batch.action_mask == 0].any()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("name", "masked"), CASES)
def test_loss_and_gradients(name: str, masked: bool, settings: str, device: str) -> None:
    """Of all samples; and the same bits for unordered, repeated indices."""
    full = case(name, masked=masked)
    all_outputs = kernel_outputs(full, None, SETTINGS[settings], device)
    compare(full, all_outputs, SETTINGS[settings])
    indices = torch.randint(1000, (333,), generator=torch.Generator().manual_seed(1)).int()
    part = dataclasses.replace(full, parameters=full.parameters[indices], values=full.values[indices])
    found = kernel_outputs(part, indices, SETTINGS[settings], device)
    assert torch.equal(found[0], all_outputs[0][indices])
    assert torch.equal(found[1], all_outputs[1][indices])
    assert torch.equal(found[2], all_outputs[2][:, indices])


@pytest.mark.parametrize("name", [name for name in HEADS if name != "box"])
def test_a_mask_that_allows_everything_changes_no_bit(name: str, device: str) -> None:
    given = case(name)
    everything = torch.ones(given.parameters.shape, dtype=torch.int8)
    masked = dataclasses.replace(given, batch=dataclasses.replace(given.batch, action_mask=everything))
    one, other = (kernel_outputs(each, None, SETTINGS["ppo"], device) for each in (given, masked))
    assert_same_bits(one, other)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", HEADS)
def test_inactive_agents_have_no_loss(name: str, settings: str, device: str) -> None:
    full = case(name)
    alive = torch.rand(1000, generator=torch.Generator().manual_seed(2)) < 0.6

    def spoilt(part: Tensor) -> Tensor:
        garbage = math.nan if part.is_floating_point() else 2**30
        return torch.where(alive if part.ndim == 1 else alive[:, None], part, garbage)

    names = [f.name for f in dataclasses.fields(Samples) if f.name not in ("alive", "action_mask")]
    batch = dataclasses.replace(full.batch, **{name: spoilt(getattr(full.batch, name)) for name in names})
    batch = dataclasses.replace(batch, alive=alive.to(torch.uint8))
    bad = Case(full.head, spoilt(full.parameters), spoilt(full.values), batch)
    found, all_outputs = (kernel_outputs(each, None, SETTINGS[settings], device) for each in (bad, full))
    for one, other in zip(found, all_outputs, strict=True):
        active = alive[:, None] if one.shape == (1000, full.head.parameters) else alive
        assert torch.equal(one, torch.where(active, other, 0.0))


def test_a_choice_that_is_never_taken_has_no_gradient(device: str) -> None:
    one = case("discrete")
    one.parameters[:, 2] = -math.inf
    one.batch.actions[one.batch.actions == 0] = 1  # choice 2: actions start at -2
    found = kernel_outputs(one, None, SETTINGS["ppo"], device)
    assert (found[0][:, 2] == 0).all()
    assert all(part.isfinite().all() for part in found)


@pytest.mark.parametrize(("name", "masked"), CASES)
def test_the_ratio_of_the_same_policy_is_exactly_one(name: str, masked: bool, device: str) -> None:
    one, place = case(name, masked=masked), torch.device(resolve_device(device))
    actions, log_probs = one.batch.actions.to(place), torch.empty(1000, device=place)
    mask = None if one.batch.action_mask is None else one.batch.action_mask.to(place)
    stream = torch.tensor([1, 2], device=place)
    Ops(one.head, device).sample(one.parameters.to(place), actions, log_probs, stream=stream, turn=0, action_mask=mask)
    one.batch = dataclasses.replace(one.batch, actions=actions, log_probs=log_probs)
    sums = kernel_outputs(one, None, SETTINGS["ppo"], device)[2]
    assert (sums[3] == 0).all()
    assert (sums[4] == 0).all()


def test_rows_without_indices_are_refused(device: str) -> None:
    full = case("discrete")
    part = dataclasses.replace(full, parameters=full.parameters[:10], values=full.values[:10])
    with pytest.raises(ValueError, match="outputs, have 10 rows for 1000 samples; give a row for each"):
        kernel_outputs(part, None, SETTINGS["ppo"], device)
