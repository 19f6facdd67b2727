"""Wrappers on a GPU: CUDA graphs, streams, and no synchronization with the host."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, assert_same_bits, numpy_of, random_actions

torch = pytest.importorskip("torch")

from wrapper_cases import LAUNCHES, LIMIT, WRAPPERS, make_wrapped, random_action_tensors, to_device, torch_env  # noqa: E402

from gpu_envs.wrappers import RecordEpisodeStatistics, TorchWrapper  # noqa: E402
from gpu_envs.wrappers.moments import Normalizer  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]

COUNT, STEPS = 1_001, 16


def inside(env: Any) -> Iterator[Any]:
    """Yield a wrapper and the wrappers inside it."""
    while isinstance(env, TorchWrapper):
        yield env
        env = env.env


def public_state(env: Any) -> list[Any]:
    """Return the wrappers' public state that steps change."""
    state: list[Any] = []
    for wrapper in inside(env):
        if isinstance(wrapper, Normalizer):
            state += [numpy_of(part) for part in wrapper.state_dict().values()]
        if isinstance(wrapper, RecordEpisodeStatistics):
            state += [numpy_of(part) for part in (wrapper.return_queue, wrapper.length_queue, wrapper.episode_count)]
    return state


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_graph_replays_equal_eager_steps(name: str, mode: str) -> None:
    """Replays of captured steps are bitwise equal to eager steps, also across resets."""
    env, plain = (make_wrapped(name, "cuda", mode, COUNT) for _ in range(2))
    first = random_action_tensors("cuda", 1, COUNT)[0]
    for wrapper in (env, plain):
        wrapper.step(first)
    graph_actions = torch.zeros((STEPS, COUNT, 1), device="cuda")
    stored = torch.zeros((STEPS, *env.observation_space.shape), device="cuda")
    rewards = torch.zeros((STEPS, COUNT), device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in range(STEPS):
            results = env.step(graph_actions[t])
            stored[t].copy_(results[0])
            rewards[t].copy_(results[1])
    assert_same_bits(public_state(env), public_state(plain))  # a capture runs nothing
    for replay in range(4):
        block = random_actions("Pendulum-v1", STEPS, COUNT, seed=replay)
        graph_actions.copy_(to_device("cuda", block))
        graph.replay()
        expected = [[numpy_of(part) for part in plain.step(actions)[:2]] for actions in to_device("cuda", block)]
        assert_same_bits(numpy_of(stored), np.stack([step[0] for step in expected]), f"replay {replay}")
        assert_same_bits(numpy_of(rewards), np.stack([step[1] for step in expected]), f"replay {replay}")
        assert_same_bits(public_state(env), public_state(plain))


def test_durations_in_a_graph() -> None:
    """Replays read the device's clock; a launch argument would be constant in a graph."""
    env = RecordEpisodeStatistics(torch_env("Pendulum-v1", 3, "SameStep", "cuda"))
    action = random_action_tensors("cuda", 1, 3)[0]
    begin = time.perf_counter()
    env.reset(seed=0)
    env.step(action)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        env.step(action)
    # one step was eager: the tenth replay ends the first episode, and the eleventh starts the second
    for _ in range(LIMIT):
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(0.01)
    taken = numpy_of(env.time_queue)
    assert len(taken) == 3
    assert (taken > 0.08).all()
    assert (taken < time.perf_counter() - begin).all()


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_synchronization(name: str, mode: str, sync_debug_mode: Callable[[str], None]) -> None:
    env = make_wrapped(name, "cuda", mode, COUNT)
    blocks = random_action_tensors("cuda", 4, COUNT)
    mask = torch.ones(COUNT, dtype=torch.bool, device="cuda")
    env.step(blocks[0])
    sync_debug_mode("error")
    with pytest.raises(RuntimeError):
        blocks[0].cpu()  # proves that synchronizations raise errors now
    for actions in blocks:
        env.step(actions)
    env.reset()
    env.reset(seed=5)
    env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("name", WRAPPERS)
def test_steps_are_queued_while_the_device_is_busy(name: str) -> None:
    """Steps return while the device is busy. (Torch's debug mode does not see synchronizations by CuPy.)"""
    env = make_wrapped(name, "cuda", "SameStep", COUNT)
    actions = random_action_tensors("cuda", 1, COUNT)[0]
    env.step(actions)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # noqa: SLF001 - at least a quarter of a second
    done = torch.cuda.Event()
    for _ in range(10):
        env.step(actions)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", WRAPPERS)
def test_nothing_is_allocated(name: str) -> None:
    env = make_wrapped(name, "cuda", "SameStep", COUNT)
    blocks = random_action_tensors("cuda", 5, COUNT)
    env.step(blocks[0])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for actions in blocks:
        env.step(actions)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch warns of intended behaviour
@pytest.mark.parametrize("name", WRAPPERS)
def test_kernels_in_the_profiler(name: str) -> None:
    """The profiler sees the launches in ``LAUNCHES`` and the environment's kernel, and no other kernels."""
    env = make_wrapped(name, "cuda", "SameStep", COUNT)
    blocks = random_action_tensors("cuda", 5, COUNT)
    env.step(blocks[0])
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for actions in blocks:
            env.step(actions)
        torch.cuda.synchronize()
    on_device = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if not on_device:
        pytest.skip("torch's profiler sees no kernels on this machine")
    assert len(on_device) == 5 * (1 + len(LAUNCHES[name])), sorted({event.name for event in on_device})
