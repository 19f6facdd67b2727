"""The measurements on an environment's page."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.environments import specs_of
from benchmarks.pages.results import device, results
from benchmarks.pages.steps import rows, teams
from benchmarks.pages.tables import table
from benchmarks.pages.training import final_returns, survival, worlds_of


def measured(page: Path) -> str:
    """Return the measurements of a page's environment."""
    spec = specs_of(page)[0]
    return _team(spec.id) if spec.has_team else _single(spec.id)


def _single(env: str) -> str:
    lines = [
        (row.label, *((row.cells[env], "") if row.on_gpu else ("", row.cells[env])))
        for row in rows()
        if env in row.cells
    ]
    files = ("throughput_cuda", "throughput_cpu")
    compiled = [results(file)["compile_s"][env] for file in files]
    on_gpu, on_cpu = (f"{entry['cold']:.2f} ({entry['cached']:.3f})" for entry in compiled)
    lines.append(("compilation (loading from the cache), s", on_gpu, on_cpu))
    trained = results("training_cuda", "presets").get(env)
    if trained is not None:
        means, _, seconds = final_returns(trained)
        lines.append((f"training with the preset, median of {len(trained['runs'])} seeds, s", seconds, ""))
        lines.append(("mean return over 1,000 new episodes with sampled actions, worst and best seed", means, ""))
    if env == "CartPole-v1":
        for section, label in (("solve", "training to a mean return of 475, s"), ("shell", "the same as a command, s")):
            medians = (results(f"training_{name}", section)["ours"]["median_s"] for name in ("cuda", "cpu"))
            on_gpu, on_cpu = ("" if median is None else f"{median:.2g}" for median in medians)
            lines.append((label, on_gpu, on_cpu))
    return table(("measurement", *map(device, files)), lines)


def _team(env: str) -> str:
    compiled = results("throughput_cuda")["compile_s"][env]
    parts = [
        f"Steps on an {device('throughput_cuda')}:",
        teams("throughput_cuda", env),
        f"There, compilation takes {compiled['cold']:.2f} s, and loading from the cache "
        f"{1000 * compiled['cached']:.0f} ms.",
    ]
    if any(entry["env_id"] == env for entry in results("throughput_cpu")["teams"].values()):
        parts += [f"Steps on one core of an {device('throughput_cpu')}:", teams("throughput_cpu", env)]
    if env in results("training_cuda", "tag_learning"):
        parts += [
            "Training of one team against a random one: the steps that a runner survives, as a mean over 1,000\n"
            "episodes. A cell has the lowest and the highest mean of the seeds, and the median training time.\n"
            "Networks run in kernels of gpu_envs, or in torch:",
            survival(env),
        ]
    else:
        parts += [
            "Training with the presets: the mean return over the seeds with the half width of its 95 % confidence\n"
            "interval, compared with random actions and the best of a grid of constant actions:",
            worlds_of(env),
        ]
    return "\n\n".join(parts)


GENERATORS: Mapping[str, Callable[[Path], str]] = {"measured": measured}
"""Generators by the name of their block in the pages."""
