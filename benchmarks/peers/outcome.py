"""Results of a peer's workloads, compared with gpu_envs: measured, written and printed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.peers import process
from benchmarks.peers.workloads import Peer, Workload
from benchmarks.record import format_short

ResultLine = Mapping[str, Any]
"""A line of a peer's output: the result of a workload."""


class PeerResults(NamedTuple):
    """The results of a peer."""

    versions: dict[str, str]
    lines: dict[Workload, ResultLine]
    """The results by workload."""
    errors: list[str]
    """Why results are missing."""


def measure_peer(python: str, peer: Peer, workloads: Sequence[Workload], seconds: float, limit_s: float) -> PeerResults:
    """Measure workloads of a peer.

    Args:
        python: The interpreter.
        peer: The peer.
        workloads: The workloads to measure.
        seconds: The duration of each measurement.
        limit_s: Seconds until a process is killed.
    """
    results = PeerResults({}, {}, [])
    missing = process.missing_modules(python, tuple(peer.needs))
    if missing:
        results.errors.append(f"not installed: pip install {' '.join(peer.needs[name] for name in missing)}")
        return results
    for batch in [[work] for work in workloads] if peer.separate_processes else [list(workloads)]:
        output = process.run_workloads(python, peer.module, batch, seconds, limit_s)
        for line in output.lines:
            results.versions.update(line.get("versions", {}))
            if "work" in line:
                results.lines[batch[line["work"]]] = line
        if output.error is not None and output.error not in results.errors:
            results.errors.append(output.error)
    return results


def format_section(label: str, results: PeerResults, ours: Mapping[Workload, ResultLine]) -> dict[str, Any]:
    """Return a section of the results file.

    Args:
        label: The peer's name in plots.
        results: The peer's results.
        ours: The results of gpu_envs.
    """
    rows = [row(work, line, ours.get(work.ours)) for work, line in results.lines.items()]
    return {"label": label, "versions": results.versions, "rows": rows, "trouble": results.errors}


def row(work: Workload, line: ResultLine, ours: ResultLine | None) -> dict[str, Any]:
    """Return the row of a workload; ``ours_env_steps_per_s`` is the rate of gpu_envs on the same workload and run."""
    fields: dict[str, Any] = {
        "task": work.task,
        "way": work.way,
        "device": work.device,
        "cores": work.cores if work.device == "cpu" else None,
        "autoreset": work.autoreset,
        "variant": work.variant or None,
        "num_envs": work.num_envs,
        "agents": work.agents,
    }
    if "failed" in line:
        return fields | {"failed": line["failed"]}
    rate = work.num_envs / line["seconds"]
    our_rate = work.num_envs / ours["seconds"] if ours is not None and "seconds" in ours else None
    return fields | {
        "us_per_step": line["seconds"] * 1e6,
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * work.agents,
        "prepare_s": line["prepare_s"],
        "ours_env_steps_per_s": our_rate,
    }


def format_row(fields: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    name = ", ".join(filter(None, (fields["task"], fields["variant"], fields["way"])))
    where = fields["device"] + (f", {fields['cores']} cores" if fields["cores"] == "all" else "")
    count = f"{fields['num_envs']:,}" + (f" x {fields['agents']}" if fields["agents"] > 1 else "")
    if "failed" in fields:
        return f"  {name}, {count} ({where}): failed: {fields['failed']}"
    rate, ours = fields["env_steps_per_s"], fields["ours_env_steps_per_s"]
    comparison = f"; gpu_envs {format_short(ours)}, {ours / rate:,.1f}x" if ours else ""
    prepare = f"ready in {fields['prepare_s']:.2f} s"
    return f"  {name}, {count} ({where}): {format_short(rate)} env-steps/s, {prepare}{comparison}"
