"""``gpu-envs bench``: a quick look at how fast the environments are on the devices here."""

import itertools
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import gpu_envs
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.arrays import Array
from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.driver import device_count
from gpu_envs.backend.toolchain import find_compiler
from gpu_envs.cli.launch import count_of
from gpu_envs.cli.parser import OK, Parser, number, take_all
from gpu_envs.cli.report import say, say_json
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.random_actions import chosen, elements
from gpu_envs.errors import NoCompilerError
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec
from gpu_envs.specs.team import TeamSpec

_BENCH = """Measure steps a second under random actions: with one step a launch and, of environments with one
agent, with many. Of a team a step is that of all its agents. Compiling is not counted, and nothing
is written.

After IDs, only those."""

_EXAMPLES = """examples:
  gpu-envs bench
  gpu-envs bench CartPole-v1 --device cpu --seconds 3
  gpu-envs bench CartPole-v1 --gpus all
  gpu-envs bench TagContinuous-v0 --num-envs 2000 --param num_taggers=5"""

REPLICAS: Mapping[bool, tuple[int, int]] = {True: (2**20, 2**19), False: (2**15, 2**14)}
"""By whether it is a GPU: replicas of an environment with one agent; agents in all replicas of a team."""

_ACTIONS = 16
"""Sets of actions, drawn beforehand."""


def bench(words: Sequence[str]) -> int:
    """``gpu-envs bench [ID ...]``."""
    parser = _parser()
    found, ids = take_all(parser, words)
    if found.help:
        return parser.show_help()
    if not (math.isfinite(found.seconds) and found.seconds > 0):
        parser.error(f"--seconds is {found.seconds:g}; give a number above 0")
    parser.check_least(found, "num_envs", 1)
    specs = registry.specs(ids or registry.ids())
    for spec in specs:
        spec.check_params(found.params, 1)  # before anything is measured
    wide = max(len(spec.id) for spec in specs)
    row = f"{{:{wide}}}  {{:8}}  {{:>9}}  {{:>12}}  {{:>14}}"
    if found.gpus is None:
        groups: list[tuple[str, ...]] = [(device,) for device in devices_of(found.device)]
    else:
        groups = [together(found.gpus, "auto" if found.device == "all" else found.device)]
    for device in set(itertools.chain(*groups)):
        open_backend(device)  # says what is wrong with it
    measured = []
    if not found.json:
        say(row.format("environment", "device", "replicas", "one a launch", "many a launch"))
    for group in groups:
        for spec in specs:
            count = found.num_envs or replicas_for(spec, found.params, group[0])
            rates = rates_of(group, spec, count, found.params, found.seconds)
            one, many = (*rates, None)[:2]
            speeds = {"one_a_launch": one, "many_a_launch": many}
            what = {"environment": spec.id, "devices": group, "replicas": len(group) * count}
            measured.append({**what, "steps_per_s": speeds})
            if not found.json:
                place = group[0] if len(group) == 1 else f"{len(group)} x {group[0].partition(':')[0]}"
                shown = ["" if rate is None else amount(rate) for rate in speeds.values()]
                say(row.format(spec.id, place, f"{len(group) * count:,}", *shown).rstrip())
    if found.json:
        say_json(measured)
    else:
        say("(steps a second of all replicas together)")
    return OK


def devices_of(word: str) -> list[str]:
    """The devices that are meant; all: those that can be used here."""
    if word != "all":
        try:
            device = resolve_device(word)
        except ValueError as error:
            raise ValueError(f"{error}, or all") from None
        if device == "cpu":
            find_compiler()
        return [device]
    found = []
    try:
        find_compiler()
        found.append("cpu")
    except NoCompilerError:
        if device_count() == 0:
            raise
    if device_count() > 0:
        try:
            import_cupy()
        except ImportError as error:
            if not found:
                raise
            say(f"gpu-envs: the GPU is left out: {error}", error=True)
        else:
            found += [f"cuda:{number}" for number in range(device_count())]
    return found


def together(gpus: str, device: str) -> tuple[str, ...]:
    """The devices of so many processes, or says why there cannot be so many."""
    count = count_of(gpus, device)
    if device == "cpu" or (device == "auto" and device_count() == 0):
        return ("cpu",) * count
    return tuple(f"cuda:{number}" for number in range(count))


def rates_of(devices: Sequence[str], spec: Spec, count: int, params: Mapping[str, Any], seconds: float) -> list[float]:
    """Steps a second in each way, of all devices at the same time: where there are several, a process for each."""
    if len(devices) == 1:
        return _rates(devices[0], registry.portable_name(spec.id), count, params, seconds)
    context = multiprocessing.get_context("spawn")
    size, meeting = len(devices), (context.Barrier(len(devices)),)
    with ProcessPoolExecutor(size, context, initializer=_meet_at, initargs=meeting) as pool:
        env = registry.portable_name(spec.id)
        each = [pool.submit(_rates, device, env, count, params, seconds, n * count) for n, device in enumerate(devices)]
    failed = [error for future in each if (error := future.exception()) is not None]
    if failed:  # the others wait for one that fails in vain
        raise min(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [sum(rates) for rates in zip(*(future.result() for future in each), strict=True)]


_meeting: Any = None
"""Where the processes wait for one another; None: there is one."""


def _meet_at(barrier: Any) -> None:
    global _meeting  # noqa: PLW0603  # a process has one, which it is given when it starts
    _meeting = barrier


def _rates(
    device: str, env: str, count: int, params: Mapping[str, Any], seconds: float, first_replica: int = 0
) -> list[float]:
    found = []
    try:
        for work, wait, steps in works(registry.spec(env), count, device, params, first_replica):
            work(1)  # compiled, and warm
            wait()
            if _meeting is not None:
                _meeting.wait()
            found.append(rate(work, wait, steps, seconds))
    except BaseException:
        if _meeting is not None:
            _meeting.abort()
        raise
    return found


def replicas_for(spec: Spec, params: Mapping[str, Any], device: str) -> int:
    """So many that the device has enough to do."""
    alone, together = REPLICAS[device != "cpu"]
    if not isinstance(spec, TeamSpec):
        return alone
    return max(1, together // sum(spec.counts(spec.check_params(params, 1)).values()))


def works(
    spec: Spec, count: int, device: str, params: Mapping[str, Any], first_replica: int = 0
) -> Iterator[tuple[Callable[[int], object], Callable[[], None], int]]:
    """What is measured of an environment: a number of steps, how to wait for them, and steps of all replicas in one."""
    output = {"output": "numpy", "copy": False} if device == "cpu" else {"output": "cupy"}
    place: dict[str, Any] = {"device": device, "first_replica": first_replica, "autoreset_mode": "SameStep"}
    env = gpu_envs.make(spec.id, count, **place, **output, **params)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [random_actions(env, rng, device) for _ in range(_ACTIONS)]

    def step(times: int) -> None:
        for t in range(times):
            env.step(actions[t % _ACTIONS])

    yield step, env.check, count
    if isinstance(env, gpu_envs.VectorEnv):
        yield env.rollout, env.check, count
    env.close()


def random_actions(env: Any, rng: np.random.Generator | None = None, device: str = "cpu") -> Any:
    """Uniform actions for all replicas; of a team by role."""
    rng, env = rng or np.random.default_rng(0), ByRole(env)
    units = {name: rng.random((*env.rows(name), elements(role.action))) for name, role in env.roles.items()}
    return env.join({n: _on_device(chosen(role.action, units[n], None), device) for n, role in env.roles.items()})


def _on_device(array: np.ndarray, device: str) -> Array:
    if device == "cpu":
        return array
    cupy = import_cupy()
    with cupy.cuda.Device(int(device.partition(":")[2])):
        return cupy.asarray(array)


def rate(work: Callable[[int], object], wait: Callable[[], None], steps: int, seconds: float) -> float:
    """Steps a second: warmed up, and measured for about so long.

    ``work`` does a number of times what is worth so many ``steps``; ``wait`` waits for its end.
    """
    work(1)
    wait()
    times = 1
    while True:
        begin = time.perf_counter()
        work(times)
        wait()
        took = time.perf_counter() - begin
        if took >= seconds / 2:
            return steps * times / took
        times = min(10 * times, max(times + 1, math.ceil(times * seconds / max(took, 1e-9))))


def amount(per_second: float) -> str:
    """A number in three digits or so: 41.0 G, 337 M, 6.2 k."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= size:
            scaled = per_second / size
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{letter}"
    return f"{per_second:.0f}"


def _parser() -> Parser:
    parser = Parser("gpu-envs bench", "gpu-envs bench [ID ...] [options]", _BENCH, _EXAMPLES)
    parser.add_word("--device", "all", "all that are here, auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--gpus", metavar="N", help="on so many GPUs at the same time, or all; with --device cpu, so many processes"
    )
    parser.add_argument(
        "--seconds", type=number, default=0.5, metavar="X", help="of each measurement, about (default: 0.5)"
    )
    parser.add_whole(
        "--num-envs", "replicas; none: so many that the device has enough to do (default: automatic)", none=True
    )
    parser.add_params("a parameter of the environments")
    parser.add_json()
    parser.add_debug()
    return parser
