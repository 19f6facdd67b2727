"""Training with CUDA graphs: the same bits as without, on every GPU, and no memory leaks."""

import gc
from typing import Any

import pytest
from harness import HAS_CUDA, assert_same_bits
from trainers import GRID, small_run, without_times

torch = pytest.importorskip("torch")

from gpu_envs.backend.driver import device_count  # noqa: E402
from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.process.device import capture_graphs  # noqa: E402


def test_graphs_change_no_bit(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CPU has no graphs")
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"env": GRID, "policies": {"runner": "random"}},
        {"env": GRID, "critic": "all", "normalise_observations": True},
        {"target_kl": 0.01, "normalise_rewards": True, "normalise_values": True},
        {"env": GRID, "tagger.hidden": (64, 64), "tagger.precision": "tf32", "tagger.learning_rate": 0.01},
    )
    for changes in settings:
        states = []
        for graphs in (True, False):
            ours = Trainer(small_run(device, graphs=graphs, **changes))
            ours.iterate(5)
            assert (ours.no_graphs_reason == "") == graphs
            states.append(without_times(ours.state()))
        assert_same_bits(states[0], states[1])


@pytest.mark.skipif(not HAS_CUDA, reason="a CPU has no graphs")
def test_a_graph_without_work_is_an_error() -> None:
    ones, before = torch.ones(1, device="cuda"), torch.cuda.current_stream()
    for required in (False, True):
        with pytest.raises(AssertionError, match="the captured graph is empty"):
            capture_graphs([lambda: ones.add_(1), lambda: None], "cuda:0", required=required)
        assert torch.cuda.current_stream() == before


@pytest.mark.skipif(not HAS_CUDA, reason="a CPU has no graphs")
def test_old_graphs_are_not_destroyed_during_a_capture() -> None:
    """Graphs of a deleted run are in reference cycles; destroying them during a capture would abort it."""
    ones = torch.ones(1, device="cuda")
    cycle: list[Any] = [capture_graphs([lambda: ones.add_(1)], "cuda:0", required=True)]
    cycle.append(cycle)
    cycles = [cycle]
    del cycle

    def allocate() -> None:
        ones.add_(1)
        if torch.cuda.is_current_stream_capturing():
            cycles.clear()
            assert [[] for _ in range(100_000)]  # enough allocations to start the garbage collector

    works, reason = capture_graphs([allocate], "cuda:0", required=True)
    assert reason == ""
    assert gc.isenabled()
    before = ones.clone()
    works[0]()
    assert ones == before + 1


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_repeated_runs_do_not_leak_memory() -> None:
    allocated = []
    for _ in range(4):
        Trainer(small_run("cuda", graphs=True)).iterate(2)
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
    assert allocated[1:] == allocated[:1] * 3


@pytest.mark.skipif(device_count() < 2, reason="needs two CUDA devices")
def test_every_gpu_learns_the_same() -> None:
    """One GPU after the other in one process, and again on the first one."""
    states = []
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        ours = Trainer(small_run(device, graphs=True))
        ours.iterate(3)
        states.append(without_times(ours.state()))
    assert_same_bits(states[0], states[1])
    assert_same_bits(states[0], states[2])
