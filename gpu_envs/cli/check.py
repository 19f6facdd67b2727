"""``gpu-envs check``: test an environment for mistakes."""

import dataclasses
from collections.abc import Sequence

from gpu_envs.backend import resolve_device
from gpu_envs.cli.parser import FAILED, OK, Parser, parse_many
from gpu_envs.cli.report import echo, echo_json
from gpu_envs.registry import catalog as registry

_CHECK = """Test an environment for mistakes and print one line per check: equal seeds give equal bits on all
devices of this machine and with any number of replicas; replicas are independent; all numbers are
finite and inside their spaces; episodes end correctly; a saved state can be restored; and no array
is written out of bounds.

ID is an environment's ID or the path of its spec, such as path/to/my_env.py:MY_ENV.

The exit code is 1 if the environment has a mistake, and 2 for a mistake in the options."""

_EXAMPLES = """examples:
  gpu-envs check my_env/my_env.py:MY_ENV
  gpu-envs check CartPole-v1 --device cpu --no-sanitize"""


def check(argv: Sequence[str]) -> int:
    """``gpu-envs check ID ...``: test environments for mistakes; return the exit code."""
    parser = _parser()
    args, names = parse_many(parser, argv)
    if args.help:
        return parser.show_help()
    if not names:
        parser.error("which environment? Give an ID or the path of a spec, such as path/to/my_env.py:MY_ENV")
    specs = registry.specs(names)
    devices = [resolve_device(device) for device in args.devices or ()] or None

    from gpu_envs.testing import CheckError, Line, check_environment

    code = OK
    checks: dict[str, Sequence[Line]] = {}
    options = {name: getattr(args, name) for name in ("num_envs", "steps", "seed", "params")}
    options |= {"devices": devices, "sanitize": not args.no_sanitize, "report": (lambda _: None) if args.json else echo}
    for spec in specs:
        try:
            checks[spec.id] = check_environment(spec, **options).lines
        except CheckError as error:  # already printed
            checks[spec.id], code = error.lines, FAILED
    if args.json:
        echo_json([{"id": env, "checks": list(map(dataclasses.asdict, lines))} for env, lines in checks.items()])
    return code


def _parser() -> Parser:
    parser = Parser("gpu-envs check", "gpu-envs check ID [ID ...] [options]", _CHECK, _EXAMPLES)
    devices = "cpu, cuda or cuda:N (default: cpu, and cuda if available). May be given several times."
    parser.add_argument("--device", dest="devices", action="append", metavar="WORD", help=devices)
    parser.add_integer("--num-envs", "replicas, at least 4 (default: 9)", 9)
    parser.add_integer("--steps", "number of steps of most checks (default: 60)", 60)
    parser.add_integer("--seed", "seed of environments and actions (default: 0)", 0)
    parser.add_params()
    parser.add_json()
    parser.add_argument("--no-sanitize", action="store_true", help="skip the builds with sanitizers")
    parser.add_debug()
    return parser
