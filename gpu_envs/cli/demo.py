"""``gpu-envs demo``: train two environments, and write a page with replays, learning curves and speeds."""

import argparse
import dataclasses
import html
import importlib.metadata
import math
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import gymnasium

import gpu_envs
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.background import available_threads
from gpu_envs.cli.bench import default_replicas, format_rate, rate, workloads
from gpu_envs.cli.parser import OK, Parser, refuse_arguments
from gpu_envs.cli.report import echo, file_size
from gpu_envs.extras import extra
from gpu_envs.pages import fill_template, read_asset
from gpu_envs.registry import catalog as registry
from gpu_envs.tables import html_facts, html_table, text_table
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.record import summary
from gpu_envs.training.run import Run

if TYPE_CHECKING:
    from gpu_envs.replays import Replay
    from gpu_envs.training import Result

_DEMO = """Train CartPole and the taggers of Tag, in half a minute on two cores or in
seconds on a GPU; measure the steps per second of CartPole, here and in
Gymnasium; and write one page with replays, learning curves and speeds. Without
a GPU the game of Tag is smaller.

Writes no other files."""

_EXAMPLES = """examples:
  gpu-envs demo
  gpu-envs demo --device cpu --out here.html --no-open"""

_CARTPOLE, _TAG = "CartPole-v1", "TagContinuous-v0"

_SHOWN: Mapping[str, Mapping[str, Any]] = {
    _CARTPOLE: {"replicas": 4, "steps": 500},
    _TAG: {"replicas": 1, "episodes": 1},
}
"""The length of each environment's replay."""

_GYMNASIUM_ENVS: Mapping[str, tuple[str, int]] = {
    "SyncVectorEnv": ("sync", 64),
    "CartPoleVectorEnv": ("vector_entry_point", 2**14),
}
"""Gymnasium's vectorised environments: vectorization mode, and the number of replicas at which each is fastest."""

_SECONDS = 0.5
"""Approximate duration of a measurement."""


@final
@dataclasses.dataclass(frozen=True)
class TrainingExample:
    """A trained environment: settings, result, log and replays."""

    config: Run
    result: "Result"
    log: Mapping[str, Sequence[float]]
    before: "Replay"
    """A replay of random actions."""
    after: "Replay"
    """A replay of the trained policies."""

    def rows(self) -> list[tuple[str, str]]:
        """Return rows of text: the return of the trained role, and steps and seconds of training."""
        name = next(name for name in self.log if name.rpartition("/")[2] == "return")
        returns = [value for value in self.log[name] if not math.isnan(value)]
        target = "" if self.config.target_return is None else f", target {self.config.target_return:g}"
        text = f"{returns[0]:.4g} at first, {returns[-1]:.4g} at the end{target}" if returns else "no episode ended"
        return [
            ("return" if name == "return" else f"return of {name.rpartition('/')[0]}", text),
            ("training", f"{self.result.steps:,} steps in {self.result.seconds:.2f} s"),
        ]


def demo(argv: Sequence[str]) -> int:
    """``gpu-envs demo``: train two environments, write a page with replays and speeds; return the exit code."""
    parser = _parser()
    args, extras = parser.parse_known_args(list(argv))
    if args.help:
        return parser.show_help()
    refuse_arguments(parser, extras)
    parser.check_minimum(args, "seed", 0)
    parser.check_minimum(args, "total_steps", 1)
    with extra("train", "torch"):
        import torch  # noqa: F401  # raises now if torch is not installed

        from gpu_envs.replays import page
        from gpu_envs.replays.files import check_folder, replacing
    out, start = Path(args.out), time.perf_counter()
    page.check(out)
    check_folder(out)
    device = resolve_device(args.device)
    open_backend(device)  # raises if the device is unusable
    examples = []
    with tempfile.TemporaryDirectory(prefix="gpu-envs-demo-") as folder:
        presets = ("cpu", "small") if device == "cpu" else ("default", "taggers")
        for env, preset in zip((_CARTPOLE, _TAG), presets, strict=True):
            echo(f"Training {env}")
            example = _train_example(env, preset, Path(folder) / env, device, args)
            if example.result.reason == "interrupted":
                raise KeyboardInterrupt
            examples.append(example)
            echo(text_table([(f"  {name}", text) for name, text in example.rows()]))
    echo(f"Measuring {_CARTPOLE}, here and in Gymnasium")
    speeds = _speeds(device)
    for row in speeds:
        echo("  {:29}  {:>9}  {:>9}".format(*row))
    with replacing(out) as partial:
        partial.write_text(_page(examples, speeds, device, args.seed, time.perf_counter() - start), encoding="utf-8")
    opened = args.open and _screen() and webbrowser.open(out.absolute().as_uri())
    echo(f"page: {out} ({file_size(out)}){', opened in the browser' if opened else ''}")
    return OK


def _parser() -> Parser:
    parser = Parser("gpu-envs demo", "gpu-envs demo [options]", _DEMO, _EXAMPLES)
    parser.add_argument("--out", default="demo.html", metavar="FILE", help="the page (default: demo.html)")
    parser.add_device()
    parser.add_integer("--seed", "seed of training and replays (default: 0)", 0)
    steps = "maximum steps of each training; none: the preset's (default: none)"
    parser.add_integer("--total-steps", steps, optional=True)
    no_open = "do not open the page in a browser (default: open it if there is a screen)"
    parser.add_argument("--no-open", dest="open", action="store_false", help=no_open)
    parser.add_progress()
    parser.add_debug()
    return parser


def _train_example(env: str, preset: str, folder: Path, device: str, args: argparse.Namespace) -> TrainingExample:
    """Train a preset in ``folder``; return settings, result, log, and replays of random actions and of the policies."""
    from gpu_envs.replays import record
    from gpu_envs.training import train

    total_steps = {} if args.total_steps is None else {"total_steps": args.total_steps}
    common: dict[str, Any] = {"device": device, "seed": args.seed}
    run_options = {"run_dir": str(folder), "log_interval": 1, "checkpoint_interval": 0, **common}
    config = Run.from_flat({"env": env} | dict(PRESETS[env][preset]) | total_steps | run_options)
    result = train(config, progress=args.progress)
    before = record(env, params=config.params, **_SHOWN[env], **common)
    after = record(folder, **_SHOWN[env], **common)
    before = dataclasses.replace(before, title=f"{env}: random actions", facts={})
    after = dataclasses.replace(after, title=f"{env}: after {result.steps:,} steps of training", facts={})
    return TrainingExample(config, result, summary.read_log(folder / "log.csv"), before, after)


def _speeds(device: str) -> list[tuple[str, ...]]:
    """Measure CartPole in Gymnasium and in gpu_envs; return the rows of a table, with its header."""
    rates = [
        (f"Gymnasium, {name}", count, _gymnasium_cartpole_rate(mode, count))
        for name, (mode, count) in _GYMNASIUM_ENVS.items()
    ]
    spec = registry.spec(_CARTPOLE)
    count = default_replicas(spec, {}, device)
    for name, (work, wait, steps) in zip(("one step", "many steps"), workloads(spec, count, device, {}), strict=True):
        rates.append((f"gpu_envs, {name} per call", count, rate(work, wait, steps, _SECONDS)))
    return [("", "replicas", "steps/s"), *((name, f"{count:,}", format_rate(speed)) for name, count, speed in rates)]


def _gymnasium_cartpole_rate(vectorization_mode: str, count: int) -> float:
    """Measure Gymnasium's CartPole with ``count`` replicas; return the steps per second of all together."""
    env: Any = gymnasium.make_vec(_CARTPOLE, count, vectorization_mode=vectorization_mode)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]

    def take_steps(times: int) -> None:
        for t in range(times):
            env.step(actions[t % len(actions)])

    speed = rate(take_steps, lambda: None, count, _SECONDS)
    env.close()
    return speed


def _screen() -> bool:
    """Return whether there is a screen for a browser."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _page(
    examples: Sequence[TrainingExample], speeds: Sequence[tuple[str, ...]], device: str, seed: int, seconds: float
) -> str:
    """Return the page's HTML."""
    from gpu_envs.training.record.run_directory import device_name

    versions = {name: importlib.metadata.version(name) for name in ("torch", "gymnasium")}
    machine = [
        f"{device_name('cpu')}, {available_threads()} cores",
        *([] if device == "cpu" else [device_name(device)]),
    ]
    facts = {
        "Time of the demo": f"{seconds:.0f} s",
        "Versions": f"gpu_envs {gpu_envs.__version__}, torch {versions['torch']}, Gymnasium {versions['gymnasium']}",
        "Seed": str(seed),
    }
    parts = {
        "TITLE": "gpu_envs: a demo",
        "FACTS": html_facts(facts.items()),
        "EXAMPLES": "\n".join(map(_section, examples)),
        "MACHINE": html.escape(" and ".join(machine)),
        "SPEEDS": html_table(speeds, heading=True),
    }
    return fill_template(read_asset("demo.html", "gpu_envs.cli"), parts)


def _section(example: TrainingExample) -> str:
    """Return the HTML of one environment: replays, learning curves and facts."""
    from gpu_envs.replays import page
    from gpu_envs.training.record.reports import WINDOW

    config = example.config
    params = [f"{name} = {value}" for name, value in config.params.items()]
    facts = [*example.rows(), *([("parameters", ", ".join(params))] if params else [])]
    return "\n".join(
        [
            f"<section>\n<h2>{html.escape(config.env)}</h2>",
            f"<p>{html.escape(registry.spec(config.env).description)}</p>",
            '<div class="pair">',
            *map(page.to_iframe, (example.before, example.after)),
            f'</div>\n<h3>Learning curves: means of the last {WINDOW} episodes</h3>\n<div class="curves">',
            *(f"<figure>{drawn}</figure>" for drawn in summary.curves(example.log)),
            f"</div>\n{html_facts(facts)}\n</section>",
        ]
    )
