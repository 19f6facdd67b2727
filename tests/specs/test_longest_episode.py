"""``longest_episode``: the maximum of every time limit."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import gpu_envs
from gpu_envs import EnvSpec, Field, Param, Table, VectorEnv

RULES = """
FN void reset(State& s, const Params&, Random&) { s.clock = 0; }
FN Outcome step(State& s, const Params& p, const Action&, Random&) { return {p.price(s.clock++), false}; }
FN void observe(const State& s, const Params&, Observation& o) { o[0] = float(s.clock); }
"""


def days(params: Mapping[str, Any]) -> int:
    return int(params["days"])


def prices(params: Mapping[str, Any]) -> np.ndarray:
    return np.arange(days(params)) + 1.0


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., EnvSpec]:
    """Makes specs of a market whose prices are known for a number of days."""
    (tmp_path / "market.cuh").write_text(RULES)

    def make_spec(**changes: Any) -> EnvSpec:
        settings: dict[str, Any] = {
            "id": "Market-v0",
            "header": tmp_path / "market.cuh",
            "state": {"clock": Field("int")},
            "params": {"days": Param(30, fixed=True, positive=True)},
            "tables": {"price": Table(prices)},
            "observation": Box(0, 1000, (1,), np.float32),
            "action": Discrete(2),
            "longest_episode": days,
        }
        return EnvSpec(**settings | changes)

    return make_spec


def test_it_is_the_default_limit(make: Callable[..., EnvSpec]) -> None:
    assert VectorEnv(make(), 2, device="cpu").max_episode_steps == 30
    assert VectorEnv(make(), 2, device="cpu", days=12).max_episode_steps == 12
    assert VectorEnv(make(max_episode_steps=20), 2, device="cpu").max_episode_steps == 20
    assert VectorEnv(make(max_episode_steps=20), 2, device="cpu", days=12).max_episode_steps == 12
    assert VectorEnv(make(max_episode_steps=20), 2, device="cpu", max_episode_steps=30).max_episode_steps == 30


@pytest.mark.parametrize(("limit", "message"), [(-1, "is -1, no limit,"), (31, "is 31,")])
def test_no_limit_exceeds_it(make: Callable[..., EnvSpec], limit: int, message: str) -> None:
    for longest in (days, 30):
        with pytest.raises(
            ValueError,
            match=rf"Market-v0: max_episode_steps {message} but its rules .* at most 30 steps: give at most 30",
        ):
            VectorEnv(make(longest_episode=longest), 2, device="cpu", max_episode_steps=limit)


def test_a_parameter_for_the_limit_does_not_exceed_it(make: Callable[..., EnvSpec]) -> None:
    params = {"days": Param(30, fixed=True), "length": Param(10, fixed=True), "pace": Param(3)}
    spec = make(params=params, max_episode_steps=lambda p: int(p["length"]))
    assert VectorEnv(spec, 2, device="cpu").max_episode_steps == 10
    assert VectorEnv(spec, 2, device="cpu", length=7).max_episode_steps == 7
    assert VectorEnv(spec, 2, device="cpu", length=7, max_episode_steps=20).max_episode_steps == 20
    with pytest.raises(ValueError, match="Market-v0: max_episode_steps: <lambda> reads 'pace', which may change"):
        VectorEnv(dataclasses.replace(spec, max_episode_steps=lambda p: int(p["pace"])), 2, device="cpu")
    with pytest.raises(ValueError, match=r"max_episode_steps is 40, but its rules .* at most 30 steps"):
        VectorEnv(spec, 2, device="cpu", length=40)


def test_a_single_environment_ends_with_it(make: Callable[..., EnvSpec]) -> None:
    """Gymnasium's wrapper has another limit or none: the last price is that of the last step."""
    gpu_envs.register(make())
    env = gymnasium.make("gpu_envs/Market-v0", device="cpu", max_episode_steps=-1)
    env.reset(seed=0)
    for t in range(1, 31):
        _, reward, terminated, truncated, _ = env.step(0)
        assert (reward, terminated, truncated) == (t, False, t == 30)
    env.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"longest_episode": 0}, "Market-v0: longest_episode is 0; give an integer of at least 1"),
        ({"longest_episode": "days"}, "Market-v0: longest_episode is 'days'; give an integer"),
        (
            {"longest_episode": 9, "max_episode_steps": 10},
            "max_episode_steps is 10; use longest_episode, 9, or fewer",
        ),
    ],
)
def test_invalid_longest_episodes(make: Callable[..., EnvSpec], changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make(**changes)
