"""What only a GPU has: streams, graphs, and work that the host does not wait for."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import (
    HAS_CUDA,
    Array,
    Make,
    Place,
    assert_same_bits,
    is_discrete,
    moved,
    numpy_of,
    random_actions,
)

import gpu_envs
from gpu_envs import ActionError, Step

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]

COUNT, STEPS, LIMIT = 1_001, 32, 11
TORCH, CUPY = Place("cuda", "torch"), Place("cuda", "cupy")


def pair(make: Make, env_id: str, place: Place, mode: str = "SameStep") -> list[gpu_envs.VectorEnv]:
    """Two equal environments after their first reset."""
    made = [make(env_id, COUNT, **place._asdict(), autoreset_mode=mode, max_episode_steps=LIMIT) for _ in range(2)]
    for env in made:
        env.reset(seed=3)
    return made


@pytest.fixture
def torch() -> Any:
    """The module, which has few types where CUDA is concerned."""
    return pytest.importorskip("torch")


@pytest.fixture
def synchronising(torch: Any) -> Iterator[Callable[[str], None]]:
    """Says what torch does where the host would wait for the device: ``default`` or ``error``."""
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_torch_streams(make: Make, torch: Any, env_id: str, mode: str) -> None:
    """Steps follow torch's current stream: behind what is queued there, before what comes after."""
    plain, env = pair(make, env_id, TORCH, mode)
    block = random_actions(env_id, STEPS, COUNT)
    expected = [[part.clone() for part in plain.step(moved(action, TORCH))[:4]] for action in block]
    actions = moved(block, TORCH)
    given = torch.zeros_like(actions)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds, in which another stream would run ahead
        given.copy_(actions)
        kept = [[part.clone() for part in env.step(action)[:4]] for action in given]
    stream.synchronize()
    assert_same_bits(kept, expected)
    assert_same_bits(env.get_state(), plain.get_state())


def test_changing_streams(make: Make, torch: Any, env_id: str) -> None:
    """Each step asks for the stream anew."""
    plain, env = pair(make, env_id, TORCH)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for t, action in enumerate(moved(random_actions(env_id, STEPS, COUNT), TORCH)):
        expected = [numpy_of(part) for part in plain.step(action)[:4]]
        stream = streams[t % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = [part.clone() for part in env.step(action)[:4]]
        stream.synchronize()
        assert_same_bits(result, expected)


def test_cupy_streams(make: Make, env_id: str) -> None:
    """With CuPy output, steps follow CuPy's current stream."""
    import cupy

    plain, env = pair(make, env_id, CUPY)
    actions = moved(random_actions(env_id, STEPS, COUNT), CUPY)
    expected = [[part.copy() for part in plain.step(action)[:4]] for action in actions]
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept = [[part.copy() for part in env.step(action)[:4]] for action in actions]
    stream.synchronize()
    assert_same_bits(kept, expected)


@pytest.mark.timing
def test_scattered_ends_hold_up_nobody(make: Make, torch: Any) -> None:
    """A step in which few replicas begin anew takes little longer than one in which none does."""
    times: dict[bool, list[float]] = {}
    for staggered in (False, True):
        env = make("MountainCar-v0", 2**22, **TORCH._asdict(), autoreset_mode="SameStep")
        env.reset(seed=0)
        if staggered:
            env.stagger(seed=1)  # one in 200 ends in each step
        action = torch.zeros(2**22, dtype=torch.int64, device="cuda")
        env.step(action)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(16):
                env.step(action)
        times[staggered] = []
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[staggered].append(begin.elapsed_time(end))
    assert min(times[True]) < 1.25 * min(times[False]), times  # 1.04 on an H200, and 1.75 while they did


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_graph_replay_is_eager(make: Make, torch: Any, env_id: str, mode: str) -> None:
    """32 steps captured once and replayed, through restarts, are the eager steps bit for bit."""
    plain, env = pair(make, env_id, TORCH, mode)
    given = moved(random_actions(env_id, STEPS, COUNT), TORCH)
    row = env.single_observation_space.shape or ()
    storage = {
        "observations": torch.zeros((STEPS, COUNT, *row), device="cuda"),
        "rewards": torch.zeros((STEPS, COUNT), device="cuda"),
        "terminations": torch.zeros((STEPS, COUNT), dtype=torch.bool, device="cuda"),
        "truncations": torch.zeros((STEPS, COUNT), dtype=torch.bool, device="cuda"),
    }

    def all_steps() -> None:
        for t in range(STEPS):
            env.step(given[t], out=Step(**{name: values[t] for name, values in storage.items()}))

    start = env.get_state()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        all_steps()
    torch.cuda.current_stream().wait_stream(warm)
    env.set_state(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_steps()
    assert_same_bits(env.get_state()["state"], start["state"])  # a capture runs nothing
    for replay in range(4):
        block = random_actions(env_id, STEPS, COUNT, seed=replay)
        given.copy_(moved(block, TORCH))
        graph.replay()
        expected: dict[str, list[Array]] = {name: [] for name in storage}
        for action in block:
            for name, part in zip(storage, plain.step(moved(action, TORCH))[:4], strict=True):
                expected[name].append(numpy_of(part))
        assert_same_bits(storage, {name: np.stack(parts) for name, parts in expected.items()}, f"replay {replay}")
    assert_same_bits(env.get_state(), plain.get_state())


def test_graph_keeps_offences(make: Make, torch: Any, env_id: str) -> None:
    """A replayed step keeps the first wrong action for ``check``, too."""
    env = pair(make, env_id, TORCH)[0]
    given = moved(random_actions(env_id, COUNT), TORCH)
    env.step(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        env.step(given)
    graph.replay()
    env.check()
    given[37] = 99 if is_discrete(env_id) else float("nan")
    graph.replay()
    with pytest.raises(ActionError, match="replica 37"):
        env.check()
    graph.replay()
    with pytest.raises(ActionError, match="replica 37"):
        env.check()


def test_step_does_not_wait(
    make: Make, torch: Any, synchronising: Callable[[str], None], env_id: str, mode: str
) -> None:
    """With torch in and out, the host waits for nothing in a step, a reset or a rollout."""
    env = pair(make, env_id, TORCH, mode)[0]
    given = moved(random_actions(env_id, COUNT), TORCH)
    mask = torch.ones(COUNT, dtype=torch.bool, device="cuda")
    out = Step(rewards=torch.zeros(COUNT, device="cuda"))
    synchronising("error")
    with pytest.raises(RuntimeError):
        given.cpu()  # so it is on guard
    for _ in range(3):
        infos: Any = env.step(given)[4]
        env.step(given, out=out)
        assert set(infos) >= {"episode", "_episode"}
    env.reset()
    env.reset(seed=5)
    env.reset(options={"reset_mask": mask})
    env.observe()
    if mode != "Disabled":
        env.rollout(4)
        env.rollout(2, given.expand(2, *given.shape).contiguous(), per_step=True)


def test_step_launches_while_the_device_is_busy(make: Make, torch: Any, env_id: str) -> None:
    """The host is done with a step long before the device is, which torch's mode cannot see of CuPy's launches."""
    env = pair(make, env_id, TORCH)[0]
    given = moved(random_actions(env_id, COUNT), TORCH)
    env.step(given)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # a quarter of a second and more
    done = torch.cuda.Event()
    for _ in range(10):
        env.step(given)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


def test_int64_actions_are_read_where_they_are(make: Make, torch: Any, env_id: str) -> None:
    """A tensor of the kernel's type is not copied: the step reads what is at its address when it runs."""
    env = pair(make, env_id, TORCH)[0]
    given = moved(random_actions(env_id, COUNT), TORCH)
    env.step(given)
    assert env._sim._calls["step"].actions == given.data_ptr()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        env.step(given)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.usefixtures("torch")
def test_libraries_share_memory(make: Make, env_id: str) -> None:
    """CuPy reads a tensor that the simulator writes, where it is."""
    import cupy

    env = pair(make, env_id, TORCH)[0]
    seen = cupy.from_dlpack(env.state[next(iter(env.state))])
    env.step(moved(random_actions(env_id, COUNT), TORCH))
    assert_same_bits(seen.get(), env.state[next(iter(env.state))])


def test_sizes_around_a_block(make: Make, env_id: str) -> None:
    """Batches that end within a warp, at a block, one past it, are all whole, and write no more than their own."""
    import cupy

    for count in (1, 31, 32, 33, 127, 128, 129, 4097):
        env = make(env_id, count, **CUPY._asdict())
        row = env.single_observation_space.shape or ()
        guarded = cupy.full((count + 2, *row), 77, cupy.float32)
        cpu = make(env_id, count, device="cpu")
        env.reset(seed=1), cpu.reset(seed=1)
        action = random_actions(env_id, count)
        expected = cpu.step(action)
        env.step(moved(action, CUPY), out=Step(observations=guarded[1:-1]))
        assert_same_bits(guarded[1:-1], expected[0])
        assert (guarded[[0, -1]] == 77).all()


def test_memory_runs_out(make: Make, torch: Any) -> None:
    """Where others hold the memory that the device has: a MemoryError, and nothing is kept of what was begun."""
    env = make("CartPole-v1", 1_000_000, **TORCH._asdict())
    each = torch.cuda.memory_allocated() // 1_000_000  # bytes a replica, or somewhat more
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(free * 3 // 4, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryError, match="GiB"):
        make("CartPole-v1", total // each // 2, **TORCH._asdict())
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    env.reset(seed=0)
    del held
    torch.cuda.empty_cache()
