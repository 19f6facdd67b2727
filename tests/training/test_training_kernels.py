"""Advantages and permutations against NumPy, and compilation of all common training kernels with NVRTC."""

import math
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trainers import EPS, SPACES  # noqa: E402

from gpu_envs.backend import open_backend, resolve_device  # noqa: E402
from gpu_envs.backend.launcher import load_kernels  # noqa: E402
from gpu_envs.training.engines import ops, optimiser  # noqa: E402
from gpu_envs.training.engines.off_policy_kernels import program as losses  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.horizon import Advantages, Permutation  # noqa: E402
from gpu_envs.training.horizon import program as program_of  # noqa: E402
from gpu_envs.training.process.group import small_program  # noqa: E402
from gpu_envs.training.rollout import replay  # noqa: E402

Tensor = Any


# --- advantages ---


def horizon(steps: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps * rows)
    return {
        "rewards": rng.normal(size=(steps, rows)).astype(np.float32),
        "values": rng.normal(size=(steps + 1, rows)).astype(np.float32),
        "terminations": rng.random((steps, rows)) < 0.1,
        "truncations": rng.random((steps, rows)) < 0.1,
        "alive": rng.random((steps, rows)) < 0.8,
        "bootstrap": rng.normal(size=(steps, rows)).astype(np.float32),
    }


def placed(arrays: dict[str, np.ndarray], device: str) -> dict[str, Tensor]:
    place = resolve_device(device)
    return {name: None if array is None else torch.as_tensor(array).to(place) for name, array in arrays.items()}


def computed(arrays: dict[str, np.ndarray], device: str, scale: float, threads: int | None = None) -> list[Tensor]:
    given = placed(arrays, device)
    outputs = [torch.empty_like(given["rewards"]) for _ in range(2)]
    factor = torch.tensor([scale], device=resolve_device(device))
    advantages, returns = outputs
    Advantages(device, threads).compute(
        **given, gamma=0.99, lam=0.95, advantages=advantages, returns=returns, reward_scale=factor
    )
    return [output.cpu() for output in outputs]


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("all_alive", [False, True])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (7, 3), (8, 64), (20, 40_000)])
def test_advantages_of_random_horizons(steps: int, rows: int, all_alive: bool, per_step: bool, device: str) -> None:
    """Against float64. Rewards of inactive agents, and bootstraps without a truncation, are not read.

    The bits are the same on every device and with any number of threads.
    """
    h: dict[str, Any] = horizon(steps, rows)
    alive = h["alive"] | all_alive
    h |= {"alive": None if all_alive else alive, "rewards": np.where(alive, h["rewards"], np.nan).astype(np.float32)}
    if per_step:
        h["bootstrap"][~h["truncations"]] = np.nan
    else:
        h["bootstrap"] = h["bootstrap"][0]
    found, returns = computed(h, device, 0.25, threads=2)
    assert all(map(torch.equal, computed(h, "cpu", 0.25, threads=1), (found, returns)))
    advantage, expected = np.zeros(rows), np.zeros((steps, rows))
    bootstrap = np.broadcast_to(h["bootstrap"], (steps, rows))
    for t in reversed(range(steps)):
        bootstrap_value = np.where(h["truncations"][t], bootstrap[t], h["values"][t + 1].astype(float))
        bootstrap_value = np.where(h["terminations"][t], 0, bootstrap_value)
        advantage = np.where(h["terminations"][t] | h["truncations"][t], 0, advantage)
        advantage = 0.25 * h["rewards"][t] + 0.99 * bootstrap_value - h["values"][t] + 0.99 * 0.95 * advantage
        advantage = expected[t] = np.where(alive[t], advantage, 0)
    # A step rounds numbers below 32 five times, and errors decay by 0.94 per step: 1 / (1 - 0.94) steps add up.
    tolerance = 5 * 32 * EPS / (1 - 0.99 * 0.95)
    assert np.abs(found.numpy() - expected).max() < tolerance
    assert np.abs(returns.numpy() - (expected + h["values"][:-1])).max() < tolerance


def test_a_wrong_tensor_is_named(device: str) -> None:
    h = placed(horizon(3, 2), device)
    out = torch.empty_like(h["rewards"])
    given: dict[str, Any] = h | {"gamma": 0.9, "lam": 0.9, "advantages": out, "returns": out}
    with pytest.raises(ValueError, match=r"values is float32 \[3, 2\].*give contiguous float32 \[4, 2\]"):
        Advantages(device).compute(**given | {"values": h["rewards"]})
    with pytest.raises(ValueError, match=r"values is None; give contiguous float32 \[4, 2\] on "):
        Advantages(device).compute(**given | {"values": None})
    with pytest.raises(ValueError, match=r"rewards is float32 \[3, 2\] on .*, not contiguous"):
        Advantages(device).compute(**given | {"rewards": h["rewards"].t().contiguous().t()})


# --- permutations ---


def permutations(count: int, device: str, turns: int, key: int = 1, counter: int = 0, each: int = 1) -> Tensor:
    place, numbers = resolve_device(device), count * each
    stream, found = torch.tensor([key, counter], device=place), torch.empty(turns, numbers, dtype=torch.int32)
    kernel = Permutation(count, device, group_size=each)
    indices = torch.empty(numbers, dtype=torch.int32, device=place)
    for turn in range(turns):
        kernel.write(indices, stream, turn)
        found[turn] = indices.cpu()
    return found


COUNTS = [1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 1000, 65535, 65536, 65537, 524_289, 1_048_573, 2**21]
"""Near powers of two, primes, and counts with several elements per thread."""


@pytest.mark.fast_cases(16)
@pytest.mark.parametrize("count", COUNTS)
def test_a_permutation_has_each_index_once(count: int, device: str) -> None:
    found = permutations(count, device, 3)
    assert (found.sort(1).values == torch.arange(count)).all()
    if count >= 64:
        assert not torch.equal(found[0], found[1])
        assert not torch.equal(found[0], permutations(count, device, 1, key=2)[0])
    assert torch.equal(found[2], permutations(count, device, 1, counter=2)[0])
    assert torch.equal(found, permutations(count, "cpu", 3))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_short_permutations_are_equally_likely(count: int, device: str) -> None:
    possible = math.factorial(count)
    found = permutations(count, device, 200 * possible)
    counts = torch.bincount((found * count ** torch.arange(count)).sum(1))
    assert (counts > 0).sum() == possible
    # Pearson's statistic minus its mean, in standard deviations of its normal approximation
    beyond = ((counts[counts > 0] - 200) ** 2 / 200).sum() - (possible - 1)
    assert beyond < 6 * math.sqrt(2 * (possible - 1))


@pytest.mark.parametrize(("count", "each"), [(1, 3), (100, 2), (70_001, 5)])
def test_groups_stay_together(count: int, each: int, device: str) -> None:
    alone, found = permutations(count, device, 2), permutations(count, device, 2, each=each)
    assert torch.equal(found.view(2, count, each), alone.unsqueeze(2) * each + torch.arange(each))


@pytest.mark.parametrize("count", [2**31 - 1, 2**31])
def test_nearly_all_pairs_of_a_permutation_are_elements(count: int, device: str) -> None:
    """So that few elements are permuted again; for the largest counts, without computing a permutation."""
    call = Permutation(count, device)._permute._call  # noqa: SLF001 - a kernel with arguments that its class refuses
    assert count <= call.size << call.bits < count * 1.0001
    assert 1 / 4 < call.size / 2**call.bits <= 4


def test_a_long_permutation_has_no_pattern(device: str) -> None:
    count, turns = 5000, 100
    found = permutations(count, device, turns).double()
    # One fixed point per permutation is expected, within 6 standard deviations of a Poisson distribution.
    assert abs((found == torch.arange(count)).sum() - turns) < 6 * math.sqrt(turns)
    # Index and position are uncorrelated, and so are neighbours: the standard deviation is 1 / sqrt(n).
    centred = (found - (count - 1) / 2) / math.sqrt((count**2 - 1) / 12)
    places = (torch.arange(count) - (count - 1) / 2) / math.sqrt((count**2 - 1) / 12)
    assert abs((centred * places).mean()) < 6 / math.sqrt(count * turns)
    assert abs((centred[:, 1:] * centred[:, :-1]).mean() + 1 / count) < 6 / math.sqrt(count * turns)


# --- NVRTC ---


def programs() -> list[Any]:
    head_programs = [ops.program(Head.of(space), kernel) for space in SPACES.values() for kernel in ("sample", "loss")]
    return [
        *map(program_of, ("advantage", "schedule", "episodes", "measure", "permutation")),
        optimiser.program(),
        *(losses(*shape, stochastic=kind) for shape in ((3, 1, 2), (71, 2, 1)) for kind in (True, False)),
        *(replay.program(*shape) for shape in ((3, 1), (71, 2))),
        *(program(count) for program in (optimiser.program, small_program) for count in (2, 8)),
        *head_programs,
    ]


FLOAT64 = ("optimise", "schedule", "measure", "episodes")
"""Programs that compute some numbers in float64, once per step or iteration."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_nvrtc_compiles(architecture: str) -> None:
    from nvrtc import compile_with_nvrtc, double_arithmetic, kernel_resources, nvrtc_missing

    missing = nvrtc_missing()
    if missing:
        assert os.environ.get("REQUIRE_NVRTC") != "1", missing
        pytest.skip(missing)
    for program in programs():
        ptx, cubin, _ = compile_with_nvrtc(program.source, architecture)
        found = list(kernel_resources(cubin))
        assert {name for name, kind, _ in found if kind == "registers"} == {f"kernel_{n}" for n in program.calls}
        assert [(name, value) for name, kind, value in found if kind == "local" and value > 0] == []
        assert 128 * program.staging_bytes <= 46 * 1024
        if program.name not in FLOAT64:
            assert double_arithmetic(ptx) == []


def test_missing_arguments_of_a_kernel_are_listed(device: str) -> None:
    (kernel,) = load_kernels(open_backend(resolve_device(device)), program_of("permutation"))
    with pytest.raises(
        ValueError,
        match="kernel permute takes bits, count, each, indices, numbers, size, stream, threads, turn; given count",
    ):
        kernel.launch(1, count=1)
