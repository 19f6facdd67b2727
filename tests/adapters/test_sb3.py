"""What the SB3 adapter gives and is made from, its attributes and pictures."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits
from players import LIMIT

pytest.importorskip("stable_baselines3", minversion="2.9")

import stable_baselines3.common.vec_env as stable
from sb3_tools import actions_for, single_envs, vec
from stable_baselines3.common.monitor import Monitor

from gpu_envs.adapters import sb3

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_ends_alike(info: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares what two infos say of an episode's end. Returns may differ in rounding: the kernel sums in float32."""
    assert set(info) == {"terminal_observation", "TimeLimit.truncated", "episode"}
    assert_same_bits(info["terminal_observation"], expected["terminal_observation"], "terminal_observation")
    assert info["TimeLimit.truncated"] is bool(expected["TimeLimit.truncated"])
    assert info["episode"]["l"] == expected["episode"]["l"]
    assert info["episode"]["r"] == pytest.approx(expected["episode"]["r"], rel=1e-6, abs=1e-5)


def assert_steps_alike(venv: Any, others: Any, steps: int) -> int:
    """Steps both at random, and counts the episodes that ended in both."""
    ends = 0
    for step, actions in enumerate(actions_for(venv, steps)):
        observations, rewards, dones, infos = venv.step(actions)
        expected, paid, ended, described = others.step(actions)
        assert_same_bits(observations, expected, f"observations of step {step}")
        assert_same_bits(rewards, paid, f"rewards of step {step}")
        assert_same_bits(dones, ended, f"dones of step {step}")
        for i in range(venv.num_envs):
            if dones[i]:
                assert_ends_alike(infos[i], described[i])
                ends += 1
            else:
                assert infos[i] == {}
    return ends


def test_gives_what_single_environments_give(env_id: str, device: str) -> None:
    """Those of Stable-Baselines3 itself, with a Monitor around each, over many episodes."""
    venv = vec(env_id, 6, device=device, max_episode_steps=LIMIT, seed=4)
    others = single_envs(env_id, 6, max_episode_steps=LIMIT)
    others.seed(4)
    assert_same_bits(venv.reset(), others.reset(), "observations")
    assert assert_steps_alike(venv, others, 5 * LIMIT) >= 30
    others.close()


def test_contract(env_id: str, device: str) -> None:
    venv = vec(env_id, 3, device=device)
    assert isinstance(venv, stable.VecEnv)
    assert venv.num_envs == 3
    assert venv.observation_space == venv.env.single_observation_space
    assert venv.action_space == venv.env.single_action_space
    assert venv.env.device.partition(":")[0] == device
    assert venv.unwrapped is venv
    assert (venv.render_mode, venv.metadata["render_modes"]) == (None, [])
    observations = venv.reset()
    assert venv.reset_infos == [{}, {}, {}]
    shape = (3, *venv.observation_space.shape)
    for actions in actions_for(venv, 3):
        assert isinstance(observations, np.ndarray)
        assert (observations.shape, observations.dtype) == (shape, np.float32)
        assert all(venv.observation_space.contains(row) for row in observations)
        venv.step_async(actions)
        observations, rewards, dones, infos = venv.step_wait()
        for array, dtype in ((rewards, np.float32), (dones, np.bool_)):
            assert isinstance(array, np.ndarray)
            assert (array.shape, array.dtype) == ((3,), dtype)
            assert array.flags.writeable
        assert isinstance(infos, list)
        assert [type(info) for info in infos] == [dict] * 3
    assert (venv.alive == np.ones(3, np.bool_)).all()


def test_one_replica_is_the_default(device: str) -> None:
    venv = vec("CartPole-v1", device=device)
    assert venv.num_envs == 1
    assert venv.reset().shape == (1, 4)


def test_infos_are_constant_but_for_episodes_that_ended(device: str) -> None:
    venv = vec("CartPole-v1", 5, device=device, max_episode_steps=LIMIT)
    venv.reset()
    before: list[dict[str, Any]] | None = None
    nothing: dict[int, dict[str, Any]] = {}
    finished: list[dict[str, Any]] = []
    for actions in actions_for(venv, 80):
        _, _, dones, infos = venv.step(actions)
        assert infos is not before
        for i, info in enumerate(infos):
            if dones[i]:
                assert all(info is not other for other in (*finished, *nothing.values()))
                finished.append(info)
            else:
                assert nothing.setdefault(i, info) is info
                assert info == {}
        before = infos
    assert len(finished) > 20
    times = [info["episode"]["t"] for info in finished]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < 600


def test_episodes_against_sums(device: str) -> None:
    venv = vec("Pendulum-v1", 3, device=device, max_episode_steps=20)
    venv.reset()
    sums, counts, ends = np.zeros(3), np.zeros(3, int), 0
    for actions in actions_for(venv, 65):
        _, rewards, dones, infos = venv.step(actions)
        sums += rewards
        counts += 1
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["r"] == pytest.approx(sums[i], rel=1e-6)
            assert isinstance(infos[i]["episode"]["r"], float)
            assert infos[i]["episode"]["l"] == counts[i] == 20
            assert isinstance(infos[i]["episode"]["l"], int)
            assert infos[i]["episode"]["angle"] == pytest.approx(float(venv.env.episode_metrics["angle"][i]), rel=0)
            assert infos[i]["TimeLimit.truncated"] is True
            infos[i]["episode"].clear()  # which changes nothing to come
            sums[i] = counts[i] = 0
            ends += 1
    assert ends == 9


def test_without_a_limit_nothing_is_truncated(device: str) -> None:
    venv = vec("CartPole-v1", 8, device=device, max_episode_steps=-1)
    venv.reset()
    infos = [info for actions in actions_for(venv, 100) for info in venv.step(actions)[3] if info]
    assert len(infos) > 10
    assert not any(info["TimeLimit.truncated"] for info in infos)


@pytest.mark.parametrize(
    "given", [{"role": "tagger"}, {"others": "still"}, {"others": {}}, {"others": lambda seen: seen}]
)
def test_roles_are_for_teams(given: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="role"):
        sb3.VecEnv("CartPole-v1", 2, device="cpu", **given)


def test_parameters_and_options_reach_the_environment(device: str) -> None:
    venv = vec("CartPole-v1", 2, device=device, gravity=np.array([5.0, 6.0]), precision="float64")
    assert venv.get_attr("gravity") == [5.0, 6.0]
    assert venv.env.precision == "float64"
    assert venv.env.max_episode_steps == 500


def test_attributes_are_read_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device, length=np.array([0.5, 0.625, 0.75, 0.875]))
    observations = venv.reset()
    assert venv.get_attr("gravity") == [9.8] * 4
    assert venv.get_attr("length") == [0.5, 0.625, 0.75, 0.875]
    assert venv.get_attr("length", 1) == [0.625]
    assert venv.get_attr("length", -1) == [0.875]
    assert venv.get_attr("length", [2, 0]) == [0.75, 0.5]
    assert venv.get_attr("length", [-1, -4]) == [0.875, 0.5]
    assert venv.get_attr("length", np.array([1, 3])) == [0.625, 0.875]
    assert venv.get_attr("length", []) == []
    assert np.array_equal(np.float32(venv.get_attr("theta")), observations[:, 2])
    assert venv.get_attr("device", [0, 1]) == [venv.env.device] * 2
    for indices in (4, -5, [0, 4]):
        with pytest.raises(IndexError):
            venv.get_attr("length", indices)
    with pytest.raises(AttributeError):
        venv.get_attr("no_such_thing")
    assert venv.has_attr("gravity")
    assert venv.has_attr("theta")
    assert venv.has_attr("max_episode_steps")
    assert not venv.has_attr("no_such_thing")


def test_parameters_are_set_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device)
    venv.reset()
    venv.set_attr("gravity", 5.0)
    assert venv.get_attr("gravity") == [5.0] * 4
    venv.set_attr("gravity", 6.0, 1)
    venv.set_attr("gravity", 7.0, [-1, 0])
    assert venv.get_attr("gravity") == [7.0, 6.0, 5.0, 7.0]
    venv.set_attr("gravity", 1.0, [])
    assert venv.get_attr("gravity") == [7.0, 6.0, 5.0, 7.0]
    with pytest.raises(IndexError):
        venv.set_attr("gravity", 1.0, 4)
    for indices in (None, 0):
        with pytest.raises(ValueError, match="Did you mean 'gravity'"):
            venv.set_attr("gravty", 1.0, indices)


def test_set_parameters_rule_the_environment(device: str) -> None:
    """A replica whose poles may lean no further ends at once."""
    venv = vec("CartPole-v1", 3, device=device)
    venv.reset()
    venv.set_attr("theta_threshold_radians", 1e-6, indices=[1])
    _, _, dones, _ = venv.step(np.zeros(3, np.int64))
    assert dones.tolist() == [False, True, False]


def test_choices_and_switches_are_set_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    venv.set_attr("kinematics_integrator", "semi-implicit", 1)
    assert venv.get_attr("kinematics_integrator") == ["euler", "semi-implicit", "euler"]
    venv.set_attr("kinematics_integrator", "semi-implicit", 0)
    assert venv.get_attr("kinematics_integrator") == ["semi-implicit", "semi-implicit", "euler"]
    venv.set_attr("sutton_barto_reward", True, [0])
    venv.reset()
    _, rewards, *_ = venv.step(np.zeros(3, np.int64))
    assert rewards.tolist() == [0.0, 1.0, 1.0]


def test_state_is_set_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    venv.reset()
    venv.set_attr("x", 0.25, indices=-1)
    venv.set_attr("x_dot", 0.0)
    assert venv.get_attr("x", 2) == [0.25]
    assert venv.get_attr("x_dot") == [0.0] * 3
    observations, *_ = venv.step(np.zeros(3, np.int64))
    assert observations[2, 0] == np.float32(0.25)  # moved by the speed there was, which is none


def test_methods_are_called_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device)
    venv.reset()
    assert venv.env_method("get_attr", "gravity") == [9.8] * 4
    assert venv.env_method("get_attr", "gravity", indices=2) == [9.8]
    assert venv.env_method("get_attr", name="gravity", indices=[0, -1]) == [9.8] * 2
    assert venv.env_method("get_attr", "gravity", indices=[]) == []
    venv.env_method("set_attr", "gravity", values=4.0)
    assert venv.get_attr("gravity") == [4.0] * 4
    for method, *given in (("set_attr", "gravity", 5.0), ("stagger", 0), ("close",)):
        with pytest.raises(ValueError, match=rf"{method}\(\) acts on all replicas at once, and indices names some"):
            venv.env_method(method, *given, indices=[0])
    assert venv.get_attr("gravity") == [4.0] * 4
    venv.step(np.zeros(4, np.int64))
    with pytest.raises(AttributeError):
        venv.env_method("no_such_thing")


def test_reset_by_environment(env_id: str, device: str) -> None:
    """Episodes begin anew in those chosen, with the observation that a reset there gives; the others go on."""
    venv = vec(env_id, 4, device=device, max_episode_steps=LIMIT, seed=4)
    others = single_envs(env_id, 4, max_episode_steps=LIMIT)
    others.seed(4)
    venv.reset()
    others.reset()
    assert_steps_alike(venv, others, 5)
    given = venv.env_method("reset", seed=7, indices=[2, 0])
    expected = [others.env_method("reset", seed=7 + i, indices=i)[0] for i in (2, 0)]
    assert_same_bits([seen for seen, _ in given], [seen for seen, _ in expected])
    assert [infos for _, infos in given] == [{}, {}]
    assert assert_steps_alike(venv, others, 3 * LIMIT) >= 12
    given = venv.env_method("reset", seed=3)
    expected = [others.env_method("reset", seed=3 + i, indices=i)[0] for i in range(4)]
    assert_same_bits([seen for seen, _ in given], [seen for seen, _ in expected])
    with pytest.raises(ValueError, match="leave 'reset_mask' out"):
        venv.env_method("reset", options={"reset_mask": np.ones(4, bool)}, indices=1)
    assert_steps_alike(venv, others, 5)
    others.close()


def test_reset_of_staggered_environments(device: str) -> None:
    """An episode that began midway is not reported; one that began at a reset is."""
    venv = vec("Pendulum-v1", 3, device=device, stagger=True, max_episode_steps=9, seed=1)
    venv.reset()
    venv.env_method("reset", indices=1)
    first: list[Any] = [None] * 3
    for given in actions_for(venv, 9):
        _, _, dones, infos = venv.step(given)
        for i in np.flatnonzero(dones):
            first[i] = first[i] or infos[i]
    assert ["episode" in info for info in first] == [False, True, False]
    assert first[1]["episode"]["l"] == 9


def test_it_says_that_a_monitor_is_there(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    assert venv.env_is_wrapped(Monitor) == [True] * 3
    assert venv.env_is_wrapped(Monitor, indices=[0, -1]) == [True] * 2
    assert venv.env_is_wrapped(Monitor, indices=1) == [True]
    assert venv.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 3
    assert not stable.is_vecenv_wrapped(venv, stable.VecNormalize)


def test_attributes_through_wrappers(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    wrapped = stable.VecFrameStack(stable.VecNormalize(venv), 2)
    wrapped.reset()
    assert wrapped.env is venv.env
    assert (wrapped.alive == venv.alive).all()
    wrapped.set_attr("gravity", 3.0, indices=1)
    assert wrapped.get_attr("gravity") == [pytest.approx(9.8), 3.0, pytest.approx(9.8)]  # of replicas' own, float32
    assert wrapped.get_attr("gravity", indices=-2) == [3.0]
    assert wrapped.env_method("get_attr", "tau", indices=0) == [0.02]
    assert wrapped.has_attr("gravity")
    assert wrapped.unwrapped is venv
    with pytest.raises(AttributeError):
        _ = wrapped.no_such_thing


def test_there_are_no_pictures(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    venv.reset()
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert venv.get_images() == [None] * 3
    with pytest.warns(UserWarning, match="no `render_mode`"):
        assert venv.render() is None
    with pytest.warns(UserWarning, match="human"):
        assert venv.render("human") is None
