"""Tables of training on several GPUs."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.figures import results
from benchmarks.pages.tables import percent, table
from benchmarks.record import format_short


def gpus(_page: Path) -> str:
    """Return the table of training on two GPUs."""
    measured = results("training_cuda", "gpus")
    descriptions = {
        "cartpole_65536_1": "PPO on CartPole, 65,536 replicas per GPU x 32, 1 epoch",
        "cartpole_65536_4": "the same, 4 epochs",
        "cartpole_4096_4": "the same, 4 epochs, 4,096 replicas per GPU",
        "tag_2000": "A2C on TagContinuous, 10 + 100 agents, 2,000 replicas per GPU",
    }
    rows = [
        (
            label,
            f"{format_short(measured['trained'][name]['together'])} steps/s",
            percent(measured["trained"][name]["share"], 1),
        )
        for name, label in descriptions.items()
    ]
    stepped = measured["stepped"]
    alone = f"{format_short(statistics.median(stepped['at_once']))} steps/s"
    rows.append(("environments without training, CartPole, 4 M replicas per GPU", alone, percent(stepped["share"], 1)))
    return table(("workload", "two GPUs", "share of separate runs"), rows)


def sums(_page: Path) -> str:
    """Return the table of the gradient sums of two GPUs."""
    measured = results("training_cuda", "gpus")
    sums, solved = measured["sums"], measured["solved"]
    seeds = len(solved["runs_s"]["together"])
    solve = f"CartPole until its return is 475, 8,192 replicas in total; median of {seeds} seeds"
    return table(
        ("measurement", "two GPUs", "one GPU"),
        [
            (
                f"the sum of CartPole's {sums['numbers']:,} gradients, in a CUDA graph",
                f"{sums['gather_us']:.1f} us",
                "",
            ),
            ("sum, norm and step of Adam", f"{sums['together_us']:.1f} us", f"{sums['alone_us']:.1f} us"),
            (solve, f"{solved['together_s']:.3f} s", f"{solved['alone_s']:.3f} s"),
        ],
    )


GENERATORS: Mapping[str, Callable[[Path], str]] = {"gpus": gpus, "sums": sums}
"""Generators by the name of their block in the pages."""
