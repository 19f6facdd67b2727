"""Measure all results again, in parts of at most ten minutes: ``python -m benchmarks.everything --part N --commit C``.

Without ``--part``: lists the parts, and the results in ``benchmarks/results`` that are of another commit than most.
"""

import argparse
import collections
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.record import RESULTS

PARTS: Mapping[str, Sequence[str]] = {
    "one GPU: steps": ("throughput --device cuda", "custom --device cuda"),
    "one GPU: libraries with NumPy": ("peers --device cuda --only gymnasium sb3 envpool mpe2",),
    "one GPU: libraries on the GPU": ("peers --device cuda --only gymnax jax torch numba warpdrive",),
    "one GPU: particle environments and PPO of other libraries": ("peers --device cuda --only vmas jaxmarl jax_ppo",),
    "one GPU: CartPole": ("training --device cuda --only solve shell presets sampler acting profile",),
    "one GPU: training speed": ("training --device cuda --only throughput tag_throughput --rounds 5 --seconds 2",),
    "one GPU: Tag": ("training --device cuda --only tag_learning",),
    "one GPU: RICE-N and CovidEconomy": ("training --device cuda --only worlds --seeds 3",),
    "one GPU: particle environments": ("training --device cuda --only particles ippo --seeds 5",),
    "one GPU: learning from a buffer": (
        "training --device cuda --only updates replay --seconds 0.7",
        "training --device cuda --only algorithms team_algorithms --seeds 5",
    ),
    "one GPU: SAC of other libraries": ("training --device cuda --only race --seeds 2",),
    "one GPU: drawn parameters, planning": (
        "training --device cuda --only drawn --seeds 5 --rounds 5",
        "training --device cuda --only planning",
    ),
    "one GPU: adapters": ("adapters --device cuda",),
    "two GPUs": ("training --device cuda --only gpus --rounds 4 --seconds 1.5 --seeds 5",),
    "CPU: steps": ("throughput --device cpu", "custom --device cpu"),
    "CPU: libraries": ("peers --device cpu --seconds 0.5",),
    "CPU: CartPole": ("training --device cpu --only solve shell throughput --seeds 5",),
    "CPU: learning from a buffer": ("training --device cpu --only updates efficiency --seeds 5",),
    "CPU: drawn parameters, planning": (
        "training --device cpu --only drawn --seeds 1 --rounds 20",
        "training --device cpu --only trials",
    ),
    "CPU: adapters": ("adapters --device cpu --only sb3 wrappers learning",),
}
"""Commands of each part, after ``python -m benchmarks.``."""


def commits() -> Iterator[tuple[str, str]]:
    """Yield the name and the commit of each result: a file's or, if it has sections, each section's."""
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        for section, result in content.get("sections", {"": content}).items():
            yield f"{path.name} {section}".strip(), result["commit"].rstrip("+")[:7]


def list_parts() -> None:
    """Print the parts, and the results of another commit than most."""
    for number, (name, commands) in enumerate(PARTS.items(), 1):
        print(f"{number:2} {name}: {'; '.join(commands)}")
    found = list(commits())
    ((newest, count),) = collections.Counter(commit for _, commit in found).most_common(1)
    print(f"\n{count} of {len(found)} results are of commit {newest}; the others:")
    for name, commit in found:
        if commit != newest:
            print(f"   {commit} {name}")


def run_part(number: int, more: Sequence[str]) -> int:
    """Run a part's commands with further arguments; return the number of commands that failed."""
    failures = 0
    for command in list(PARTS.values())[number - 1]:
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
    parser.add_argument("--part", type=int, choices=range(1, len(PARTS) + 1), metavar="N", help="number of the part")
    parser.add_argument("--commit", help="the measured commit, for a copy without git")
    options = parser.parse_args()
    if options.part is None:
        list_parts()
    elif run_part(options.part, ["--commit", options.commit] if options.commit else []):
        sys.exit(1)


if __name__ == "__main__":
    main()
