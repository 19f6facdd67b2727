"""Every test runs over the registered environments, the devices that are present, and the outputs that suit them."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from harness import DEVICES, IDS, MODES, PLACES, Make, Place, forgotten

import gpu_envs
from gpu_envs import registry
from gpu_envs.envs import ALL


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
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # windows that nobody sees
    # torch's own: that its mode that finds synchronisations is a prototype.
    config.addinivalue_line("filterwarnings", r"ignore:Synchronization debug mode is a prototype")


@pytest.fixture(params=IDS)
def env_id(request: pytest.FixtureRequest) -> str:
    """The id of each registered environment."""
    return str(request.param)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that is present."""
    return str(request.param)


@pytest.fixture(params=PLACES, ids=lambda place: f"{place.device}-{place.output}")
def place(request: pytest.FixtureRequest) -> Place:
    """Each device with each output that suits it."""
    assert isinstance(request.param, Place)
    return request.param


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each auto-reset mode."""
    return str(request.param)


@pytest.fixture
def ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry as it is when the package is imported, whatever other tests have registered."""
    own = [spec.id for spec in ALL]
    for known in ("_SPECS", "_ORIGINS"):
        monkeypatch.setattr(registry, known, {name: getattr(registry, known)[name] for name in own})


@pytest.fixture
def forgets() -> Iterator[None]:
    """What a test registers is known to no other."""
    with forgotten():
        yield


@pytest.fixture
def make() -> Iterator[Make]:
    """``gpu_envs.make``, whose environments are closed after the test."""
    made: list[gpu_envs.VectorEnv] = []

    def make_and_keep(env_id: str, num_envs: int = 1, **kwargs: Any) -> gpu_envs.VectorEnv:
        made.append(gpu_envs.make(env_id, num_envs, **kwargs))
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
