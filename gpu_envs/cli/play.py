"""``gpu-envs play``: what the policies of a run do, or random actions, as a page, a video or in a window."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_envs.cli.parser import OK, Parser, take_one, whole
from gpu_envs.cli.report import say, size_of, table

if TYPE_CHECKING:
    from gpu_envs.replays import Replay

_PLAY = """Show what the policies of a run do, or random actions in an environment.

RUN_OR_ID is a run's folder, such as runs/CartPole-v1-20250131-120000, or an environment's ID.

--html writes a page, one file that any browser plays from the disk: with returns beside it, and to be stopped and
looked at step by step. --video writes a video; --window shows it at once. Several may be given. Without any of them a
page is written: RUN.html beside the run's folder, or ID.html here."""

_COUNTS = (("replicas", 1), ("steps", 1), ("episodes", 1), ("seed", 0), ("width", 1), ("fps", 1))
"""Options that are whole numbers, and the least that each may be."""


def play(words: Sequence[str]) -> int:
    """``gpu-envs play RUN_OR_ID``."""
    parser = _parser()
    found, word = take_one(parser, words, "run directory or environment ID")
    if found.help:
        return parser.show_help()
    if word is None:
        parser.error("what is to be played? Give a run's folder, or an environment's ID")
    for name, least in _COUNTS:
        parser.check_least(found, name, least)
    if found.width is not None and not (found.video or found.window):
        parser.error("--width is that of a video or a window; a page is as wide as there is room. Leave it out")
    page, video = _outputs(word, found)

    from gpu_envs.replays import record

    replay = record(
        word,
        replicas=found.replicas,
        steps=found.steps,
        episodes=found.episodes,
        seed=found.seed,
        greedy=found.greedy,
        policies=found.policies or None,
        params=found.params or None,
        device=found.device,
        progress=found.progress,
        trust=found.trust,
    )
    if found.width is not None:
        replay.tile(found.width)  # too narrow a picture shows before anything is written
    rows = _recorded(replay)
    if page is not None:
        replay.save_html(page, fps=found.fps)
        rows.append(("page", f"{page} ({size_of(page)})"))
    if video is not None:
        replay.save_video(video, width=found.width, fps=found.fps, progress=found.progress)
        rows.append(("video", f"{video} ({size_of(video)})"))
    say(table(rows))
    if found.window:
        replay.show(width=found.width, fps=found.fps)
    return OK


def _parser() -> Parser:
    parser = Parser("gpu-envs play", "gpu-envs play RUN_OR_ID [options]", _PLAY)
    parser.add_argument("--html", metavar="FILE", help="write a page, FILE.html")
    parser.add_argument("--video", metavar="FILE", help="write a video, FILE.mp4 or FILE.gif")
    parser.add_argument("--window", action="store_true", help="show it in a window")
    parser.add_whole("--replicas", "how many are shown side by side, at most 64 (default: 9)")
    spans = parser.add_mutually_exclusive_group()
    spans.add_argument("--steps", type=whole, metavar="N", help="of every replica, whatever ends in them")
    spans.add_argument("--episodes", type=whole, metavar="N", help="of every replica (default: 1)")
    parser.add_greedy()
    parser.add_whole(
        "--seed", "of the episodes; none: that of gpu-envs eval, and of an ID 0 (default: automatic)", none=True
    )
    parser.add_policies("as in training, and of an ID random")
    parser.add_params("a parameter of the environment (default: as in training)")
    parser.add_device()
    parser.add_argument("--width", type=whole, metavar="PX", help="of video and window (default: at most 1200)")
    parser.add_whole("--fps", "steps shown in a second (default: so that time passes as in the world)")
    parser.add_trust()
    parser.add_progress()
    parser.add_debug()
    return parser


def _outputs(word: str, found: Any) -> tuple[Path | None, Path | None]:
    """The files of page and video, if they are wanted and can be written."""
    from gpu_envs.replays import page, video, window
    from gpu_envs.replays.files import check_folder
    from gpu_envs.replays.source import find

    source = find(word)
    if isinstance(source, Path):
        from gpu_envs.training.record.run_directory import RunDirectory

        RunDirectory.open(source)
    html = Path(found.html) if found.html is not None else None
    film = Path(found.video) if found.video is not None else None
    if html is None and film is None and not found.window:
        html = _beside(source) if isinstance(source, Path) else Path(f"{source}.html")
    if html is not None:
        page.check(html)
        check_folder(html)
    if film is not None:
        video.check(film, found.fps, found.width)
        check_folder(film)
    if found.window:
        window.import_pygame()
    return html, film


def _beside(run: Path) -> Path:
    """The page that has a run's name and stands beside it."""
    folder = run.resolve() if run.name in ("", "..") else run
    return folder.with_name(f"{folder.name}.html")


def _recorded(replay: "Replay") -> list[tuple[str, str]]:
    """What was recorded, and how well it went."""
    replicas = "1 replica" if replay.replicas == 1 else f"{replay.replicas} replicas"
    rows = [("recorded", f"{replicas} of {replay.env}, {replay.steps:,} steps")]
    for role, returns in replay.returns().items():
        name = "return" if len(replay.agents) == 1 else f"return of {role}"
        episodes = "1 episode" if len(returns) == 1 else f"mean of {len(returns)} episodes"
        rows.append((name, f"{returns.mean():.6g} ({episodes})" if len(returns) else "no episode ended"))
    return rows
