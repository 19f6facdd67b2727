"""Kernels of a first layer and a GRU, on a Hopper GPU, against torch's cells in float64."""

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing
from trainers import FIELD, assert_resumes_identically

torch = pytest.importorskip("torch")

from recurrent_oracle import FIXED, Tolerance, check_against_oracle, memory_run  # noqa: E402
from wide_tools import ROUNDING, ROUNDINGS, hopper  # noqa: E402

from gpu_envs.training import Run, Trainer  # noqa: E402
from gpu_envs.training.engines import gru_kernels  # noqa: E402
from gpu_envs.training.engines.torch import matmul_precision  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

KERNEL_RUNS: Mapping[str, Mapping[str, Any]] = {
    "one trunk": {"hidden": (64,), "memory": "gru:64", "shared_trunk": True, "params": {"max_episode_steps": 18}},
    "two trunks": {"hidden": (32,), "memory": "gru:64", "sequence_length": 4, "params": {"max_episode_steps": 18}},
    "narrow": {"env": "Pendulum-v1", "hidden": (64,), "memory": "gru:32", "stagger": True, "num_envs": 70},
    "relu": {"hidden": (32,), "memory": "gru:32", "activation": "relu", "num_envs": 2500, "minibatches": 1},
    "normalised": {"hidden": (64,), "memory": "gru:64", "normalise_observations": True, "env": "TMaze-v0"},
    "agents that leave": {"env": FIELD, "hidden": (64,), "memory": "gru:64", "sequence_length": 8},
    "several tiles": {"hidden": (64,), "memory": "gru:64", "num_envs": 300, "params": {"max_episode_steps": 18}},
}
"""Settings of runs with kernels for the trunk, on a Hopper GPU."""

SHAPES = [*itertools.product(gru_kernels.SIZES, repeat=2)]
"""Sizes of the first layer and of the GRU."""

KERNEL_TOLERANCE = ROUNDINGS * ROUNDING["tf32"]


def kernel_run(**settings: Any) -> Any:
    return memory_run("cuda", **{"precision": "tf32", **settings})


@hopper
@pytest.mark.parametrize("name", KERNEL_RUNS)
def test_kernels_compute_what_unrolled_cells_do(name: str) -> None:
    """The actor's last layer is enlarged, as its first outputs are smaller than the tolerance."""
    trainer = Trainer(kernel_run(**FIXED, **KERNEL_RUNS[name]))
    for learner in trainer.learners.values():
        module: Any = learner.module
        assert module.actor.kernels is not None
        if name in ("relu", "several tiles"):  # so that each team of warps has several tiles of rows
            module.actor.kernels.processors = 2
        with torch.no_grad():
            last = module.actor_head[0].weight if module.critic else module.heads.weight[: module.means]
            last.mul_(100)
    tolerance = Tolerance(KERNEL_TOLERANCE, KERNEL_TOLERANCE, by_layer=True)
    check_against_oracle(trainer, tolerance, ends=name != "normalised")


@hopper
def test_runs_with_kernels_resume_identically() -> None:
    assert_resumes_identically(kernel_run(**KERNEL_RUNS["one trunk"]))


@hopper
def test_copies_of_a_module_have_no_kernels() -> None:
    """Nor has a module that is given to a run. Gradients of observations come from torch, too."""
    run = kernel_run(**KERNEL_RUNS["two trunks"])
    trainer = Trainer(run)
    mine: Any = trainer.learners["agent"].module
    copied = copy.deepcopy(mine)
    assert mine.critic.kernels is not None
    assert copied.actor.kernels is copied.critic.kernels is None
    observations = torch.randn(3, 20, 4, device="cuda")
    starts, state = torch.zeros(3, 20, dtype=torch.bool, device="cuda"), mine.initial_state(20)
    with torch.no_grad():
        results = [module(observations, state, starts) for module in (mine, copied)]
    for computed, expected in zip(*results, strict=True):
        assert (computed - expected).abs().max() <= KERNEL_TOLERANCE
    values = mine(observations.requires_grad_(), state, starts)[1]
    assert torch.autograd.grad(values.sum(), observations)[0].abs().max() > 0
    flat = {name: value for name, value in run.flat().items() if name not in ("hidden", "memory")}
    copied.set_kernels(mine.actor.kernels)
    Trainer(Run.from_flat(flat), modules={"agent": copied})
    assert copied.actor.kernels is copied.critic.kernels is None


@hopper
@pytest.mark.parametrize(("hidden", "units"), SHAPES)
@pytest.mark.parametrize(("rows", "processors"), [(3, 1), (16 * 5 - 3, 1), (16 * 7 + 1, 2), (16 * 11, 3)])
def test_each_row_is_that_of_torch(hidden: int, units: int, rows: int, processors: int) -> None:
    """Teams of a block have two tiles at once, one, or none: in each row, and with the same bits every time."""
    run = kernel_run(hidden=(hidden,), memory=f"gru:{units}", shared_trunk=True)
    mine: Any = Trainer(run).learners["agent"].module.actor
    mine.kernels.processors = processors
    copied = copy.deepcopy(mine)
    torch.manual_seed(rows)
    steps, features = 7, mine.hidden[0].in_features
    observations = torch.randn(steps, rows, features, device="cuda")
    state = torch.randn(rows, units, device="cuda").tanh()
    starts = torch.rand(steps, rows, device="cuda") < 0.2
    upstream = torch.randn(steps, rows, units, device="cuda")

    def results(trunk: Any) -> list[Any]:
        outputs, last = trunk(observations, state, starts)
        return [outputs, last, *torch.autograd.grad((outputs * upstream).sum(), [*trunk.parameters()])]

    first = results(mine)
    with matmul_precision("float32"):
        expected = results(copied)
    for found, reference in zip(first, expected, strict=True):
        assert (found - reference).abs().max() <= KERNEL_TOLERANCE / 3 * reference.abs().max()
    for _ in range(20):
        assert all(torch.equal(again, found) for again, found in zip(results(mine), first, strict=True))


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("hidden", "units"), SHAPES)
def test_kernels_compile_without_spills_and_fit(hidden: int, units: int, activation: str) -> None:
    for features in (1, 17, gru_kernels.MAX_FEATURES):
        programs, _ = gru_kernels.programs(features, hidden, units, activation)
        for name, program in programs.items():
            compiled = compile_with_nvrtc(program.source)
            local = {function: value for function, kind, value in kernel_resources(compiled.cubin) if kind == "local"}
            assert local[f"kernel_{name}"] == 0
            assert compiled.log == ""
            assert program.grid is not None
            assert program.grid.shared_bytes <= 227 * 1024
