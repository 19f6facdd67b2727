"""``gpu-envs train``, ``tune`` and ``eval``: options, calls of the trainer, and reports."""

import argparse
import collections
import contextlib
import dataclasses
import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_envs.backend.cuda import start_context_in_thread
from gpu_envs.cli.launch import (
    ProcessContext,
    continues_run,
    join_process_group,
    launch,
    launcher_restarts,
    process_count,
)
from gpu_envs.cli.launched import launched
from gpu_envs.cli.parser import INTERRUPTED, OK, Parser, keep_message, parse_one
from gpu_envs.cli.report import (
    echo,
    echo_json,
    evaluation_report,
    training_report,
    tuning_header,
    tuning_report,
    tuning_row,
)
from gpu_envs.cli.settings import add_settings, combine_settings, explicit_settings, flag_of, split_policy_settings
from gpu_envs.errors import did_you_mean
from gpu_envs.registry import catalog as registry
from gpu_envs.registry.sources import parse_spec_path
from gpu_envs.training.algorithms import PPO
from gpu_envs.training.policy import algorithms_with
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.run import AUTO, CHANGEABLE, POLICY_SETTINGS, SETTINGS, Run, changeable
from gpu_envs.training.settings_file import SETTINGS_FILE, read

_NO_PRESET = "none"

_TRACKERS: Mapping[str, Sequence[str]] = {
    name: ("gpu_envs.replays:RecordReplays", f"gpu_envs.training.callbacks:{tracker}")
    for name, tracker in (("wandb", "WandbTracker"), ("mlflow", "MLflowTracker"))
}
"""Callbacks of the run by the name of the tracker."""

_KEEP_BEST = "gpu_envs.training.callbacks:KeepBest"

_TRAIN = """Train policies for an environment.

ID is an environment's ID:
{ids}
or a Python file or module with a spec: path/to/my_env.py:MY_ENV or package.module:MY_ENV.

A setting's value is the first of these that is given:
  1. the option on the command line,
  2. the value in the file of --config,
  3. the value of the preset: --preset or, without --config, the environment's "default" or the one for --algorithm,
  4. the default.
The entries of --param and --policy are combined by name. The value none means off or automatic, as a setting's help
says.

--POLICY.SETTING sets a setting of one policy of a team, by the policy's name: --runner.gamma 0.95. These settings may
differ between policies:
{of_a_policy}

--resume RUN continues a run from its last checkpoint, with the run's settings. Options may change these:
{changeable}

On Ctrl-C, SIGTERM or a closed terminal, training finishes the current iteration, which may take minutes, saves the run
and exits with code 130. A second Ctrl-C ends it at once; the last checkpoint is kept. Exit code 2 means a mistake in
the options."""

_TUNE = """Measure which number of replicas trains fastest on a device.

Trains a few iterations with 64 replicas (on the CPU 16 or fewer), and doubles the number until
training becomes no faster, the memory is full, or twelve seconds are over. Writes no files.

The settings and presets are the same as for gpu-envs train."""

_TUNE_EXAMPLES = """examples:
  gpu-envs tune CartPole-v1
  gpu-envs tune TagContinuous-v0 --preset taggers --horizon 32
  gpu-envs train CartPole-v1 --num-envs auto"""

_EVAL = """Evaluate the policies of a run: print the mean return of complete episodes, without training.

RUN is the run directory, such as runs/CartPole-v1-20250131-120000. An episode of more than 1,000,000 steps is an
error."""


def train(argv: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs train ID`` or ``gpu-envs train --resume RUN``: train or continue a run; return the exit code."""
    parser = _train_parser()
    args, env = parse_settings(parser, argv)
    parser.check_minimum(args, "max_restarts", 0)
    if launched() and args.max_restarts:
        parser.error("--max-restarts needs --gpus; give the option to the launcher of this process instead")
    if args.resume is not None:
        return _train_parser(None, {}).show_help() if args.help else _resume_run(parser, argv, args, env, trainer)
    return show_help(args, env, _train_parser) if args.help else _train_new_run(parser, argv, args, env, trainer)


def parse_settings(parser: Parser, argv: Sequence[str]) -> tuple[Any, str | None]:
    """Parse options, with the settings of single policies, and the environment ID."""
    rest, policy_settings = split_policy_settings(argv)
    args, env = parse_one(parser, rest, "environment ID")
    if env is not None and args.env is not None:
        parser.error(f"one environment ID is expected; got {env!r} and --env {args.env}; leave out one")
    args.policy_settings = policy_settings
    return args, env or args.env


def _train_new_run(parser: Parser, argv: Sequence[str], args: Any, env: str | None, trainer: Any) -> int:
    """Train a new run, in this process or in several that are launched; return the exit code."""
    if env is not None and (Path(env) / SETTINGS_FILE).is_file():
        parser.error(f"{env} is the folder of a run; to continue it: gpu-envs train --resume {env}")
    config = read_config(parser, args, env)
    args.trust = parse_spec_path(config.env) is not None  # the command line names the file
    no_folder = config.run_dir == "" or (launched() and config.run_dir is None)
    if no_folder and (args.max_restarts or launcher_restarts() > 0):
        parser.error("--max-restarts needs the run directory to continue from: give --run-dir")
    if (gpus := _count_processes(args, config.device)) > 1:
        return launch(gpus, argv, config.run_dir, args.max_restarts, _resume_options(args))
    if launcher_restarts() > 0 and os.environ.get("TORCHELASTIC_RUN_ID") == "none":
        parser.error("a launcher with --max-restarts needs --standalone or --rdzv-id, so that a restart finds its run")
    with join_process_group(config.device) as context:
        if continues_run(config.run_dir):
            args.resume = str(config.run_dir)
            result = _call_resume(_import_trainer(trainer), args, context, args.resume, {})
        else:
            config = config if context.device is None else dataclasses.replace(config, device=context.device)
            trainer, group = _import_trainer(trainer, config.device), _group_option(context.group)
            if config.num_envs == AUTO:
                chosen, why = trainer.choose_num_envs(config, **group)
                config = dataclasses.replace(config, num_envs=chosen)
                if context.is_first:
                    echo(f"num_envs is {chosen:,}: {why}", error=args.json)
            _report_processes(context, config.replicas, error=args.json)
            result = trainer.train(config, progress=args.progress, **group)
        _report(result, args, context)
    return INTERRUPTED if result.reason == "interrupted" else OK


def _resume_run(parser: Parser, argv: Sequence[str], args: Any, env: str | None, trainer: Any) -> int:
    """Continue a run, in this process or in several that are launched; return the exit code."""
    explicit = explicit_settings(args)
    _check_resume_options(parser, env, args.preset, args.config, explicit)
    config, _ = _read_run(args.resume)
    trained_processes, trained_on = (1, "auto") if config is None else (config.gpus, config.device.partition(":")[0])
    device = explicit.get("device", trained_on)
    if (gpus := _count_processes(args, device, trained_processes)) > 1:
        return launch(gpus, argv, args.resume, args.max_restarts, None)
    with _name_option("--resume", args.resume), join_process_group(device) as context:
        result = _call_resume(_import_trainer(trainer), args, context, args.resume, explicit)
        _report(result, args, context)
    return INTERRUPTED if result.reason == "interrupted" else OK


def tune(argv: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs tune ID``: measure which number of replicas trains fastest; return the exit code."""
    parser = _tune_parser()
    args, env = parse_settings(parser, argv)
    if args.help:
        return show_help(args, env, _tune_parser)
    config = read_config(parser, args, env, num_envs=AUTO)
    echo(tuning_header())
    tuning = _import_trainer(trainer, config.device).tune(config, callback=lambda size: echo(tuning_row(size)))
    echo(tuning_report(tuning))
    return OK


def evaluate(argv: Sequence[str], trainer: Any = None) -> int:
    """``gpu-envs eval RUN``: evaluate the policies of a run; return the exit code."""
    parser = Parser("gpu-envs eval", "gpu-envs eval RUN [options]", _EVAL)
    parser.add_integer("--episodes", "minimum number of episodes (default: 1000)", 1000)
    parser.add_greedy()
    parser.add_device()
    parser.add_integer("--seed", "seed of the episodes; none: the run's seed (default: automatic)", optional=True)
    replicas = "replicas; none: chosen by the number of episodes (default: automatic)"
    parser.add_integer("--num-envs", replicas, optional=True)
    parser.add_policies("as in training")
    parser.add_params("a parameter of the environment (default: as in training)")
    parser.add_json()
    parser.add_progress()
    parser.add_trust()
    parser.add_debug()
    args, run = parse_one(parser, argv, "run directory")
    if args.help:
        return parser.show_help()
    if run is None:
        parser.error("which run? Give its folder, such as runs/CartPole-v1-20250131-120000")
    for name, minimum in (("episodes", 1), ("num_envs", 1), ("seed", 0)):
        parser.check_minimum(args, name, minimum)
    if not Path(run).exists() and (run.removeprefix("gpu_envs/") in registry.ids() or parse_spec_path(run) is not None):
        parser.error(
            f"{run} is an environment; give the folder of a run. To train a run: gpu-envs train {run}. To watch random "
            f"actions: gpu-envs play {run}. To evaluate them, in Python: gpu_envs.evaluate(None, {run!r})"
        )
    with _name_option("RUN", run):
        names = ("episodes", "greedy", "device", "seed", "num_envs", "policies", "params", "trust", "progress")
        settings = {name: getattr(args, name) for name in names}
        results = _import_trainer(trainer, args.device).evaluate(run, **settings)
    if args.json:
        roles = {role: evaluation.as_dict() for role, evaluation in results.items()}
        echo_json({"greedy": args.greedy, "roles": roles})
    else:
        echo(evaluation_report(results, args.greedy, args.policies))
    return OK


def preset(env: str, name: str | None, algorithm: str | None = None) -> tuple[str | None, Mapping[str, Any]]:
    """Return a preset's name, None for no preset, and its values; raise a ValueError if name or algorithm do not fit.

    Args:
        env: The environment's ID.
        name: The preset's name; None: the preset "default" if it is for the algorithm, or the one with the algorithm's
            name.
        algorithm: The name of the algorithm; None: the preset's.
    """
    presets = PRESETS.get(env, {})
    algorithms = {key: values.get("algorithm", PPO.name) for key, values in presets.items()}
    if name is None:
        names = [key for key in ("default", algorithm or "") if key in presets]
        name = next((key for key in names if algorithm in (None, algorithms[key])), _NO_PRESET)
    if name == _NO_PRESET:
        return None, {}
    if name not in presets:
        names = [*presets, _NO_PRESET]
        raise ValueError(f"{env} has no preset {name!r}{did_you_mean(name, names)} There are: {', '.join(names)}")
    if algorithm not in (None, algorithms[name]):
        matching = [key for key in presets if algorithms[key] == algorithm]
        raise ValueError(
            f"the preset {name!r} of {env} is for {algorithms[name]}, and the algorithm is {algorithm}; give: "
            f"{', '.join([*matching, _NO_PRESET])}"
        )
    return name, presets[name]


def add_track(parser: Parser) -> None:
    """Add ``--track``, which adds callbacks, as ``--callback`` does."""
    options: dict[str, Any] = {"dest": "callbacks", "default": argparse.SUPPRESS, "action": "extend"}
    track = f"send the run to a tracker: {', '.join(_TRACKERS)}"
    parser.add_argument("--track", type=_tracker, metavar="NAME", help=track, **options)


def _train_parser(name: str | None = None, values: Mapping[str, Any] | None = None) -> Parser:
    """Create the parser; without the ``values`` of preset ``name`` it has no help texts, which take time to build."""
    help_values = collections.defaultdict(str, {} if values is None else _help_values())
    usage = "gpu-envs train ID [options]\n       gpu-envs train --resume RUN [options]"
    parser = Parser("gpu-envs train", usage, _TRAIN.format_map(help_values))
    add_sources(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    gpus = (
        "number of GPUs, or all: one process and --num-envs replicas per GPU; with --device cpu, number of "
        "processes (default: 1; required to resume a run of several processes)"
    )
    parser.add_argument("--gpus", metavar="N", help=gpus)
    restarts = "with --gpus, maximum number of restarts from the last checkpoint after a process fails (default: 0)"
    parser.add_integer("--max-restarts", restarts, 0)
    add_track(parser)
    shorthands: dict[str, Any] = {"dest": "callbacks", "default": argparse.SUPPRESS}
    keep_best = "keep the checkpoint with the highest return in a run directory, best, in the run directory"
    parser.add_argument("--keep-best", action="append_const", const=_KEEP_BEST, help=keep_best, **shorthands)
    parser.add_json()
    parser.add_trust()
    parser.add_progress()
    parser.add_debug()
    add_settings(parser, name, values)
    return parser


@keep_message
def _tracker(name: str) -> Sequence[str]:
    """Return the callbacks of a tracker; ValueError if there is none of this name."""
    if name not in _TRACKERS:
        raise ValueError(f"{name!r} is no tracker{did_you_mean(name, _TRACKERS)} There are: {', '.join(_TRACKERS)}")
    return _TRACKERS[name]


def _help_values() -> dict[str, str]:
    """Return the text for each placeholder in ``_TRAIN``."""
    return {
        "ids": "\n".join(f"  {env}" for env in registry.ids()),
        "of_a_policy": "  " + ", ".join(POLICY_SETTINGS),
        "changeable": "  " + ", ".join(_changeable()),
    }


def _tune_parser(name: str | None = None, values: Mapping[str, Any] | None = None) -> Parser:
    parser = Parser("gpu-envs tune", "gpu-envs tune ID [options]", _TUNE, _TUNE_EXAMPLES)
    add_sources(parser)
    parser.add_trust()
    parser.add_debug()
    add_settings(parser, name, values, without="num_envs")
    return parser


def add_sources(parser: Parser) -> None:
    """Add ``--env``, ``--preset`` and ``--config``, the sources of a run's settings."""
    parser.add_argument("--env", metavar="ID", help="the environment, in place of ID")
    tuned = f"tuned settings for the environment; {_NO_PRESET}: the defaults (default: default, or the algorithm's)"
    parser.add_argument("--preset", metavar="NAME", help=tuned)
    config = "read settings from a TOML file, such as the run.toml of a run"
    parser.add_argument("--config", metavar="FILE", help=config)


def show_help(args: Any, env: str | None, parser: Callable[[str | None, Mapping[str, Any]], Parser]) -> int:
    """Print the help, with the values of the environment's preset if it has one; return the exit code."""
    algorithm = explicit_settings(args).get("algorithm")
    preset_values = preset(registry.spec(env).id, args.preset, algorithm) if env is not None else (None, {})
    return parser(*preset_values).show_help()


def read_config(parser: Parser, args: Any, env: str | None, **fixed: Any) -> Run:
    """Return a new run's settings: of options, file and preset (earlier ones win), all overridden by ``fixed``."""
    file = {} if args.config is None else read(args.config)
    from_file, env = env is None, env or file.get("env")
    if not isinstance(env, str):
        parser.error(f"which environment? Give an ID: {', '.join(registry.ids())}")
    spec = registry.spec_of_run(env, args.config, trust=args.trust) if from_file else registry.spec(env)
    for place in SETTINGS["callbacks"].validate(file.get("callbacks", ())):
        registry.check_trusted(place, args.config, trust=args.trust)
    no_preset = args.preset is None and args.config is not None  # a file replaces the preset "default"
    algorithm = explicit_settings(args).get("algorithm", file.get("algorithm"))
    if algorithm != file.get("algorithm"):  # drop the settings of the file's algorithm
        file = {
            key: item for key, item in file.items() if "." in key or algorithm in (algorithms_with(key) or (algorithm,))
        }
    _, values = preset(spec.id, _NO_PRESET if no_preset else args.preset, algorithm)
    return Run.from_flat(
        combine_settings(combine_settings(values, file), explicit_settings(args))
        | {"env": registry.portable_name(spec.id)}
        | fixed
    )


def _count_processes(args: Any, device: str, trained_processes: int = 1) -> int:
    """Return the number of processes to start; 1: this process trains.

    ``trained_processes``: the number of processes that trained the run before.
    """
    if launched():
        started = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
        if args.gpus is not None and args.gpus != "all" and args.gpus != started:
            raise ValueError(f"--gpus is {args.gpus}, and the launcher has started {started}; leave out --gpus")
        return 1
    if args.gpus is None and trained_processes > 1:  # never start a number of processes that only a folder names
        raise ValueError(
            f"--gpus is missing, and {trained_processes} processes trained the run: give --gpus {trained_processes} to "
            "continue its episodes; another number starts new ones"
        )
    count = 1 if args.gpus is None else process_count(args.gpus, device)
    if args.max_restarts and count == 1:
        raise ValueError("--max-restarts needs --gpus; give both")
    return count


def _resume_options(args: Any) -> list[str]:
    """Return the options that a restart repeats; the run directory has the others."""
    progress = {True: ["--progress"], False: ["--no-progress"], None: []}[args.progress]
    gpus = [] if args.gpus is None else ["--gpus", args.gpus]
    switches = [f"--{name}" for name in ("trust", "json", "debug") if getattr(args, name)]
    return [*gpus, *progress, *switches]


def _read_run(run: str) -> tuple[Run | None, int]:
    """Return a run's settings and the iterations of its last checkpoint; None and 0 if it does not exist."""
    from gpu_envs.training.record.checkpoint import iteration_of
    from gpu_envs.training.record.run_directory import RunDirectory

    try:
        folder = RunDirectory.open(run)
    except FileNotFoundError:
        return None, 0
    latest = folder.checkpoints.latest()
    return folder.config(), 0 if latest is None else iteration_of(latest)


def _call_resume(trainer: Any, args: Any, context: ProcessContext, run: str, changes: Mapping[str, Any]) -> Any:
    """Continue a run with changes of its settings, on this process's device; return the trainer's result.

    If no step was taken, print why, with the names of options in place of the trainer's warning.
    """
    from gpu_envs.training.record.summary import NO_STEP_TAKEN, no_step_notice

    _, done = _read_run(run)
    if context.group is not None:
        from gpu_envs.training.record.run_directory import RunDirectory

        _report_processes(context, RunDirectory.open(run).config().replicas, error=args.json)
    device = {} if context.device is None else {"device": context.device}
    options = _group_option(context.group) | dict(changes) | device
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NO_STEP_TAKEN}")
        result = trainer.resume(run, progress=args.progress, trust=args.trust, **options)
    if context.is_first and result.iterations == done and result.reason != "interrupted":
        echo(no_step_notice(result, total_steps="--total-steps", no_target="--target-return none"), error=True)
    return result


def _report(result: Any, args: Any, context: ProcessContext) -> None:
    """Print a training run's result, as JSON or as a table, in the first process of the group."""
    if context.is_first and args.json:
        echo_json(dataclasses.asdict(result))
    elif context.is_first:
        from gpu_envs.training.record.run_directory import RunDirectory

        trust = args.trust and bool(result.run_dir) and RunDirectory.open(result.run_dir).needs_trust
        echo(training_report(result, trust=trust, gpus=args.gpus, resumed=args.resume is not None))


def _report_processes(context: ProcessContext, num_envs: int, *, error: bool = False) -> None:
    """Print in the first process how many processes train, with ``num_envs`` each; without a group, do nothing."""
    if context.group is None:
        return
    from gpu_envs.training.process.group import Group

    group = Group(context.group)
    transport = group.transport  # collective: every process reads it
    if context.is_first:
        echo(
            f"{group.size} processes train together, with {num_envs:,} replicas each, {group.size * num_envs:,} in "
            f"total; they add up their gradients through {transport}",
            error=error,
        )


def _group_option(group: Any) -> dict[str, Any]:
    return {} if group is None else {"group": group}


def _check_resume_options(
    parser: Parser, env: str | None, name: str | None, file: str | None, explicit: Mapping[str, Any]
) -> None:
    """Raise a ValueError if an environment, a preset, a file or settings are given that --resume does not take."""
    rejected = {"--preset": name, "--config": file} | {flag_of(key): key for key in explicit if not changeable(key)}
    extras = [*([env] if env else []), *(option for option, value in rejected.items() if value is not None)]
    if extras:
        parser.error(
            f"--resume takes the environment and the settings from the run, except {', '.join(_changeable())}; leave "
            f"out {', '.join(extras)}"
        )


def _changeable() -> list[str]:
    """Return the options that --resume allows."""
    return [flag_of(name) for name in CHANGEABLE]


@contextlib.contextmanager
def _name_option(option: str, run: str) -> Iterator[None]:
    """Add the option's name to the message that a run directory does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        if not str(error).startswith(f"the run directory {Path(run)} "):
            raise
        raise FileNotFoundError(f"{option}: {error}") from error


def _import_trainer(trainer: Any, device: str = "cpu") -> Any:
    """Return the trainer; None: start the device in a thread, import ``gpu_envs.training``, and return this module."""
    if trainer is not None:
        return trainer
    start_context_in_thread(device)
    return importlib.import_module("gpu_envs.training")
