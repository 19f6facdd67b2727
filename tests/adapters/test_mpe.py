"""The MPE adapter against mpe2."""

import importlib
from typing import Any

import numpy as np
import pettingzoo.test
import pytest
from mpe_recordings import MODULES, make_mpe2, mpe2_state, write_state

from gpu_envs.adapters.mpe import simple_adversary_v3, simple_spread_v3, simple_tag_v3

EACH = pytest.mark.parametrize("env_id", MODULES)


def ours(env_id: str) -> Any:
    return importlib.import_module(f"gpu_envs.adapters.mpe.{MODULES[env_id]}")


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@EACH
def test_attributes_match_mpe2(env_id: str, continuous: bool) -> None:
    mine, other = (
        ours(env_id).parallel_env(continuous_actions=continuous),
        make_mpe2(env_id, continuous_actions=continuous),
    )
    assert mine.possible_agents == other.possible_agents
    assert mine.max_cycles == other.max_cycles
    assert mine.metadata["name"] == other.metadata["name"]
    assert mine.metadata["render_modes"] == ["rgb_array", "human"]
    assert mine.state_space == other.state_space
    for agent in mine.possible_agents:
        assert mine.action_space(agent) == other.action_space(agent)
        assert mine.observation_space(agent) == other.observation_space(agent)


@EACH
def test_steps_match_mpe2(env_id: str) -> None:
    mine = ours(env_id).parallel_env(benchmark_data=True, device="cpu")
    other = make_mpe2(env_id, benchmark_data=True)
    for seed in range(20):
        mine.reset(seed=seed)
        other.reset(seed=seed)
        write_state(
            mine.unwrapped.batch, {name: np.asarray(values)[None] for name, values in mpe2_state(other).items()}
        )
        for turn in range(10):
            actions = {agent: mine.action_space(agent).sample() for agent in mine.agents}
            observations, rewards, _, _, infos = mine.step(actions)
            other.current_actions = [actions[agent] for agent in other.possible_agents]
            other._execute_world_step()  # noqa: SLF001 - mpe2 has no public method
            for agent in mine.agents:
                np.testing.assert_allclose(observations[agent], other.observe(agent), rtol=0, atol=1e-6, err_msg=turn)
                assert rewards[agent] == pytest.approx(other.rewards[agent], abs=1e-6)
                data, expected = infos[agent]["benchmark_data"], other.infos[agent]["benchmark_data"]
                if isinstance(expected, dict):
                    assert data == expected == {}
                else:
                    assert np.shape(data) == np.shape(expected)
                    np.testing.assert_allclose(np.asarray(data), np.asarray(expected), rtol=0, atol=1e-6)
            np.testing.assert_allclose(mine.state(), other.state(), rtol=0, atol=1e-6)


# Eve's first observation is zero, in mpe2's simple_crypto too.
@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros")
@EACH
def test_pettingzoo_tests_pass(env_id: str) -> None:
    module = ours(env_id)
    pettingzoo.test.parallel_api_test(module.parallel_env(), num_cycles=60)
    pettingzoo.test.api_test(module.env(), num_cycles=60)
    pettingzoo.test.api_test(module.raw_env(), num_cycles=60)
    pettingzoo.test.parallel_seed_test(module.parallel_env)
    pettingzoo.test.seed_test(module.env, num_cycles=10)
    pettingzoo.test.max_cycles_test(module)
    pettingzoo.test.state_test(module.env(), module.parallel_env())


def test_episodes_terminate_on_success() -> None:
    """With all agents in one place; at the time limit episodes are only truncated, as in mpe2."""
    env = simple_tag_v3.parallel_env(terminate_on_success=True, max_cycles=2, num_obstacles=0, device="cpu")
    together = np.zeros(4)
    env.reset(options={"x": together + 0.02 * np.arange(4), "y": together})
    assert all(env.step(dict.fromkeys(env.agents, 0))[2].values())
    far = np.array([0.0, 0.5, -0.5, 0.9])
    env.reset(options={"x": far, "y": far})
    assert not any(env.step(dict.fromkeys(env.agents, 0))[2].values())
    env.unwrapped.batch.state["x"][:] = env.unwrapped.batch.state["y"][:] = 0.02 * np.arange(4)
    _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 0))
    assert not any(terminations.values())
    assert all(truncations.values())

    spread = simple_spread_v3.parallel_env(terminate_on_success=True, device="cpu")
    apart = np.array([-0.8, 0.0, 0.8])
    spread.reset(options={"x": apart, "y": apart, "landmark_x": apart, "landmark_y": apart})
    assert all(spread.step(dict.fromkeys(spread.agents, 0))[2].values())


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="has no curriculum: create an environment for each stage"):
        simple_tag_v3.parallel_env(curriculum=True)
    with pytest.raises(ValueError, match="num_agent_neighbors is 0: give a number of neighbours of at least 1"):
        simple_spread_v3.env(num_agent_neighbors=0)
    assert simple_adversary_v3.parallel_env(num_agent_neighbors=None).observation_space("agent_0").shape == (10,)
    with pytest.raises(
        ValueError, match=r"SimpleTag-v3 has no option or parameter 'num_goods'. Did you mean 'num_good'"
    ):
        simple_tag_v3.parallel_env(num_goods=2)
