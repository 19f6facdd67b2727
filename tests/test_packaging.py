"""Contents of source distributions and wheels."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import gpu_envs
from gpu_envs.cli.info import EXTRAS

ROOT = Path(__file__).parent.parent
LINKS = {"gpu_envs.adapters": "adapters", "gpu_envs.kernels": "kernels"}
NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", "__pycache__", "build", "dist", "*.egg-info", ".whl", "shared", "runs"
)

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not in a checkout")


def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def shipped() -> set[str]:
    """Returns the paths in the package of all files that it must contain."""
    suffixes = {".py", ".cuh", ".cpp", ".typed", ".html", ".css", ".js", ".json", ".toml"}
    paths = set()
    for package in configuration()["tool"]["setuptools"]["packages"]:
        folder = ROOT / LINKS.get(package, package.replace(".", "/"))
        files = folder.rglob("*") if package == "gpu_envs.kernels" else folder.iterdir()  # its folders are no packages
        inside = (path.relative_to(folder) for path in files if path.suffix in suffixes)
        paths |= {f"{package.replace('.', '/')}/{path}" for path in inside}
    return paths


def tracked() -> dict[str, str]:
    """Returns the mode of each tracked file; empty outside of a git checkout."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return {}
    command = ["git", "-c", "safe.directory=*", "ls-files", "--stage"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    return {path: entry.split()[0] for entry, path in (line.split("\t") for line in lines)}


def test_every_folder_with_python_is_a_package_and_listed() -> None:
    """A namespace package would break `importlib.resources` on Python 3.11."""
    found = set()
    for package, folder in {"gpu_envs": "gpu_envs", **LINKS}.items():  # whether or not searches follow symlinks
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"
            found.add(".".join([package, *path.parent.relative_to(ROOT / folder).parts]))
    setuptools = configuration()["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(found)
    assert setuptools["package-dir"] == LINKS


@pytest.mark.parametrize("folder", sorted(LINKS.values()))
def test_symlinks_are_committed_as_symlinks(folder: str) -> None:
    link = ROOT / "gpu_envs" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    listed = tracked()
    assert not listed or listed[f"gpu_envs/{folder}"] == "120000"


def test_the_extras_stay_small() -> None:
    """CuPy's `ctk` extra would install 1.6 GB of unneeded libraries."""
    project = configuration()["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    assert not any(requirement.startswith("cupy") and "[" in requirement for requirement in requirements)
    for extra in ("cuda12", "cuda13"):
        assert any("nvrtc" in requirement for requirement in extras[extra])
    assert {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]} == {"gymnasium", "numpy"}


def test_info_lists_every_extra_with_a_library() -> None:
    extras = configuration()["project"]["optional-dependencies"]
    of_their_own, for_development = {"cuda12", "cuda13", "torch", "train"}, {"compat", "dev", "docs"}
    assert {*extras} - of_their_own - for_development == {*EXTRAS}
    assert extras["torch"] == ["gpu_envs[train]"]
    for extra, distribution in EXTRAS.items():
        assert any(re.split(r"[<>=]", requirement)[0] == distribution for requirement in extras[extra])


def test_the_citation_matches_the_package() -> None:
    project = configuration()["project"]
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {gpu_envs.__version__}" in lines
    assert f"license: {project['license']}" in lines
    assert f"  - name: {project['authors'][0]['name']}" in lines


def test_changelog_format() -> None:
    """https://keepachangelog.com: versions, newest first, with sections of six names."""
    headings = re.findall(r"^(##+) (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    versions = [title for level, title in headings if level == "##"]
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title) for title in versions[1:])
    sections = {title for level, title in headings if level == "###"}
    assert sections
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- built ---


def run(*command: str | Path, cwd: Path, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, tree: Path, into: Path) -> Path:
    into.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; b.build_{kind}({str(into)!r})"
    run(sys.executable, "-c", code, cwd=tree)
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def build_a_copy(kind: str, folders: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    folder = folders.mktemp(kind)
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=NOT_SOURCES)
    return build(kind, folder / "tree", folder / "made")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_a_copy("sdist", tmp_path_factory)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_a_copy("wheel", tmp_path_factory)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.mark.slow
def test_the_source_distribution_is_the_repository(sdist: Path) -> None:
    """Only symlinks are left out: the build recreates them from their targets."""
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in (each.name for each in archive if each.isfile())}
    generated = {"PKG-INFO", "setup.cfg"}
    files = {name for name in files if not name.startswith("gpu_envs.egg-info/")} - generated
    listed = {name for name, mode in tracked().items() if mode != "120000"}
    assert "kernels/dialect/portable.cuh" in files
    assert not listed or {*files} >= listed  # what is not yet tracked may be among them


@pytest.mark.slow
def test_the_repository_address_is_in_one_file(sdist: Path) -> None:
    (address,) = configuration()["project"]["urls"].values()
    with tarfile.open(sdist) as archive:
        named = [each.name for each in archive if each.isfile() and address.encode() in _read(archive, each)]
    assert {name.partition("/")[2] for name in named} == {"PKG-INFO", "gpu_envs.egg-info/PKG-INFO", "pyproject.toml"}


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def test_the_wheel_contains_only_the_package_and_its_metadata(wheel: Path) -> None:
    found = contents(wheel)
    files = {name for name in found if ".dist-info/" not in name}
    assert files == shipped()
    assert {"gpu_envs/kernels/dialect/portable.cuh", "gpu_envs/backend/threads.cpp", "gpu_envs/py.typed"} <= files
    assert "gpu_envs/adapters/gymnasium/__init__.py" in files
    (metadata,) = (text.decode() for name, text in found.items() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {gpu_envs.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in found)


@pytest.mark.slow
def test_a_wheel_from_the_source_distribution_is_the_same(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", str(sdist), "-C", str(tmp_path)], check=True)  # (Python 3.11.2 takes no filter)
    (tree,) = tmp_path.iterdir()
    assert contents(build("wheel", tree, tmp_path / "made")) == contents(wheel)
