"""``gpu-envs demo``: policies trained before one's eyes, and a page of what they do and how fast it all is."""

import dataclasses
import html
import importlib.metadata
import math
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import gymnasium

import gpu_envs
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.background import available_threads
from gpu_envs.cli.bench import amount, rate, replicas_for, works
from gpu_envs.cli.parser import OK, Parser, refuse_extras
from gpu_envs.cli.report import say, size_of, table
from gpu_envs.extras import extra
from gpu_envs.registry import catalog as registry
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.record import summary
from gpu_envs.training.run import Run

if TYPE_CHECKING:
    from gpu_envs.replays import Replay
    from gpu_envs.training import Result

_DEMO = """Train CartPole and the taggers of Tag, in half a minute on two cores and in
seconds on a GPU; measure how fast CartPole steps, beside Gymnasium's own; and
write one page with replays, learning curves and speeds. Without a GPU it is a
smaller game of Tag.

Nothing but the page is left behind."""

_EXAMPLES = """examples:
  gpu-envs demo
  gpu-envs demo --device cpu --out here.html --no-open"""

_CARTPOLE, _TAG = "CartPole-v1", "TagContinuous-v0"

_SHOWN: Mapping[str, Mapping[str, int]] = {
    _CARTPOLE: {"replicas": 4, "steps": 500},
    _TAG: {"replicas": 1, "episodes": 1},
}
"""What is recorded of each environment."""

_OTHERS: Mapping[str, tuple[str, int]] = {
    "SyncVectorEnv": ("sync", 64),
    "CartPoleVectorEnv": ("vector_entry_point", 2**14),
}
"""Gymnasium's own: what it calls them, and with how many replicas they are fastest."""

_SECONDS = 0.5
"""Of a measurement, about."""


@final
@dataclasses.dataclass(frozen=True)
class Lesson:
    """A run of training, and what its policies do."""

    config: Run
    result: "Result"
    log: Mapping[str, Sequence[float]]
    before: "Replay"
    """Random actions."""
    after: "Replay"

    def rows(self) -> list[tuple[str, str]]:
        """What it has come to, in a few words: the return of who learns, and how long that took."""
        name = next(name for name in self.log if name.rpartition("/")[2] == "return")
        known = [value for value in self.log[name] if not math.isnan(value)]
        aim = "" if self.config.target_return is None else f", for {self.config.target_return:g}"
        returns = f"{known[0]:.4g} at first, {known[-1]:.4g} at the end{aim}" if known else "no episode ended"
        return [
            ("return" if name == "return" else f"return of {name.rpartition('/')[0]}", returns),
            ("training", f"{self.result.steps:,} steps in {self.result.seconds:.2f} s"),
        ]


def demo(words: Sequence[str]) -> int:
    """``gpu-envs demo``."""
    parser = _parser()
    found, extras = parser.parse_known_args(list(words))
    if found.help:
        return parser.show_help()
    refuse_extras(parser, extras)
    parser.check_least(found, "seed", 0)
    parser.check_least(found, "total_steps", 1)
    with extra("train", "torch"):
        import torch  # noqa: F401  # said now, where it is missing

        from gpu_envs.replays import page
        from gpu_envs.replays.files import check_folder, replacing
    out, began = Path(found.out), time.perf_counter()
    page.check(out)
    check_folder(out)
    device = resolve_device(found.device)
    open_backend(device)  # says what is missing
    lessons = []
    with tempfile.TemporaryDirectory(prefix="gpu-envs-demo-") as folder:
        for env, preset in ((_CARTPOLE, "default"), (_TAG, "small" if device == "cpu" else "taggers")):
            say(f"Training {env}")
            lesson = _lesson(env, preset, Path(folder) / env, device, found)
            if lesson.result.reason == "interrupted":
                raise KeyboardInterrupt
            lessons.append(lesson)
            say(table([(f"  {name}", text) for name, text in lesson.rows()]))
    say(f"Measuring {_CARTPOLE}, beside Gymnasium's own")
    speeds = _speeds(device)
    for row in speeds:
        say("  {:28}  {:>9}  {:>9}  {:>8}".format(*row))
    with replacing(out) as partial:
        partial.write_text(_page(lessons, speeds, device, found.seed, time.perf_counter() - began), encoding="utf-8")
    opened = found.open and _screen() and webbrowser.open(out.absolute().as_uri())
    say(f"page: {out} ({size_of(out)}){', opened in the browser' if opened else ''}")
    return OK


def _parser() -> Parser:
    parser = Parser("gpu-envs demo", "gpu-envs demo [options]", _DEMO, _EXAMPLES)
    parser.add_argument("--out", default="demo.html", metavar="FILE", help="the page (default: demo.html)")
    parser.add_device()
    parser.add_whole("--seed", "of training and replays (default: 0)", 0)
    parser.add_whole("--total-steps", "train for so many at most; none: until it is learnt (default: none)", none=True)
    parser.add_argument(
        "--no-open",
        dest="open",
        action="store_false",
        help="do not open the page (default: do, where there is a screen)",
    )
    parser.add_progress()
    parser.add_debug()
    return parser


def _lesson(env: str, preset: str, folder: Path, device: str, found: Any) -> Lesson:
    """Trains, and records what random actions and the trained policies do."""
    from gpu_envs.replays import record
    from gpu_envs.training import train

    own = {} if found.total_steps is None else {"total_steps": found.total_steps}
    kept = {"run_dir": str(folder), "log_interval": 1, "checkpoint_interval": 0, "seed": found.seed, "device": device}
    config = Run.from_flat({"env": env} | dict(PRESETS[env][preset]) | own | kept)
    result = train(config, progress=found.progress)
    shown: dict[str, Any] = {**_SHOWN[env], "device": device, "seed": found.seed}
    before = record(env, params=config.params, **shown)
    after = record(folder, **shown)
    return Lesson(
        config,
        result,
        summary.read_log(folder / "log.csv"),
        dataclasses.replace(before, title=f"{env}: random actions", facts={}),
        dataclasses.replace(after, title=f"{env}: after {result.steps:,} steps of training", facts={}),
    )


def _speeds(device: str) -> list[tuple[str, ...]]:
    """Rows of a table, below its headings: Gymnasium's vectorised environments and ours."""
    found = [(f"Gymnasium, {name}", count, _gymnasium_rate(kind, count)) for name, (kind, count) in _OTHERS.items()]
    unit, spec = found[-1][-1], registry.spec(_CARTPOLE)
    count = replicas_for(spec, {}, device)
    for way, (work, wait, steps) in zip(("one step", "many steps"), works(spec, count, device, {}), strict=True):
        found.append((f"gpu_envs, {way} a call", count, rate(work, wait, steps, _SECONDS)))
    rows = [(name, f"{count:,}", amount(speed), f"{speed / unit:.2g} x") for name, count, speed in found]
    return [("", "replicas", "steps/s", "relative"), *rows]


def _gymnasium_rate(kind: str, count: int) -> float:
    env: Any = gymnasium.make_vec(_CARTPOLE, count, vectorization_mode=kind)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]

    def step(times: int) -> None:
        for t in range(times):
            env.step(actions[t % len(actions)])

    speed = rate(step, lambda: None, count, _SECONDS)
    env.close()
    return speed


def _screen() -> bool:
    """Whether somebody would see a browser."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _page(lessons: Sequence[Lesson], speeds: Sequence[tuple[str, ...]], device: str, seed: int, seconds: float) -> str:
    """The page's text."""
    from gpu_envs.replays import page
    from gpu_envs.training.record.run_directory import device_name

    versions = {name: importlib.metadata.version(name) for name in ("torch", "gymnasium")}
    facts = {
        "Machine": f"{device_name('cpu')}, {available_threads()} cores"
        + ("" if device == "cpu" else f"; {device_name(device)}"),
        "Took": f"{seconds:.0f} s",
        "Versions": f"gpu_envs {gpu_envs.__version__}, torch {versions['torch']}, Gymnasium {versions['gymnasium']}",
        "Seed": str(seed),
    }
    parts = {
        "STYLE": page.read_asset("page.css"),
        "FACTS": _facts(facts.items()),
        "LESSONS": "\n".join(map(_section, lessons)),
        "SPEEDS": summary.table(speeds, heading=True),
    }
    return page.fill_template(page.read_asset("demo.html", "gpu_envs.cli"), parts)


def _section(lesson: Lesson) -> str:
    """What was learnt, and how it looks."""
    from gpu_envs.replays import page

    params = [f"{name} = {value}" for name, value in lesson.config.params.items()]
    facts = [*lesson.rows(), *([("parameters", ", ".join(params))] if params else [])]
    return "\n".join(
        [
            f"<section>\n<h2>{html.escape(lesson.config.env)}</h2>",
            f"<p>{html.escape(registry.spec(lesson.config.env).description)}</p>",
            f"<dl>{_facts(facts)}</dl>",
            '<div class="curves">',
            *(f"<figure>{drawn}</figure>" for drawn in summary.curves(lesson.log)),
            '</div>\n<div class="pair">',
            *map(page.to_iframe, (lesson.before, lesson.after)),
            "</div>\n</section>",
        ]
    )


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in facts)
