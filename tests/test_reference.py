"""The reference contains every public name, its entries have docstrings, and ``help`` shows all fields."""

import ast
import contextlib
import dataclasses
import doctest
import functools
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpu_envs
import gpu_envs.adapters
from gpu_envs.documented import field_names

DOCS = Path(__file__).parent.parent / "docs"
PAGES = DOCS / "reference"

INTERNAL = ("gpu_envs.backend", "gpu_envs.cli", "gpu_envs.codegen", "gpu_envs.envs")
"""Packages without a public interface."""

MODULES = [
    "gpu_envs",
    *(
        name
        for package in (gpu_envs, gpu_envs.adapters)
        for _, name, _ in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if name not in INTERNAL and "__all__" in Path(str(importlib.util.find_spec(name).origin)).read_text()  # type: ignore[union-attr]  # it was just found
    ),
]
"""Public modules: all modules with ``__all__``."""

SHOWN = {name for page in PAGES.glob("*.md") for name in re.findall(r"^\.\. auto\w+:: (\S+)", page.read_text(), re.M)}
"""Qualified names of the reference's entries."""


def imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(str(error))


def public() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yields module, name and value of all public names, if their libraries are installed."""
    for module in MODULES:
        try:
            imported_module = importlib.import_module(module)
            yield from ((imported_module, name, getattr(imported_module, name)) for name in imported_module.__all__)
        except ImportError:
            continue


CLASSES = list({each: None for *_, each in public() if dataclasses.is_dataclass(each) or hasattr(each, "_fields")})


def test_public_modules() -> None:
    assert {"gpu_envs.errors", "gpu_envs.pictures", "gpu_envs.rules", "gpu_envs.training"} < set(MODULES)
    adapters = "benchmarl", "pettingzoo", "rsl_rl", "sb3", "skrl", "torchrl"
    assert {f"gpu_envs.adapters.{name}" for name in adapters} < set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    module = imported(name)
    for each in module.__all__:
        item = getattr(module, each)
        places = {f"{name}.{each}"}  # errors have several
        if isinstance(item, type) and issubclass(item, BaseException):
            places |= {f"{other.__name__}.{each}" for other, _, it in public() if it is item}
        assert places & SHOWN, f"{name}.{each} is in no page of docs/reference"


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_everything_in_the_reference_has_a_docstring(name: str) -> None:
    where, _, item_name = name.rpartition(".")
    module = imported(where)
    item = getattr(module, item_name)
    if not (inspect.isclass(item) or inspect.isroutine(item)):
        assert item_name in constants_with_docs(module), f"no string stands under {name}"
        return
    assert vars(item).get("__doc__") if inspect.isclass(item) else item.__doc__, name
    if inspect.isclass(item):
        members = [n for n, found in vars(item).items() if n[0] != "_" and isinstance(found, property)]
        assert not [member for member in members if not inspect.getdoc(getattr(item, member))], name


def with_examples() -> Iterator[tuple[str, str]]:
    """Yields the names and docstrings of the reference's entries and their methods that have examples."""
    for name in sorted(SHOWN):
        where, _, item_name = name.rpartition(".")
        with contextlib.suppress(ImportError):
            item = getattr(importlib.import_module(where), item_name)
            members = vars(item).items() if inspect.isclass(item) else ()
            docs = {name: item.__doc__, **{f"{name}.{n}": getattr(found, "__doc__", "") for n, found in members}}
            yield from ((each, doc) for each, doc in docs.items() if isinstance(doc, str) and ">>> " in doc)


EXAMPLES = dict(with_examples())


SLOW = re.compile(r"\.(adapters\.sb3|testing|training)\.")  # they import much, compile or train


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(SLOW.search(name))) for name in EXAMPLES]
)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They print what docstrings show, with ``gpu_envs`` imported."""
    monkeypatch.chdir(tmp_path)  # runs are saved there
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"gpu_envs": gpu_envs}, name, None, None)
    failed, attempted = doctest.DocTestRunner().run(test)
    assert (failed, attempted > 0) == (0, True)


def test_the_most_used_methods_have_examples() -> None:
    assert {"gpu_envs.make", "gpu_envs.VectorEnv.step", "gpu_envs.MultiAgentEnv.step"} <= EXAMPLES.keys()
    assert len(EXAMPLES) >= 10


@functools.cache
def configuration() -> ModuleType:
    """Returns Sphinx's configuration, whose functions write the tables."""
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_starts_with_a_table_of_its_entries(page: Path) -> None:
    """Each public name and method has a row with a short description, unless ``:methods:`` leaves the method out."""
    text = page.read_text()
    top = configuration().add_table(text).partition("```{eval-rst}")[0]
    rows = dict(re.findall(r"^\| \[`[\w.]+`\]\(#(\S+)\) \| (.*) \|$", top, re.MULTILINE))
    assert [name for name, row in rows.items() if not re.fullmatch(r".{5,120}\.", row)] == []
    for name, option in re.findall(r"^\.\. auto\w+:: (\S+)\n(   :methods:.*)?", text, re.MULTILINE):
        item = getattr(imported(name.rpartition(".")[0]), name.rpartition(".")[2])
        methods = [n for n, found in vars(item).items() if inspect.isfunction(found)] if inspect.isclass(item) else []
        listed = re.findall(r"\w+", option)[1:] if option else [n for n in methods if n[0] != "_"]
        assert {name, *(f"{name}.{n}" for n in listed if inspect.getdoc(getattr(item, n)))} <= rows.keys()
    assert ":methods:" not in configuration().DIRECTIVE.sub(configuration().hide_methods, text)


def test_only_the_reference_has_tables() -> None:
    text = "# Page\n\n## Section\n"
    assert configuration().add_table(text) == text


def constants_with_docs(module: ModuleType) -> set[str]:
    """Returns the module-level names whose assignment is followed by a string."""
    names = set()
    body = ast.parse(inspect.getsource(module)).body
    for statement, text in itertools.pairwise(body):
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_help_shows_every_field(kind: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(kind))
    names = field_names(kind)
    assert [name for name in names if not re.search(rf"^ \|      {name}: \S", shown, re.M)] == []
    assert len(names) > 0


def test_inherited_fields_are_shown() -> None:
    doc = gpu_envs.EnvSpec.__doc__ or ""
    assert "    id: Id of the environment" in doc  # of Spec
    assert "    observation: Observation space" in doc
    assert gpu_envs.Derived.__doc__ != gpu_envs.Param.__doc__
    assert gpu_envs.Param(1.0).__doc__ == gpu_envs.Param.__doc__
