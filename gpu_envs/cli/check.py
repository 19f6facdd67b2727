"""``gpu-envs check``: whether an environment keeps what environments promise."""

import dataclasses
from collections.abc import Sequence

from gpu_envs.backend import resolve_device
from gpu_envs.cli.parser import FAILED, OK, Parser, take_all
from gpu_envs.cli.report import say, say_json
from gpu_envs.registry import catalog as registry

_CHECK = """Look for mistakes in an environment: whether the same seeds give the same bits, on all devices here
and in batches of any size; whether replicas know nothing of one another; whether all numbers are
finite and within their spaces; whether episodes end as they should, a state goes out and in again,
and no array is written beyond its end. What was looked at is told line by line.

ID is an environment's, or the place of its spec, such as path/to/my_env.py:MY_ENV.

The exit code is 1 where something is wrong with the environment, 2 is that of a mistake in the
options."""

_EXAMPLES = """examples:
  gpu-envs check my_env/my_env.py:MY_ENV
  gpu-envs check CartPole-v1 --device cpu --no-sanitize"""


def check(words: Sequence[str]) -> int:
    """``gpu-envs check ID ...``."""
    parser = _parser()
    found, names = take_all(parser, words)
    if found.help:
        return parser.show_help()
    if not names:
        parser.error("which environment? Give an ID, or the place of a spec: path/to/my_env.py:MY_ENV")
    specs = registry.specs(names)
    devices = [resolve_device(device) for device in found.devices or ()] or None

    from gpu_envs.testing import CheckError, Line, check_environment

    code = OK
    checks: dict[str, Sequence[Line]] = {}
    for spec in specs:
        try:
            report = check_environment(
                spec,
                devices=devices,
                num_envs=found.num_envs,
                steps=found.steps,
                seed=found.seed,
                params=found.params,
                report=(lambda _: None) if found.json else say,
                sanitize=not found.no_sanitize,
            )
            checks[spec.id] = report.lines
        except CheckError as error:  # the report has said what
            checks[spec.id], code = error.lines, FAILED
    if found.json:
        say_json([{"id": env, "checks": list(map(dataclasses.asdict, lines))} for env, lines in checks.items()])
    return code


def _parser() -> Parser:
    parser = Parser("gpu-envs check", "gpu-envs check ID [ID ...] [options]", _CHECK, _EXAMPLES)
    parser.add_argument(
        "--device",
        dest="devices",
        action="append",
        metavar="WORD",
        help="cpu, cuda or cuda:N (default: the CPU and CUDA, as far as they are here). May be given several times.",
    )
    parser.add_whole("--num-envs", "replicas, at least 4 (default: 9)", 9)
    parser.add_whole("--steps", "that most checks take (default: 60)", 60)
    parser.add_whole("--seed", "of environments and actions (default: 0)", 0)
    parser.add_params()
    parser.add_json()
    parser.add_argument("--no-sanitize", action="store_true", help="leave out the builds with sanitizers")
    parser.add_debug()
    return parser
