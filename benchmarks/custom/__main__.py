"""Compare users' environments with built-in ones: ``python -m benchmarks.custom``.

Writes ``results/custom_*.json``: speed and compilation time of the tutorial's environment and of CartPole as a user's
files, in C++ and in Python.
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
from benchmarks.replicas import make_staggered, random_actions
from benchmarks.timing import capture_steps

BASELINES = {
    "CartPoleOutside-v1": "CartPole-v1",
    "LanderInCpp-v0": "MountainCar-v0",
    "CartPoleInPython-v1": "CartPoleOutside-v1",
    "Lander-v0": "LanderInCpp-v0",
}
"""Users' environments, and the environment to compare with, which moves as many bytes per step: a built-in one for C++,
the C++ version for Python."""

COMPILED = ("CartPole-v1", *BASELINES)

BYTES_PER_END = 96
"""Additional bytes at the end of an episode, for observations of up to 8 numbers: read the key, write the record."""

MIN_SHARES = {"C++": 0.95, "Python": 0.90}
"""Minimum share of the baseline's steps per second."""
MAX_COMPILE_SECONDS = {"cpu": 5.0, "cuda": 1.0}
"""Maximum time of a compilation without a cache."""
MAX_TRANSLATION_SECONDS = 0.5
"""Maximum additional time of the translation from Python."""

SIZES = {"cpu": (16_384,), "cuda": (65_536, 2**22)}
ROUNDS = 101
STEPS = 32
"""Steps of one call of a workload; on CUDA one graph."""
SECONDS = 0.01
"""Approximate duration of a round: short, so that disturbances of the machine affect both environments."""
COMPILATIONS = 3

_REGISTER = """
import sys
sys.path.insert(0, {folder!r})
import lander_in_cpp
import gpu_envs
from benchmarks.custom import cartpole
for spec in (cartpole.IN_CPP, cartpole.IN_PYTHON):
    gpu_envs.register(spec)
"""
"""Setup of the script that times compilation: registers the environments."""


@functools.cache
def register_environments() -> Path:
    """Register the users' environments; return the folder with the tutorial's files, which is removed at exit."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    for page in (tutorial.LANDER, tutorial.CPP):
        tutorial.write(Path(folder.name), tutorial.blocks(page))
    sys.path.insert(0, folder.name)
    try:
        import lander  # type: ignore[import-not-found]  # the tutorial's
        import lander_in_cpp  # type: ignore[import-not-found]  # the tutorial's
    finally:
        sys.path.remove(folder.name)
    for spec in (cartpole.IN_CPP, cartpole.IN_PYTHON, lander.LANDER, lander_in_cpp.LANDER_IN_CPP):
        gpu_envs.register(spec)
    return Path(folder.name)


def make_env(env_id: str, device: str, num_envs: int) -> gpu_envs.VectorEnv:
    """Make an environment, which steps in one thread on the CPU."""
    return make_staggered(env_id, num_envs, device, copy=False, threads=1)


def make_workload(env: gpu_envs.VectorEnv) -> Callable[[], object]:
    """Return a function that takes ``STEPS`` steps with random actions, sampled before."""
    on_host = env.device == "cpu"
    actions_by_step = random_actions(env.single_action_space, env.num_envs, STEPS if on_host else 8)
    if on_host:

        def work() -> None:
            for actions in actions_by_step:
                env.step(actions)

        return work
    import torch

    on_device = [torch.from_numpy(actions).to("cuda") for actions in actions_by_step]
    return functools.partial(_replay, capture_steps(env, on_device, STEPS), on_device)


def _replay(graph: Any, _inputs: Any) -> None:
    """Replay a graph; the partial application keeps a reference to its inputs."""
    graph.replay()


def ends_per_step(env: gpu_envs.VectorEnv, steps: int = 8) -> float:
    """Return the mean share of replicas whose episode ends in a step of random actions."""
    ended = 0.0
    for actions in random_actions(env.single_action_space, env.num_envs, steps):
        _, _, terminated, truncated, _ = env.step(actions)
        ended += float((terminated | truncated).sum())
    return ended / (steps * env.num_envs)


def seconds_per_call(work: Callable[[], object], repeats: int, device: str) -> float:
    """Return the seconds per call of ``work``: CPU time of this thread; on CUDA time between two events."""
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


def compare(env_id: str, baseline: str, device: str, num_envs: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Measure two environments in turns, in alternating order.

    Args:
        env_id: The measured environment.
        baseline: The environment to compare with.
        device: ``cpu`` or ``cuda``.
        num_envs: The number of replicas of each.
        seconds: The approximate duration of a round.
    """
    envs = {name: make_env(name, device, num_envs) for name in (env_id, baseline)}
    workloads = {name: make_workload(env) for name, env in envs.items()}
    for work in workloads.values():  # until episodes end at different steps
        seconds_per_call(work, 8, device)
    # the first call may wait for the device to wake up
    fastest = [min(seconds_per_call(work, 2, device) for _ in range(5)) for work in workloads.values()]
    repeats = max(1, round(seconds / max(fastest)))
    seconds_by_name: dict[str, list[float]] = {name: [] for name in workloads}
    for turn in range(ROUNDS):
        for name in sorted(workloads, reverse=turn % 2 == 1):
            seconds_by_name[name].append(seconds_per_call(workloads[name], repeats, device))
    rates = {name: num_envs * STEPS / statistics.median(times) for name, times in seconds_by_name.items()}
    pairs = zip(seconds_by_name[env_id], seconds_by_name[baseline], strict=True)
    shares = [baseline_seconds / env_seconds for env_seconds, baseline_seconds in pairs]
    for env in envs.values():
        env.check()  # raises after an invalid action
    ends = {name: ends_per_step(env) for name, env in envs.items()}
    size = {
        name: record.BYTES_PER_STEP[BASELINES.get(baseline, baseline)] + BYTES_PER_END * share
        for name, share in ends.items()
    }
    return {
        "beside": baseline,
        "num_envs": num_envs,
        "steps_per_s": rates[env_id],
        "beside_steps_per_s": rates[baseline],
        "share": statistics.median(shares),
        "ends_per_step": ends[env_id],
        "beside_ends_per_step": ends[baseline],
        "share_of_bytes": statistics.median(shares) * size[env_id] / size[baseline],
        "bar": MIN_SHARES["Python" if baseline in BASELINES else "C++"],
    }


def cold_compile_seconds(device: str, folder: Path, times: int = COMPILATIONS) -> dict[str, float]:
    """Return the median compilation time of each environment, in new processes with empty caches."""
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
    """Measure speed and compilation time, and print a line for each result.

    Args:
        device: ``cpu`` or ``cuda``.
        log: Prints a line.
        sizes: Numbers of replicas; None: the device's default.
        seconds: The approximate duration of a round.
        compilations: The number of compilations of each environment.
    """
    results: dict[str, Any] = {"speed": {}, "compile_s": {}}
    folder = register_environments()
    for env_id, baseline in BASELINES.items():
        rows = results["speed"][env_id] = []
        for num_envs in SIZES[device] if sizes is None else sizes:
            rows.append(row := compare(env_id, baseline, device, num_envs, seconds))
            log(
                f"{env_id}, {num_envs:,} replicas: {row['steps_per_s'] / 1e9:.3f} G steps/s, {row['share']:.1%} "
                f"of {baseline} (bar: {row['bar']:.0%}), {row['share_of_bytes']:.1%} of the bytes per second; "
                f"episodes end in {row['ends_per_step']:.1%} of the steps ({row['beside_ends_per_step']:.1%})"
            )
    results["compile_s"] = cold_compile_seconds(device if device == "cpu" else "cuda:0", folder, compilations)
    for name, duration in results["compile_s"].items():
        log(f"{name}: compiled in {duration:.2f} s (bar: {MAX_COMPILE_SECONDS[device]:g} s)")
    results["more_in_python_s"] = {
        env_id: results["compile_s"][env_id] - results["compile_s"][baseline]
        for env_id, baseline in BASELINES.items()
        if baseline in BASELINES
    }
    for name, difference in results["more_in_python_s"].items():
        log(f"{name}: {difference:+.2f} s compared with C++ (bar: {MAX_TRANSLATION_SECONDS:g} s)")
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write a file into ``benchmarks/results``."""
    parser = command.parser("custom", __doc__)
    options = parser.parse_args(arguments)
    device, gpu = command.choose_device(options, parser)
    results = measure(device, command.log)
    command.log(f"wrote {record.write(f'custom_{device}', results, options.commit, gpu, 'custom')}")


if __name__ == "__main__":
    main()
