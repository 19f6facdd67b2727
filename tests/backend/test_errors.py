"""Pickling keeps all attributes of this package's exceptions, as when worker processes raise them."""

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
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
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


def exceptions() -> list[tuple[str, str]]:
    """The module and the name of every exception in this package."""
    exceptions = []
    for file in sorted(FOLDER.rglob("*.py")):
        module = ".".join(("gpu_envs", *file.relative_to(FOLDER).with_suffix("").parts))
        kinds = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
        exceptions += [(module, name) for name in kinds if name.endswith("Error")]
    return exceptions


@pytest.mark.parametrize(("module", "name"), exceptions(), ids=[name for _, name in exceptions()])
def test_pickling_keeps_all_attributes(module: str, name: str) -> None:
    if ".training." in module:
        pytest.importorskip("torch")
    kind: Any = getattr(importlib.import_module(module), name)
    arguments, keywords = ARGUMENTS.get(name, (("it is wrong",), {}))
    error = kind(*arguments, **keywords)
    error.add_note("and more")
    for restored in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(restored) is kind
        assert str(restored) == str(error)
        assert restored.args == error.args
        assert vars(restored) == vars(error)
        assert all(getattr(restored, key) == value for key, value in keywords.items())


def test_the_table_has_the_exceptions_with_attributes() -> None:
    names = {name for _, name in exceptions()}
    assert set(ARGUMENTS) <= names
    assert {kind.__name__ for kind in (CompileError, NotFiniteError, TranslationError)} <= set(ARGUMENTS)
    assert len(names) >= 14
