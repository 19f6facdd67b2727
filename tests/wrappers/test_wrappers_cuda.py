"""What the wrappers do that only a GPU shows: graphs, streams, and work that the host does not wait for."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, assert_same_bits, numpy_of, random_actions

torch = pytest.importorskip("torch")

from wrapper_cases import LAUNCHES, LIMIT, WRAPPERS, actions_of, made, on, torch_env  # noqa: E402

from gpu_envs.wrappers import RecordEpisodeStatistics, TorchWrapper  # noqa: E402
from gpu_envs.wrappers.moments import Normalizer  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]

COUNT, STEPS = 1_001, 16


def inside(env: Any) -> Iterator[Any]:
    """A wrapper and those inside it."""
    while isinstance(env, TorchWrapper):
        yield env
        env = env.env


def kept(env: Any) -> list[Any]:
    """What wrappers keep from step to step, as far as users see it."""
    found: list[Any] = []
    for wrapper in inside(env):
        if isinstance(wrapper, Normalizer):
            found += [numpy_of(part) for part in wrapper.state_dict().values()]
        if isinstance(wrapper, RecordEpisodeStatistics):
            found += [numpy_of(part) for part in (wrapper.return_queue, wrapper.length_queue, wrapper.episode_count)]
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_graph_replay_is_eager(name: str, mode: str) -> None:
    """Steps captured once and replayed, through restarts, are the eager steps bit for bit."""
    env, plain = (made(name, "cuda", mode, COUNT) for _ in range(2))
    first = actions_of("cuda", 1, COUNT)[0]
    for each in (env, plain):
        each.step(first)
    given = torch.zeros((STEPS, COUNT, 1), device="cuda")
    stored = torch.zeros((STEPS, *env.observation_space.shape), device="cuda")
    rewards = torch.zeros((STEPS, COUNT), device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in range(STEPS):
            results = env.step(given[t])
            stored[t].copy_(results[0])
            rewards[t].copy_(results[1])
    assert_same_bits(kept(env), kept(plain))  # a capture runs nothing
    for replay in range(4):
        block = random_actions("Pendulum-v1", STEPS, COUNT, seed=replay)
        given.copy_(on("cuda", block))
        graph.replay()
        expected = [[numpy_of(part) for part in plain.step(actions)[:2]] for actions in on("cuda", block)]
        assert_same_bits(numpy_of(stored), np.stack([step[0] for step in expected]), f"replay {replay}")
        assert_same_bits(numpy_of(rewards), np.stack([step[1] for step in expected]), f"replay {replay}")
        assert_same_bits(kept(env), kept(plain))


def test_durations_in_a_graph() -> None:
    """The device's clock goes on in a replay, where an argument of a launch would stand still."""
    env = RecordEpisodeStatistics(torch_env("Pendulum-v1", 3, "SameStep", "cuda"))
    action = actions_of("cuda", 1, 3)[0]
    begin = time.perf_counter()
    env.reset(seed=0)
    env.step(action)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        env.step(action)
    for _ in range(LIMIT):  # one step was eager: the first episode ends with the tenth, the second goes on
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(0.01)
    taken = numpy_of(env.time_queue)
    assert len(taken) == 3
    assert (taken > 0.08).all()
    assert (taken < time.perf_counter() - begin).all()


@pytest.mark.parametrize("name", WRAPPERS)
def test_nothing_waits(name: str, mode: str, synchronising: Callable[[str], None]) -> None:
    env = made(name, "cuda", mode, COUNT)
    given = actions_of("cuda", 4, COUNT)
    mask = torch.ones(COUNT, dtype=torch.bool, device="cuda")
    env.step(given[0])
    synchronising("error")
    with pytest.raises(RuntimeError):
        given[0].cpu()  # so it is on guard
    for actions in given:
        env.step(actions)
    env.reset()
    env.reset(seed=5)
    env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("name", WRAPPERS)
def test_steps_are_queued_while_the_device_is_busy(name: str) -> None:
    """The host is done with a step long before the device is, which torch's mode cannot see of CuPy's launches."""
    env = made(name, "cuda", "SameStep", COUNT)
    given = actions_of("cuda", 1, COUNT)[0]
    env.step(given)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # noqa: SLF001 - a quarter of a second and more
    done = torch.cuda.Event()
    for _ in range(10):
        env.step(given)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", WRAPPERS)
def test_nothing_is_allocated(name: str) -> None:
    env = made(name, "cuda", "SameStep", COUNT)
    given = actions_of("cuda", 5, COUNT)
    env.step(given[0])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for actions in given:
        env.step(actions)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch's own, of what is wanted here
@pytest.mark.parametrize("name", WRAPPERS)
def test_what_the_profiler_sees(name: str) -> None:
    """No more kernels than the launches that the other tests count, and the environment's one."""
    env = made(name, "cuda", "SameStep", COUNT)
    given = actions_of("cuda", 5, COUNT)
    env.step(given[0])
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for actions in given:
            env.step(actions)
        torch.cuda.synchronize()
    on_device = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if not on_device:
        pytest.skip("torch's profiler sees no kernels on this machine")
    assert len(on_device) == 5 * (1 + len(LAUNCHES[name])), sorted({event.name for event in on_device})
