"""``gpu-envs show``: print the C++ source of an environment."""

import re
from collections.abc import Sequence
from typing import Any

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.driver import device_count
from gpu_envs.backend.program import Device
from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, Layout, generate, layout_of
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec

_SHOW = """Print the C++ source of an environment: the code that is generated from its spec, and the header with
its rules. Some parameters are compiled in, so the source depends on their values. With --training,
print which kernels compute the policies of a run with the environment's preset, and the reason if
torch computes them."""

_EXAMPLES = """examples:
  gpu-envs show CartPole-v1 --header
  gpu-envs show TagContinuous-v0 --param num_runners=20 --device cuda | less
  gpu-envs show CartPole-v1 --all > cartpole.cpp
  gpu-envs show TagContinuous-v0 --training --preset taggers --device cuda"""

_EXAMPLE_GPU = Device(on_gpu=True, processors=132, shared_bytes=227 * 1024)
"""The GPU for which code is generated on a machine without one: an H100 or H200."""


def show(argv: Sequence[str]) -> int:
    """``gpu-envs show ID``: print an environment's C++ source; return the exit code."""
    parser = _parser()
    args, env = parse_one(parser, argv, "environment ID")
    if args.help:
        return parser.show_help()
    if env is None:
        parser.error(f"which environment? Give an ID: {', '.join(registry.ids())}")
    spec = registry.spec(env)
    parser.check_minimum(args, "num_envs", 1)
    if args.preset is not None and not args.training:
        parser.error("--preset needs --training; give --training too, or leave out --preset")
    if args.training and (args.header or args.all or args.driver):
        parser.error("--training lists kernels and prints no C++; leave out --header, --all and --driver")
    if args.training:
        return _show_training(spec.id, args)
    layout = layout_for(spec, args)
    if args.header:
        echo(rules_part(layout.config)[1].rstrip("\n"))
        return OK
    module = args.driver or layout.modules[0]
    if module not in layout.modules:
        parser.error(
            f"--driver is {module!r}{did_you_mean(module, layout.modules)} There are: {', '.join(layout.modules)}"
        )
    source = generate(layout, module).source
    echo((source if args.all else environment_parts(source, rules_part(layout.config)[0])).rstrip("\n"))
    return OK


def _show_training(env: str, args: Any) -> int:
    """Print which kernels compute the policies of a run with a preset and parameters; return the exit code."""
    from gpu_envs.cli.train import preset  # imports torch, which the rest of this command does not need
    from gpu_envs.training import Run
    from gpu_envs.training.assembly import describe_engines

    name, values = preset(env, args.preset)
    params = {**values.get("params", {}), **args.params}
    config = Run.from_flat({**values, "env": registry.portable_name(env), "params": params})
    no_gpu = args.device.partition(":")[0] == "cuda" and device_count() == 0
    echo(f"{env}, {f'preset {name}' if name else 'default settings'}")
    for line in describe_engines(config, args.device if no_gpu else resolve_device(args.device)):
        echo(line)
    return OK


def layout_for(spec: Spec, args: Any) -> Layout:
    """Return the TeamLayout or SingleLayout of an environment's generated code, for the command's options."""
    names = ("device", "autoreset_mode", "precision", "max_episode_steps")
    options = Options(**{name: getattr(args, name) for name in names})
    options.check(args.device)
    return layout_of(config_of(spec, args.num_envs, options, args.params), _device(args.device))


def _device(name: str) -> Device:
    """Return the traits of the device for which code is generated; for cuda on a machine without a GPU, an example."""
    if name.partition(":")[0] == "cuda" and device_count() == 0:
        resolve_device(name)  # raises if the name is invalid
        return _EXAMPLE_GPU
    return open_backend(resolve_device(name)).traits


def environment_parts(source: str, header_name: str) -> str:
    """Return the parts of a program's source that belong to the environment: the generated code and the header.

    Each part starts with a ``#line`` directive with its name.
    """
    _, *parts = re.split(r'^(?=#line 1 ")', source, flags=re.MULTILINE)
    names = ("generated", header_name)
    return "".join(part for part in parts if part.partition("\n")[0][len('#line 1 "') : -1] in names)


def _parser() -> Parser:
    parser = Parser("gpu-envs show", "gpu-envs show ID [options]", _SHOW, _EXAMPLES)
    parser.add_argument("--header", action="store_true", help="print only the header with the rules")
    parser.add_argument("--all", action="store_true", help="print the complete source, with the drivers")
    driver = "the driver whose program is printed (default: the driver of step)"
    parser.add_argument("--driver", metavar="NAME", help=driver)
    parser.add_argument("--training", action="store_true", help="print which kernels compute the policies of a run")
    parser.add_argument("--preset", metavar="NAME", help="with --training, the preset of the run (default: default)")
    devices = "auto, cpu, cuda or cuda:N; on a machine without a GPU, cuda prints the code for an H100"
    parser.add_string("--device", "auto", devices)
    parser.add_params()
    parser.add_integer("--num-envs", "replicas (default: 4096)", 4096)
    limit = "time limit in steps; -1: no limit; none: the environment's limit (default: automatic)"
    parser.add_integer("--max-episode-steps", limit, optional=True)
    parser.add_string("--precision", PRECISIONS[0], f"data type of state and reward: {' or '.join(PRECISIONS)}")
    parser.add_string("--autoreset-mode", AUTORESET_MODES[0], ", ".join(AUTORESET_MODES))
    parser.add_debug()
    return parser
