"""What came of a peer's work: asked for, put beside ours, written down and told."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.peers import process
from benchmarks.peers.works import Peer, Work
from benchmarks.record import short

Answered = Mapping[str, Any]
"""What a peer's process said of a piece of work."""


class Outcome(NamedTuple):
    """The results of a peer."""

    versions: dict[str, str]
    lines: dict[Work, Answered]
    """Its answers, by the work that it came to."""
    trouble: list[str]
    """Why it did not come to the rest."""


def outcome(python: str, peer: Peer, works: Sequence[Work], seconds: float, limit_s: float) -> Outcome:
    """Has a peer do some work.

    Args:
        python: Its interpreter.
        peer: Who.
        works: What it shall do.
        seconds: Of each measurement.
        limit_s: Seconds until a process of its is stopped.
    """
    found = Outcome({}, {}, [])
    missing = process.lacking(python, tuple(peer.needs))
    if missing:
        found.trouble.append(f"not installed: pip install {' '.join(peer.needs[name] for name in missing)}")
        return found
    for part in [[work] for work in works] if peer.separate else [list(works)]:
        answer = process.answer(python, peer.module, part, seconds, limit_s)
        for line in answer.lines:
            found.versions.update(line.get("versions", {}))
            if "work" in line:
                found.lines[part[line["work"]]] = line
        if answer.trouble is not None and answer.trouble not in found.trouble:
            found.trouble.append(answer.trouble)
    return found


def written(label: str, found: Outcome, ours: Mapping[Work, Answered]) -> dict[str, Any]:
    """A section of the results.

    Args:
        label: Whose, for pictures.
        found: What it did.
        ours: What we did.
    """
    rows = [row(work, line, ours.get(work.same)) for work, line in found.lines.items()]
    return {"label": label, "versions": found.versions, "rows": rows, "trouble": found.trouble}


def row(work: Work, line: Answered, ours: Answered | None) -> dict[str, Any]:
    """What is written down of a piece of work; ``ours_env_steps_per_s`` is our rate in the same run, of the same."""
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
    beside = work.num_envs / ours["seconds"] if ours is not None and "seconds" in ours else None
    return fields | {
        "us_per_step": line["seconds"] * 1e6,
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * work.agents,
        "prepare_s": line["prepare_s"],
        "ours_env_steps_per_s": beside,
    }


def told(fields: Mapping[str, Any]) -> str:
    """A row in a line."""
    name = ", ".join(filter(None, (fields["task"], fields["variant"], fields["way"])))
    where = fields["device"] + (f", {fields['cores']} cores" if fields["cores"] == "all" else "")
    count = f"{fields['num_envs']:,}" + (f" x {fields['agents']}" if fields["agents"] > 1 else "")
    if "failed" in fields:
        return f"  {name}, {count} ({where}): failed: {fields['failed']}"
    rate, ours = fields["env_steps_per_s"], fields["ours_env_steps_per_s"]
    compared = f"; ours {short(ours)}, {ours / rate:,.1f}x" if ours else ""
    return f"  {name}, {count} ({where}): {short(rate)} env-steps/s, ready in {fields['prepare_s']:.2f} s{compared}"
