"""Pytest plugin of ``python -m tests.mutants``: records outcome, time, tier and compiled headers of each case."""

import json
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpu_envs
from gpu_envs.backend import toolchain
from gpu_envs.errors import CompileError

RECORDS = "MUTANTS_RECORDS"
"""Environment variable: file to which a line of JSON is appended when a case starts and when it ends."""

COMPILER = "MUTANTS_COMPILER"
"""Environment variable: unoptimised compiler of all copies. The compiler's path is part of the cache key,
so copies with different compiler paths would share no compiled programs."""


def pytest_configure(config: pytest.Config) -> None:
    """Records this run if ``MUTANTS_RECORDS`` is set."""
    if os.environ.get(RECORDS):
        config.pluginmanager.register(RecordsCases(Path(os.environ[RECORDS])))


@pytest.fixture(autouse=True)
def shared_compiler(unoptimised_compiler: None) -> None:
    """Replaces this copy's unoptimised compiler by the shared one, until ``unoptimised_compiler`` restores it."""
    del unoptimised_compiler
    shared = os.environ.get(COMPILER, "")
    if shared and Path(os.environ.get("CXX", "")).name == Path(shared).name:
        os.environ["CXX"] = shared


class RecordsCases:
    """Writes the records; compilations in child processes of a case are not recorded."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._headers: set[str] = set()
        self._refused = False
        self._outcome, self._message = "passed", ""

    def pytest_sessionstart(self) -> None:
        self._write(package=str(Path(gpu_envs.__file__).resolve()))
        self._watch_compiler(_texts(Path(gpu_envs.__file__).parent / "kernels"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._headers, self._refused, self._outcome, self._message = set(), False, "passed", ""
        quick = not any(item.get_closest_marker(name) for name in ("slow", "timing"))
        start = time.time()
        self._write(started=item.nodeid, at=start)
        result = yield
        self._write(
            case=item.nodeid,
            outcome=self._outcome,
            message=self._message,
            seconds=round(time.time() - start, 3),
            quick=quick,
            headers=sorted(self._headers),
            refused=self._refused,
        )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._outcome != "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            self._outcome, self._message = "failed", str(getattr(crash, "message", report.longrepr))[:300]
        elif report.skipped and self._outcome == "passed":
            self._outcome = "skipped"

    def _watch_compiler(self, texts: dict[str, str]) -> None:
        compile_into = toolchain._compile_into  # noqa: SLF001 - every compilation is recorded here
        headers: dict[int, frozenset[str]] = {}

        def record_headers(folder: Path, source: str, name: str, extra_flags: Sequence[str]) -> Path:
            key = hash(source)
            if key not in headers:
                headers[key] = headers_of(source, texts)
            self._headers |= headers[key]
            try:
                return compile_into(folder, source, name, extra_flags)
            except CompileError:
                self._refused = True
                raise

        toolchain._compile_into = record_headers  # noqa: SLF001 - every compilation is recorded here

    def _write(self, **record: object) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _texts(kernels: Path) -> dict[str, str]:
    return {path.relative_to(kernels).as_posix(): path.read_text("utf-8") for path in kernels.rglob("*.cuh")}


def headers_of(source: str, texts: dict[str, str]) -> frozenset[str]:
    """Returns the names of the headers whose texts a program's source contains."""
    return frozenset(name for name, text in texts.items() if text.strip() in source)
