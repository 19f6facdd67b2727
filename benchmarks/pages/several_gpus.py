"""Tables of training on several GPUs."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.figures import results
from benchmarks.pages.tables import percent, table
from benchmarks.record import short


def gpus(_page: Path) -> str:
    """Two GPUs together."""
    found = results("training_cuda", "gpus")
    named = {
        "cartpole_65536_1": "PPO on CartPole, 65,536 replicas a GPU x 32, 1 epoch",
        "cartpole_65536_4": "the same, 4 epochs",
        "cartpole_4096_4": "the same, 4 epochs, 4,096 replicas a GPU",
        "tag_2000": "A2C on TagContinuous, 10 + 100 agents, 2,000 replicas a GPU",
    }
    rows = [
        (what, f"{short(found['trained'][name]['together'])} steps/s", percent(found["trained"][name]["share"], 1))
        for name, what in named.items()
    ]
    stepped = found["stepped"]
    alone = f"{short(statistics.median(stepped['at_once']))} steps/s"
    rows.append(("environments alone, CartPole, 4 M replicas a GPU", alone, percent(stepped["share"], 1)))
    return table(("what", "together", "share"), rows)


def sums(_page: Path) -> str:
    """What two GPUs tell each other."""
    found = results("training_cuda", "gpus")
    of, solved = found["sums"], found["solved"]
    seeds = len(solved["runs_s"]["together"])
    solve = f"CartPole until its return is 475, 8,192 replicas in all; median of {seeds} seeds"
    return table(
        ("what", "two GPUs", "one"),
        [
            (f"the sum of CartPole's {of['numbers']:,} numbers, in a graph", f"{of['gather_us']:.1f} us", ""),
            ("sum, norm and step of Adam", f"{of['together_us']:.1f} us", f"{of['alone_us']:.1f} us"),
            (solve, f"{solved['together_s']:.3f} s", f"{solved['alone_s']:.3f} s"),
        ],
    )


MADE: Mapping[str, Callable[[Path], str]] = {"gpus": gpus, "sums": sums}
"""By the name in the pages."""
