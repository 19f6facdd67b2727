"""The planner of the examples."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FILE = Path(__file__).parents[1] / "examples" / "planner.py"


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("planner", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planner", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mppi", "cem"])
def test_it_swings_a_pendulum_up_without_learning(planner: Any, method: str, device: str) -> None:
    """A random policy returns about -1,200; from this initial state near the bottom, about -360 is the optimum."""
    args = planner.Args(method=method, device=device, trials=256, iterations=2, episodes=2, seed=2)
    returns = planner.run(args)
    assert len(returns) == 2
    assert min(returns) > -400
    assert planner.run(args) == returns


@pytest.mark.slow
def test_it_balances_a_pole_with_discrete_actions(planner: Any, device: str) -> None:
    args = planner.Args(env_id="CartPole-v1", device=device, trials=1024, iterations=1, episodes=1)
    assert planner.run(args) == [500.0]


def test_the_command_line_has_every_field(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "planner.py --device cpu --trials 16 --horizon 4 --iterations 1 --episodes 1".split()
    monkeypatch.setattr(sys, "argv", [*command, "--env-id", "CartPole-v1", "--method", "cem", "--elites", "0.25"])
    planner.main()
