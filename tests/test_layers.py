"""The layers of the package: no module imports from a higher layer, not even inside functions, and no import cycles."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpu_envs.backend.program import DIALECT_HEADERS

ROOT = Path(__file__).parents[1]
TREES = {"gpu_envs": "gpu_envs", "gpu_envs.adapters": "adapters", "benchmarks": "benchmarks"}

LAYERS = (
    ("documented",),
    ("errors", "extras", "seeds", "pages", "pictures", "progress", "rules", "tables"),
    ("backend",),
    ("specs",),
    ("envs",),
    ("translation",),
    ("codegen",),
    ("registry",),
    ("rendering",),
    ("engine",),
    ("vector_env", "multi_agent_env"),
    ("making",),
    ("evaluating",),
    ("",),  # gpu_envs/__init__.py
    ("testing", "wrappers", "adapters"),
    ("training",),
    ("replays",),
    ("scaffold",),
    ("cli",),
    ("__main__",),
    ("benchmarks",),
)
"""Packages by layer, lowest first; packages of the same layer do not import one another."""

FOLDERS_OF_TRAINING = ("algorithms", "process", "observations", "networks", "engines")
"""Parts of ``gpu_envs.training``, lowest first."""

ABOVE_ENGINES = tuple(
    f"gpu_envs.training.{name}"
    for name in ("horizon", "rollout", "learner", "off_policy_learner", "record", "assembly", "trainer")
)

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not in a checkout")


def modules() -> dict[str, Path]:
    """Returns all modules of the package, its adapters and its benchmarks, by name."""
    by_name = {}
    for name, folder in TREES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if name == "gpu_envs" and inside.parts[0] in ("adapters", "kernels"):  # links
                continue
            parts = inside.with_suffix("").parts
            by_name[".".join((name, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return by_name


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Yields line and name of each import of a ``known`` module, anywhere in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [each if (each := f"{node.module}.{alias.name}") in known else node.module for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in dict.fromkeys(names) if name in known)


def package_of(module: str) -> str:
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "gpu_envs" else first


def layer_of(module: str) -> int:
    return next(i for i, packages in enumerate(LAYERS) if package_of(module) in packages)


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in modules()} == {each for packages in LAYERS for each in packages}


@pytest.mark.slow
def test_no_import_from_a_higher_layer() -> None:
    known, problems = modules(), []
    for module, path in known.items():
        for line, imported in imports(path, known):
            if layer_of(imported) >= layer_of(module) and package_of(imported) != package_of(module):
                problems.append(f"{path.relative_to(ROOT)}:{line}: {module} imports {imported}, not in a lower layer")
    assert not problems, "\n".join(problems)


def test_no_import_from_a_higher_part_of_training() -> None:
    """Algorithms do not depend on engines, and engines do not depend on their callers."""
    known, training = modules(), "gpu_envs.training"
    heights = {f"{training}.{folder}": height for height, folder in enumerate(FOLDERS_OF_TRAINING)}
    problems = []
    for module, path in known.items():
        module_height = heights.get(".".join(module.split(".")[:3]), len(heights))
        for line, imported in imports(path, known) if module_height < len(heights) else ():
            imported_height = heights.get(".".join(imported.split(".")[:3]), -1)
            if imported_height > module_height or imported.startswith(ABOVE_ENGINES):
                problems.append(f"{path.relative_to(ROOT)}:{line}: {module} imports {imported}, which is higher")
    assert not problems, "\n".join(problems)


def test_no_import_cycles() -> None:
    known = modules()
    below = {module: {name for _, name in imports(path, known) if name != module} for module, path in known.items()}
    while free := [module for module, others in below.items() if not others & below.keys()]:
        for module in free:
            del below[module]
    assert not below, "\n".join(f"{module} -> {', '.join(sorted(o & below.keys()))}" for module, o in below.items())


def test_no_file_is_too_long() -> None:
    longest = {path: len(path.read_text().splitlines()) for path in modules().values()}
    assert {str(path.relative_to(ROOT)): lines for path, lines in longest.items() if lines > 500} == {}
    headers = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "kernels").rglob("*.cuh")}
    assert {name: lines for name, lines in headers.items() if lines > 500} == {}
    tests = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {name: lines for name, lines in tests.items() if lines > 600} == {}


@pytest.mark.slow
def test_no_test_file_imports_another() -> None:
    tests = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name: found for name, path in tests.items() if (found := [each for _, each in imports(path, tests)])} == {}


def test_only_dialect_headers_distinguish_compilers() -> None:
    """Only these test compiler macros, and only one tests for a GPU compiler."""
    texts = {str(path.relative_to(ROOT / "kernels")): path.read_text() for path in ROOT.glob("kernels/**/*.cuh")}
    assert {name for name, text in texts.items() if "__CUDACC__" in text} == {"dialect/portable.cuh"}
    compiler_test = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b.*\b__[A-Za-z]", re.MULTILINE)
    assert {name for name, text in texts.items() if compiler_test.search(text)} == {
        *DIALECT_HEADERS,
        "training/cpu/vectors.cuh",
    }


def test_every_public_method_has_a_docstring() -> None:
    """A docstring may be inherited."""
    for name in modules():
        if name.partition(".")[0] == "benchmarks" or ".scaffold." in name or name == "gpu_envs.__main__":
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:  # an optional library is missing
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == name and kind.__name__[0] != "_":
                public = [each for each, found in vars(kind).items() if callable(found) and each[0] != "_"]
                undocumented = [each for each in public if not inspect.getdoc(getattr(kind, each))]
                assert not undocumented, f"{name}.{kind.__name__}"
