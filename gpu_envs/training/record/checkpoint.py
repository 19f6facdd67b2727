"""Checkpoints: written so that a killed process never harms the last good one, and read without running any code."""

import contextlib
import io
import os
import re
import reprlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch

from gpu_envs.errors import CheckpointError, NotWrittenError, display
from gpu_envs.training.process.group import Group
from gpu_envs.training.process.memory import is_shortage

FORMAT = 1
"""The version of what a run's folder holds: it rises when the meaning of something there changes."""

_OF_A_RUN = ("describes", "iteration", "learners", "players", "windows")
"""What the checkpoint of every run has, among others."""

_NAME = re.compile(r"iteration-(\d{8,})\.pt")
_PARTIAL = ".partial"
_PART = ".buffers-"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxtuple = _SHORT.maxlist = 20


def save(path: str | Path, payload: Mapping[str, Any], kind: str = "training") -> None:
    """Writes a checkpoint; a reader of ``path`` finds the old one or the new one, whole, at any time.

    Args:
        path: The file. One that is there is replaced.
        payload: Dicts, lists and tuples of tensors, NumPy arrays (which become tensors), numbers, strings, bools and
            None. Tensors are copied to the CPU, each by itself: a view does not drag its whole storage along.
        kind: What it is a checkpoint of; ``load`` refuses another.
    """
    whole = {"version": FORMAT, "kind": kind, "payload": _plain(payload, "payload")}
    data = io.BytesIO()
    torch.save(whole, data)  # into the file itself, torch would make errors of its own of a full disk and of Ctrl-C
    with replacing(Path(path)) as file:
        file.write(data.getbuffer())


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Lets an error of the file system say what could not be written."""
    try:
        yield
    except NotWrittenError:
        raise
    except OSError as error:
        raise NotWrittenError.of(path, error) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when it is complete, and goes when it is not.

    Raises:
        NotWrittenError: It cannot be written; what was there stays.
    """
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with writing(path):
            partial.unlink(missing_ok=True)  # a killed writer's, or a link in a stranger's folder: "x" follows none
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)  # the name, too, is to survive a power failure
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the data itself is safe by now
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: str | Path, device: str | torch.device = "cpu", kind: str = "training") -> dict[str, Any]:
    """Reads the payload of a checkpoint, its tensors on ``device``.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It is damaged, of another kind, or of another version of the format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    whole = _read(path, device)
    if not isinstance(whole, dict) or not {"version", "kind", "payload"} <= set(whole):
        raise CheckpointError(f"{path} is a file of torch's, but no checkpoint of gpu_envs")
    if whole["version"] != FORMAT:
        raise CheckpointError(
            f"{path} is of format {whole['version']}; this gpu_envs reads format {FORMAT}. "
            "Use the version of gpu_envs that wrote it: config.json in the run's folder names it"
        )
    if whole["kind"] != kind:
        raise CheckpointError(f"{path} is a checkpoint of kind {whole['kind']!r}; expected {kind!r}")
    payload: dict[str, Any] = whole["payload"]
    return payload


def load_run(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of a run.

    Raises:
        CheckpointError: As of ``load``, or it is not of a run.
    """
    state = load(path)
    missing = [name for name in _OF_A_RUN if name not in state]
    if missing:
        raise CheckpointError(f"{path} is a checkpoint of gpu_envs, but not of a run: it lacks {', '.join(missing)}")
    return state


def check_finite(weights: Mapping[str, torch.Tensor], policy: str) -> None:
    """Refuses a policy whose weights are NaN or infinite.

    Raises:
        CheckpointError: Some are.
    """
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"the policy {policy} has weights that are NaN or infinite ({name}): its training diverged, so take an "
                "earlier checkpoint, or train anew"
            )


def check_fits(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Compares what a run is (environment, parameters, shapes of weights) with what its checkpoint says it was.

    Raises:
        CheckpointError: They differ; the message names everything that does.
    """
    absent = object()
    differences = []
    for name in [*expected, *(name for name in found if name not in expected)]:
        here, there = (comparable(side.get(name, absent)) for side in (expected, found))
        if here != there:
            shown = ["none" if value is absent else _SHORT.repr(value) for value in (here, there)]
            differences.append(f"  {name}: this run has {shown[0]}, the checkpoint {shown[1]}")
    if differences:
        raise CheckpointError("the checkpoint does not fit this run:\n" + "\n".join(differences))


@final
class Checkpoints:
    """The checkpoints of a run: the last few, by iteration.

    Attributes:
        folder: Where they are.
        keep: How many stay.
    """

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, iteration: int, payload: Mapping[str, Any]) -> Path:
        """Writes one; then, when it is safe, removes those too old to keep and what killed writers left behind.

        Raises:
            NotWrittenError: It cannot be written; the message names the last one that was.
        """
        path = self.folder / f"iteration-{iteration:08d}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, payload)
        except OSError as error:
            last = self.latest()
            kept = f"the last good checkpoint is {display(last)}" if last else "there is no checkpoint yet"
            advice = f"; {kept}. Make room, then gpu-envs train --resume goes on"
            raise NotWrittenError.of(path, error, advice) from error
        others = [old for old in self.paths() if old != path]
        for old in others[: max(0, len(others) - self.keep + 1)]:
            old.unlink(missing_ok=True)
        stay = {kept.stem for kept in self.paths()}
        parts = [part for part in self.folder.glob(f"*{_PART}*.pt") if part.name.partition(_PART)[0] not in stay]
        for left in (*parts, *self.folder.glob(f"*{_PARTIAL}")):
            left.unlink(missing_ok=True)
        return path

    def save_buffers(self, iteration: int, rank: int, buffers: Mapping[str, Any]) -> None:
        """Writes what a process's learners remember, beside the checkpoint of an iteration, which comes after it.

        Raises:
            NotWrittenError: It cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        save(_part(self.folder / f"iteration-{iteration:08d}.pt", rank), buffers, "buffers")

    def latest(self) -> Path | None:
        """The newest, or None where there is none."""
        paths = self.paths()
        return paths[-1] if paths else None

    def paths(self) -> list[Path]:
        """All of them, the oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), key=iteration_of)


def iteration_of(path: Path) -> int:
    """The iteration in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name!r} is not a checkpoint's name; they are like iteration-00000123.pt")
    return int(match[1])


def without_buffers(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A trainer's state without what its learners remember, and that, by learner; ``with_buffers`` joins them."""
    learners, buffers = dict(state["learners"]), dict[str, Any]()
    for name, kept in learners.items():
        if kept.get("own") and kept["own"]["replay"] is not None:
            buffers[name] = kept["own"]["replay"]
            learners[name] = {**kept, "own": {**kept["own"], "replay": None}}
    return {**state, "learners": learners, "buffers": list(buffers)}, buffers


def with_buffers(state: Mapping[str, Any], path: Path, rank: int) -> Mapping[str, Any]:
    """What ``load_run`` read there, and what the learners of one process remember, if that was kept."""
    if not state.get("buffers"):
        return state
    part = _part(path, rank)
    if not part.is_file():
        raise CheckpointError(
            f"the checkpoint {path} lacks {part.name}, which holds what was to be learnt from again: put it back, or "
            "take the checkpoint away to go on from the one before"
        )
    buffers, joined = load(part, kind="buffers"), dict(state)
    if "ranks" in state:
        own = state["ranks"][rank]
        memories = own["memories"] | {name: {**own["memories"][name], "replay": buffers[name]} for name in buffers}
        joined["ranks"] = [*state["ranks"][:rank], {**own, "memories": memories}, *state["ranks"][rank + 1 :]]
        return joined
    joined["learners"] = dict(state["learners"])
    for name, buffer in buffers.items():
        kept = joined["learners"][name]
        joined["learners"][name] = {**kept, "own": {**kept["own"], "replay": buffer}}
    return joined


def _part(path: Path, rank: int) -> Path:
    """Where what a process's learners remember lies beside a checkpoint."""
    return path.with_name(f"{path.stem}{_PART}{rank}.pt")


def _read(path: Path, device: str | torch.device) -> Any:
    data = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:  # torch itself does not look at the checksums
            damaged = archive.testzip()
            whole = any(name.endswith("/data.pkl") for name in archive.namelist())
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} fails its checksum")
        if not whole:
            raise zipfile.BadZipFile("it is not a file of torch's")
        return torch.load(io.BytesIO(data), map_location=torch.device(device), weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # of bytes that anybody may have written zipfile, pickle and torch raise nearly anything
        if isinstance(error, RuntimeError) and is_shortage(error):
            raise
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    older = []
    if _NAME.fullmatch(path.name):
        older = [other for other in Checkpoints(path.parent).paths() if iteration_of(other) < iteration_of(path)]
    advice = (
        f"The checkpoint before it is {older[-1]}: remove the damaged file to go on from there"
        if older
        else "There is no checkpoint before it"
    )
    return CheckpointError(f"the checkpoint {path} is damaged ({reason}). {advice}")


def _plain(value: Any, where: str) -> Any:
    """The value in types that are read back without running code; exact, so that subclasses do not slip through."""
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"{where} has the key {key!r}; a checkpoint's keys are strings or whole numbers")
        return {_plain(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise TypeError(
        f"{where} is a {type(value).__name__}; a checkpoint holds dicts, lists and tuples of tensors, arrays, numbers, "
        "strings, bools and None"
    )


def comparable(value: Any) -> Any:
    """Lists as tuples, arrays as nested tuples: JSON and checkpoints do not keep the difference."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return comparable(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, Mapping):
        return {name: comparable(item) for name, item in value.items()}
    return value


_OWN = ("environment", "observations", "alive", "action_masks", "begun_midway", "random")
"""What each of several processes has of its own, beside discounted returns that it follows and what it remembers."""


def own_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a process has of its own in its trainer's state."""
    learners: Mapping[str, Mapping[str, Any]] = state["learners"]
    scales = {name: kept.get("rewards") for name, kept in learners.items()}
    running = {name: scale["running"] for name, scale in scales.items() if scale is not None}
    memories = {name: kept["own"] for name, kept in learners.items() if "own" in kept}
    return {name: state[name] for name in _OWN} | {"running": running, "memories": memories}


def save_together(checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], group: Group) -> None:
    """Writes what each process of a group has: buffers a file each, and all else in the first one's, which comes last.

    Where that is there, the checkpoint is whole.
    """
    rest, buffers = without_buffers(state)
    if buffers:
        checkpoints.save_buffers(iteration, group.rank, buffers)
    ranks = group.collected(own_part(rest)) if group.size > 1 else []  # by then all have written
    if group.rank == 0:
        checkpoints.save(iteration, rest | ({"ranks": ranks} if ranks else {}))
    group.told(None)  # nobody ends before the first one has written


def state_of(kept: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """The state of one process, of what its trainer gave, or what several have kept together."""
    if "ranks" not in kept:
        return kept
    own = kept["ranks"][rank]
    following = _following(kept, own["running"], own.get("memories", {}))
    return {**following, **{name: own[name] for name in _OWN}}


def anew(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same where episodes begin anew, in whatever process."""
    scales = {name: state.get("rewards") for name, state in kept["learners"].items()}
    zeros = {name: torch.zeros_like(scale["running"]) for name, scale in scales.items() if scale is not None}
    return _following(kept, zeros, {name: None for name, state in kept["learners"].items() if "own" in state})


def _following(
    kept: Mapping[str, Any], running: Mapping[str, torch.Tensor], memories: Mapping[str, Any]
) -> dict[str, Any]:
    """A state whose learners follow these discounted returns, and remember this."""
    learners = dict(kept["learners"])
    for name, memory in memories.items():
        learners[name] = {**learners[name], "own": memory}
    for name, returns in running.items():
        learners[name] = {**learners[name], "rewards": {**learners[name]["rewards"], "running": returns}}
    return {**kept, "learners": learners}
