"""Tables of steps per second and of compilation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages.results import device, results
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import format_short

TEAMS = {
    "tag_10_100": "TagContinuous-v0, 10 + 100 agents, 10 nearest observed",
    "tag_10_100_all_in_game": "the same, tagged runners stay in the game",
    "tag_5_100_full": "TagContinuous-v0, 5 + 100 agents, all observed",
    "tag_10000_agents": "TagContinuous-v0, 1,000 + 9,000 agents, 10 nearest observed",
    "grid_4_1_100k": "TagGridWorld-v0, 4 + 1 agents",
    "grid_4_1_1m": "the same",
    "grid_4_1_1m_int64": "the same",
    "grid_999_1": "TagGridWorld-v0, 999 + 1 agents, nearest observed",
    "rice": "RiceN-v0, 27 regions, `shared_observations=True`",
    "rice_negotiating": "the same, with negotiation",
    "rice_whole_rows": "RiceN-v0, full observations",
    "covid": "CovidEconomy-v0, 51 governors and a planner",
}
"""Descriptions of the workloads, by the name in the results."""


class Row(NamedTuple):
    """A measurement of single-agent environments."""

    label: str
    on_gpu: bool
    cells: Mapping[str, str]
    """Values by environment."""


def rows() -> list[Row]:
    """Return the measurements of single-agent environments' steps."""
    cuda, cpu = results("throughput_cuda"), results("throughput_cpu")

    def rates(entries: Mapping[str, Any]) -> dict[str, str]:
        return {env: format_short(entry["steps_per_s"]) for env, entry in entries.items()}

    def on_cartpole(text: str) -> dict[str, str]:
        return {"CartPole-v1": text}

    return [
        Row("one step per launch, 4 M replicas, steps/s", True, rates(cuda["single"])),
        Row(
            f"share of the bandwidth of a copy within GPU memory, {cuda['copy_bytes_per_s'] / 1e12:.2f} TB/s",
            True,
            {env: percent(entry["share_of_copy"]) for env, entry in cuda["single"].items()},
        ),
        Row("one step per launch with `statistics=False`, steps/s", True, rates(cuda["without_statistics"])),
        Row("512 random steps per launch, 1 M replicas, steps/s", True, rates(cuda["fused"])),
        Row("time of `step` on the host, 4,096 replicas, us", True, on_cartpole(step_us())),
        Row("a step in a CUDA graph of 32 steps, 4,096 replicas, us", True, on_cartpole(graph_step_us())),
        Row("one step per call, 16,384 replicas on one core, steps/s", False, rates(cpu["vectorised"])),
        Row(
            "ratio to a build without vectorisation",
            False,
            {env: f"{entry['ratio']:.1f}x" for env, entry in cpu["vectorised"].items()},
        ),
        Row(
            "one step of a single environment (Gymnasium's), us",
            False,
            {env: f"{entry['ours']:.1f} ({entry['gymnasium']:.1f})" for env, entry in cpu["single_us"].items()},
        ),
    ]


def step_us() -> str:
    """Return the microseconds of a ``step`` on the host of a GPU."""
    return f"{results('throughput_cuda')['python_us']:.2g}"


def graph_step_us() -> str:
    """Return the microseconds of a step in a CUDA graph."""
    return f"{results('throughput_cuda')['graph_32_us'] / 32:.2g}"


def steps_cuda(_page: Path) -> str:
    """Return the table of single-agent environments on a GPU."""
    return _by_env([row for row in rows() if row.on_gpu])


def steps_cpu(_page: Path) -> str:
    """Return the table of single-agent environments on a CPU."""
    return _by_env([row for row in rows() if not row.on_gpu])


def _by_env(selected: Sequence[Row]) -> str:
    envs = list(selected[0].cells)
    return table(("measurement", *envs), ((row.label, *(row.cells.get(env, "") for env in envs)) for row in selected))


def small_batches(_page: Path) -> str:
    """Return the table of the time of CartPole's ``step`` with up to 1,024 replicas, on a CPU and on a GPU."""
    by_device = {
        device(file): {
            f"{entry['num_envs']:,}": digits(entry["us_per_step"])
            for entry in results(file)["single"]["CartPole-v1"]["step"]
            if entry["num_envs"] <= 1024
        }
        for file in ("scaling_cpu", "scaling_cuda")
    }
    counts = list(next(iter(by_device.values())))
    lines = ((name, *(cells.get(count, "") for count in counts)) for name, cells in by_device.items())
    return table(("us per step, by replicas", *counts), lines)


def teams_cuda(_page: Path) -> str:
    """Return the table of teams on a GPU."""
    return teams("throughput_cuda")


def teams_cpu(_page: Path) -> str:
    """Return the table of teams on one core."""
    return teams("throughput_cpu")


def teams(file: str, env: str = "") -> str:
    """Return the table of a file's teams, or of one environment's."""
    lines = []
    for name, entry in results(file)["teams"].items():
        if not entry["env_id"].startswith(env) or (file == "throughput_cpu" and name.startswith("grid_4_1_1m")):
            continue
        cells = [f"{entry['num_envs']:,}", entry["actions"], percent(entry["in_game"])]
        lines.append((TEAMS[name], *cells, digits(entry["us_per_step"]), format_short(entry["env_steps_per_s"])))
    return table(("environment", "replicas", "actions", "active agents", "us/step", "env-steps/s"), lines)


def compilation(_page: Path) -> str:
    """Return the table of the time to compile each environment, and to load it from the cache."""
    files = ("throughput_cuda", "throughput_cpu")
    heads = [f"{device(file)}, {what}, s" for file in files for what in ("compiled", "from the cache")]
    lines = []
    for env in results("throughput_cuda")["compile_s"]:
        entries = [results(file)["compile_s"].get(env) for file in files]
        cells = [("", "") if entry is None else (f"{entry['cold']:.2f}", f"{entry['cached']:.3f}") for entry in entries]
        lines.append((env, *cells[0], *cells[1]))
    return table(("environment", *heads), lines)


def compile_range() -> str:
    """Return the shortest and the longest compilation of an environment, on a GPU and on a CPU."""
    entries = [e for file in ("throughput_cuda", "throughput_cpu") for e in results(file)["compile_s"].values()]
    seconds = [entry["cold"] for entry in entries]
    return f"{min(seconds):.1f} to {max(seconds):.1f} s"


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "steps-cuda": steps_cuda,
    "steps-cpu": steps_cpu,
    "small-batches": small_batches,
    "teams-cuda": teams_cuda,
    "teams-cpu": teams_cpu,
    "compilation": compilation,
}
"""Generators by the name of their block in the pages."""
