"""All checks of an environment, in order."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpu_envs.backend import resolve_device
from gpu_envs.registry.catalog import spec as find_spec
from gpu_envs.specs.base import Spec
from gpu_envs.testing import builds, cross_compile, ends, numbers, sameness, values
from gpu_envs.testing.report import Print, Report
from gpu_envs.testing.subject import Subject, available_devices

_CHECKS: tuple[tuple[str, Callable[[Subject, str], str]], ...] = (
    ("observations are in their spaces", values.spaces),
    ("numbers are finite", values.finite),
    ("action masks leave a choice", values.masks),
    ("the same seed gives the same results", sameness.seeds),
    ("replicas are independent", sameness.independence),
    ("reset sets every field", sameness.resets),
    ("step depends only on the state", sameness.round_trip),
    ("observations are a function of the state", sameness.observations),
    ("inactive elements have no effect", sameness.idle_elements),
    ("episodes end correctly", ends.episode_ends),
    ("rollouts equal single steps", sameness.rollouts),
    ("pictures have finite shapes", values.drawing),
)


def check_environment(
    spec: Spec | str,
    *,
    devices: Sequence[str] | None = None,
    num_envs: int = 9,
    steps: int = 60,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    report: Print = print,
    sanitize: bool = True,
) -> Report:
    """Checks an environment for mistakes, and reports each check in a line.

    Args:
        spec: Spec or id of the environment.
        devices: Devices to check on. None: the CPU and CUDA, if available.
        num_envs: Number of replicas in most checks, at least 4.
        steps: Number of steps in most checks.
        seed: Seed of environments and actions.
        params: Parameters of the environment.
        report: Called with each line of the report.
        sanitize: Also run a build with sanitizers, which takes seconds to compile.

    Returns:
        The report.

    Raises:
        CheckError: A check failed; the message lists all failures.

    Example:
        >>> from gpu_envs.testing import check_environment
        >>> report = check_environment("CartPole-v1", sanitize=False)  # doctest: +ELLIPSIS
        passed   ...
        CartPole-v1: ... passed, 0 failed, ... skipped
    """
    if num_envs < 4:
        raise ValueError(f"num_envs is {num_envs}; checks need several replicas: give 4 or more")
    if steps < 2:
        raise ValueError(f"steps is {steps}; checks need several steps: give 2 or more")
    spec = find_spec(spec) if isinstance(spec, str) else spec
    resolved = tuple(map(resolve_device, available_devices() if devices is None else devices))
    if not resolved:
        raise ValueError("no device to check on: install a C++ compiler for the CPU, or CuPy for a CUDA device")
    result = Report(spec.id, report)
    subject = Subject(spec, num_envs, steps, seed, params or {})
    for device in resolved:
        _check_device(result, subject, device, sanitize=sanitize, alone=len(resolved) == 1)
    if not result.failures:
        result.run("devices agree", partial(sameness.devices, subject, resolved))
    result.finish()
    return result


def _check_device(report: Report, subject: Subject, device: str, *, sanitize: bool, alone: bool) -> None:
    """Runs a device's checks; ``sanitize``: also with sanitizers; ``alone``, without another: also compiles for CUDA.

    Builds that find accesses outside an array run first, in a separate process, because these could crash this process.
    """
    if not report.run(f"{device}: compiles", partial(values.compiles, subject, device)):
        return
    if device == "cpu":
        report.run("cpu: numbers keep their types", partial(numbers.no_conversions, subject))
    if device == "cpu" and alone:
        report.run("compiles for CUDA", partial(cross_compile.for_cuda, subject))
    if device != "cpu":
        report.run(f"{device}: no access outside an array", partial(builds.on_cuda, subject, device))
    elif sanitize:
        report.run("cpu: no undefined behaviour", partial(builds.sanitized, subject))
    if device == "cpu" and report.safe:
        title = "cpu: no access outside an array, no uninitialised values"
        report.run(title, partial(builds.undefined_values, subject))
    if device == "cpu" and subject.team and report.safe:
        report.run("cpu: phases are independent of the order of agents", partial(builds.phases, subject))
    if not report.safe:
        report.skip(f"{device}: all other checks", "the failure could crash this process: fix it first")
        return
    for title, check in _CHECKS:
        report.run(f"{device}: {title}", partial(check, subject, device))
