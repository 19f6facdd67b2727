"""``gpu-envs bench``: measure the steps per second of environments on the devices of this machine."""

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
from gpu_envs.cli.launch import process_count
from gpu_envs.cli.parser import OK, Parser, parse_many, parse_number
from gpu_envs.cli.report import echo, echo_json
from gpu_envs.engine.random_actions import num_elements, sample_actions
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.errors import NoCompilerError
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec
from gpu_envs.specs.team import TeamSpec

_BENCH = """Measure steps per second with random actions: with one step per kernel launch and, for environments
with one agent, with many. A step of a team is a step of all its agents. The time excludes
compilation. Writes no files.

Without IDs, measure all environments."""

_EXAMPLES = """examples:
  gpu-envs bench
  gpu-envs bench CartPole-v1 --device cpu --seconds 3
  gpu-envs bench CartPole-v1 --gpus all
  gpu-envs bench TagContinuous-v0 --num-envs 2000 --param num_taggers=5"""

DEFAULT_SIZES: Mapping[bool, tuple[int, int]] = {True: (2**20, 2**19), False: (2**15, 2**14)}
"""By whether the device is a GPU: replicas of an environment with one agent; agents in all replicas of a team."""

_NUM_ACTIONS = 16
"""Number of action arrays that are sampled before the measurement and used in turn."""


def bench(argv: Sequence[str]) -> int:
    """``gpu-envs bench [ID ...]``: measure steps per second; return the exit code."""
    parser = _parser()
    args, ids = parse_many(parser, argv)
    if args.help:
        return parser.show_help()
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        parser.error(f"--seconds is {args.seconds:g}; give a number above 0")
    parser.check_minimum(args, "num_envs", 1)
    specs = registry.specs(ids or registry.ids())
    for spec in specs:
        spec.check_params(args.params, 1)  # raise before the first measurement
    id_width = max(len(spec.id) for spec in specs)
    row = f"{{:{id_width}}}  {{:8}}  {{:>9}}  {{:>12}}  {{:>14}}"
    if args.gpus is None:
        groups: list[tuple[str, ...]] = [(device,) for device in find_devices(args.device)]
    else:
        groups = [process_devices(args.gpus, "auto" if args.device == "all" else args.device)]
    for device in set(itertools.chain(*groups)):
        open_backend(device)  # raises if the device is unusable
    results = []
    if not args.json:
        echo(row.format("environment", "device", "replicas", "1 step/launch", "many/launch"))
    for group in groups:
        for spec in specs:
            count = args.num_envs or default_replicas(spec, args.params, group[0])
            rates = measure_rates(group, spec, count, args.params, args.seconds)
            single, rollout = (*rates, None)[:2]
            steps_per_s = {"one_a_launch": single, "many_a_launch": rollout}
            case = {"environment": spec.id, "devices": group, "replicas": len(group) * count}
            results.append({**case, "steps_per_s": steps_per_s})
            if not args.json:
                device_text = group[0] if len(group) == 1 else f"{len(group)} x {group[0].partition(':')[0]}"
                cells = ["" if rate is None else format_rate(rate) for rate in steps_per_s.values()]
                echo(row.format(spec.id, device_text, f"{len(group) * count:,}", *cells).rstrip())
    if args.json:
        echo_json(results)
    else:
        echo("(steps per second, all replicas together)")
    return OK


def find_devices(name: str) -> list[str]:
    """Return the devices of ``--device``; all: every usable device of this machine."""
    if name != "all":
        try:
            device = resolve_device(name)
        except ValueError as error:
            raise ValueError(f"{error}, or all") from None
        if device == "cpu":
            find_compiler()
        return [device]
    devices = []
    try:
        find_compiler()
        devices.append("cpu")
    except NoCompilerError:
        if device_count() == 0:
            raise
    if device_count() > 0:
        try:
            import_cupy()
        except ImportError as error:
            if not devices:
                raise
            echo(f"gpu-envs: the GPU is left out: {error}", error=True)
        else:
            devices += [f"cuda:{number}" for number in range(device_count())]
    return devices


def process_devices(gpus: str, device: str) -> tuple[str, ...]:
    """Return the device of each process; raise if the machine cannot run that many processes."""
    count = process_count(gpus, device)
    if device == "cpu" or (device == "auto" and device_count() == 0):
        return ("cpu",) * count
    return tuple(f"cuda:{number}" for number in range(count))


def measure_rates(
    devices: Sequence[str], spec: Spec, num_envs: int, params: Mapping[str, Any], seconds: float
) -> list[float]:
    """Return the steps per second of each workload, summed over devices that run at the same time, one process each."""
    if len(devices) == 1:
        return _measure_device(devices[0], registry.portable_name(spec.id), num_envs, params, seconds)
    context = multiprocessing.get_context("spawn")
    processes, initargs = len(devices), (context.Barrier(len(devices)),)
    with ProcessPoolExecutor(processes, context, initializer=_set_barrier, initargs=initargs) as pool:
        env = registry.portable_name(spec.id)
        futures = [
            pool.submit(_measure_device, device, env, num_envs, params, seconds, n * num_envs)
            for n, device in enumerate(devices)
        ]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:  # report the cause rather than the broken barrier of the other processes
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [sum(rates) for rates in zip(*(future.result() for future in futures), strict=True)]


_barrier: Any = None
"""The barrier before each measurement; None: there is one process."""


def _set_barrier(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603  # set once, when the process starts
    _barrier = barrier


def _measure_device(
    device: str, env: str, num_envs: int, params: Mapping[str, Any], seconds: float, first_replica: int = 0
) -> list[float]:
    """Return the steps per second of each workload on one device; several processes start each measurement together."""
    rates = []
    try:
        for work, wait, steps in workloads(registry.spec(env), num_envs, device, params, first_replica):
            work(1)  # compile and warm up
            wait()
            if _barrier is not None:
                _barrier.wait()
            rates.append(rate(work, wait, steps, seconds))
    except BaseException:
        if _barrier is not None:
            _barrier.abort()
        raise
    return rates


def default_replicas(spec: Spec, params: Mapping[str, Any], device: str) -> int:
    """Return a number of replicas that keeps the device busy: ``DEFAULT_SIZES``; for a team fewer, by its agents."""
    replicas, agents = DEFAULT_SIZES[device != "cpu"]
    if not isinstance(spec, TeamSpec):
        return replicas
    return max(1, agents // sum(spec.counts(spec.check_params(params, 1)).values()))


def workloads(
    spec: Spec, num_envs: int, device: str, params: Mapping[str, Any], first_replica: int = 0
) -> Iterator[tuple[Callable[[int], object], Callable[[], None], int]]:
    """Yield the workloads of an environment: single steps and, for one agent, rollouts.

    Each is a function that starts a number of steps, a function that waits for them, and the number of replicas.
    """
    output = {"output": "numpy", "copy": False} if device == "cpu" else {"output": "cupy"}
    options: dict[str, Any] = {"device": device, "first_replica": first_replica, "autoreset_mode": "SameStep"}
    env = gpu_envs.make(spec.id, num_envs, **options, **output, **params)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [random_actions(env, rng, device) for _ in range(_NUM_ACTIONS)]

    def take_steps(times: int) -> None:
        for t in range(times):
            env.step(actions[t % _NUM_ACTIONS])

    yield take_steps, env.check, num_envs
    if isinstance(env, gpu_envs.VectorEnv):
        yield env.rollout, env.check, num_envs
    env.close()


def random_actions(env: Any, rng: np.random.Generator | None = None, device: str = "cpu") -> Any:
    """Return uniform random actions for all replicas; for a team by role."""
    rng, env = rng or np.random.default_rng(0), RoleInterface(env)
    units = {name: rng.random((*env.batch_shape(name), num_elements(role.action))) for name, role in env.roles.items()}
    return env.join(
        {name: _on_device(sample_actions(role.action, units[name], None), device) for name, role in env.roles.items()}
    )


def _on_device(array: np.ndarray, device: str) -> Array:
    """Return a copy of an array as a CuPy array on a device; for the CPU the array itself."""
    if device == "cpu":
        return array
    cupy = import_cupy()
    with cupy.cuda.Device(int(device.partition(":")[2])):
        return cupy.asarray(array)


def rate(work: Callable[[int], object], wait: Callable[[], None], steps: int, seconds: float) -> float:
    """Warm up, measure for about ``seconds``, and return the steps per second.

    ``work`` starts a number of iterations of ``steps`` steps, and ``wait`` waits for their end.
    """
    work(1)
    wait()
    times = 1
    while True:
        start = time.perf_counter()
        work(times)
        wait()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds / 2:
            return steps * times / elapsed
        times = min(10 * times, max(times + 1, math.ceil(times * seconds / max(elapsed, 1e-9))))


def format_rate(per_second: float) -> str:
    """Format a rate with about three digits: 41.0 G, 337 M, 6.2 k."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= size:
            scaled = per_second / size
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{letter}"
    return f"{per_second:.0f}"


def _parser() -> Parser:
    parser = Parser("gpu-envs bench", "gpu-envs bench [ID ...] [options]", _BENCH, _EXAMPLES)
    parser.add_string("--device", "all", "all, auto, cpu, cuda or cuda:N")
    gpus = "number of GPUs to use at the same time, or all; with --device cpu, number of processes"
    parser.add_argument("--gpus", metavar="N", help=gpus)
    seconds = "approximate duration of each measurement (default: 0.5)"
    parser.add_argument("--seconds", type=parse_number, default=0.5, metavar="X", help=seconds)
    replicas = "replicas; none: enough to keep the device busy (default: automatic)"
    parser.add_integer("--num-envs", replicas, optional=True)
    parser.add_params("a parameter of the environments")
    parser.add_json()
    parser.add_debug()
    return parser
