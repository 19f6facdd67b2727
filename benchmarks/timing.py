"""Measurement of the time per call, the same for all benchmarks that are compared."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

ROUNDS = 5


def no_wait() -> None:
    """Return at once: on the CPU a call returns when its work is done."""


def wait_function(device: str) -> Callable[[], None]:
    """Return a function that waits until a device has finished all its work."""
    if device == "cpu":
        return no_wait
    import torch

    return torch.cuda.synchronize


def seconds_per_call(
    call: Callable[[int], object],
    wait: Callable[[], object] = no_wait,
    *,
    seconds: float = 0.5,
    warm_up: int = 64,
) -> float:
    """Return the seconds per call, the median over several rounds of calls.

    Args:
        call: The measured function; its argument is the number of the call, from 0.
        wait: Waits until all calls are done.
        seconds: The duration of all rounds together.
        warm_up: The maximum number of calls before the first round; they take at most ``seconds``, too.
    """
    start, calls = time.perf_counter(), 0
    while calls < warm_up and (calls < 2 or time.perf_counter() - start < seconds):
        call(calls)
        calls += 1
    wait()

    def time_calls(count: int) -> float:
        start = time.perf_counter()
        for number in range(count):
            call(number)
        wait()
        return time.perf_counter() - start

    round_seconds, count = seconds / ROUNDS, 1
    while (elapsed := time_calls(count)) < round_seconds / 4:
        count *= 2
    count = max(1, round(count * round_seconds / elapsed))
    return sorted(time_calls(count) / count for _ in range(ROUNDS))[ROUNDS // 2]


@contextlib.contextmanager
def time_methods(methods: Mapping[str, tuple[object, str]]) -> Iterator[dict[str, list[float]]]:
    """Time methods inside the block; yield the seconds of each call, by name.

    Args:
        methods: Objects and the names of their methods, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = method(*args, **kwargs)
            seconds[name].append(time.perf_counter() - start)
            return result

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in methods.items():
            stack.enter_context(patch.object(owner, method, timed(name, getattr(owner, method))))
        yield seconds


def capture_graph(work: Callable[[], object]) -> Any:
    """Capture ``work`` in a CUDA graph; it must have run before, so that it allocates no memory."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def capture_steps(env: Any, actions: Sequence[Any], count: int) -> Any:
    """Capture ``count`` steps of an environment, with the actions in turn, in a CUDA graph."""

    def work() -> None:
        for t in range(count):
            env.step(actions[t % len(actions)])

    env.step(actions[0])
    return capture_graph(work)


def device_milliseconds(work: Callable[[], object], repeats: int = 7, inner: int = 1) -> float:
    """Return the median time of ``work`` on the GPU, by CUDA events and after a warm-up, divided by ``inner``."""
    import torch

    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[repeats // 2]) / inner


def free_memory(device: str) -> int:
    """Return the free memory of a GPU in bytes; 0 for a CPU."""
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.mem_get_info()[0])


def training_rate(settings: dict[str, Any], warm_up: int, updates: int, repeats: int = 5) -> dict[str, Any]:
    """Measure the steps per second of training, with rollouts and updates: the median of several rounds.

    The result has the seconds until the end of the first update, and the GPU memory of the run, too.

    Args:
        settings: The run's settings, by flat name.
        warm_up: The number of updates before the first round.
        updates: The number of updates of a round.
        repeats: The number of rounds.
    """
    import torch

    from gpu_envs.training import Run, Trainer

    total = settings["num_envs"] * settings["horizon"] * (warm_up + updates * repeats)
    run = Run.from_flat(settings | {"run_dir": "", "total_steps": total})
    free = free_memory(settings["device"])
    start = time.perf_counter()
    trainer = Trainer(run)
    wait = wait_function(trainer.device)
    trainer.prepare()
    prepare = time.perf_counter() - start
    trainer.iterate(1)
    first = time.perf_counter() - start
    trainer.iterate(warm_up - 1)
    memory = free - free_memory(settings["device"])
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        trainer.iterate(updates)
        wait()
        times.append(time.perf_counter() - start)
    rate = run.replicas * run.horizon * updates / statistics.median(times)
    trainer_device = trainer.device
    del trainer
    if trainer_device != "cpu":
        torch.cuda.empty_cache()
    return {
        "steps_per_s": rate,
        "rounds_s": times,
        "updates": updates,
        "prepare_s": prepare,
        "first_update_s": first,
        "memory_bytes": memory,
    }
