"""``gpu-envs train``, ``tune`` and ``eval``: what each is asked, what it asks of the trainer, and what it prints."""

import collections
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_envs.backend.cuda import start_context_in_thread
from gpu_envs.cli.launch import Place, count_of, goes_on, launch, place, restarts
from gpu_envs.cli.launched import launched
from gpu_envs.cli.parser import INTERRUPTED, OK, Parser, take_one
from gpu_envs.cli.report import (
    evaluation_report,
    say,
    say_json,
    training_report,
    tuning_header,
    tuning_report,
    tuning_row,
)
from gpu_envs.cli.settings import add_settings, combined, flag_of, given, split_own
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry
from gpu_envs.registry.sources import parse
from gpu_envs.training.algorithms import PPO
from gpu_envs.training.policy import owners_of
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.run import AUTO, CHANGEABLE, OF_A_POLICY, Run, changeable
from gpu_envs.training.settings_file import SETTINGS_FILE, read

_NO_PRESET = "none"

_TRAIN = """Train policies for an environment.

ID is the place of a spec, such as path/to/my_env.py:MY_ENV or package.module:MY_ENV, or one of
{ids}

A setting's value is the first there is of
  1. the option given here,
  2. that of the file that --config names,
  3. the preset's: of --preset or else, without --config, of the environment's "default", or the one for --algorithm,
  4. the default.
--param and --policy are combined so name by name. A value that may be absent is given as none.

--POLICY.SETTING gives one policy of a team, by its name, a setting of its own, such as --runner.gamma 0.95. Possible
are
{of_a_policy}

--resume RUN goes on with a run where its last checkpoint left it; its settings stay, save those that are given of
{changeable}

On Ctrl-C, SIGTERM and when the terminal is closed the iteration at hand is finished, which may take minutes, and the
run is saved; the exit code is 130. A second Ctrl-C ends it at once, and its last checkpoint stays. 2 is the exit code
of a mistake in the options."""

_TUNE = """Measure how many replicas suit a run on a device.

A few iterations are trained with 64 replicas (on the CPU 16 or fewer), with twice as many and so
on, until that gets no faster, the memory is full, or twelve seconds are over. Nothing is
written.

Settings and presets are those of gpu-envs train."""

_TUNE_EXAMPLES = """examples:
  gpu-envs tune CartPole-v1
  gpu-envs tune TagContinuous-v0 --preset taggers --horizon 32
  gpu-envs train CartPole-v1 --num-envs auto"""

_EVAL = """Let the policies of a run play, without learning, and say how well they do.

RUN is the run's folder, such as runs/CartPole-v1-20250131-120000. An episode that does not end within 1,000,000 steps
is an error."""


def train(words: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs train ID`` and ``gpu-envs train --resume RUN``."""
    parser = _train_parser()
    found, env = _taken(parser, words)
    parser.check_least(found, "max_restarts", 0)
    if launched() and found.max_restarts:
        parser.error("--max-restarts goes with --gpus; the launcher of this process has an option of its own")
    if found.resume is not None:
        return _train_parser(None, {}).show_help() if found.help else _train_on(parser, words, found, env, trainer)
    return _help(found, env, _train_parser) if found.help else _train_anew(parser, words, found, env, trainer)


def _taken(parser: Parser, words: Sequence[str]) -> tuple[Any, str | None]:
    """Parses options, settings of single policies among them, and the environment's id."""
    rest, own = split_own(words)
    found, env = take_one(parser, rest, "environment ID")
    if env is not None and found.env is not None:
        parser.error(f"one environment ID is expected; got {env!r} and --env {found.env}")
    found.own = own
    return found, env or found.env


def _train_anew(parser: Parser, words: Sequence[str], found: Any, env: str | None, trainer: Any) -> int:
    """A new run."""
    if env is not None and (Path(env) / SETTINGS_FILE).is_file():
        parser.error(f"{env} is the folder of a run, which goes on: gpu-envs train --resume {env}")
    config = _asked(parser, found, env)
    found.trust = parse(config.env) is not None  # it was named here
    if (found.max_restarts or restarts() > 0) and (config.run_dir == "" or (launched() and config.run_dir is None)):
        parser.error("a run that is started again goes on from its folder: give --run-dir")
    if (gpus := _processes(found, config.device)) > 1:
        return launch(gpus, words, config.run_dir, found.max_restarts, _stays(found))
    if restarts() > 0 and os.environ.get("TORCHELASTIC_RUN_ID") == "none":
        parser.error("a launcher with --max-restarts needs --standalone or --rdzv-id, by which a restart knows its run")
    with place(config.device) as here:
        if goes_on(config.run_dir):
            result = _gone_on(_loaded(trainer), found, here, str(config.run_dir), {})
        else:
            config = config if here.device is None else dataclasses.replace(config, device=here.device)
            if config.num_envs == AUTO:
                chosen, why = _loaded(trainer, config.device).choose_num_envs(config, **_of(here.group))
                config = dataclasses.replace(config, num_envs=chosen)
                if here.first:
                    say(f"num_envs is {chosen:,}: {why}", error=found.json)
            _tell_of_several(here, config.replicas, error=found.json)
            result = _loaded(trainer, config.device).train(config, progress=found.progress, **_of(here.group))
        _report(result, found, here)
    return INTERRUPTED if result.reason == "interrupted" else OK


def _train_on(parser: Parser, words: Sequence[str], found: Any, env: str | None, trainer: Any) -> int:
    """A run that goes on."""
    explicit = given(found)
    _refuse_beside_resume(parser, env, found.preset, found.config, explicit)
    config, done = _trained_on(found.resume)
    then, trained_on = (1, "auto") if config is None else (config.gpus, config.device.partition(":")[0])
    device = explicit.get("device", trained_on)
    if (gpus := _processes(found, device, then)) > 1:
        return launch(gpus, words, found.resume, found.max_restarts, None)
    with _named("--resume", found.resume), place(device) as here:
        if here.first and config is not None and done >= config.changed(explicit).iterations:
            steps = f"{config.steps_at(done):,} steps"
            say(f"{found.resume} is already complete, with {steps}: to continue, give more --total-steps", error=True)
        result = _gone_on(_loaded(trainer), found, here, found.resume, explicit)
        _report(result, found, here)
    return INTERRUPTED if result.reason == "interrupted" else OK


def tune(words: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs tune ID``."""
    parser = _tune_parser()
    found, env = _taken(parser, words)
    if found.help:
        return _help(found, env, _tune_parser)
    config = _asked(parser, found, env, num_envs=AUTO)
    say(tuning_header())
    say(tuning_report(_loaded(trainer, config.device).tune(config, told=lambda size: say(tuning_row(size)))))
    return OK


def evaluate(words: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs eval RUN``."""
    parser = Parser("gpu-envs eval", "gpu-envs eval RUN [options]", _EVAL)
    parser.add_whole("--episodes", "how many at least (default: 1000)", 1000)
    parser.add_greedy()
    parser.add_device()
    parser.add_whole("--seed", "of the episodes; none: the run's own (default: automatic)", none=True)
    parser.add_whole("--num-envs", "replicas; none: as suits the episodes (default: automatic)", none=True)
    parser.add_policies("as in training")
    parser.add_json()
    parser.add_progress()
    parser.add_trust()
    parser.add_debug()
    found, run = take_one(parser, words, "run directory")
    if found.help:
        return parser.show_help()
    if run is None:
        parser.error("which run? Give its folder, such as runs/CartPole-v1-20250131-120000")
    for name, least in (("episodes", 1), ("num_envs", 1), ("seed", 0)):
        parser.check_least(found, name, least)
    if not Path(run).exists() and run.removeprefix("gpu_envs/") in registry.ids():
        parser.error(
            f"{run} is an environment, and a run is evaluated: train one first, gpu-envs train {run}, or watch random "
            f"actions, gpu-envs play {run}"
        )
    with _named("RUN", run):
        names = ("episodes", "greedy", "device", "seed", "num_envs", "policies", "trust", "progress")
        settings = {name: getattr(found, name) for name in names}
        results = _loaded(trainer, found.device).evaluate(run, **settings)
    if found.json:
        roles = {role: dataclasses.asdict(each) for role, each in results.items()}
        say_json({"greedy": found.greedy, "roles": roles})
    else:
        say(evaluation_report(results, found.greedy))
    return OK


def preset(env: str, name: str | None, algorithm: str | None = None) -> tuple[str | None, Mapping[str, Any]]:
    """The preset of that name and what it says.

    Args:
        env: The environment's id.
        name: The preset's; None: the one called default, if it is for the algorithm, or the one called as that is.
        algorithm: The one that is to learn; None: the preset says which.
    """
    known = PRESETS.get(env, {})
    of = {each: values.get("algorithm", PPO.name) for each, values in known.items()}
    if name is None:
        usual = [each for each in ("default", algorithm or "") if each in known and algorithm in (None, of[each])]
        name = next(iter(usual), _NO_PRESET)
    if name == _NO_PRESET:
        return None, {}
    if name not in known:
        names = [*known, _NO_PRESET]
        raise ValueError(f"{env} has no preset {name!r}{did_you_mean(name, names)} There are: {', '.join(names)}")
    if algorithm not in (None, of[name]):
        fitting = [each for each in known if of[each] == algorithm]
        raise ValueError(
            f"the preset {name!r} of {env} is for {of[name]}, and the algorithm is {algorithm}; there are for that: "
            f"{', '.join([*fitting, _NO_PRESET])}"
        )
    return name, known[name]


def _train_parser(name: str | None = None, values: Mapping[str, Any] | None = None) -> Parser:
    """The options; without ``values`` they are not described, which only help needs."""
    described = collections.defaultdict(str, {} if values is None else _about_training())
    parser = Parser(
        "gpu-envs train",
        "gpu-envs train ID [options]\n       gpu-envs train --resume RUN [options]",
        _TRAIN.format_map(described),
    )
    _add_sources(parser)
    parser.add_argument("--resume", metavar="RUN", help="go on with the run of this folder")
    parser.add_argument(
        "--gpus",
        metavar="N",
        help="train on so many GPUs, or all: a process and --num-envs replicas each; with --device cpu, so many "
        "processes (default: 1; needed to resume a run of several)",
    )
    parser.add_whole(
        "--max-restarts",
        "with --gpus, start anew from the last checkpoint when a process fails, so often (default: 0)",
        0,
    )
    parser.add_json()
    parser.add_trust()
    parser.add_progress()
    parser.add_debug()
    add_settings(parser, name, values)
    return parser


def _about_training() -> dict[str, str]:
    return {
        "ids": "\n".join(f"  {env}" for env in registry.ids()),
        "of_a_policy": "  " + ", ".join(OF_A_POLICY),
        "changeable": "  " + ", ".join(_changeable()),
    }


def _tune_parser(name: str | None = None, values: Mapping[str, Any] | None = None) -> Parser:
    parser = Parser("gpu-envs tune", "gpu-envs tune ID [options]", _TUNE, _TUNE_EXAMPLES)
    _add_sources(parser)
    parser.add_trust()
    parser.add_debug()
    add_settings(parser, name, values, without="num_envs")
    return parser


def _add_sources(parser: Parser) -> None:
    parser.add_argument("--env", metavar="ID", help="the environment, instead of ID")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"settings that suit the environment; {_NO_PRESET}: the defaults (default: default, or the algorithm's)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="settings in a TOML file, such as the run.toml that every run writes"
    )


def _help(found: Any, env: str | None, parser: Callable[[str | None, Mapping[str, Any]], Parser]) -> int:
    """Shows the options, with the values of the environment's preset where there is one."""
    algorithm = given(found).get("algorithm")
    about = preset(registry.spec(env).id, found.preset, algorithm) if env is not None else (None, {})
    return parser(*about).show_help()


def _asked(parser: Parser, found: Any, env: str | None, **fixed: Any) -> Run:
    """The new run that the options describe."""
    file = {} if found.config is None else read(found.config)
    named, env = env is None, env or file.get("env")
    if not isinstance(env, str):
        parser.error(f"which environment? Give an ID: {', '.join(registry.ids())}")
    spec = registry.spec_of_run(env, found.config, trust=found.trust) if named else registry.spec(env)
    no_preset = found.preset is None and found.config is not None  # a file stands in for the preset called default
    algorithm = given(found).get("algorithm", file.get("algorithm"))
    if algorithm != file.get("algorithm"):  # a run's file has all settings of its algorithm
        file = {key: item for key, item in file.items() if "." in key or algorithm in (owners_of(key) or (algorithm,))}
    _, values = preset(spec.id, _NO_PRESET if no_preset else found.preset, algorithm)
    return Run.from_flat(
        combined(combined(values, file), given(found)) | {"env": registry.portable_name(spec.id)} | fixed
    )


def _processes(found: Any, device: str, then: int = 1) -> int:
    """The number of processes to start; 1: this process trains. ``then`` processes have trained the run so far."""
    if launched():
        here = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
        if found.gpus is not None and found.gpus != "all" and found.gpus != here:
            raise ValueError(f"--gpus is {found.gpus}, and the launcher has started {here}; leave --gpus out")
        return 1
    if found.gpus is None and then > 1:  # the folder may come from a stranger, who asks for 65,536 processes
        raise ValueError(
            f"the run was trained by {then} processes: give --gpus {then} to resume with as many, or another number, "
            "with which its episodes restart"
        )
    count = 1 if found.gpus is None else count_of(found.gpus, device)
    if found.max_restarts and count == 1:
        raise ValueError("--max-restarts goes with --gpus; give both")
    return count


def _stays(found: Any) -> list[str]:
    """The options that hold for a run when it is started again, too; all else is in its folder."""
    progress = {True: ["--progress"], False: ["--no-progress"], None: []}[found.progress]
    gpus = [] if found.gpus is None else ["--gpus", found.gpus]
    switches = [f"--{name}" for name in ("trust", "json", "debug") if getattr(found, name)]
    return [*gpus, *progress, *switches]


def _trained_on(run: str) -> tuple[Run | None, int]:
    """Return a run's settings and the iterations of its last checkpoint; resuming it reports that it does not exist."""
    from gpu_envs.training.record.checkpoint import iteration_of
    from gpu_envs.training.record.run_directory import RunDirectory

    try:
        folder = RunDirectory.open(run)
    except FileNotFoundError:
        return None, 0
    latest = folder.checkpoints.latest()
    return folder.config(), 0 if latest is None else iteration_of(latest)


def _gone_on(trainer: Any, found: Any, here: Place, run: str, changes: Mapping[str, Any]) -> Any:
    if here.group is not None:
        from gpu_envs.training.record.run_directory import RunDirectory

        _tell_of_several(here, RunDirectory.open(run).config().replicas, error=found.json)
    device = {} if here.device is None else {"device": here.device}
    own = _of(here.group) | dict(changes) | device
    return trainer.resume(run, progress=found.progress, trust=found.trust, **own)


def _report(result: Any, found: Any, here: Place) -> None:
    if here.first and found.json:
        say_json(dataclasses.asdict(result))
    elif here.first:
        say(training_report(result, trust=found.trust, gpus=found.gpus))


def _tell_of_several(here: Place, num_envs: int, *, error: bool = False) -> None:
    """Says how many train together, and how."""
    if here.group is None:
        return
    from gpu_envs.training.process.group import Group

    group = Group(here.group)
    way = group.way  # all ask
    if here.first:
        say(
            f"{group.size} processes train together, with {num_envs:,} replicas each and {group.size * num_envs:,} in "
            f"all; their gradients are added up through {way}",
            error=error,
        )


def _of(group: Any) -> dict[str, Any]:
    return {} if group is None else {"group": group}


def _refuse_beside_resume(
    parser: Parser, env: str | None, name: str | None, file: str | None, explicit: Mapping[str, Any]
) -> None:
    wrong = {"--preset": name, "--config": file} | {flag_of(each): each for each in explicit if not changeable(each)}
    others = [*([env] if env else []), *(option for option, value in wrong.items() if value is not None)]
    if others:
        parser.error(
            f"--resume takes environment and settings from the run, save {', '.join(_changeable())}; leave out "
            f"{', '.join(others)}"
        )


def _changeable() -> list[str]:
    """The options that may be given beside --resume."""
    return [flag_of(name) for name in CHANGEABLE]


@contextlib.contextmanager
def _named(option: str, run: str) -> Iterator[None]:
    """Says which option gave a folder that is not a run's."""
    try:
        yield
    except FileNotFoundError as error:
        if not str(error).startswith(f"the run directory {Path(run)} "):
            raise
        raise FileNotFoundError(f"{option}: {error}") from error


def _loaded(trainer: Any, device: str = "cpu") -> Any:
    """The trainer, imported only now: help and mistakes need no torch. Meanwhile the device starts."""
    if trainer is not None:
        return trainer
    start_context_in_thread(device)
    return importlib.import_module("gpu_envs.training")
