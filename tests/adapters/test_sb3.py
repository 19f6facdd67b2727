"""The SB3 adapter: results, constructor, attributes and images."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits
from players import LIMIT

pytest.importorskip("stable_baselines3", minversion="2.9")

import stable_baselines3.common.vec_env as stable
from sb3_tools import actions_for, make_vec
from stable_baselines3.common.monitor import Monitor

from gpu_envs.adapters import sb3

pytestmark = pytest.mark.usefixtures("one_thread")


def test_contract(env_id: str, device: str) -> None:
    venv = make_vec(env_id, 3, device=device)
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
    assert venv.env_is_wrapped(Monitor, indices=[0, -1]) == [True] * 2
    assert venv.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 3
    assert make_vec(env_id, device=device).num_envs == 1
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert venv.get_images() == [None] * 3


def test_infos_change_only_where_episodes_end(device: str) -> None:
    venv = make_vec("CartPole-v1", 5, device=device, max_episode_steps=LIMIT)
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


def test_episode_infos_match_summed_rewards(device: str) -> None:
    venv = make_vec("Pendulum-v1", 3, device=device, max_episode_steps=20)
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
            infos[i]["episode"].clear()  # must not change later infos
            sums[i] = counts[i] = 0
            ends += 1
    assert ends == 9


@pytest.mark.parametrize(
    "arguments", [{"role": "tagger"}, {"others": "still"}, {"others": {}}, {"others": lambda seen: seen}]
)
def test_roles_require_a_team(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="role"):
        sb3.VecEnv("CartPole-v1", 2, device="cpu", **arguments)


def test_attributes_are_read_by_environment(device: str) -> None:
    venv = make_vec("CartPole-v1", 4, device=device, length=np.array([0.5, 0.625, 0.75, 0.875]))
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
    venv.step(np.zeros(4, np.int64))
    assert venv.get_attr("elapsed") == [1] * 4
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
    venv = make_vec("CartPole-v1", 4, device=device)
    venv.reset()
    venv.set_attr("gravity", 5.0)
    assert venv.get_attr("gravity") == [5.0] * 4
    venv.set_attr("gravity", 6.0, 1)
    venv.set_attr("gravity", 7.0, [-1, 0])
    assert venv.get_attr("gravity") == [7.0, 6.0, 5.0, 7.0]
    venv.set_attr("gravity", 1.0, [])
    assert venv.get_attr("gravity") == [7.0, 6.0, 5.0, 7.0]
    venv.set_attr("x", 0.25, indices=-1)
    venv.set_attr("x_dot", 0.0)
    assert venv.get_attr("x", 3) == [0.25]
    assert venv.get_attr("x", 2) != [0.25]
    assert venv.get_attr("x_dot") == [0.0] * 4
    with pytest.raises(IndexError):
        venv.set_attr("gravity", 1.0, 4)
    for indices in (None, 0):
        with pytest.raises(ValueError, match="Did you mean 'gravity'"):
            venv.set_attr("gravty", 1.0, indices)


def test_methods_are_called_by_environment(device: str) -> None:
    venv = make_vec("CartPole-v1", 4, device=device)
    venv.reset()
    assert venv.env_method("get_attr", "gravity") == [9.8] * 4
    assert venv.env_method("get_attr", "gravity", indices=2) == [9.8]
    assert venv.env_method("get_attr", name="gravity", indices=[0, -1]) == [9.8] * 2
    assert venv.env_method("get_attr", "gravity", indices=[]) == []
    assert [row.shape for row in venv.env_method("observe", indices=[0, 2])] == [(4,), (4,)]
    venv.env_method("set_attr", "gravity", values=4.0)
    assert venv.get_attr("gravity") == [4.0] * 4
    for method, *arguments in (("set_attr", "gravity", 5.0), ("stagger", 0), ("close",)):
        with pytest.raises(ValueError, match=rf"{method}\(\) acts on all replicas, but indices selects some"):
            venv.env_method(method, *arguments, indices=[0])
    assert venv.get_attr("gravity") == [4.0] * 4
    venv.step(np.zeros(4, np.int64))
    with pytest.raises(AttributeError):
        venv.env_method("no_such_thing")


def test_reset_by_environment(env_id: str, device: str) -> None:
    """``reset`` restarts only selected episodes, and returns their first observations."""
    venv, before, after = (make_vec(env_id, 4, device=device, max_episode_steps=LIMIT, seed=seed) for seed in (4, 4, 7))
    first, _, initial = after.reset(), before.reset(), venv.reset()
    for actions in actions_for(venv, 5):
        venv.step(actions)
        before.step(actions)
    results = venv.env_method("reset", seed=7, indices=[2, 0])
    assert_same_bits([seen for seen, _ in results], [first[2], first[0]])
    assert [infos for _, infos in results] == [{}, {}]
    ends = 0
    for actions in actions_for(venv, 3 * LIMIT):
        *step, infos = venv.step(actions)
        others = before.step(actions), after.step(actions)
        for i, info in enumerate(infos):
            *expected, described = others[i in (0, 2)]
            for part, theirs in zip(step, expected, strict=True):
                assert_same_bits(part[i], theirs[i])
            assert info.keys() == described[i].keys()
            if info:
                assert_same_bits(info["terminal_observation"], described[i]["terminal_observation"])
                assert info["episode"] == {**described[i]["episode"], "t": info["episode"]["t"]}
                ends += 1
    assert ends >= 12
    assert_same_bits([seen for seen, _ in venv.env_method("reset", seed=4)], list(initial))
    with pytest.raises(ValueError, match="leave 'reset_mask' out"):
        venv.env_method("reset", options={"reset_mask": np.ones(4, bool)}, indices=1)


def test_reset_of_staggered_environments(device: str) -> None:
    """Staggered episodes are not reported; episodes after a reset and all later episodes are."""
    venv = make_vec("Pendulum-v1", 3, device=device, stagger=True, max_episode_steps=9, seed=1)
    venv.reset()
    venv.env_method("reset", indices=1)
    ended: list[list[Any]] = [[] for _ in range(3)]
    for actions in actions_for(venv, 18):
        _, _, dones, infos = venv.step(actions)
        for i in np.flatnonzero(dones):
            ended[i].append(infos[i])
    assert ["episode" in infos[0] for infos in ended] == [False, True, False]
    assert [infos[1]["episode"]["l"] for infos in ended] == [9] * 3


def test_choice_and_bool_parameters_are_set_by_environment(device: str) -> None:
    venv = make_vec("CartPole-v1", 3, device=device)
    for index in (1, 0):
        venv.set_attr("kinematics_integrator", "semi-implicit", index)
    assert venv.get_attr("kinematics_integrator") == ["semi-implicit", "semi-implicit", "euler"]
    venv.set_attr("sutton_barto_reward", True, [0])
    venv.reset()
    assert venv.step(np.zeros(3, np.int64))[1].tolist() == [0.0, 1.0, 1.0]
