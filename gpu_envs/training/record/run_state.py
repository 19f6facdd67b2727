"""The state of a run in checkpoints: its structure, parts of single processes, and checks when a run loads it."""

import functools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

from gpu_envs.errors import CheckpointError
from gpu_envs.training.process.group import Group, comparable
from gpu_envs.training.record.checkpoint import WEIGHTS, Checkpoints, explain_damage, iteration_of, load, read_buffer
from gpu_envs.training.run import SETTINGS

_LONGEST = 10**15 + 1


@final
class Nullable(NamedTuple):
    """In an example structure: a value that may be None or missing."""

    example: Any


def check_structure(expected: Any, actual: Any, where: str) -> None:
    """Compare keys, types, shapes and dtypes with an example; raise a CheckpointError that starts with ``where``.

    In the example a type allows its instances, a range its integers, ``{str: x}`` any keys, and ``[x]`` any number of
    items x. A dict may have additional keys, unless all values in the example are tensors.
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
        kinds = (int, float) if kind is float else kind
        fits = isinstance(actual, kinds) and isinstance(actual, bool) == (kind is bool)
    if not fits:
        raise CheckpointError(f"{where} is {_describe(actual)}; expected {_describe(expected)}")
    for example, part, name in parts:
        check_structure(example, part, f"{where}{name}")


def _describe(value: Any) -> str:
    """Return the words for a value, or for an example, in messages of ``check_structure``."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, range):
        return f"an integer from {value.start} to {value.stop - 1:,}"
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
    "players": {str: {"stream": torch.Tensor, "frozen": Nullable({"state": _WEIGHTS, "config": dict, "source": str})}},
    "windows": {str: [(float, float, float)]},
    "metrics": {str: [(float, float)]},
    "recent": [(int, {str: {str: float}}, float, float)],
    "extra": Nullable({str: float}),
    "schedules": Nullable({str: [str]}),
    "callbacks": Nullable(dict),
    "held": Nullable([(int, {str: {str: float}}, float, float, {str: [float]}, {str: float}, int)]),
    "environment": dict,
    "starts": _TENSORS,
    "recurrent_states": _TENSORS,
    "random": {"cpu": torch.Tensor},
    "threads": range(1, 2**16),
    "buffers": Nullable({str: {str: int}}),
    "ranks": Nullable([_RANK]),
}
"""Example structure of any run's checkpoint; the rest is compared with the run that loads it."""


def load_run(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run; raise a CheckpointError if its structure is not that of ``RUN``."""
    state = load(path)
    for part in (state, *(rank for rank in state.get("ranks") or () if isinstance(rank, dict))):
        if isinstance(part.get("buffers"), list):  # format 1, whose replay buffers cannot be read: the run refills them
            part["buffers"] = {}
        if isinstance(part.get("environment"), dict):
            part["environment"].setdefault("drawn", {})
        part.setdefault("starts", {})
        part.setdefault("recurrent_states", {})
    expected = {name: RUN[name] for name in state} if path.suffix == WEIGHTS else RUN
    missing = [name for name, example in expected.items() if name not in state and not isinstance(example, Nullable)]
    if missing:
        raise CheckpointError(f"{path} is not a checkpoint of a training run: it lacks {', '.join(missing)}")
    with explain_damage(path):
        check_structure(expected, state, "its state")
        if path.suffix == WEIGHTS:
            return state
        if state["iteration"] != iteration_of(path):
            raise CheckpointError(f"its iteration is {state['iteration']}, but its file name says {iteration_of(path)}")
        processes, ranks = state["describes"]["gpus"], state.get("ranks") or [None]
        if len(ranks) != processes:
            raise CheckpointError(f"it has states of {len(ranks)} processes, but {processes} trained the run")
    return state


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxtuple = _SHORT.maxlist = 20

_PER_PROCESS = (
    *("environment", "observations", "shared_observations", "alive", "action_masks", "begun_midway", "random"),
    *("starts", "recurrent_states", "buffers"),
)
"""Keys whose values differ between processes; discounted returns and replay buffers of learners differ, too."""


def check_finite(weights: Mapping[str, torch.Tensor], policy: str) -> None:
    """Raise a CheckpointError if weights are NaN or infinite."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"the policy {policy} has weights that are NaN or infinite ({name}): its training diverged, so take an "
                "earlier checkpoint, or train a new policy"
            )


def check_fits(expected: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    """Raise a CheckpointError that lists all differences of settings, parameters and shapes of weights."""
    absent = object()
    differences = []
    for name in expected | checkpoint:
        values = [comparable(facts.get(name, absent)) for facts in (expected, checkpoint)]
        if values[0] != values[1]:
            texts = ["none" if value is absent else _SHORT.repr(value) for value in values]
            differences.append(f"  {name}: this run has {texts[0]}, the checkpoint {texts[1]}")
    if differences:
        raise CheckpointError("the checkpoint does not fit this run:\n" + "\n".join(differences))


def _without_buffers(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Mapping[str, torch.Tensor]]]:
    """Return a trainer's state without replay buffers, and the replay buffers by learner."""
    memories = {name: saved["own"] for name, saved in state["learners"].items() if saved.get("own") is not None}
    buffers = {name: memory["replay"] for name, memory in memories.items() if memory["replay"] is not None}
    emptied = {name: {**memory, "replay": None} for name, memory in memories.items()}
    return _with_learner_state(state, {}, emptied), buffers


def attach_buffers(state: Mapping[str, Any], path: Path, rank: int) -> Mapping[str, Any]:
    """Return a process's state whose replay buffers are functions that read the files of a checkpoint."""
    state = _select_rank(state, rank)
    checksums, memories = state.get("buffers") or {}, {}
    for name, saved in state["learners"].items():
        if saved.get("own") is not None and name in checksums:
            reader = functools.partial(read_buffer, path, rank, name, checksums[name])
            memories[name] = {**saved["own"], "replay": reader}
    return _with_learner_state(state, {}, memories)


def process_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a trainer's state that differs between processes, in the structure of ``_RANK``."""
    scales = {name: saved.get("rewards") for name, saved in state["learners"].items()}
    running = {name: scale["running"] for name, scale in scales.items() if scale is not None}
    memories = {name: saved["own"] for name, saved in state["learners"].items() if "own" in saved}
    return {name: state[name] for name in _PER_PROCESS if name in state} | {"running": running, "memories": memories}


def save_together(
    checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], group: Group, *, keep_buffers: bool
) -> None:
    """Write a checkpoint: first each process's buffers, then one file of everything else, which completes it."""
    rest, buffers = _without_buffers(state)
    rest["buffers"] = checkpoints.save_buffers(iteration, group.rank, buffers) if buffers and keep_buffers else {}
    ranks = group.gather_to_first(process_state(rest)) if group.size > 1 else []  # waits until all buffers are written
    if group.rank == 0:
        checkpoints.save(iteration, rest | ({"ranks": ranks} if ranks else {}))
    group.all_gather_objects(None)  # no process ends before the first one has written the file


def _select_rank(saved: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the state of process ``rank`` from a checkpoint of one or several processes."""
    if "ranks" not in saved:
        return dict(saved)
    local = saved["ranks"][rank]
    state = _with_learner_state(saved, local["running"], local["memories"])
    state |= {name: local[name] for name in _PER_PROCESS if name in local}
    del state["ranks"]
    return state


def state_of_process(
    expected: Mapping[str, Any], saved: Mapping[str, Any], rank: int, *, same_processes: bool
) -> dict[str, Any]:
    """Return a process's part of a checkpoint; raise a CheckpointError if it does not fit the run.

    ``expected`` is the current state of the process, as an example. If the number of processes has changed (not
    ``same_processes``), discounted returns are zero and replay buffers missing, for new episodes.
    """
    here, there = ({**state["describes"], "gpus": None} for state in (expected, saved))
    if there.get("format") != here["format"]:  # format 1 described fewer settings
        here, there = ({name: facts[name] for name in here.keys() & there.keys()} for facts in (here, there))
    else:  # settings that did not exist yet when the checkpoint was written have their defaults
        settings = {name: SETTINGS.get(name.partition(": ")[2]) for name in here.keys() - there.keys()}
        there |= {name: setting.default for name, setting in settings.items() if setting is not None}
    check_fits(here, there)
    state = _select_rank(saved, rank) if same_processes else _restarted(saved)
    # ``describes`` is compared above; environments and random states check themselves; ``RUN`` covers the lists
    skipped = {"describes", "steps", "environment", "random", "windows", "metrics", "players", "extra", "held"}
    skipped |= set(() if same_processes else _PER_PROCESS)
    expected_state = expected if same_processes else _restarted(expected)
    example, checked = (_without_buffers(each)[0] for each in (expected_state, state))
    example = {name: part for name, part in example.items() if name not in skipped}
    example |= {part: dict.fromkeys(expected[part], list) for part in ("windows", "metrics")}
    streams = {name: player["stream"] for name, player in expected["players"].items()}
    example["players"] = {name: {"stream": stream, "frozen": Nullable(dict)} for name, stream in streams.items()}
    check_structure(example, checked, "its state")
    for name, learner in state["learners"].items():
        check_finite(learner["module"], name)
    return state


def _restarted(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose discounted returns are zero, and whose learners have no replay buffers and no noise."""
    local = process_state(saved)
    zeros = {name: torch.zeros_like(running) for name, running in local["running"].items()}
    return _with_learner_state(saved, zeros, dict.fromkeys(local["memories"]))


def _with_learner_state(
    saved: Mapping[str, Any], running: Mapping[str, torch.Tensor], memories: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the state with discounted returns and memories (replay buffer, noise) of these learners replaced."""
    learners = {name: dict(state) for name, state in saved["learners"].items()}
    for name, state in learners.items():
        if state.get("own") is not None and name in memories:
            state["own"] = memories[name]
        if state.get("rewards") is not None and name in running:
            state["rewards"] = {**state["rewards"], "running": running[name]}
    return {**saved, "learners": learners}
