"""The two tiers of tests: selects the cases that only ``make test-all`` runs, and limits the time of the others."""

import random
import re
import resource
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA, MODES

import gpu_envs

REPRESENTATIVES = ("CartPole-v1", "Acrobot-v1", "TagContinuous-v0", "TagGridWorld-v0", "SimpleSpread-v3")
"""Environments that the first tier uses in tests over environments; cases of other environments are slow."""

IN_ALL_MODES = ("CartPole-v1", "TagGridWorld-v0")
"""Environments that the first tier runs in every autoreset mode; others run only in ``USUAL_MODE``."""

USUAL_MODE = "SameStep"

COSTLY_FIXTURES = ("browser", "negotiation_run")
"""Fixtures that make a case slow."""

END_TO_END_SECONDS = 20.0

IMPORT_SECONDS = 15.0
"""CPU seconds subtracted from the first case of a process that imports a library of ``HEAVY``."""

HEAVY = {
    "cupy",
    "jax",
    "lightning",
    "matplotlib",
    "onnxruntime",
    "onnxscript",
    "pygame",
    "ray",
    "rsl_rl",
    "skrl",
    "stable_baselines3",
    "torch",
    "torchrl",
}

GPU_REASON = re.compile(
    r"(needs (a|two)|no) (CUDA device|GPU|Hopper GPU(?! or none))|about a GPU's memory|a CPU has no graphs"
)
"""Pattern of the reasons with which tests for GPUs are skipped."""


def add_options(parser: pytest.Parser) -> None:
    """Adds the options of this module."""
    group = parser.getgroup("tiers of tests")
    group.addoption("--cpu-limit", type=float, help="fail cases that use more seconds of CPU time than this")
    group.addoption("--costs", type=Path, help="write the CPU seconds of each case to this file")
    group.addoption("--shuffle", type=int, help="run the cases in a random order, by this seed")


def configure(config: pytest.Config) -> None:
    """Registers the plugins for the options; xdist's workers get the same options."""
    if config.getoption("--cpu-limit") is not None or config.getoption("--costs") is not None:
        config.pluginmanager.register(MeasuresCases(config.getoption("--cpu-limit")))
    if config.getoption("--costs") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(WritesCosts(config.getoption("--costs")))


def mark(items: list[pytest.Item]) -> None:
    """Marks cases that need a GPU, and cases that only `make test-all` runs."""
    cases = defaultdict(list)
    for item in items:
        if _needs_gpu(item):
            item.add_marker(pytest.mark.cuda)
        costly = set(COSTLY_FIXTURES).intersection(getattr(item, "fixturenames", ()))
        if costly and item.get_closest_marker("end_to_end") is None:
            item.add_marker(pytest.mark.slow)
        cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        _mark_product(group)
        _mark_beyond_the_first(group)


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Shuffles the cases, in the same order in every process."""
    random.Random(seed).shuffle(items)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _needs_gpu(item: pytest.Item) -> bool:
    parameters = _parameters(item)
    if HAS_CUDA and "cuda" in (parameters.get("device"), getattr(parameters.get("place"), "device", None)):
        return True
    return any(GPU_REASON.search(str(each.kwargs.get("reason", ""))) for each in item.iter_markers("skipif"))


def _mark_product(cases: list[pytest.Item]) -> None:
    """Marks cases as slow unless they use representative environments and modes; the first case always stays."""
    if cases[0].get_closest_marker("every_environment") is not None:
        return
    ids = set(gpu_envs.ids())
    for case in cases[1:]:
        values = _parameters(case).values()
        names = {name for name in (getattr(value, "env_id", value) for value in values) if isinstance(name, str)}
        environments, modes = names & ids, names & set(MODES)
        if environments.difference(REPRESENTATIVES) or (
            modes.difference([USUAL_MODE]) and environments and not environments.intersection(IN_ALL_MODES)
        ):
            case.add_marker(pytest.mark.slow)


def _mark_beyond_the_first(cases: list[pytest.Item]) -> None:
    limit = cases[0].get_closest_marker("fast_cases")
    quick = [case for case in cases if case.get_closest_marker("slow") is None]
    for case in quick[limit.args[0] :] if limit is not None else ():
        case.add_marker(pytest.mark.slow)


class MeasuresCases:
    """Measures the CPU seconds of each case, including child processes, and fails cases above the limit.

    The cost of a module or session fixture counts for every case that uses it, not only for the first.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._before = 0.0
        self._imported: set[str] = set()
        self._shared: dict[tuple[str, str], float] = {}
        self._set_up = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._before, self._imported, self._set_up = _cpu_seconds(), HEAVY.intersection(sys.modules), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        before = _cpu_seconds()
        value = yield
        if fixturedef.scope != "function":
            seconds = _cpu_seconds() - before
            self._shared[fixturedef.argname, fixturedef.baseid] = seconds
            self._set_up += seconds
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown":
            names = getattr(item, "fixturenames", ())
            uses = [(name, place) for name, place in self._shared if name in names and item.nodeid.startswith(place)]
            shared = sum(self._shared[key] for key in uses)
            seconds = max(0.0, _cpu_seconds() - self._before - self._set_up)
            if HEAVY.intersection(sys.modules) - self._imported:
                seconds = max(0.0, seconds - IMPORT_SECONDS)
            report.user_properties.append(("cpu_seconds", (seconds, shared)))
            limit = self._limit_of(item)
            if report.passed and limit is not None and seconds + shared > limit:
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} used {seconds + shared:.1f} s of CPU time ({shared:.1f} s in fixtures); "
                    f"`make test` allows {limit:g}. Make it cheaper, or mark it `slow` (or `fast_cases(n)`): then only "
                    "`make test-all` runs it."
                )
        return report

    def _limit_of(self, item: pytest.Item) -> float | None:
        if self._limit is None or item.get_closest_marker("slow") is not None:
            return None
        return END_TO_END_SECONDS if item.get_closest_marker("end_to_end") is not None else self._limit


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class WritesCosts:
    """Writes a line per case, most expensive first: its CPU seconds, its shared fixtures' CPU seconds, and its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._costs: dict[str, tuple[float, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._costs[report.nodeid] = dict(report.user_properties)["cpu_seconds"]  # type: ignore[assignment]  # object

    def pytest_sessionfinish(self) -> None:
        rows = sorted(self._costs.items(), key=lambda row: -row[1][0])
        self._path.write_text("".join(f"{own:.3f} {shared:.3f} {name}\n" for name, (own, shared) in rows))


class ListsHopper:
    """Lists at the end the cases that were skipped because they need a Hopper GPU."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._skipped: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and "Hopper" in str(report.longrepr):
            self._skipped[report.nodeid.partition("[")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._skipped:
            terminalreporter.section("skipped: only a Hopper GPU (H100, H200) runs these")
            for name, count in sorted(self._skipped.items()):
                terminalreporter.write_line(f"{name}: {count} {'case' if count == 1 else 'cases'}")
