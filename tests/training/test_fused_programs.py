"""Compilation of the kernels of small networks, and their limits."""

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fused_cases import CASES, discrete  # noqa: E402
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing  # noqa: E402

from gpu_envs.training import PPO, Network, engines  # noqa: E402
from gpu_envs.training.engines import small_programs  # noqa: E402
from gpu_envs.training.engines.kernels import ARITHMETIC, sizes_of  # noqa: E402
from gpu_envs.training.engines.small import SmallEngine  # noqa: E402
from gpu_envs.training.engines.small_programs import ACT_ROWS, reduce_program  # noqa: E402

SMALL = ("CartPole", "Pendulum", "Acrobot", "MountainCar")
COMPILED = ("CartPole", "Pendulum")
"""Cases that are compiled in every precision."""


@pytest.mark.slow
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize(
    ("name", "precision"),
    [(n, p) for n in CASES for p in ARITHMETIC if p == "tf32" or n in COMPILED or (n, p) == ("wide", "bf16")],
)
def test_compiles_without_spills(name: str, precision: str) -> None:
    network = CASES[name].network(precision)
    for program in (network.act_program(), network.update_program()):
        found = list(kernel_resources(compile_with_nvrtc(program.source).cubin))
        mine = {f"kernel_{kernel}" for kernel in program.calls}
        assert mine <= {function for function, _, _ in found}
        spilled = [
            (function, value) for function, kind, value in found if kind == "local" and function in mine and value
        ]
        assert spilled == [] or name not in SMALL
    grid = network.update_program().grid
    assert grid is not None
    assert grid.early == (network.update_blocks == 1)


@pytest.mark.fast_cases(1)
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, precision) for name in ("CartPole", "Pendulum", "short") for precision in ("tf32", "bf16")),
        ("several", "tf32"),
    ],
)
@pytest.mark.parametrize("runs", ["", "#define SEVERAL_RUNS\n"], ids=["run", "runs"])
def test_compiles_for_warpgroups_without_spills(name: str, precision: str, runs: str) -> None:
    """And without the compiler's warning that products are serialised."""
    network = dataclasses.replace(CASES[name].network(precision), hopper=True, groups=2 if runs else 0)
    assert network.in_turn or not runs
    compiled = compile_with_nvrtc(runs + network.update_program().source)
    local = {function: value for function, kind, value in kernel_resources(compiled.cubin) if kind == "local"}
    assert local["kernel_update"] == 0
    assert compiled.ptx.count("wgmma.mma_async") > 20
    assert compiled.log == ""


@pytest.mark.slow
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_compiles_for_other_architectures(architecture: str) -> None:
    network = CASES["CartPole"].network("tf32")
    for program in (network.act_program(), network.update_program(), reduce_program()):
        compile_with_nvrtc(program.source, architecture)


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize("name", CASES)
def test_python_and_cpp_agree_about_sizes(name: str, precision: str) -> None:
    """Rows per iteration of a block, and resident blocks for the shared memory of a multiprocessor."""
    for hopper in (False, True):
        network = dataclasses.replace(CASES[name].network(precision), hopper=hopper)
        grid = network.update_program().grid
        assert grid is not None
        assert network.update_blocks * (grid.shared_bytes + 1024) <= 228 * 1024
        for threads, rows in ((512, ACT_ROWS), (grid.threads, grid.threads // 2)):
            assert network.sizes_of({"rows": "TILE"}, threads) == {"rows": rows}


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("hopper", [False, True])
def test_sizes_do_not_depend_on_offsets_of_parameters(hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the networks reuse the programs that the choice of the engine compiled."""
    compiled: list[Any] = []

    def record_sizes(parts: Any, settings: Any, sizes: Any) -> dict[str, int]:
        compiled.append(parts)
        return sizes_of(parts, settings, sizes)

    monkeypatch.setattr(small_programs, "sizes_of", record_sizes)
    placed = dataclasses.replace(CASES["CartPole"].network("tf32"), hopper=hopper)
    shape = placed.head, placed.features, placed.hidden, placed.activation, "tf32"
    unplaced = small_programs.SmallNetwork(*shape, hopper=hopper)
    assert placed.nets != unplaced.nets
    for network in (placed, unplaced):
        network.update_program()
        network.act_program()
    update, act, *again = compiled
    assert again == [update, act]


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
def test_a_block_has_the_minimum_of_warpgroups_for_its_rows() -> None:
    hopper = dataclasses.replace(CASES["Pendulum"].network("tf32"), hopper=True)
    maximum = hopper.groups_for(2**31)
    assert maximum > 2
    for rows in range(1, 64 * maximum * 5, 7):
        groups = hopper.groups_for(rows)
        iterations = -(-rows // (64 * maximum))
        assert -(-rows // (64 * groups)) == iterations
        assert groups == 2 or -(-rows // (64 * (groups - 1))) > iterations
    assert CASES["Pendulum"].network("tf32").groups_for(1) == 0
    assert dataclasses.replace(hopper, precision="float32").groups_for(1) == 0


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("processors", [1, 13, 132])
def test_blocks_are_split_between_actor_and_critic(processors: int, precision: str) -> None:
    hopper = dataclasses.replace(CASES["Pendulum"].network(precision), hopper=True)
    for rows in (0, 1, 64, 4096, 12_673, 16_384, 524_288, 2**33):
        network = dataclasses.replace(hopper, groups=hopper.groups_for(-(-rows // max(1, processors // 2))))
        blocks = max(2, processors * network.update_blocks)
        both = network.workers(blocks, rows)
        assert sum(both) <= blocks
        tiles = -(-rows // (network.update_grid.threads // 2))
        assert all(0 < count <= tiles for count in both) if rows else both == (0, 0)
        if rows == 16_384 and processors == 132:
            assert both == ((64, 64) if precision == "tf32" else (128, 128))  # two iterations each


@pytest.mark.parametrize("name", CASES)
def test_the_flat_buffer_has_every_parameter_once(name: str) -> None:
    case = CASES[name]
    covered = case.head.log_stds + sum(torch.Size(s).numel() for shapes in case.shapes().values() for s in shapes)
    assert case.network("tf32").parameters == covered


def test_exceeded_limits_are_named() -> None:
    good = engines.Case(PPO(), Network(), discrete(2), 4, "cuda")
    assert SmallEngine().fallback_reason(good) == ""
    for wrong, word in (
        ({"network": Network(hidden=(64,))}, "two of 32 or 64"),
        ({"network": Network(hidden=(64, 65))}, "two of 32 or 64"),
        ({"network": Network(activation="gelu")}, "tanh or relu"),
        ({"network": Network(layer_norm=True)}, "layer_norm is True, which these kernels do not support"),
        ({"network": Network(shared_trunk=True)}, "shared_trunk is True"),
        ({"features": 65}, "more than 64"),
        ({"head": discrete(33)}, "more than 32"),
        ({"masked": True}, "action masks"),
    ):
        assert word in SmallEngine().fallback_reason(dataclasses.replace(good, **wrong))
