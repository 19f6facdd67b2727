"""The time of a call that is made again and again, found in the same way for all that are compared."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

ROUNDS = 5


def nothing() -> None:
    """There is nothing to wait for: a call returns when its work is done."""


def waiting(device: str) -> Callable[[], None]:
    """What waits until a device has done all that it was given."""
    if device == "cpu":
        return nothing
    import torch

    return torch.cuda.synchronize


def seconds_per_call(
    call: Callable[[int], object],
    wait: Callable[[], object] = nothing,
    *,
    seconds: float = 0.5,
    warm_up: int = 64,
) -> float:
    """The median over some rounds of calls of the seconds that one takes.

    Args:
        call: Makes the call of a number; numbers count up, so that what is given to calls can change.
        wait: Returns when all that was called is done.
        seconds: Of all rounds together.
        warm_up: Calls before, as many as go into ``seconds`` too.
    """
    begin, made = time.perf_counter(), 0
    while made < warm_up and (made < 2 or time.perf_counter() - begin < seconds):
        call(made)
        made += 1
    wait()

    def spent(count: int) -> float:
        begin = time.perf_counter()
        for number in range(count):
            call(number)
        wait()
        return time.perf_counter() - begin

    wanted, count = seconds / ROUNDS, 1
    while (took := spent(count)) < wanted / 4:
        count *= 2
    count = max(1, round(count * wanted / took))
    return sorted(spent(count) / count for _ in range(ROUNDS))[ROUNDS // 2]


@contextlib.contextmanager
def calls_timed(places: Mapping[str, tuple[object, str]]) -> Iterator[dict[str, list[float]]]:
    """Within it, some methods are timed: gives the seconds of each of their calls.

    Args:
        places: By name, the object and its method.
    """
    spent: dict[str, list[float]] = {name: [] for name in places}

    def timed(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = inner(*args, **kwargs)
            spent[name].append(time.perf_counter() - begin)
            return result

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in places.items():
            stack.enter_context(patch.object(owner, method, timed(name, getattr(owner, method))))
        yield spent


def graph_of(work: Callable[[], object]) -> Any:
    """A CUDA graph of some work, which has been done before, so that all it needs is there."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def graph_of_steps(env: Any, actions: Sequence[Any], count: int) -> Any:
    """A CUDA graph of so many steps of an environment, with these actions in turn, after a step without it."""

    def work() -> None:
        for t in range(count):
            env.step(actions[t % len(actions)])

    env.step(actions[0])
    return graph_of(work)


def milliseconds(work: Callable[[], object], repeats: int = 7, inner: int = 1) -> float:
    """The median device time of ``work``, warmed up, between CUDA events; divided by ``inner``."""
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
    """Bytes that a GPU has left; 0 for a CPU."""
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.mem_get_info()[0])


def training_rate(settings: dict[str, Any], warm_up: int, updates: int, repeats: int = 5) -> dict[str, Any]:
    """Steps per second of training, rollouts and updates; the median of some rounds after a warm-up.

    Beside it the seconds until the first update is done, and a GPU's memory that the run takes.

    Args:
        settings: Of the run, by their flat names.
        warm_up: Updates before.
        updates: Updates of a round.
        repeats: Rounds.
    """
    import torch

    from gpu_envs.training import Run, Trainer

    total = settings["num_envs"] * settings["horizon"] * (warm_up + updates * repeats)
    run = Run.from_flat(settings | {"run_dir": "", "total_steps": total})
    free = free_memory(settings["device"])
    begin = time.perf_counter()
    trainer = Trainer(run)
    wait = waiting(trainer.device)
    trainer.prepare()
    prepare = time.perf_counter() - begin
    trainer.iterate(1)
    first = time.perf_counter() - begin
    trainer.iterate(warm_up - 1)
    memory = free - free_memory(settings["device"])
    times = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        trainer.iterate(updates)
        wait()
        times.append(time.perf_counter() - begin)
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
