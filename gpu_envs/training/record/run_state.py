"""The state of a run: taken apart for its checkpoint, put together again, and compared with the run's own."""

import functools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_envs.errors import CheckpointError
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.checkpoint import Checkpoints, read_buffer
from gpu_envs.training.record.structure import Maybe, check_structure

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxtuple = _SHORT.maxlist = 20

_OWN = (
    *("environment", "observations", "shared_observations", "alive", "action_masks", "begun_midway", "random"),
    "buffers",
)
"""What each of several processes has of its own, beside discounted returns that it follows and what it remembers."""


def check_finite(weights: Mapping[str, torch.Tensor], policy: str) -> None:
    """Refuses a policy whose weights are NaN or infinite."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"the policy {policy} has weights that are NaN or infinite ({name}): its training diverged, so take an "
                "earlier checkpoint, or train anew"
            )


def check_fits(expected: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    """Refuses a checkpoint of another environment, parameters or shapes of weights; names everything that differs."""
    absent = object()
    differences = []
    for name in expected | checkpoint:
        here, there = (comparable(side.get(name, absent)) for side in (expected, checkpoint))
        if here != there:
            shown = ["none" if value is absent else _SHORT.repr(value) for value in (here, there)]
            differences.append(f"  {name}: this run has {shown[0]}, the checkpoint {shown[1]}")
    if differences:
        raise CheckpointError("the checkpoint does not fit this run:\n" + "\n".join(differences))


def comparable(value: Any) -> Any:
    """Lists as tuples, arrays as nested tuples: JSON and checkpoints do not keep the difference."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return comparable(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, Mapping):
        return {name: comparable(item) for name, item in value.items()}
    return value


def processes_of(state: Mapping[str, Any]) -> int:
    """How many processes gave a state together."""
    return int(state["describes"]["gpus"])


def _without_buffers(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Mapping[str, torch.Tensor]]]:
    """A trainer's state without its learners' replay buffers, and those by learner."""
    own = {name: saved["own"] for name, saved in state["learners"].items() if saved.get("own") is not None}
    buffers = {name: memory["replay"] for name, memory in own.items() if memory["replay"] is not None}
    return _following(state, {}, {name: {**memory, "replay": None} for name, memory in own.items()}), buffers


def with_buffers(state: Mapping[str, Any], path: Path, rank: int) -> Mapping[str, Any]:
    """A process's state with replay buffers that are read from beside a checkpoint when learners take them over."""
    state = _state_of(state, rank)
    checksums, own = state.get("buffers") or {}, {}
    for name, saved in state["learners"].items():
        if saved.get("own") is not None and name in checksums:
            own[name] = {**saved["own"], "replay": functools.partial(read_buffer, path, rank, name, checksums[name])}
    return _following(state, {}, own)


def own_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a process has of its own in its trainer's state."""
    learners: Mapping[str, Mapping[str, Any]] = state["learners"]
    running = {
        name: saved["rewards"]["running"] for name, saved in learners.items() if saved.get("rewards") is not None
    }
    memories = {name: saved["own"] for name, saved in learners.items() if "own" in saved}
    return {name: state[name] for name in _OWN} | {"running": running, "memories": memories}


def save_together(
    checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], group: Group, *, keep_buffers: bool
) -> None:
    """Writes each process's buffers, and then, in a file by which the checkpoint is whole, what all have else."""
    rest, buffers = _without_buffers(state)
    rest["buffers"] = checkpoints.save_buffers(iteration, group.rank, buffers) if buffers and keep_buffers else {}
    ranks = group.collected(own_part(rest)) if group.size > 1 else []  # by then all have written
    if group.rank == 0:
        checkpoints.save(iteration, rest | ({"ranks": ranks} if ranks else {}))
    group.told(None)  # nobody ends before the first one has written


def _state_of(saved: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The state of one process, of what its trainer gave, or what several have kept together."""
    if "ranks" not in saved:
        return dict(saved)
    own = saved["ranks"][rank]
    state = _following(saved, own["running"], own["memories"]) | {name: own[name] for name in _OWN if name in own}
    del state["ranks"]
    return state


def fitting(expected: Mapping[str, Any], saved: Mapping[str, Any], rank: int, *, same: bool) -> dict[str, Any]:
    """Returns the state of a process in what a trainer's ``state`` gave or ``save_together`` wrote, if it fits.

    ``expected`` is the state that the process has now, as an example. Where not as many processes train as then
    (``same``), episodes begin anew.
    """
    now, then = ({**state["describes"], "gpus": None} for state in (expected, saved))
    if then.get("format") != now["format"]:  # format 1 described fewer settings
        now, then = ({name: side[name] for name in now.keys() & then.keys()} for side in (now, then))
    check_fits(now, then)
    state = _state_of(saved, rank) if same else _anew(saved)
    # what describes the run was compared; environments and random numbers check for themselves, and lists are of RUN
    apart = ("describes", "steps", "environment", "random", "windows", "metrics", "players", *(() if same else _OWN))
    example, checked = (_without_buffers(each)[0] for each in (expected if same else _anew(expected), state))
    example = {name: part for name, part in example.items() if name not in apart}
    example |= {part: dict.fromkeys(expected[part], list) for part in ("windows", "metrics")}
    streams = {name: player["stream"] for name, player in expected["players"].items()}
    example["players"] = {name: {"stream": stream, "frozen": Maybe(dict)} for name, stream in streams.items()}
    check_structure(example, checked, "its state")
    for name, learner in state["learners"].items():
        check_finite(learner["module"], name)
    return state


def _anew(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The same where episodes begin anew, in whatever process."""
    scales = {name: state.get("rewards") for name, state in saved["learners"].items()}
    zeros = {name: torch.zeros_like(scale["running"]) for name, scale in scales.items() if scale is not None}
    return _following(saved, zeros, dict.fromkeys(saved["learners"]))


def _following(
    saved: Mapping[str, Any], running: Mapping[str, torch.Tensor], memories: Mapping[str, Any]
) -> dict[str, Any]:
    """A state whose learners follow these discounted returns, and remember this."""
    learners = {name: dict(state) for name, state in saved["learners"].items()}
    for name, state in learners.items():
        if state.get("own") is not None and name in memories:
            state["own"] = memories[name]
        if state.get("rewards") is not None and name in running:
            state["rewards"] = {**state["rewards"], "running": running[name]}
    return {**saved, "learners": learners}
