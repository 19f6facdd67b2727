"""The commands: what each is asked, what it asks of the trainer, and what it prints."""

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gpu_envs import registry
from gpu_envs.cli.bench import bench
from gpu_envs.cli.check import check
from gpu_envs.cli.info import info
from gpu_envs.cli.listing import list_environments
from gpu_envs.cli.new import new
from gpu_envs.cli.parser import INTERRUPTED, OK, Pairs, Parser, add_debug, or_none, take_one, whole
from gpu_envs.cli.play import play
from gpu_envs.cli.report import evaluation_report, say, training_report
from gpu_envs.cli.settings import add_settings, combined, given, settings
from gpu_envs.cli.show import show
from gpu_envs.errors import did_you_mean
from gpu_envs.training.config import Config
from gpu_envs.training.presets import PRESETS

_NO_PRESET = "none"

_TRAIN = """Train policies for an environment.

ID is the place of a spec, such as path/to/my_env.py:MY_ENV or package.module:MY_ENV, or one of
{ids}

A setting's value is the first there is of
  1. the option given here,
  2. the preset's: of --preset, or else of the environment's preset "default" where it has one,
  3. the default.
--param and --policy are combined so name by name. A value that may be absent is given as none.

--resume RUN goes on with a run where its last checkpoint left it; its settings stay, save --total-steps.

On Ctrl-C and SIGTERM the run is saved, and the exit code is 130; 2 is that of a mistake in the options."""

_EVAL = """Let the policies of a run play, without learning, and say how well they do.

RUN is the run's folder, such as runs/CartPole-v1-20250131-120000."""


@final
@dataclasses.dataclass(frozen=True)
class Command:
    """A word that ``gpu-envs`` understands."""

    summary: str
    """What it does, in a few words."""
    run: Callable[[Sequence[str], Any], int]
    """Takes the rest of the command line and the trainer, and returns the exit code."""


def train(words: Sequence[str], trainer: Any) -> int:
    """``gpu-envs train ID`` and ``gpu-envs train --resume RUN``."""
    parser = _train_parser(None, {})
    found, env = take_one(parser, words, "environment ID")
    explicit = given(found)
    if found.resume is not None:
        if found.help:
            return _help(parser)
        _refuse_beside_resume(parser, env, found.preset, explicit)
        total_steps = explicit.get("total_steps")
        with _named("--resume", found.resume):
            result = _loaded(trainer).resume(found.resume, total_steps=total_steps, progress=found.progress)
    else:
        if env is None:
            if found.help:
                return _help(parser)
            parser.error(f"which environment? Give an ID: {', '.join(registry.ids())}")
        spec = registry.spec(env)
        name, values = preset(spec.id, found.preset)
        if found.help:
            return _help(_train_parser(name, values))
        config = Config(**(combined(values, explicit) | {"env": registry.lasting(spec.id)}))
        result = _loaded(trainer).train(config, progress=found.progress)
    say(training_report(result))
    return INTERRUPTED if result.reason == "interrupted" else OK


def evaluate(words: Sequence[str], trainer: Any) -> int:
    """``gpu-envs eval RUN``."""
    parser = Parser("gpu-envs eval", "gpu-envs eval RUN [options]", _EVAL)
    parser.add_argument("--episodes", type=whole, default=1000, metavar="N", help="how many at least (default: 1000)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--greedy", dest="greedy", action="store_true", default=True, help="take the likeliest action (default)"
    )
    kinds.add_argument("--sampled", dest="greedy", action="store_false", help="draw actions as in training")
    parser.add_argument("--device", default="auto", metavar="WORD", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--seed", type=or_none(whole), metavar="N", help="of the episodes; none: the run's own (default: none)"
    )
    parser.add_argument(
        "--num-envs", type=or_none(whole), metavar="N", help="replicas; none: as suits the episodes (default: none)"
    )
    parser.add_argument(
        "--policy",
        dest="policies",
        action=Pairs,
        const=str,
        metavar="ROLE=NAME",
        default={},
        help="who acts for a role or an agent instead: a policy of the run, random, or frozen:RUN or frozen:RUN:POLICY "
        "(default: as in training). May be given several times.",
    )
    add_debug(parser)
    found, run = take_one(parser, words, "run directory")
    if found.help:
        return _help(parser)
    if run is None:
        parser.error("which run? Give its folder, such as runs/CartPole-v1-20250131-120000")
    for name, least in (("episodes", 1), ("num_envs", 1), ("seed", 0)):
        given_value = getattr(found, name)
        if given_value is not None and given_value < least:
            parser.error(f"--{name.replace('_', '-')} is {given_value}; give a whole number from {least} up")
    with _named("RUN", run):
        results = _loaded(trainer).evaluate(
            run,
            episodes=found.episodes,
            greedy=found.greedy,
            device=found.device,
            seed=found.seed,
            num_envs=found.num_envs,
            policies=found.policies,
        )
    say(evaluation_report(results, found.greedy))
    return OK


def preset(env: str, name: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The preset of that name and what it says; without a name the one called default, where there is one."""
    known = PRESETS.get(env, {})
    if name == _NO_PRESET or (name is None and "default" not in known):
        return None, {}
    name = "default" if name is None else name
    if name not in known:
        names = [*known, _NO_PRESET]
        raise ValueError(f"{env} has no preset {name!r}{did_you_mean(name, names)} There are: {', '.join(names)}")
    return name, known[name]


COMMANDS: Mapping[str, Command] = {
    "train": Command("train policies for an environment, or go on with a run", train),
    "eval": Command("say how well the policies of a run do", evaluate),
    "new": Command("write an environment of your own, to begin with", new),
    "check": Command("look for mistakes in an environment", check),
    "list": Command("list the environments and their parameters", list_environments),
    "info": Command("say what is installed here, what is missing, and how to get it", info),
    "bench": Command("measure steps a second on the devices here", bench),
    "show": Command("print the C++ that an environment is compiled from", show),
    "play": Command("show what the policies of a run do, as a page or a video", play),
}
"""Every command by its word."""


def _train_parser(name: str | None, values: Mapping[str, Any]) -> Parser:
    parser = Parser(
        "gpu-envs train",
        "gpu-envs train ID [options]\n       gpu-envs train --resume RUN [--total-steps N]",
        _TRAIN.format(ids="\n".join(f"  {env}" for env in registry.ids())),
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"settings that suit the environment; {_NO_PRESET}: the defaults (default: its preset default, if any)",
    )
    parser.add_argument("--resume", metavar="RUN", help="go on with the run of this folder")
    parser.add_argument(
        "--progress",
        action="store_true",
        default=None,
        help="draw a progress bar on standard error (default: where that is a terminal)",
    )
    parser.add_argument("--no-progress", dest="progress", action="store_false", default=None, help="draw none")
    add_debug(parser)
    add_settings(parser, name, values)
    return parser


def _refuse_beside_resume(parser: Parser, env: str | None, name: str | None, explicit: Mapping[str, Any]) -> None:
    others = [option for option in explicit if option != "total_steps"]
    if env is not None or name is not None or others:
        flags = {setting.name: setting.flag for setting in settings()}
        wrong = [*([env] if env else []), *(["--preset"] if name else []), *(flags[option] for option in others)]
        parser.error(
            f"--resume takes environment and settings from the run, save --total-steps; leave out {', '.join(wrong)}"
        )


def _help(parser: Parser) -> int:
    say(parser.format_help().rstrip("\n"))
    return OK


@contextlib.contextmanager
def _named(option: str, run: str) -> Iterator[None]:
    """Says which option gave a run directory that is none."""
    try:
        yield
    except FileNotFoundError as error:
        if not str(error).startswith(f"the run directory {Path(run)} "):
            raise
        raise FileNotFoundError(f"{option}: {error}") from error


def _loaded(trainer: Any) -> Any:
    """The trainer, imported only now: help and mistakes need no torch."""
    return importlib.import_module("gpu_envs.training") if trainer is None else trainer
