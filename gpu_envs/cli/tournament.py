"""``gpu-envs tournament``: let versions of a run's two sides play against each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_envs import training
from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo, echo_json
from gpu_envs.replays import files

_TOURNAMENT = """Let a run's two roles play against each other, each in the versions of the run's checkpoints. Prints
the mean scores of all pairs, and Elo ratings of each side's versions, relative to its first version.

A run keeps the last --keep-checkpoints checkpoints, one every --checkpoint-interval updates."""

_EXAMPLES = """examples:
  gpu-envs tournament runs/tag
  gpu-envs tournament runs/tag --versions 4 --png tag.png"""


def tournament(argv: Sequence[str]) -> int:
    """``gpu-envs tournament RUN``: print scores and ratings; return the exit code."""
    parser = Parser("gpu-envs tournament", "gpu-envs tournament RUN [options]", _TOURNAMENT, _EXAMPLES)
    parser.add_integer("--versions", "maximum number of versions of each side (default: 8)", 8)
    parser.add_integer("--episodes", "minimum number of episodes of each pair (default: 200)", 200)
    parser.add_string("--score", "survival", "the metric of the environment that is the score")
    side = "the role for which a high metric is good (default: the last one)"
    parser.add_argument("--side", metavar="ROLE", help=side)
    best = "the value of the metric that is the score 1 (default: the time limit of episodes)"
    parser.add_argument("--best", type=float, metavar="X", help=best)
    parser.add_greedy()
    parser.add_device()
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a picture of scores and ratings, FILE.png")
    parser.add_json()
    parser.add_progress()
    parser.add_trust()
    parser.add_debug()
    args, run = parse_one(parser, argv, "run directory")
    if args.help:
        return parser.show_help()
    if run is None:
        parser.error("which run? Give a run directory")
    if args.png and args.png.suffix.lower() != ".png":
        parser.error(f"a picture cannot be '{args.png}'; its name ends in .png")
    names = ("versions", "episodes", "score", "side", "best", "greedy", "device", "trust", "progress")
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    games = training.tournament(run, **options)
    if args.png:
        with files.replacing(args.png) as partial:
            games.figure().savefig(partial)
    echo_json(games.as_dict()) if args.json else echo(repr(games))
    return OK
