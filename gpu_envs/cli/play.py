"""``gpu-envs play``: show the policies of a run, or random actions, as a page, as a video or in a window."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_envs.cli.parser import OK, Parser, parse_integer, parse_one
from gpu_envs.cli.report import echo, file_size
from gpu_envs.tables import text_table

if TYPE_CHECKING:
    from gpu_envs.replays import Replay

_PLAY = """Show the policies of a run, or random actions in an environment.

RUN_OR_ID is a run directory, such as runs/CartPole-v1-20250131-120000, or an environment's ID.

--html writes a page, one file that plays in any browser, with charts of returns and metrics, and can be paused and
stepped through. --video writes a video; --window shows a window. They can be combined. The default is a page: RUN.html
next to the run directory, or ID.html in the working folder. Without a drawing, an environment has only a page, with
charts of its state."""

_MINIMA = (("replicas", 1), ("steps", 1), ("episodes", 1), ("seed", 0), ("width", 1), ("fps", 1))
"""Options that are integers, and their minimum values."""


def play(argv: Sequence[str]) -> int:
    """``gpu-envs play RUN_OR_ID``: record policies as a page or a video; return the exit code."""
    parser = _parser()
    args, source_name = parse_one(parser, argv, "run directory or environment ID")
    if args.help:
        return parser.show_help()
    if source_name is None:
        parser.error("which run or environment? Give a run directory or an environment ID")
    for name, minimum in _MINIMA:
        parser.check_minimum(args, name, minimum)
    if args.width is not None and not (args.video or args.window):
        parser.error("--width needs --video or --window: a page fits the browser's window. Leave out --width")
    page, video = _output_files(source_name, args)

    from gpu_envs.replays import record

    names = ("replicas", "steps", "episodes", "seed", "greedy", "device", "progress", "trust")
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    replay = record(source_name, policies=args.policies or None, params=args.params or None, **options)
    if args.width is not None:
        replay.tile(args.width)  # raises before a file is written if the width is too small
    rows = _summary_rows(replay)
    if page is not None:
        replay.save_html(page, fps=args.fps)
        rows.append(("page", f"{page} ({file_size(page)})"))
    if video is not None:
        replay.save_video(video, width=args.width, fps=args.fps, progress=args.progress)
        rows.append(("video", f"{video} ({file_size(video)})"))
    echo(text_table(rows))
    if args.window:
        replay.show(width=args.width, fps=args.fps)
    return OK


def _parser() -> Parser:
    parser = Parser("gpu-envs play", "gpu-envs play RUN_OR_ID [options]", _PLAY)
    parser.add_argument("--html", metavar="FILE", help="write a page, FILE.html")
    parser.add_argument("--video", metavar="FILE", help="write a video, FILE.mp4 or FILE.gif")
    parser.add_argument("--window", action="store_true", help="show it in a window")
    parser.add_integer("--replicas", "number of replicas to show, at most 64 (default: 9)")
    spans = parser.add_mutually_exclusive_group()
    steps = "steps of every replica, over the ends of episodes"
    spans.add_argument("--steps", type=parse_integer, metavar="N", help=steps)
    spans.add_argument("--episodes", type=parse_integer, metavar="N", help="episodes of every replica (default: 1)")
    parser.add_greedy()
    seed = "seed of the episodes; none: the seed of gpu-envs eval, for an ID 0 (default: automatic)"
    parser.add_integer("--seed", seed, optional=True)
    parser.add_policies("as in training; for an ID random")
    parser.add_params("a parameter of the environment (default: as in training)")
    parser.add_device()
    width = "width of video and window in pixels (default: at most 1200)"
    parser.add_argument("--width", type=parse_integer, metavar="PX", help=width)
    parser.add_integer("--fps", "steps per second of the replay (default: the environment's real time)")
    parser.add_trust()
    parser.add_progress()
    parser.add_debug()
    return parser


def _output_files(source_name: str, args: Any) -> tuple[Path | None, Path | None]:
    """Return the files of page and video, None for no file; raise if they cannot be written."""
    from gpu_envs.registry import catalog as registry
    from gpu_envs.rendering.window import open_display
    from gpu_envs.replays import page, video
    from gpu_envs.replays.files import check_folder
    from gpu_envs.replays.recorded import require_drawing
    from gpu_envs.replays.source import find

    source = find(source_name)
    if isinstance(source, Path):
        from gpu_envs.training.record.run_directory import RunDirectory

        spec = RunDirectory.open(source).spec(trust=args.trust)
    else:
        spec = registry.spec(source)
    if args.video is not None or args.window:
        require_drawing(spec.drawing, spec.id)
    page_file = Path(args.html) if args.html is not None else None
    video_file = Path(args.video) if args.video is not None else None
    if page_file is None and video_file is None and not args.window:
        page_file = _page_of_run(source) if isinstance(source, Path) else Path(f"{source}.html")
    if page_file is not None:
        page.check(page_file)
        check_folder(page_file)
    if video_file is not None:
        video.check(video_file, args.fps, args.width)
        check_folder(video_file)
    if args.window:
        open_display()
    return page_file, video_file


def _page_of_run(run: Path) -> Path:
    """Return the path of a run's page: next to the run directory, with its name."""
    folder = run.resolve() if run.name in ("", "..") else run
    return folder.with_name(f"{folder.name}.html")


def _summary_rows(replay: "Replay") -> list[tuple[str, str]]:
    """Return rows of text: the length of the recording, and the mean return of each role."""
    replicas = "1 replica" if replay.replicas == 1 else f"{replay.replicas} replicas"
    rows = [("recorded", f"{replicas} of {replay.env}, {replay.steps:,} steps")]
    for role, returns in replay.returns().items():
        name = "return" if len(replay.agents) == 1 else f"return of {role}"
        episodes = "1 episode" if len(returns) == 1 else f"mean of {len(returns)} episodes"
        rows.append((name, f"{returns.mean():.6g} ({episodes})" if len(returns) else "no episode ended"))
    return rows
