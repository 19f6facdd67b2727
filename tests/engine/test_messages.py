"""Messages for mistakes of an environment's users."""

from typing import Any

import numpy as np
import pytest
from harness import Make

import gpu_envs
from gpu_envs.engine.state import LiveParams, LiveState


def test_steps_after_the_end_in_disabled_mode(make: Make) -> None:
    """The message says which call allows them."""
    env = make("CartPole-v1", 2, device="cpu", autoreset_mode="Disabled")
    env.reset(seed=0)
    env.state["x"] = 10.0
    env.step(np.ones(2, np.int64))  # terminates the episode: the cart is off the track
    with pytest.raises(gpu_envs.ActionError, match=r"or call env\.allow_frozen_steps\(\) first"):
        env.step(np.ones(2, np.int64))
    env.allow_frozen_steps()
    env.step(np.ones(2, np.int64))


def test_actions_by_agent_instead_of_role(make: Make) -> None:
    env: Any = make("TagGridWorld-v0", 3, device="cpu")
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"'tagger' are missing.*array for each role: 'tagger' \[3, 4\], 'runner' \[3, 1\]"
    ):
        env.step(dict.fromkeys(env.possible_agents, 0))


@pytest.mark.parametrize(
    ("mapping", "name", "message"),
    [("state", "x_", "no field 'x_'. Did you mean 'x'?"), ("params", "gravty", "no parameter 'gravty'. Did you mean")],
)
def test_an_unknown_field_or_parameter(make: Make, mapping: str, name: str, message: str) -> None:
    values = getattr(make("CartPole-v1", 2, device="cpu"), mapping)
    assert isinstance(values, LiveState | LiveParams)
    with pytest.raises(KeyError) as caught:
        values[name]
    assert message in caught.value.args[0]
    assert name not in values
    assert values.get(name) is None


def test_repr_of_the_state(make: Make) -> None:
    state = make("CartPole-v1", 2, device="cpu").state
    assert repr(state) == "LiveState(x: float32[2], x_dot: float32[2], theta: float32[2], theta_dot: float32[2])"


def test_parallel_env_has_one_replica() -> None:
    pettingzoo = pytest.importorskip("gpu_envs.adapters.pettingzoo")
    with pytest.raises(TypeError, match=r"no num_envs: use vector_env\(id, num_envs\) for many replicas"):
        pettingzoo.parallel_env("TagGridWorld-v0", num_envs=4)
