"""Every test runs over the registered environments, the devices that are present, and the outputs that suit them."""

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
    """Options for the tiers of tests."""
    tiers.add_options(parser)


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what belongs to the second tier, and what needs a GPU."""
    tiers.mark(items)
    if config.getoption("--shuffle") is not None:
        tiers.shuffle(items, config.getoption("--shuffle"))


def pytest_configure(config: pytest.Config) -> None:
    """Lets pass the warnings that are none of this package's; all others are errors."""
    # Gymnasium's own: of CartPole-v0 that there is a v1, and of CartPole's speeds that they are unbounded.
    config.addinivalue_line("filterwarnings", r"ignore:.*CartPole-v0 is out of date.*:DeprecationWarning")
    config.addinivalue_line(
        "filterwarnings", r"ignore:.*A Box observation space (minimum|maximum) value is.*infinity.*"
    )
    # pygame's own: of how it finds its files. Gymnasium and PettingZoo import it where it is installed.
    config.addinivalue_line("filterwarnings", r"ignore:pkg_resources is deprecated.*")
    config.addinivalue_line("filterwarnings", r"ignore:Deprecated call to `pkg_resources:DeprecationWarning")
    # PettingZoo's own: its tests make one of its games in the old way, where pygame lets them.
    config.addinivalue_line("filterwarnings", r"ignore:The old environment creation API:DeprecationWarning")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs: tests press Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # windows that nobody sees
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU, beside others
    # torch's own: that its mode that finds synchronisations is a prototype.
    config.addinivalue_line("filterwarnings", r"ignore:Synchronization debug mode is a prototype")

    if hasattr(config, "workerinput"):  # torch would start as many threads as there are cores, in each process
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:  # one of xdist's processes tells the first, which tells us
        config.pluginmanager.register(NamesFailures(config))
        config.pluginmanager.register(tiers.ListsHopper(config))
    tiers.configure(config)


def pytest_collection_finish() -> None:
    """What is there now stays: to look through it takes 0.2 s, whenever a test asks for what is garbage."""
    gc.collect()
    gc.freeze()


class NamesFailures:
    """Says which test failed, and why, at once: a run of all tests is long, and pytest says it at the end."""

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
"""Tests of compilers and of arithmetic compile as users do; others do not optimise, which takes a quarter of the time
and gives the same bits, as ``test_compilers_agree`` makes sure."""

IN_SLOW_TESTS = [HERE / "kernels" / f"test_{name}.py" for name in ("determinism", "parity")]
"""The same, but only in what `make test` leaves out."""


@pytest.fixture(autouse=True)
def unoptimised_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most compilations are of environments that take a few steps."""
    slow = request.node.get_closest_marker("slow") is not None
    shipped = any(request.path.is_relative_to(path) for path in AS_SHIPPED + IN_SLOW_TESTS * slow)
    timed = request.node.get_closest_marker("timing") is not None
    with pytest.MonkeyPatch.context() as own:  # a test's own monkeypatch is undone when the test asks for it, not first
        if not shipped and not timed and "CXX" not in os.environ and shutil.which("c++") is not None:
            own.setenv("CXX", UNOPTIMISED)
        yield
        for thread in list(
            background.COMPILATIONS.threads.values()
        ):  # what nobody asked for is compiled as the test says
            thread.join()


def each_of(values: Iterable[Any], ids: Callable[[Any], str] | None = None) -> Any:
    """A fixture: a test runs for each of these."""

    @pytest.fixture(params=values, ids=ids)
    def one_of_them(request: pytest.FixtureRequest) -> Any:
        return request.param

    return one_of_them


env_id = each_of(IDS)
"""The id of each registered environment of one agent."""

team_id = each_of(TEAM_IDS)
"""The id of each environment with a team."""

any_id = each_of([*IDS, *TEAM_IDS])
"""The id of each environment, of one agent or with a team."""

device = each_of(DEVICES)
"""Each device that is present."""

place = each_of(PLACES, ids=lambda place: f"{place.device}-{place.output}")
"""Each device with each output that suits it."""

mode = each_of(MODES)
"""Each auto-reset mode."""


@pytest.fixture(params=[*IDS, *TEAM_IDS])
def variant(request: pytest.FixtureRequest) -> Variant:
    """Each environment, small and with short episodes; ``registered.each_variant`` gives more."""
    return Variant(request.param, {})


@pytest.fixture
def builtin_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry as it is when the package is imported, whatever other tests have registered."""
    own = [spec.id for spec in ALL]
    for known in ("SPECS", "ORIGINS"):
        monkeypatch.setattr(registry, known, {name: getattr(registry, known)[name] for name in own})


@pytest.fixture
def temporary_registry() -> Iterator[None]:
    """What a test registers is known to no other."""
    with restored_registry():
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is compiled in this test alone, which is not there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPU_ENVS_CACHE_DIR", str(folder))
    monkeypatch.setattr(background.COMPILATIONS, "threads", {})  # what others began and nobody waited for
    return folder


@pytest.fixture(scope="module")
def masked_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Those of ``masked_envs`` are known by their ids."""
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
    """Lets torch use one thread of the CPU: what these tests compute is small, and others run beside them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sync_debug_mode() -> Iterator[Callable[[str], None]]:
    """Says what torch does where the host would wait for the device: ``default`` or ``error``."""
    torch = pytest.importorskip("torch")
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line writes as where there is no terminal, wherever these tests run."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def unthrottled_clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Windows do not wait for the time of the next picture; the rates at which they would have."""
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
        patch.setenv("CXX", UNOPTIMISED)  # it is made before ``unoptimised_compiler``
        return record("Pendulum-v1", replicas=4, steps=20, device="cpu")


@pytest.fixture(scope="module")  # longer, and the last test of all would be charged what it used
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One without a screen."""
    pytest.importorskip("PIL.Image")
    program = find_browser()
    if program is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def open_replay(browser: Browser, tmp_path: Path) -> Iterator[OpenReplay]:
    """Opens the page of a replay; at the end it may not have complained, nor asked for anything but itself."""
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
