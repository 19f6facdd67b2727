"""Measure all results again, in parts of at most ten minutes: ``python -m benchmarks.everything --part N``.

Without ``--part``, lists the parts by the device that they need, and the results of another commit than most. A part
replaces its files or sections in ``benchmarks/results`` and keeps the others, so parts may run in any order and on
different machines. Only the last part takes longer than ten minutes: half an hour, most of it in SB3's SAC. Further
options go to the part's commands, such as ``--jax-python PATH`` of ``benchmarks.training``. At the end, ``python -m
benchmarks.plot`` draws the plots, and ``python -m benchmarks.pages`` updates the pages.
"""

import argparse
import collections
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.record import RESULTS


class Part(NamedTuple):
    """Commands that run one after the other on one machine."""

    needs: str
    """The device that the part needs."""
    measures: str
    """The measured quantities, in a few words."""
    commands: tuple[str, ...]
    """The commands, after ``python -m benchmarks.``."""
    libraries: str = ""
    """Packages of other libraries to install."""


GPU, TWO_GPUS, CPU = "one GPU", "two GPUs of one host", "a CPU"

PARTS = (
    Part(GPU, "steps, compilation, custom environments", ("throughput --device cuda", "custom --device cuda")),
    Part(
        GPU,
        "libraries with NumPy, on the host",
        ("peers --device cuda --only gymnasium sb3 envpool mpe2",),
        "stable-baselines3 envpool mpe2",
    ),
    Part(
        GPU,
        "libraries on the GPU",
        ("peers --device cuda --only gymnax jax torch numba warpdrive",),
        "jax[cuda13] gymnax numba-cuda rl-warp-drive gym",
    ),
    Part(
        GPU,
        "particle environments and PPO of other libraries",
        ("peers --device cuda --only vmas jaxmarl jax_ppo",),
        "jax[cuda13] vmas jaxmarl",
    ),
    Part(
        GPU,
        "training of CartPole and of the presets, profiles",
        ("training --device cuda --only solve shell presets sampler acting profile",),
        "jax[cuda13]",
    ),
    Part(
        GPU,
        "training speed",
        ("training --device cuda --only throughput tag_throughput populations --rounds 5 --seconds 2",),
        "jax[cuda13]",
    ),
    Part(GPU, "policies with memory", ("training --device cuda --only recurrent",), "jax[cuda13]"),
    Part(GPU, "training of Tag", ("training --device cuda --only tag_learning",)),
    Part(GPU, "training of RICE-N and CovidEconomy", ("training --device cuda --only worlds --seeds 3",)),
    Part(
        GPU,
        "training in particle environments",
        ("training --device cuda --only particles ippo --seeds 5",),
        "jax[cuda13] jaxmarl",
    ),
    Part(
        GPU,
        "learning from a buffer, PQN",
        (
            "training --device cuda --only updates replay --seconds 0.7",
            "training --device cuda --only algorithms",
            "training --device cuda --only team_algorithms --seeds 5",
        ),
    ),
    Part(
        GPU,
        "SAC of other libraries",
        ("training --device cuda --only race --seeds 2",),
        "jax[cuda13] rejax sbx-rl skrl",
    ),
    Part(
        GPU,
        "drawn parameters, planning, callbacks",
        (
            "training --device cuda --only drawn --seeds 5 --rounds 5",
            "training --device cuda --only planning callbacks",
        ),
    ),
    Part(GPU, "adapters and wrappers", ("adapters --device cuda",), "stable-baselines3 torchrl skrl rsl-rl-lib"),
    Part(
        TWO_GPUS,
        "training on two GPUs",
        ("training --device cuda --only gpus --rounds 4 --seconds 1.5 --seeds 5",),
    ),
    Part(CPU, "steps, compilation, custom environments", ("throughput --device cpu", "custom --device cpu")),
    Part(
        CPU,
        "other libraries",
        ("peers --device cpu --seconds 0.5",),
        "jax gymnax stable-baselines3 envpool vmas jaxmarl mpe2",
    ),
    Part(
        CPU,
        "training of CartPole",
        ("training --device cpu --only solve shell batch_sizes throughput engines populations --seeds 5",),
        "jax stable-baselines3",
    ),
    Part(
        CPU,
        "learning from a buffer",
        ("training --device cpu --only updates",),
        "stable-baselines3 sbx-rl",
    ),
    Part(
        CPU,
        "drawn parameters, planning",
        ("training --device cpu --only drawn --seeds 1 --rounds 20", "training --device cpu --only trials curriculum"),
    ),
    Part(
        CPU,
        "adapters and wrappers",
        ("adapters --device cpu --only sb3 wrappers learning",),
        "stable-baselines3 torchrl skrl rsl-rl-lib",
    ),
    Part(CPU, "sample efficiency", ("training --device cpu --only efficiency --seeds 5",), "stable-baselines3"),
)
"""All parts, grouped by device."""


def commits() -> Iterator[tuple[str, str]]:
    """Yield the name and the commit of each result: a file's or, if it has sections, each section's."""
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        for section, result in content.get("sections", {"": content}).items():
            yield f"{path.name} {section}".strip(), result["commit"].rstrip("+")[:7]


def list_parts() -> None:
    """Print the parts, and the results of another commit than most."""
    for needs, parts in itertools.groupby(enumerate(PARTS, 1), key=lambda numbered: numbered[1].needs):
        print(f"On {needs}:")
        for number, part in parts:
            print(f"{number:4}  {part.measures}" + (f"; install {part.libraries}" if part.libraries else ""))
            for command in part.commands:
                print(f"        python -m benchmarks.{command}")
    found = list(commits())
    ((newest, count),) = collections.Counter(commit for _, commit in found).most_common(1)
    print(f"\n{count} of {len(found)} results are of commit {newest}; the others:")
    for name, commit in found:
        if commit != newest:
            print(f"   {commit} {name}")


def run_part(number: int, more: Sequence[str]) -> int:
    """Run a part's commands with further arguments; return the number of commands that failed."""
    failures = 0
    for command in PARTS[number - 1].commands:
        start = time.monotonic()
        module, *arguments = command.split()
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *arguments, *more], check=False).returncode
        failures += code != 0
        state = "done" if code == 0 else f"failed ({code})"
        print(f"{state} in {time.monotonic() - start:.0f} s: {command}", flush=True)
    return failures


def main() -> None:
    """Run a part, or list all."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.everything", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", type=int, choices=range(1, len(PARTS) + 1), metavar="N", help="measure this part; default: list all"
    )
    parser.add_argument("--commit", help="the measured commit, for a copy without git")
    options, more = parser.parse_known_args()
    if options.part is None:
        if more:
            parser.error(f"{' '.join(more)} needs a part to pass it to: add --part N")
        list_parts()
    elif run_part(options.part, [*more, *(["--commit", options.commit] if options.commit else [])]):
        sys.exit(1)


if __name__ == "__main__":
    main()
