"""All checks of one environment, in order."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpu_envs.backend import resolve_device
from gpu_envs.registry.catalog import spec as find_spec
from gpu_envs.specs.base import Spec
from gpu_envs.testing import builds, cross_compile, ends, numbers, sameness, values
from gpu_envs.testing.report import Report, Tell
from gpu_envs.testing.subject import Subject, devices_here

_CHECKS: tuple[tuple[str, Callable[[Subject, str], str]], ...] = (
    ("observations lie in their spaces", values.spaces),
    ("numbers are finite", values.finite),
    ("action masks leave a choice", values.masks),
    ("the same seed gives the same", sameness.seeds),
    ("replicas are independent", sameness.independence),
    ("reset sets every field", sameness.resets),
    ("step depends on the state alone", sameness.round_trip),
    ("observations are a function of the state", sameness.observations),
    ("elements that are not active mean nothing", sameness.idle_elements),
    ("episodes end as they should", ends.ends),
    ("rollouts are single steps", sameness.rollouts),
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
    report: Tell = print,
    sanitize: bool = True,
) -> Report:
    """Looks for mistakes in an environment, and tells what was looked at, line by line.

    Args:
        spec: The environment, or its id.
        devices: Where to check; None: the CPU and CUDA, where available.
        num_envs: How many replicas most checks have; at least 4.
        steps: How many steps they take.
        seed: Of environments and actions.
        params: The environment's own parameters.
        report: Takes each line of the report.
        sanitize: Play a build with sanitizers too, which takes some seconds to compile.

    Returns:
        The report.

    Raises:
        CheckError: Something is wrong; the message lists all that is.
    """
    if num_envs < 4:
        raise ValueError(f"num_envs is {num_envs}; checks need at least 4 replicas")
    if steps < 2:
        raise ValueError(f"steps is {steps}; checks need at least 2")
    found = find_spec(spec) if isinstance(spec, str) else spec
    where = tuple(resolve_device(device) for device in (tuple(devices_here()) if devices is None else devices))
    if not where:
        raise ValueError("there is no device to check on: no C++ compiler for the CPU, and no CUDA device with CuPy")
    told = Report(found.id, report)
    subject = Subject(found, num_envs, steps, seed, params or {})
    for device in where:
        _check_device(told, subject, device, sanitize=sanitize, alone=len(where) == 1)
    if not told.failures:
        told.make("devices agree", partial(sameness.devices, subject, where))
    told.conclude()
    return told


def _check_device(told: Report, subject: Subject, device: str, *, sanitize: bool, alone: bool) -> None:
    """Makes the checks of one device.

    Builds that find what is outside an array come first, in a process of their own: what they find could crash this.
    """
    if not told.make(f"{device}: compiles", partial(values.compiles, subject, device)):
        return
    if device == "cpu":
        told.make("cpu: numbers keep their types", partial(numbers.types, subject))
    if device == "cpu" and alone:
        told.make("compiles for CUDA too", partial(cross_compile.for_cuda, subject))
    if device != "cpu":
        told.make(f"{device}: nothing outside an array", partial(builds.on_cuda, subject, device))
    elif sanitize:
        told.make("cpu: nothing undefined", partial(builds.sanitized, subject))
    if device == "cpu" and told.safe:
        told.make("cpu: nothing outside an array, nothing that was not set", partial(builds.undefined_values, subject))
    if device == "cpu" and subject.team and told.safe:
        told.make("cpu: phases keep to their rules", partial(builds.phases, subject))
    if not told.safe:
        told.leave_out(f"{device}: all else", "what was found could crash this process: fix it first")
        return
    for title, check in _CHECKS:
        told.make(f"{device}: {title}", partial(check, subject, device))
