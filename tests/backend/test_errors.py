"""The exceptions of this package go through a pickle whole, as from worker processes."""

import ast
import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

import gpu_envs
from gpu_envs.errors import CompileError, NotFiniteError, TranslationError

FOLDER = Path(gpu_envs.__file__).parent
MORE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "NotFiniteError": (
        ("x is nan",),
        {"replica": 3, "agent": "prey_0", "step": 7, "source": "state", "field": "x", "element": (1, 2), "value": 2.0},
    ),
    "CompileError": (("no ;", "x.cuh:3: error"), {}),
    "TranslationError": (("no with", "x.py", 12), {}),
    "RefusedError": (("no with", "leave it out"), {}),
    "NotWrittenError": ((28, "No space left on device", "run/last.pt"), {"advice": "; make room"}),
    "MissingExtraError": (("'torch' is not installed",), {"name": "torch"}),
}


def places() -> list[tuple[str, str]]:
    """The module and the name of every exception that is defined here."""
    found = []
    for file in sorted(FOLDER.rglob("*.py")):
        module = ".".join(("gpu_envs", *file.relative_to(FOLDER).with_suffix("").parts))
        kinds = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
        found += [(module, name) for name in kinds if name.endswith("Error")]
    return found


@pytest.mark.parametrize(("module", "name"), places(), ids=[name for _, name in places()])
def test_an_exception_is_whole_in_another_process(module: str, name: str) -> None:
    if ".training." in module:
        pytest.importorskip("torch")
    kind: Any = getattr(importlib.import_module(module), name)
    words, keys = MORE.get(name, (("it is wrong",), {}))
    error = kind(*words, **keys)
    error.add_note("and more")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
        assert other.args == error.args
        assert vars(other) == vars(error)
        assert all(getattr(other, key) == value for key, value in keys.items())


def test_the_list_has_those_that_keep_more() -> None:
    names = {name for _, name in places()}
    assert set(MORE) <= names
    assert {kind.__name__ for kind in (CompileError, NotFiniteError, TranslationError)} <= set(MORE)
    assert len(names) >= 14
