"""``gpu-envs sweep`` and ``extract``: train many runs at once, and make a run directory of a single run."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_envs.cli.launch import process_count
from gpu_envs.cli.parser import INTERRUPTED, OK, Parser, parse_one, parse_value
from gpu_envs.cli.report import echo
from gpu_envs.cli.settings import add_settings
from gpu_envs.cli.train import add_sources, add_track, parse_settings, read_config, show_help
from gpu_envs.training.run import SETTINGS
from gpu_envs.training.schedule import Schedule

_SWEEP = """Train many runs of an environment at once, each with the same results as alone.

Runs differ in their seeds, and in the settings of --vary: NAME=RANGE, as in learning_rate=log:1e-4:1e-2 or
gamma=uniform:0.9:1, or NAME=VALUE,VALUE. A parameter of the environment is env.NAME. Runs whose seeds, schedules,
numbers and parameters differ train at once; with other differences, such as --vary num_envs=32,64, one group follows
the other.

The folder of --run-dir receives runs.csv, curves.csv, a page with pictures of both, runs.html, the best run as a run
directory, best, and the states of all runs: gpu-envs extract makes a run directory of any run. The settings are the
same as for gpu-envs train.

Ctrl-C saves all runs; --resume DIR continues them."""

_SWEEP_EXAMPLES = """examples:
  gpu-envs sweep CartPole-v1 --seeds 64
  gpu-envs sweep CartPole-v1 --vary gamma=0.97,0.99 --search grid
  gpu-envs sweep CartPole-v1 --vary learning_rate=log:1e-4:1e-2 --runs 256
  gpu-envs sweep --resume runs/CartPole-v1-population-20250131-120000"""

_EXTRACT = """Make a run directory of a run of a population: the run continues by gpu-envs train --resume, and
gpu-envs eval, play and export take it.

POPULATION is the folder of gpu-envs sweep; --run is a number in its runs.csv."""


def sweep(argv: Sequence[str]) -> int:
    """``gpu-envs sweep ID``: train many runs at once; return the exit code."""
    parser = _sweep_parser()
    args, env = parse_settings(parser, argv)
    if args.help:
        return show_help(args, env, _sweep_parser)
    for name, least in (("seeds", 1), ("runs", 1), ("halving", 2)):
        parser.check_minimum(args, name, least)
    if args.resume is not None:
        return _resume(parser, args, env, argv)
    config = read_config(parser, args, env)
    if args.runs is not None and not args.vary:
        parser.error("--runs is the number of combinations of --vary; to train with several seeds, give --seeds")
    vary = dict(map(_parse_range, args.vary or ()))

    from gpu_envs.training import Population

    config = dataclasses.replace(config, gpus=1 if args.gpus is None else process_count(args.gpus, config.device))
    return _train(Population(config, seeds=args.seeds, vary=vary, runs=args.runs, search=args.search), args)


def _resume(parser: Parser, args: Any, env: str | None, argv: Sequence[str]) -> int:
    given = {text.partition("=")[0] for text in argv if text.startswith("--")}
    given -= {"--resume", "--halving", "--trust", "--progress", "--no-progress", "--debug"}
    if env is not None or given:
        extras = ", ".join([*([env] if env else []), *sorted(given)])
        parser.error(f"--resume takes environment, settings and runs from the folder; leave out {extras}")

    from gpu_envs.training import Population

    return _train(Population.open(args.resume, trust=args.trust), args)


def _train(population: Any, args: Any) -> int:
    from gpu_envs.training.callbacks import Halving

    callbacks = [] if args.halving is None else [Halving(args.halving)]
    result = population.train(args.progress, callbacks=callbacks)
    echo(repr(result))
    interrupted, folder = any(outcome.reason == "interrupted" for outcome in result.outcomes), result.run_dir
    if folder is not None and interrupted:
        halving = "" if args.halving is None else f" --halving {args.halving}"
        echo(f"interrupted; to continue: gpu-envs sweep --resume {folder}{halving}")
    if folder is not None:
        written = "runs.csv, curves.csv, runs.html" + ", best" * (folder / "best").is_dir()
        echo(f"{folder}: {written}; any other run: gpu-envs extract {folder} --run N")
    return INTERRUPTED if interrupted else OK


def _sweep_parser(name: str | None = None, values: Mapping[str, Any] | None = None) -> Parser:
    usage = "gpu-envs sweep ID [options]\n       gpu-envs sweep --resume DIR [options]"
    parser = Parser("gpu-envs sweep", usage, _SWEEP, _SWEEP_EXAMPLES)
    add_sources(parser)
    parser.add_integer("--seeds", "number of seeds of each combination, from --seed on (default: 1)", 1)
    vary = "values or a range of a setting; may be given several times"
    parser.add_argument("--vary", action="append", metavar="NAME=VALUES", help=vary)
    parser.add_argument("--resume", metavar="DIR", help="continue the interrupted runs of the population in a folder")
    runs = "number of combinations of --vary (default: all, if there are only lists of values, otherwise 16)"
    parser.add_integer("--runs", runs, optional=True)
    parser.add_string("--search", "random", "random, sobol (evenly spread) or grid (all combinations)")
    parser.add_argument("--gpus", metavar="N", help="number of GPUs, or all, that share the runs (default: 1)")
    add_track(parser)
    halving = "end the worst runs early: each time, the best 1/N continue N times as long (default: all continue)"
    parser.add_integer("--halving", halving, optional=True)
    parser.add_trust()
    parser.add_progress()
    parser.add_debug()
    add_settings(parser, name, values)
    return parser


def _parse_range(text: str) -> tuple[str, Any]:
    """Return the name, and the range as text or a list of values; ValueError for other texts."""
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ValueError(f"--vary is {text!r}; give NAME=RANGE or NAME=VALUE,VALUE, as in gamma=0.97,0.99")
    is_number = name not in SETTINGS or SETTINGS[name].kind in (int, float, Schedule)  # others have no ranges
    if is_number and ":" in values and "," in values:
        raise ValueError(f"--vary is {text!r}; give one range, or numbers; lists of schedules are for Python")
    if is_number and ":" in values:
        return name, values
    parse = SETTINGS[name].parse if name in SETTINGS else parse_value
    try:
        return name, list(map(parse, values.split(",")))
    except ValueError as error:
        raise ValueError(f"--vary is {text!r}: {error}") from None


def extract(argv: Sequence[str]) -> int:
    """``gpu-envs extract POPULATION --run N``: make a run directory of a run; return the exit code."""
    examples = "examples:\n  gpu-envs extract runs/a --run 3\n  gpu-envs extract runs/a --run 17 --run-dir runs/b"
    parser = Parser("gpu-envs extract", "gpu-envs extract POPULATION --run N [options]", _EXTRACT, examples)
    parser.add_integer("--run", "number of the run", optional=True)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the new run directory (default: one in runs)")
    parser.add_trust()
    parser.add_debug()
    args, folder = parse_one(parser, argv, "folder of a population")
    if args.help:
        return parser.show_help()
    if folder is None or args.run is None:
        parser.error("give the folder of a population and --run N")

    from gpu_envs.training import extract

    echo(str(extract(folder, args.run, args.run_dir, trust=args.trust).path))
    return OK
