"""The structure of a checkpoint: checked once, when it is read, so that what takes it over need not."""

import reprlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

import torch

from gpu_envs.errors import CheckpointError

_MOST_DEPTH = 16
"""Containers within one another; those of a run are 7 at most."""

_LONGEST = 10**15 + 1


@final
class Maybe(NamedTuple):
    """Something that may be None or missing."""

    example: Any


def check_structure(expected: Any, actual: Any, where: str) -> None:
    """Compares names, types, shapes and dtypes with those of an example; ``where`` is the place, for the message.

    A type stands for its instances, a range for its numbers, ``{str: x}`` for any names, and ``[x]`` for any number of
    x. A dict may have other names, too, unless all of it are tensors.
    """
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(expected, Maybe):
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


def check_plain(payload: Any) -> None:
    """Refuses what no checkpoint is saved with, and with which a small file would take forever or all memory."""
    stack, visited = [(payload, 0)], set[int]()
    while stack:
        value, depth = stack.pop()
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.layout != torch.strided or not value.is_contiguous():
                raise CheckpointError("it has a tensor that is a view, or of a special kind")
        elif isinstance(value, dict | list | tuple):
            if value and (id(value) in visited or depth > _MOST_DEPTH):
                raise CheckpointError("it has lists or dicts that occur twice, or are nested too deeply")
            visited.add(id(value))
            stack += [(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise CheckpointError(f"it has a {type(value).__name__}")


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
_WEIGHTS = {"module": _TENSORS, "observations": Maybe(_TENSORS), "epsilon": Maybe(torch.Tensor)}
_OWN = Maybe({"replay": None, "exploration": _TENSORS})
_RANK = {"environment": dict, "random": {"cpu": torch.Tensor}, "running": _TENSORS, "memories": {str: _OWN}}

RUN: Final[Mapping[str, Any]] = {
    "describes": {"gpus": range(1, 2**16 + 1)},
    "iteration": range(_LONGEST),
    "steps": range(_LONGEST),
    "learners": {str: {**_WEIGHTS, "rewards": Maybe({"running": torch.Tensor}), "own": _OWN}},
    "players": {
        str: {"stream": torch.Tensor, "frozen": Maybe({"state": _WEIGHTS, "config": dict, "source": str})},
    },
    "windows": {str: [(float, float, float)]},
    "metrics": {str: [(float, float)]},
    "recent": [(int, {str: {str: float}}, float, float)],
    "environment": dict,
    "random": {"cpu": torch.Tensor},
    "threads": range(1, 2**16),
    "buffers": Maybe({str: {str: int}}),
    "ranks": Maybe([_RANK]),
}
"""The checkpoint of a run, as far as all runs have it alike; the rest is compared with the run that takes it over."""
