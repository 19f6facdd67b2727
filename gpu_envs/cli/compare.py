"""``gpu-envs compare``: compare training runs over seeds."""

from collections.abc import Sequence
from pathlib import Path

from gpu_envs import training
from gpu_envs.cli.parser import OK, Parser, parse_many
from gpu_envs.cli.report import echo, echo_json
from gpu_envs.pages import fill_template
from gpu_envs.replays import files, page

_COMPARE = """Compare runs by the interquartile mean (IQM) over seeds, with its 95 % bootstrap interval. RUN is a run
directory or a folder of them. Runs that differ only in seed, device, logging and saving are a group."""
_EXAMPLES = "examples:\n  gpu-envs compare runs --html runs.html\n  gpu-envs compare runs/a runs/b --value kl"


def compare(argv: Sequence[str]) -> int:
    """``gpu-envs compare RUN ...``: compare runs; return the exit code."""
    parser = Parser("gpu-envs compare", "gpu-envs compare RUN ... [options]", _COMPARE, _EXAMPLES)
    parser.add_string("--value", "return", "the column of log.csv to compare")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables and curves, FILE.html")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a picture of the curves, FILE.png")
    parser.add_json()
    parser.add_debug()
    args, runs = parse_many(parser, argv)
    if args.help:
        return parser.show_help()
    page.check(args.html or Path("page.html"))
    if args.png and args.png.suffix.lower() != ".png":
        parser.error(f"a picture cannot be '{args.png}'; its name ends in .png")
    comparison = training.compare(runs, args.value)
    if args.html:
        style = "table { border-spacing: 1rem .2rem; text-align: left; }"
        template = f"{{{{HEAD}}}}{style}</style></head><body>{{{{TABLES}}}}</body></html>"
        text = fill_template(template, {"TITLE": "Runs", "TABLES": comparison._repr_html_()})
        with files.replacing(args.html) as partial:
            partial.write_text(text, encoding="utf-8")
    if args.png:
        with files.replacing(args.png) as partial:
            comparison.figure().savefig(partial)
    echo_json(comparison) if args.json else echo(repr(comparison))
    return OK
