"""The state of a run: its structure, how it is taken apart for a checkpoint, and whether it fits a run."""

import functools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

from gpu_envs.errors import CheckpointError
from gpu_envs.training.process.group import Group, comparable
from gpu_envs.training.record.checkpoint import Checkpoints, explain_damage, iteration_of, load, read_buffer

_LONGEST = 10**15 + 1


@final
class Nullable(NamedTuple):
    """Something that may be None or missing."""

    example: Any


def check_structure(expected: Any, actual: Any, where: str) -> None:
    """Compares names, types, shapes and dtypes with those of an example; ``where`` is the place, for the message.

    A type stands for its instances, a range for its numbers, ``{str: x}`` for any names, and ``[x]`` for any number of
    x. A dict may have other names, too, unless all of it are tensors.
    """
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(expected, Nullable):
        fits, parts = True, [] if actual is None else [(expected.example, actual, "")]
    elif isinstance(expected, Mapping) and str in expected:
        fits = isinstance(actual, Mapping) and all(isinstance(name, str) for name in actual)
        parts = [(expected[str], value, f"[{name!r}]") for name, value in actual.items()] if fits else []
    elif isinstance(expected, Mapping):
        exact = all(isinstance(example, torch.Tensor) for example in expected.values())
        fits = isinstance(actual, Mapping) and not (exact and actual.keys() - expected.keys())
        parts = [(example, actual.get(name), f"[{name!r}]") for name, example in expected.items()] if fits else []
    elif isinstance(expected, list | tuple):
        fits = isinstance(actual, list | tuple) and len(actual) == len(expected)
        if isinstance(expected, list) and len(expected) == 1 and isinstance(actual, list | tuple):
            fits, expected = True, expected * len(actual)
        parts = [(example, actual[at], f"[{at}]") for at, example in enumerate(expected)] if fits else []
    elif isinstance(expected, torch.Tensor):
        fits = isinstance(actual, torch.Tensor) and (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    elif isinstance(expected, range):
        fits = type(actual) is int and actual in expected
    else:
        kind = expected if isinstance(expected, type) else type(expected)
        fits = isinstance(actual, (int, float) if kind is float else kind) and (kind is bool) == isinstance(
            actual, bool
        )
    if not fits:
        raise CheckpointError(f"{where} is {_described(actual)}; expected {_described(expected)}")
    for example, part, name in parts:
        check_structure(example, part, f"{where}{name}")


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, range):
        return f"a whole number from {value.start} to {value.stop - 1:,}"
    if isinstance(value, Mapping):
        return "a dict" if str in value else f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return value.__name__ if isinstance(value, type) else "missing or None" if value is None else reprlib.repr(value)


_TENSORS = {str: torch.Tensor}
_WEIGHTS = {"module": _TENSORS, "observations": Nullable(_TENSORS), "epsilon": Nullable(torch.Tensor)}
_MEMORY = Nullable({"replay": None, "exploration": _TENSORS})
_RANK = {"environment": dict, "random": {"cpu": torch.Tensor}, "running": _TENSORS, "memories": {str: _MEMORY}}

RUN: Final[Mapping[str, Any]] = {
    "describes": {"gpus": range(1, 2**16 + 1)},
    "iteration": range(_LONGEST),
    "steps": range(_LONGEST),
    "learners": {str: {**_WEIGHTS, "rewards": Nullable({"running": torch.Tensor}), "own": _MEMORY}},
    "players": {
        str: {"stream": torch.Tensor, "frozen": Nullable({"state": _WEIGHTS, "config": dict, "source": str})},
    },
    "windows": {str: [(float, float, float)]},
    "metrics": {str: [(float, float)]},
    "recent": [(int, {str: {str: float}}, float, float)],
    "environment": dict,
    "random": {"cpu": torch.Tensor},
    "threads": range(1, 2**16),
    "buffers": Nullable({str: {str: int}}),
    "ranks": Nullable([_RANK]),
}
"""The checkpoint of a run, as far as all runs have it alike; the rest is compared with the run that takes it over."""


def load_run(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of a run, and checks its structure."""
    state = load(path)
    for part in (state, *(each for each in state.get("ranks") or () if isinstance(each, dict))):
        if isinstance(part.get("buffers"), list):  # format 1: its replay buffers are lost, and the run collects again
            part["buffers"] = {}
        if isinstance(part.get("environment"), dict):
            part["environment"].setdefault("drawn", {})
    missing = [name for name, example in RUN.items() if name not in state and not isinstance(example, Nullable)]
    if missing:
        raise CheckpointError(f"{path} is a checkpoint of gpu_envs, but not of a run: it lacks {', '.join(missing)}")
    with explain_damage(path):
        check_structure(RUN, state, "its state")
        if state["iteration"] != iteration_of(path):
            raise CheckpointError(f"it is of iteration {state['iteration']}")
        processes, ranks = state["describes"]["gpus"], state.get("ranks") or [None]
        if len(ranks) != processes:
            raise CheckpointError(f"it has states of {len(ranks)} processes, and {processes} trained the run")
    return state


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


def _without_buffers(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Mapping[str, torch.Tensor]]]:
    """A trainer's state without its learners' replay buffers, and those by learner."""
    own = {name: saved["own"] for name, saved in state["learners"].items() if saved.get("own") is not None}
    buffers = {name: memory["replay"] for name, memory in own.items() if memory["replay"] is not None}
    return _with_learner_state(state, {}, {name: {**memory, "replay": None} for name, memory in own.items()}), buffers


def attach_buffers(state: Mapping[str, Any], path: Path, rank: int) -> Mapping[str, Any]:
    """A process's state with replay buffers that are read from beside a checkpoint when learners take them over."""
    state = _state_of(state, rank)
    checksums, own = state.get("buffers") or {}, {}
    for name, saved in state["learners"].items():
        if saved.get("own") is not None and name in checksums:
            own[name] = {**saved["own"], "replay": functools.partial(read_buffer, path, rank, name, checksums[name])}
    return _with_learner_state(state, {}, own)


def process_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a process has of its own in its trainer's state."""
    scales = {name: saved.get("rewards") for name, saved in state["learners"].items()}
    running = {name: scale["running"] for name, scale in scales.items() if scale is not None}
    memories = {name: saved["own"] for name, saved in state["learners"].items() if "own" in saved}
    return {name: state[name] for name in _OWN if name in state} | {"running": running, "memories": memories}


def save_together(
    checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], group: Group, *, keep_buffers: bool
) -> None:
    """Writes each process's buffers, and then, in a file by which the checkpoint is whole, what all have else."""
    rest, buffers = _without_buffers(state)
    rest["buffers"] = checkpoints.save_buffers(iteration, group.rank, buffers) if buffers and keep_buffers else {}
    ranks = group.gather_to_first(process_state(rest)) if group.size > 1 else []  # by then all have written
    if group.rank == 0:
        checkpoints.save(iteration, rest | ({"ranks": ranks} if ranks else {}))
    group.all_gather_objects(None)  # nobody ends before the first one has written


def _state_of(saved: Mapping[str, Any], rank: int) -> dict[str, Any]:
    if "ranks" not in saved:
        return dict(saved)
    own = saved["ranks"][rank]
    state = _with_learner_state(saved, own["running"], own["memories"]) | {name: own[name] for name in _OWN if name in own}
    del state["ranks"]
    return state


def fitting(expected: Mapping[str, Any], saved: Mapping[str, Any], rank: int, *, same: bool) -> dict[str, Any]:
    """Returns the state of a process in what a trainer's ``state`` gave or ``save_together`` wrote, if it fits.

    ``expected`` is the state that the process has now, as an example. Where not as many processes train as then
    (``same``), episodes restart.
    """
    now, then = ({**state["describes"], "gpus": None} for state in (expected, saved))
    if then.get("format") != now["format"]:  # format 1 described fewer settings
        now, then = ({name: side[name] for name in now.keys() & then.keys()} for side in (now, then))
    check_fits(now, then)
    state = _state_of(saved, rank) if same else _restarted(saved)
    # what describes the run was compared; environments and random numbers check for themselves, and lists are of RUN
    apart = ("describes", "steps", "environment", "random", "windows", "metrics", "players", *(() if same else _OWN))
    example, checked = (_without_buffers(each)[0] for each in (expected if same else _restarted(expected), state))
    example = {name: part for name, part in example.items() if name not in apart}
    example |= {part: dict.fromkeys(expected[part], list) for part in ("windows", "metrics")}
    streams = {name: player["stream"] for name, player in expected["players"].items()}
    example["players"] = {name: {"stream": stream, "frozen": Nullable(dict)} for name, stream in streams.items()}
    check_structure(example, checked, "its state")
    for name, learner in state["learners"].items():
        check_finite(learner["module"], name)
    return state


def _restarted(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The same where episodes restart, in whatever process."""
    own = process_state(saved)
    zeros = {name: torch.zeros_like(running) for name, running in own["running"].items()}
    return _with_learner_state(saved, zeros, dict.fromkeys(own["memories"]))


def _with_learner_state(
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
