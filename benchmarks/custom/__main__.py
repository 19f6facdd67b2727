"""Environments from outside this package beside those in it: ``python -m benchmarks.custom``.

It writes ``results/custom_*.json``: how fast the tutorial's environment and CartPole's rules are as a user's own files,
in C++ and in Python, and how long they take to compile.
"""

import atexit
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_envs
from benchmarks import command, record
from benchmarks.compiling import compile_seconds
from benchmarks.custom import cartpole, tutorial
from benchmarks.replicas import random_actions, staggered
from benchmarks.timing import graph_of_steps

BESIDE = {
    "CartPoleOutside-v1": "CartPole-v1",
    "Lander-v0": "MountainCar-v0",
    "CartPoleInPython-v1": "CartPoleOutside-v1",
    "LanderInPython-v0": "Lander-v0",
}
"""Each with what moves as many bytes in a step, ends of episodes aside: those in C++ with a built-in, those in Python
with theirs in C++."""

COMPILED = ("CartPole-v1", *BESIDE)

BYTES_OF_END = 96
"""What the end of an episode moves besides: the key is read, the record written, of observations of up to 8 numbers."""

BARS = {"C++": 0.95, "Python": 0.90}
"""The least of the steps per second of what it is compared with."""
LIMITS = {"cpu": 5.0, "cuda": 1.0}
"""The most seconds of a cold compilation."""
MORE_IN_PYTHON = 0.5
"""The most seconds that translation adds."""

SIZES = {"cpu": (16_384,), "cuda": (65_536, 2**22)}
ROUNDS = 101
STEPS = 32
"""Of a round's least piece of work; on CUDA one graph."""
SECONDS = 0.01
"""A round lasts about so long: short, so that whatever else the machine does meets both alike."""
COMPILATIONS = 3

_REGISTER = """
import sys
sys.path.insert(0, {folder!r})
import lander, lander_in_python
import gpu_envs
from benchmarks.custom import cartpole
for spec in (cartpole.OUTSIDE, cartpole.IN_PYTHON):
    gpu_envs.register(spec)
"""
"""Before the script that times compilation: what it cannot find by itself."""


@functools.cache
def customs() -> Path:
    """Registers the environments from outside; gives the folder with the tutorial's files, there until the end."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    tutorial.write(Path(folder.name))
    sys.path.insert(0, folder.name)
    try:
        import lander  # type: ignore[import-not-found]  # the tutorial's
        import lander_in_python  # type: ignore[import-not-found]  # the tutorial's
    finally:
        sys.path.remove(folder.name)
    for spec in (cartpole.OUTSIDE, cartpole.IN_PYTHON, lander.LANDER, lander_in_python.LANDER_IN_PYTHON):
        gpu_envs.register(spec)
    return Path(folder.name)


def made(env_id: str, device: str, num_envs: int) -> gpu_envs.VectorEnv:
    """The replicas, stepped by one thread of the CPU."""
    return staggered(env_id, num_envs, device, copy=False, threads=1)


def stepper(env: gpu_envs.VectorEnv) -> Callable[[], object]:
    """What takes some steps with random actions, which were drawn beforehand."""
    on_host = env.device == "cpu"
    drawn = random_actions(env.single_action_space, env.num_envs, STEPS if on_host else 8)
    if on_host:

        def work() -> None:
            for actions in drawn:
                env.step(actions)

        return work
    import torch

    moved = [torch.from_numpy(actions).to("cuda") for actions in drawn]
    return functools.partial(_replayed, graph_of_steps(env, moved, STEPS), moved)


def _replayed(graph: Any, _: Any) -> None:
    """Replays a graph; what it reads is given as well, to be there for as long."""
    graph.replay()


def ends_per_step(env: gpu_envs.VectorEnv, steps: int = 8) -> float:
    """The share of the replicas whose episode ends in a step of random actions."""
    ended = 0.0
    for actions in random_actions(env.single_action_space, env.num_envs, steps):
        _, _, terminated, truncated, _ = env.step(actions)
        ended += float((terminated | truncated).sum())
    return ended / (steps * env.num_envs)


def timed(work: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds of one piece of work: of the calling thread, which does it all; on CUDA between two events."""
    if device == "cpu":
        begin = time.thread_time()
        for _ in range(repeats):
            work()
        return (time.thread_time() - begin) / repeats
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / repeats


def compared(ours: str, theirs: str, device: str, num_envs: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Both environments in turn, round by round, in an order that changes.

    Args:
        ours: The environment that is measured.
        theirs: What it is measured beside.
        device: ``cpu`` or ``cuda``.
        num_envs: Replicas of each.
        seconds: Of each round, roughly.
    """
    envs = {name: made(name, device, num_envs) for name in (ours, theirs)}
    works = {name: stepper(env) for name, env in envs.items()}
    for work in works.values():  # until episodes end at different times
        timed(work, 8, device)
    # what is timed first may wait for the device to wake up
    least = [min(timed(work, 2, device) for _ in range(5)) for work in works.values()]
    repeats = max(1, round(seconds / max(least)))
    spent: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS):
        for name in sorted(works, reverse=turn % 2 == 1):
            spent[name].append(timed(works[name], repeats, device))
    rates = {name: num_envs * STEPS / statistics.median(times) for name, times in spent.items()}
    shares = [other / own for own, other in zip(spent[ours], spent[theirs], strict=True)]
    for env in envs.values():
        env.check()  # that every action was one
    ends = {name: ends_per_step(env) for name, env in envs.items()}
    size = {name: record.BYTES[BESIDE.get(theirs, theirs)] + BYTES_OF_END * share for name, share in ends.items()}
    return {
        "beside": theirs,
        "num_envs": num_envs,
        "steps_per_s": rates[ours],
        "beside_steps_per_s": rates[theirs],
        "share": statistics.median(shares),
        "ends_per_step": ends[ours],
        "beside_ends_per_step": ends[theirs],
        "share_of_bytes": statistics.median(shares) * size[ours] / size[theirs],
        "bar": BARS["Python" if "InPython" in ours else "C++"],
    }


def cold_compile_seconds(device: str, folder: Path, times: int = COMPILATIONS) -> dict[str, float]:
    """The median seconds, in new processes with empty caches, to have each environment's step."""
    runs = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(compile_seconds(device, COMPILED, cache, _REGISTER.format(folder=str(folder))))
    return {name: statistics.median(run[name] for run in runs) for name in COMPILED}


def measure(
    device: str,
    log: Callable[[str], None],
    *,
    sizes: Sequence[int] | None = None,
    seconds: float = SECONDS,
    compilations: int = COMPILATIONS,
) -> dict[str, Any]:
    """Everything, with a line for each figure.

    Args:
        device: ``cpu`` or ``cuda``.
        log: Told each figure.
        sizes: Numbers of replicas; None: the device's.
        seconds: Of each round, roughly.
        compilations: How often each is compiled.
    """
    results: dict[str, Any] = {"speed": {}, "compile_s": {}}
    folder = customs()
    for ours, theirs in BESIDE.items():
        rows = results["speed"][ours] = []
        for num_envs in SIZES[device] if sizes is None else sizes:
            rows.append(row := compared(ours, theirs, device, num_envs, seconds))
            log(
                f"{ours}, {num_envs:,} replicas: {row['steps_per_s'] / 1e9:.3f} G steps/s, {row['share']:.1%} "
                f"of {theirs} (bar: {row['bar']:.0%}), {row['share_of_bytes']:.1%} of the bytes a second; "
                f"episodes end in {row['ends_per_step']:.1%} of the steps ({row['beside_ends_per_step']:.1%})"
            )
    results["compile_s"] = cold_compile_seconds(device if device == "cpu" else "cuda:0", folder, compilations)
    for name, taken in results["compile_s"].items():
        log(f"{name}: compiled in {taken:.2f} s (bar: {LIMITS[device]:g} s)")
    results["more_in_python_s"] = {
        ours: results["compile_s"][ours] - results["compile_s"][theirs]
        for ours, theirs in BESIDE.items()
        if "InPython" in ours
    }
    for name, more in results["more_in_python_s"].items():
        log(f"{name}: {more:+.2f} s beside the same in C++ (bar: {MORE_IN_PYTHON:g} s)")
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes ``benchmarks/results``."""
    parser = command.parser("custom", __doc__)
    options = parser.parse_args(arguments)
    device, gpu = command.chosen_device(options, parser)
    results = measure(device, command.log)
    command.log(f"wrote {record.write(f'custom_{device}', results, options.commit, gpu, 'custom')}")


if __name__ == "__main__":
    main()
