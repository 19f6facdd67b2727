"""Tables of training on several GPUs."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.results import results
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


EXCHANGES = {
    "8, one machine": (5.0, "more than two GPUs need, as each writes to seven others instead of one"),
    "64, eight machines": (70.0, "more than the 46 us that NVIDIA/nccl issue 1244 reports for two machines"),
    "512": (100.0, "an assumption"),
}
"""Assumed microseconds of an exchange between all GPUs, by their number, and the reason."""

MESSAGES = 2
"""Exchanges of a horizon besides its minibatches'."""


def model(_page: Path) -> str:
    """Return the modelled efficiency of many GPUs: an iteration's share of its time with exchanges of gradients."""
    measured, seconds = results("training_cuda", "gpus"), {}
    for epochs in (1, 4):
        run = measured["trained"][f"cartpole_65536_{epochs}"]
        samples = run["settings"]["num_envs"] * run["settings"]["horizon"]
        exchanges = run["settings"]["minibatches"] * epochs + MESSAGES
        seconds[epochs] = (samples * measured["gpus"] / run["alone"], exchanges)
    rows = [
        (
            number,
            f"{us:.0f} us: {reason}",
            *(percent(alone / (alone + 1e-6 * us * exchanges)) for alone, exchanges in seconds.values()),
        )
        for number, (us, reason) in EXCHANGES.items()
    ]
    heads = [
        f"efficiency with {epochs} epoch{'s' * (epochs > 1)}, {1e3 * alone:.2f} ms without exchanges"
        for epochs, (alone, _) in seconds.items()
    ]
    return table(("GPUs", "assumed time of an exchange", *heads), rows)


def batch_sizes(_page: Path) -> str:
    """Return the table of updates and steps until CartPole is solved, by the size of the batch."""
    rows = []
    for entry in results("training_cpu", "batch_sizes").values():
        setting = entry["settings"]
        medians = (statistics.median(run[kind] for run in entry["runs"]) for kind in ("updates", "steps"))
        cells = (f"{setting['num_envs']:,}", setting["learning_rate"], str(setting["minibatches"]))
        rows.append((*cells, f"{entry['solved']} of {entry['seeds']}", *(f"{median:,.0f}" for median in medians)))
    head = ("total replicas", "learning rate", "minibatches", "seeds that reach 475")
    return table((*head, "median of updates", "of steps"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "gpus": gpus,
    "sums": sums,
    "gpus-model": model,
    "batch-sizes": batch_sizes,
}
"""Generators by the name of their block in the pages."""
