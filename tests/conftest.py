"""Fixtures that run tests over the registered environments, the devices of this machine, and their output libraries."""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiers
from browser import READY, REDUCED_MOTION, Browser, OpenReplay, Tab, find_browser
from harness import DEVICES, IDS, MODES, PLACES, SMALL_PARAMS, TEAM_IDS, UNOPTIMISED, Make, restored_registry
from masked_envs import specs
from registered import Variant

import gpu_envs
from gpu_envs.backend import background
from gpu_envs.envs import ALL
from gpu_envs.registry import catalog as registry


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the test tiers."""
    tiers.add_options(parser)


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks cases of the second tier, and cases that need a GPU."""
    tiers.mark(items)
    if config.getoption("--shuffle") is not None:
        tiers.shuffle(items, config.getoption("--shuffle"))


def pytest_configure(config: pytest.Config) -> None:
    """Ignores known warnings of other libraries; all other warnings are errors."""
    # Gymnasium: CartPole-v0 is out of date, and CartPole's speeds are unbounded.
    config.addinivalue_line("filterwarnings", r"ignore:.*CartPole-v0 is out of date.*:DeprecationWarning")
    config.addinivalue_line(
        "filterwarnings", r"ignore:.*A Box observation space (minimum|maximum) value is.*infinity.*"
    )
    # pygame: how it finds its files. Gymnasium and PettingZoo import it if it is installed.
    config.addinivalue_line("filterwarnings", r"ignore:pkg_resources is deprecated.*")
    config.addinivalue_line("filterwarnings", r"ignore:Deprecated call to `pkg_resources:DeprecationWarning")
    # PettingZoo: its tests create a game with a deprecated function, if pygame is installed.
    config.addinivalue_line("filterwarnings", r"ignore:The old environment creation API:DeprecationWarning")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs ignore SIGINT; tests need it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window appears
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
    # torch: its mode for detecting synchronisations is a prototype.
    config.addinivalue_line("filterwarnings", r"ignore:Synchronization debug mode is a prototype")

    if hasattr(config, "workerinput"):  # torch would start one thread per core in each process
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:  # xdist's workers report to this process
        config.pluginmanager.register(NamesFailures(config))
        config.pluginmanager.register(tiers.ListsHopper(config))
    tiers.configure(config)


def pytest_collection_finish() -> None:
    """Excludes all current objects from garbage collection: scanning them would take 0.2 s per ``gc.collect()``."""
    gc.collect()
    gc.freeze()


class NamesFailures:
    """Prints each failure at once: a run of all tests is long, and pytest prints failures at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            why = getattr(getattr(report.longrepr, "reprcrash", None), "message", "").splitlines()
            terminal.ensure_newline()
            terminal.write_line(f"failed: {report.nodeid}: {why[0][:200] if why else report.when}", red=True)


HERE = Path(__file__).parent

AS_SHIPPED = [
    HERE / "backend",
    *(HERE / "kernels" / f"test_{name}.py" for name in ("elementary", "philox")),
    HERE / "training" / "test_sampler.py",
]
"""Tests of compilers and arithmetic compile as users do. Other tests compile without optimisation, in a quarter of the
time and with the same bits, which ``test_compilers_agree`` verifies."""

IN_SLOW_TESTS = [HERE / "kernels" / f"test_{name}.py" for name in ("determinism", "parity")]
"""Tests that compile as users do only in slow cases."""


@pytest.fixture(autouse=True)
def unoptimised_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles without optimisation, except in the tests above: most environments in tests take few steps."""
    slow = request.node.get_closest_marker("slow") is not None
    shipped = any(request.path.is_relative_to(path) for path in AS_SHIPPED + IN_SLOW_TESTS * slow)
    timed = request.node.get_closest_marker("timing") is not None
    with pytest.MonkeyPatch.context() as own:  # the test's ``monkeypatch`` fixture would be undone too late
        if not shipped and not timed and "CXX" not in os.environ and shutil.which("c++") is not None:
            own.setenv("CXX", UNOPTIMISED)
        yield
        for thread in list(
            background.COMPILATIONS.threads.values()
        ):  # compilations that the test started but did not wait for
            thread.join()


def parametrized_fixture(values: Iterable[Any], ids: Callable[[Any], str] | None = None) -> Any:
    """Returns a fixture that runs a test for each of these values."""

    @pytest.fixture(params=values, ids=ids)
    def value(request: pytest.FixtureRequest) -> Any:
        return request.param

    return value


env_id = parametrized_fixture(IDS)
"""The id of each registered single-agent environment."""

team_id = parametrized_fixture(TEAM_IDS)
"""The id of each registered team environment."""

any_id = parametrized_fixture([*IDS, *TEAM_IDS])
"""The id of each registered environment."""

device = parametrized_fixture(DEVICES)
"""Each device of this machine."""

place = parametrized_fixture(PLACES, ids=lambda place: f"{place.device}-{place.output}")
"""Each device with each output library that it supports."""

mode = parametrized_fixture(MODES)
"""Each auto-reset mode."""


@pytest.fixture(params=[*IDS, *TEAM_IDS])
def variant(request: pytest.FixtureRequest) -> Variant:
    """Each environment, small and with short episodes; ``registered.each_variant`` runs more variants."""
    return Variant(request.param, {})


@pytest.fixture
def builtin_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restricts the registry to the built-in environments, whatever other tests have registered."""
    own = [spec.id for spec in ALL]
    for known in ("SPECS", "ORIGINS"):
        monkeypatch.setattr(registry, known, {name: getattr(registry, known)[name] for name in own})


@pytest.fixture
def temporary_registry() -> Iterator[None]:
    """Removes the test's registrations after the test."""
    with restored_registry():
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compilation cache for this test; the folder does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(folder))
    monkeypatch.setattr(background.COMPILATIONS, "threads", {})  # ignore compilations of earlier tests
    return folder


@pytest.fixture(scope="module")
def masked_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Registers the environments of ``masked_envs``."""
    with pytest.MonkeyPatch.context() as patch:
        for spec in specs(tmp_path_factory.mktemp("headers")):
            patch.setitem(registry.SPECS, spec.id, spec)
        yield


@pytest.fixture
def make() -> Iterator[Make]:
    """``gpu_envs.make``, whose environments are closed after the test."""
    made: list[gpu_envs.VectorEnv] = []

    def make_and_keep(env_id: str, num_envs: int = 1, **kwargs: Any) -> gpu_envs.VectorEnv:
        made.append(gpu_envs.make(env_id, num_envs, **{**SMALL_PARAMS.get(env_id, {}), **kwargs}))
        return made[-1]

    yield make_and_keep
    for env in made:
        env.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Limits torch to one CPU thread: these tests compute little, and other processes run at the same time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sync_debug_mode() -> Iterator[Callable[[str], None]]:
    """Sets torch's reaction to a synchronisation with the device: ``default`` or ``error``."""
    torch = pytest.importorskip("torch")
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes the width of the command line's output at 100 columns, as without a terminal."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def unthrottled_clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes windows not wait between frames; returns the frame rates that they request."""
    pygame = pytest.importorskip("pygame")
    rates: list[int] = []

    class Clock:
        def tick(self, rate: int) -> None:
            rates.append(rate)

    monkeypatch.setattr(pygame.time, "Clock", Clock)
    return rates


@pytest.fixture(scope="module")
def replay() -> Any:
    """A recording of a few pendulums."""
    from gpu_envs.replays import record

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", UNOPTIMISED)  # ``unoptimised_compiler`` is not active yet
        return record("Pendulum-v1", replicas=4, steps=20, device="cpu")


@pytest.fixture(scope="module")  # with a session scope, the last test would be charged its CPU time
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser."""
    pytest.importorskip("PIL.Image")
    program = find_browser()
    if program is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def open_replay(browser: Browser, tmp_path: Path) -> Iterator[OpenReplay]:
    """Opens the page of a replay; afterwards checks that it logged no problem and requested no other file."""
    tabs: list[tuple[Tab, Path]] = []

    def open_page(replay: Any, *, moving: bool = False, fps: int | None = None, **window: Any) -> Tab:
        path = tmp_path / f"page-{len(tabs)}.html"
        replay.save_html(path, fps=fps)
        tab = Tab(browser)
        tab.call("Emulation.setEmulatedMedia", features=[] if moving else REDUCED_MOTION)
        tabs.append((tab, path))
        tab.open(path, ready=READY, **window)
        return tab

    yield open_page
    for tab, path in tabs:
        assert tab.problems() == []
        assert tab.requests() == [path.as_uri()]
        tab.close()
