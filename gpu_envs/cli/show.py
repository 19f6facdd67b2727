"""``gpu-envs show``: the C++ that an environment is compiled from."""

import re
from collections.abc import Sequence
from typing import Any

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.driver import device_count
from gpu_envs.backend.program import Device
from gpu_envs.cli.parser import OK, Parser, take_one
from gpu_envs.cli.report import say
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, Layout, generate, layout_of
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec

_SHOW = """Print the C++ of an environment, as it is compiled: what is generated from its spec, and its
header with the rules. Parameters may be compiled in, so that others give another text. With --training
print which kernels compute the policies of a run with the environment's preset, and why where torch does."""

_EXAMPLES = """examples:
  gpu-envs show CartPole-v1 --header
  gpu-envs show TagContinuous-v0 --param num_runners=20 --device cuda | less
  gpu-envs show CartPole-v1 --all > cartpole.cpp
  gpu-envs show TagContinuous-v0 --training --preset taggers --device cuda"""

_SOME_GPU = Device(on_gpu=True, processors=132, shared_bytes=227 * 1024)
"""That for which code is shown where there is none: an H100 or H200."""


def show(words: Sequence[str]) -> int:
    """``gpu-envs show ID``."""
    parser = _parser()
    found, env = take_one(parser, words, "environment ID")
    if found.help:
        return parser.show_help()
    if env is None:
        parser.error(f"which environment? Give an ID: {', '.join(registry.ids())}")
    spec = registry.spec(env)
    parser.check_least(found, "num_envs", 1)
    if found.preset is not None and not found.training:
        parser.error("--preset is the run's whose kernels --training tells; give --training too, or leave it out")
    if found.training and (found.header or found.all or found.driver):
        parser.error("--training tells of kernels and prints no C++; leave --header, --all and --driver out")
    if found.training:
        return _tell_of_training(spec.id, found)
    layout = layout_for(spec, found)
    if found.header:
        say(rules_part(layout.config)[1].rstrip("\n"))
        return OK
    module = found.driver or layout.modules[0]
    if module not in layout.modules:
        parser.error(
            f"--driver is {module!r}{did_you_mean(module, layout.modules)} There are: {', '.join(layout.modules)}"
        )
    source = generate(layout, module).source
    say((source if found.all else own_parts(source, rules_part(layout.config)[0])).rstrip("\n"))
    return OK


def _tell_of_training(env: str, found: Any) -> int:
    from gpu_envs.cli.train import preset  # torch comes with what follows, and nobody else here needs it
    from gpu_envs.training import Run
    from gpu_envs.training.assembly import who_computes

    name, values = preset(env, found.preset)
    params = {**values.get("params", {}), **found.params}
    config = Run.from_flat({**values, "env": registry.portable_name(env), "params": params})
    absent = found.device.partition(":")[0] == "cuda" and device_count() == 0
    say(f"{env}, {f'preset {name}' if name else 'default settings'}")
    for line in who_computes(config, found.device if absent else resolve_device(found.device)):
        say(line)
    return OK


def layout_for(spec: Spec, found: Any) -> Layout:
    """What the generated code depends on, from the options."""
    options = Options(
        device=found.device,
        autoreset_mode=found.autoreset_mode,
        precision=found.precision,
        max_episode_steps=found.max_episode_steps,
    )
    options.check(found.device)
    return layout_of(config_of(spec, found.num_envs, options, found.params), _device(found.device))


def _device(name: str) -> Device:
    """The device for which code is generated; where there is no GPU but its code is asked for, some GPU."""
    if name.partition(":")[0] == "cuda" and device_count() == 0:
        resolve_device(name)  # says what is wrong with the name
        return _SOME_GPU
    return open_backend(resolve_device(name)).traits


def own_parts(source: str, header: str) -> str:
    """Of a program's source those parts that are this environment's own: what was generated, and its header.

    Parts begin with a ``#line`` that names them.
    """
    _, *parts = re.split(r'^(?=#line 1 ")', source, flags=re.MULTILINE)
    names = ("generated", header)
    chosen = [part for part in parts if part.partition("\n")[0][len('#line 1 "') : -1] in names]
    return "".join(chosen)


def _parser() -> Parser:
    parser = Parser("gpu-envs show", "gpu-envs show ID [options]", _SHOW, _EXAMPLES)
    parser.add_argument("--header", action="store_true", help="only the header with the rules, as it is written")
    parser.add_argument("--all", action="store_true", help="everything that the compiler gets, drivers included")
    parser.add_argument("--driver", metavar="NAME", help="of which driver's program (default: the one that steps)")
    parser.add_argument("--training", action="store_true", help="what computes the policies of a run, in place of C++")
    parser.add_argument("--preset", metavar="NAME", help="with --training, that preset's run (default: default)")
    known = "auto, cpu, cuda or cuda:N; without a GPU the code for an H100 is shown as that for cuda"
    parser.add_word("--device", "auto", known)
    parser.add_params()
    parser.add_whole("--num-envs", "replicas (default: 4096)", 4096)
    limit = "the time limit; -1: there is none; none: the environment's own (default: automatic)"
    parser.add_whole("--max-episode-steps", limit, none=True)
    parser.add_word("--precision", PRECISIONS[0], f"of state and reward: {' or '.join(PRECISIONS)}")
    parser.add_word("--autoreset-mode", AUTORESET_MODES[0], ", ".join(AUTORESET_MODES))
    parser.add_debug()
    return parser
