"""Actions drawn from a policy's outputs: their probabilities, their frequencies, and the same bits everywhere."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import HAS_CUDA
from heads import box
from trainers import SPACES, WIDE_BOX

torch = pytest.importorskip("torch")

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training.operations.heads import Head  # noqa: E402
from gpu_envs.training.operations.ops import Ops  # noqa: E402

Tensor = Any
EPS = 2.0**-24
"""The rounding error of one operation in float32, relative."""


class Draws:
    """What one call of the sampler writes."""

    def __init__(self, name: str, parameters: Tensor, device: str, key: int = 1, counter: int = 0, turn: int = 0,
                 first_row: int = 0, greedy: bool = False, threads: int | None = None) -> None:  # fmt: skip
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
        )

    def bits(self) -> list[Tensor]:
        kept = [self.actions, self.log_probs, self.entropies, *([] if self.acted is None else [self.acted])]
        return [array.cpu() for array in kept]


def same(one: Draws, other: Draws) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.bits(), other.bits(), strict=True))


def random_parameters(name: str, rows: int, seed: int = 0) -> Tensor:
    head = Head.of(SPACES[name])
    scale = 2.0 if head.kind == "discrete" else 0.5
    return scale * torch.randn(rows, head.parameters, generator=torch.Generator().manual_seed(seed))


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_and_entropies(name: str, device: str) -> None:
    head, parameters = Head.of(SPACES[name]), random_parameters(name, 999)
    drawn = Draws(name, parameters, device)
    exact, actions = parameters.double(), drawn.actions.cpu()
    if head.kind == "discrete":
        starts = torch.tensor(head.starts)
        parts = [torch.distributions.Categorical(logits=part) for part in exact.split(head.sizes, 1)]
        log_probs = sum(part.log_prob(actions[:, d] - starts[d]) for d, part in enumerate(parts))
        entropies = sum(part.entropy() for part in parts)
        # Of each element: a logit less the greatest, below 32, rounds once; the sum of the shares once a choice, and
        # exp and log by an ulp (2 EPS) each; the shares times logits likewise.
        tolerance = head.width * 32 * 2 * EPS + sum(head.sizes) * 4 * EPS * math.log(max(head.sizes))
    else:
        normal = torch.distributions.Normal(exact[:, : head.width], exact[:, head.width :].exp())
        log_probs, entropies = normal.log_prob(actions.double()).sum(1), normal.entropy().sum(1)
        # Distances below 6 come of a difference of numbers up to 12 and deviations known to 2 ulp, and are squared.
        tolerance = head.width * 6 * (12 + 6 * 4) * EPS + head.width**2 * 20 * EPS
    assert (drawn.log_probs.cpu() - log_probs).abs().max() < tolerance
    assert (drawn.entropies.cpu() - entropies).abs().max() < tolerance


def test_frequencies_of_choices(device: str) -> None:
    rows = 100_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -math.inf, 0.5, -3.0])
    actions = Draws("discrete", logits.repeat(rows, 1), device).actions.cpu()[:, 0] - 3
    expected = rows * logits.double().softmax(0)
    counts = torch.bincount(actions, minlength=7)
    assert counts[4] == 0
    possible = expected > 0
    # Pearson's statistic with 5 degrees of freedom exceeds 60 less often than with 6: e^-30 (1 + 30 + 450) = 5e-11.
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 60


def test_elements_are_independent_of_one_another(device: str) -> None:
    rows = 100_000
    actions = Draws("multidiscrete", torch.zeros(rows, 52), device).actions.cpu()
    pairs = torch.bincount(actions[:, 0] * 21 + actions[:, 4], minlength=441)  # words of two Philox calls
    near = torch.bincount(actions[:, 1] * 2 + actions[:, 2], minlength=6)  # of one
    # A statistic of 440 degrees of freedom has deviation sqrt(880) = 30: 6 of them, doubled for its skewness.
    assert ((pairs - rows / 441) ** 2 / (rows / 441)).sum() < 440 + 2 * 6 * 30
    assert ((near - rows / 6) ** 2 / (rows / 6)).sum() < 60


def test_gaussian_samples_are_normal_and_independent(device: str) -> None:
    rows = 100_000
    parameters = torch.tensor([0.0, 1.0, -2.0, 0.5, 3.0, 0.0, -1.0, 1.0, -2.0, 0.5])
    drawn = Draws("box", parameters.repeat(rows, 1), device).actions.cpu().double()
    normal = (drawn - parameters[:5]) / parameters[5:].exp()
    # The empirical distribution is further than this from the true one with probability 1e-9 (Dvoretzky, Kiefer &
    # Wolfowitz; Massart): 2 exp(-2 n d^2).
    furthest = math.sqrt(math.log(2 / 1e-9) / (2 * rows))
    steps = torch.arange(1, rows + 1) / rows
    for d in range(5):
        ordered = normal[:, d].sort().values
        assert (0.5 * (1 + torch.erf(ordered / math.sqrt(2))) - steps).abs().max() < furthest + 1 / rows
    correlation = normal.T @ normal / rows - torch.eye(5)
    assert (correlation - correlation.diag().diag()).abs().max() < 6 / math.sqrt(rows)


def test_a_box_is_acted_in_within_its_bounds(device: str) -> None:
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
        parameters = parameters.round()  # many are equal: the first is taken
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


def test_an_impossible_choice_is_not_taken_at_zero_either(device: str) -> None:
    # The uniform number, of 24 bits, is zero once in 2^24 rows. A choice with probability e^-17 < 2^-24 is taken then
    # and only then, which shows that it happens here; one with none is not.
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
def test_not_a_number_chooses_within_range(greedy: bool, device: str) -> None:
    rng = np.random.default_rng(0)
    odd = rng.choice(np.array([math.nan, math.inf, -math.inf, 3e38, -3e38, 0], np.float32), size=(5000, 52))
    odd[:2] = [[math.nan], [-math.inf]]
    actions = Draws("multidiscrete", torch.from_numpy(odd), device, greedy=greedy).actions.cpu()
    assert (actions[:2] == 0).all()
    assert (actions >= 0).all()
    assert (actions < torch.tensor([21, 3, 2, 5, 21])).all()


@pytest.mark.parametrize("name", SPACES)
def test_rows_may_be_cut_in_any_way(name: str, device: str) -> None:
    parameters = random_parameters(name, 1000)
    whole = Draws(name, parameters, device, first_row=2**32 - 1000).bits()
    for first, last in ((0, 1), (1, 130), (130, 1000)):
        part = Draws(name, parameters[first:last].contiguous(), device, first_row=2**32 - 1000 + first).bits()
        assert all(torch.equal(array[first:last], cut) for array, cut in zip(whole, part, strict=True))


@pytest.mark.parametrize("name", SPACES)
def test_samples_have_the_same_bits_on_every_device(name: str, device: str) -> None:
    parameters = random_parameters(name, 30_001)
    assert same(Draws(name, parameters, "cpu", turn=5, threads=1), Draws(name, parameters, device, turn=5, threads=2))


def test_key_turn_and_row_have_numbers_of_their_own(device: str) -> None:
    parameters = torch.zeros(500, 10)  # of normal distributions with mean 0 and deviation 1
    first = Draws("box", parameters, device)
    others = [
        Draws("box", parameters, device, turn=1),
        Draws("box", parameters, device, key=2),
        Draws("box", parameters, device, key=1 + 2**32),
        Draws("box", parameters, device, counter=2**32),
        Draws("box", parameters, device, first_row=500),
    ]
    everything = torch.cat([draw.actions.cpu().ravel() for draw in [first, *others]])
    # Of 15,000 numbers of 24 random bits and more, 15000^2 / 2 / 2^24 = 7 pairs are equal by chance.
    assert len(everything.unique()) > 15_000 - 40
    assert same(Draws("box", parameters, device, counter=7), Draws("box", parameters, device, counter=3, turn=4))


def test_normal_numbers_of_another_type_are_refused(device: str) -> None:
    ops, stream = Ops(box(2), device), torch.tensor([3, 4], device=resolve_device(device))
    numbers = torch.zeros((5, 2), device=resolve_device(device))
    with pytest.raises(ValueError, match="float64"):
        ops.normal(numbers.double(), stream=stream, turn=0)
    ops.normal(numbers, stream=stream, turn=0)
    again = torch.zeros_like(numbers)
    ops.normal(again, stream=stream, turn=0, beside=ops.beside_normal(5))
    assert torch.equal(again, numbers)
    assert numbers.any()


def test_a_head_says_what_it_can_learn() -> None:
    assert Head.of(gymnasium.spaces.Discrete(3, start=-1)) == Head("discrete", (3,), (-1,), (), (), True)
    assert (Head.of(WIDE_BOX).parameters, Head.of(WIDE_BOX).width) == (10, 5)
    assert Head.of(SPACES["multidiscrete"]).parameters == 52
    for space in (
        gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
        gymnasium.spaces.Box(-1, 1, (2, 2)),
        gymnasium.spaces.Box(-1, 1, (2,), np.float64),
        gymnasium.spaces.MultiBinary(3),
    ):
        with pytest.raises(ValueError, match="cannot be learnt; give the environment a Discrete"):
            Head.of(space)


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_a_graph_draws_anew_when_its_counter_on_the_device_moves() -> None:
    parameters = random_parameters("box", 100).cuda()
    actions, log_probs = torch.empty(100, 5, device="cuda"), torch.empty(100, device="cuda")
    stream, ops = torch.tensor([1, 0], device="cuda"), Ops(Head.of(WIDE_BOX), "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ops.sample(parameters, actions, log_probs, stream=stream, turn=2)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.sample(parameters, actions, log_probs, stream=stream, turn=2)
        stream[1] += 3
    for counter in (0, 3, 6):
        graph.replay()
        assert torch.equal(actions, Draws("box", parameters, "cuda", turn=counter + 2).actions)
