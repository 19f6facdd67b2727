"""Stable-Baselines3's vectorised environment: what it gives, what it is made from, attributes, seeds and options."""

import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import IDS, Place, assert_same_bits, numpy_of, with_package

pytest.importorskip("stable_baselines3", minversion="2.9")

import stable_baselines3.common.vec_env as stable
from sb3_tools import actions_for, copied, single_envs, vec
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.monitor import Monitor

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.adapters import sb3

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 13
"""A time limit at which a few CartPoles have fallen and most have not."""


def assert_ends_alike(info: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares what two infos say of an episode's end. Returns may differ in rounding: the kernel sums in float32."""
    assert set(info) == {"terminal_observation", "TimeLimit.truncated", "episode"}
    assert_same_bits(info["terminal_observation"], expected["terminal_observation"], "terminal_observation")
    assert info["TimeLimit.truncated"] is bool(expected["TimeLimit.truncated"])
    assert info["episode"]["l"] == expected["episode"]["l"]
    assert info["episode"]["r"] == pytest.approx(expected["episode"]["r"], rel=1e-6, abs=1e-5)


# --- what it gives ---


def test_gives_what_single_environments_give(env_id: str, device: str) -> None:
    """Those of Stable-Baselines3 itself, with a Monitor around each, over many episodes."""
    venv = vec(env_id, 6, device=device, max_episode_steps=LIMIT, seed=4)
    others = single_envs(env_id, 6, max_episode_steps=LIMIT)
    others.seed(4)
    assert_same_bits(venv.reset(), others.reset(), "observations")
    ends = 0
    for step, actions in enumerate(actions_for(venv, 5 * LIMIT)):
        observations, rewards, dones, infos = venv.step(actions)
        expected, paid, ended, described = others.step(actions)
        assert_same_bits(observations, expected, f"observations of step {step}")
        assert_same_bits(rewards, paid, f"rewards of step {step}")
        assert_same_bits(dones, ended, f"dones of step {step}")
        for i in range(6):
            if dones[i]:
                assert_ends_alike(infos[i], described[i])
                ends += 1
            else:
                assert infos[i] == {}
    assert ends >= 30
    others.close()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gives_what_the_environment_gives(place: Place, precision: str) -> None:
    """The same seed in ``gpu_envs.make``; the adapter takes an environment of any output."""
    kwargs: dict[str, Any] = {"device": place.device, "precision": precision, "max_episode_steps": LIMIT}
    plain = gpu_envs.make("CartPole-v1", 40, autoreset_mode="SameStep", statistics=True, **kwargs)
    given = gpu_envs.make("CartPole-v1", 40, autoreset_mode="SameStep", output=place.output, **kwargs)
    venv = vec(given, seed=11)
    assert venv.env is given
    observations = venv.reset()
    assert_same_bits(observations, plain.reset(seed=11)[0])
    truncated_only = both = 0
    for actions in actions_for(venv, 60):
        observations, rewards, dones, infos = venv.step(actions)
        expected, paid, terminations, truncations, described = plain.step(actions)
        assert_same_bits(observations, expected)
        assert_same_bits(rewards, paid.astype(np.float32))
        assert_same_bits(dones, terminations | truncations)
        for i in np.flatnonzero(dones):
            assert_same_bits(infos[i]["terminal_observation"], described["final_obs"][i])
            assert infos[i]["TimeLimit.truncated"] is bool(truncations[i] and not terminations[i])
            assert infos[i]["episode"]["r"] == described["episode"]["r"][i]
            assert infos[i]["episode"]["l"] == described["episode"]["l"][i]
        truncated_only += int((truncations & ~terminations).sum())
        both += int((truncations & terminations).sum())
    assert truncated_only > 0
    assert both > 0
    plain.close()


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


def test_arrays_are_fresh_each_step(env_id: str, device: str) -> None:
    """Nothing that was given out changes later, nor when the user writes into what came since."""
    venv = vec(env_id, 4, device=device, max_episode_steps=3)
    given: list[list[np.ndarray]] = [[venv.reset()]]
    for actions in actions_for(venv, 9):
        observations, rewards, dones, infos = venv.step(actions)
        last = [info["terminal_observation"] for info in infos if info]
        given.append([observations, rewards, dones, *last])
    kept = [[array.copy() for array in step] for step in given]
    final = given.pop()
    for array in final:
        array[...] = 77 if array.dtype != np.bool_ else ~array
    venv.step(actions_for(venv, 1)[0])
    assert_same_bits(given, kept[:-1])
    for i, earlier in enumerate(given):
        for later in given[i + 1 :]:
            assert not any(np.may_share_memory(a, b) for a in earlier for b in later)
    assert any(len(step) > 3 for step in given)


def test_writing_into_results_changes_no_trajectory(device: str) -> None:
    """PPO adds to rewards in place."""
    venvs = [vec("CartPole-v1", 4, device=device, max_episode_steps=5, seed=1) for _ in range(2)]
    first = [venv.reset() for venv in venvs]
    first[1][...] = 77
    for actions in actions_for(venvs[0], 20):
        clean, touched = (venv.step(actions) for venv in venvs)
        assert_same_bits(clean[:3], touched[:3])
        for array in touched[:3]:
            array[...] = 1
        for info, other in zip(clean[3], touched[3], strict=True):
            assert info.keys() == other.keys()
            if other:
                assert info["episode"]["r"] == other["episode"]["r"]
                other["terminal_observation"][...] = 77
                other["episode"].clear()


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


def test_both_ends_at_once_are_no_truncation(device: str) -> None:
    """A pole pushed one way from rest falls in the tenth step at the latest."""
    venv = vec("CartPole-v1", 64, device=device, max_episode_steps=9)
    venv.reset()
    seen = set()
    for _ in range(40):
        _, _, dones, infos = venv.step(np.ones(64, np.int64))
        for i in np.flatnonzero(dones):
            x, _, theta, _ = infos[i]["terminal_observation"]
            fallen = abs(x) > 2.4 or abs(theta) > 12 * 2 * np.pi / 360
            assert infos[i]["TimeLimit.truncated"] is not fallen
            seen.add((fallen, infos[i]["episode"]["l"] == 9))
    assert seen == {(True, True), (True, False), (False, True)}


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
            assert infos[i]["TimeLimit.truncated"] is True
            sums[i] = counts[i] = 0
            ends += 1
    assert ends == 9


def test_without_a_limit_nothing_is_truncated(device: str) -> None:
    venv = vec("CartPole-v1", 8, device=device, max_episode_steps=-1)
    venv.reset()
    infos = [info for actions in actions_for(venv, 100) for info in venv.step(actions)[3] if info]
    assert len(infos) > 10
    assert not any(info["TimeLimit.truncated"] for info in infos)


# --- what it is made from ---


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_environments_in_other_modes_are_refused(mode: str) -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", autoreset_mode=mode)
    with pytest.raises(ValueError, match=rf"autoreset_mode='{mode}'.*autoreset_mode='SameStep'"):
        sb3.VecEnv(env)
    with pytest.raises(ValueError, match=rf"autoreset_mode is '{mode}'.*'SameStep'"):
        sb3.VecEnv("CartPole-v1", 2, device="cpu", autoreset_mode=mode)


def test_options_beside_an_environment_are_refused() -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", autoreset_mode="SameStep")
    for options in ({"num_envs": 2}, {"device": "cpu"}, {"gravity": 9.0}, {"max_episode_steps": 5}):
        with pytest.raises(ValueError, match=rf"{next(iter(options))} .*beside an environment"):
            sb3.VecEnv(env, **options)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match="Did you mean 'CartPole-v1'"):
        sb3.VecEnv("CartPol-v1", 2)
    foreign: Any = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"env is .*; give an id"):
        sb3.VecEnv(foreign)
    with pytest.raises(ValueError, match="Did you mean 'gravity'"):
        sb3.VecEnv("CartPole-v1", 2, device="cpu", gravty=1.0)


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


@pytest.mark.parametrize("library", ["stable_baselines3", "torch"])
def test_a_missing_library_is_reported_with_its_extra(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None\nimport gpu_envs.adapters.sb3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_package(), check=False)
    assert done.returncode == 1
    assert f"{library!r} is not installed: pip install 'gpu_envs[sb3]'" in done.stderr


def test_importing_takes_no_other_library() -> None:
    code = (
        "import sys, gpu_envs\nassert 'stable_baselines3' not in sys.modules\n"
        "import gpu_envs.adapters.sb3\nprint(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_package(), check=True)
    loaded = set(done.stdout.split())
    assert "stable_baselines3" in loaded
    assert not loaded & {"torchrl", "tensordict", "skrl", "rsl_rl", "pettingzoo", "cupy"}


# --- attributes ---


def test_attributes_are_read_by_environment(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device, length=np.array([0.5, 0.6, 0.7, 0.8]))
    observations = venv.reset()
    assert venv.get_attr("gravity") == [9.8] * 4
    assert venv.get_attr("length") == [0.5, 0.6, 0.7, 0.8]
    assert venv.get_attr("length", 1) == [0.6]
    assert venv.get_attr("length", -1) == [0.8]
    assert venv.get_attr("length", [2, 0]) == [0.7, 0.5]
    assert venv.get_attr("length", [-1, -4]) == [0.8, 0.5]
    assert venv.get_attr("length", np.array([1, 3])) == [0.6, 0.8]
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
    venv.env_method("set_attr", "gravity", values=4.0, indices=0)
    assert venv.get_attr("gravity") == [4.0] * 4  # a method is of the whole environment
    with pytest.raises(AttributeError):
        venv.env_method("no_such_thing")


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
    assert wrapped.get_attr("gravity") == [9.8, 3.0, 9.8]
    assert wrapped.get_attr("gravity", indices=-2) == [3.0]
    assert wrapped.env_method("get_attr", "tau", indices=0) == [0.02]
    assert wrapped.has_attr("gravity")
    assert wrapped.unwrapped is venv
    with pytest.raises(AttributeError):
        _ = wrapped.no_such_thing


# --- pictures ---


def test_there_are_no_pictures(device: str) -> None:
    venv = vec("CartPole-v1", 3, device=device)
    venv.reset()
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert venv.get_images() == [None] * 3
    with pytest.warns(UserWarning, match="no `render_mode`"):
        assert venv.render() is None
    with pytest.warns(UserWarning, match="human"):
        assert venv.render("human") is None


# --- seeds ---


def trajectory(venv: Any, steps: int = 30) -> list[Any]:
    """All that steps with the same actions give, but for the seconds that have passed."""
    found: list[Any] = [venv.reset()]
    for actions in actions_for(venv, steps):
        *results, infos = venv.step(actions)
        infos = copied(infos)
        for info in infos:
            if "episode" in info:
                info["episode"] = np.array([info["episode"]["r"], info["episode"]["l"]], np.float64)
        found.append([*results, infos])
    return found


def test_seeds_make_runs_repeat(env_id: str, device: str) -> None:
    kwargs: dict[str, Any] = {"device": device, "max_episode_steps": LIMIT}
    one, two, three = (
        vec(env_id, 4, seed=5, **kwargs),
        vec(env_id, 4, **kwargs),
        vec(env_id, 4, **kwargs),
    )
    assert two.seed(5) == [5, 6, 7, 8]
    first = trajectory(one)
    assert_same_bits(first, trajectory(two))
    # as a replica of a smaller batch, and again with the seed set again
    three.seed(5)
    assert_same_bits(first, trajectory(three))
    one.seed(5)
    assert_same_bits(first, trajectory(one))
    # a seed holds once: the next reset begins other episodes, the same for all
    again = trajectory(one)
    assert (again[0] != first[0]).any()
    assert_same_bits(again, trajectory(two))


def test_seed_overrules_the_constructors(device: str) -> None:
    one, two = vec("CartPole-v1", 3, device=device, seed=5), vec("CartPole-v1", 3, device=device)
    one.seed(6)
    two.seed(6)
    assert_same_bits(one.reset(), two.reset())
    assert_same_bits(one.reset(), two.reset())


def test_without_a_seed_runs_differ(device: str) -> None:
    one, two = (vec("CartPole-v1", 3, device=device, seed=None) for _ in range(2))
    assert (one.reset() != two.reset()).any()
    seeds = one.seed()
    assert len(seeds) == 3
    assert (one.reset() != two.reset()).any()


def test_replicas_are_those_of_a_batch(device: str) -> None:
    many, one = vec("CartPole-v1", 7, device=device, seed=20), vec("CartPole-v1", 1, device=device, seed=23)
    assert_same_bits(many.reset()[3], one.reset()[0])
    actions = actions_for(many, 60)
    for step in range(60):
        observations, rewards, dones, _ = many.step(actions[step])
        expected, paid, ended, _ = one.step(actions[step, 3:4])
        assert_same_bits((observations[3:4], rewards[3:4], dones[3:4]), (expected, paid, ended))


# --- options ---


def test_options_hold_for_one_reset(device: str) -> None:
    options = {"low": 0.01, "high": 0.02}
    venv = vec("CartPole-v1", 4, device=device, seed=2)
    plain = gpu_envs.make("CartPole-v1", 4, device=device)
    venv.set_options(options)
    observations = venv.reset()
    assert_same_bits(observations, plain.reset(seed=2, options=options)[0])
    assert ((observations >= 0.01) & (observations <= 0.02)).all()
    assert_same_bits(venv.reset(), plain.reset()[0])
    assert options == {"low": 0.01, "high": 0.02}
    venv.set_options(options)
    venv.set_options()
    assert_same_bits(venv.reset(), plain.reset()[0])


def test_options_may_differ(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device, seed=2)
    plain = gpu_envs.make("CartPole-v1", 4, device=device)
    usual = plain.reset(seed=2)[0].copy()
    low = plain.reset(seed=2, options={"low": -0.02, "high": -0.01})[0].copy()
    high = plain.reset(seed=2, options={"low": 0.01, "high": 0.02})[0].copy()
    venv.set_options([{"low": -0.02, "high": -0.01}, {}, {"low": 0.01, "high": 0.02}, {"low": -0.02, "high": -0.01}])
    assert_same_bits(venv.reset(), np.stack([low[0], usual[1], high[2], low[3]]))
    # then all goes on as after any reset with that seed
    plain.reset(seed=2)
    assert_same_bits(venv.reset(), plain.reset()[0])


def test_wrong_options_are_refused(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device)
    venv.set_options([{"low": 0.0}])
    with pytest.raises(ValueError, match="1 options; expected 4"):
        venv.reset()
    venv.set_options({"lo": 0.0})
    with pytest.raises(ValueError, match="Did you mean 'low'"):
        venv.reset()


# --- mistakes ---


def test_steps_need_actions_and_a_reset(device: str) -> None:
    venv = vec("CartPole-v1", 2, device=device)
    with pytest.raises(gymnasium.error.ResetNeeded):
        venv.step(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()
    venv.step_async(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()  # as the reset cancels what was begun
    venv.step(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()


@pytest.mark.parametrize(
    ("env_id", "actions", "error"),
    [
        ("CartPole-v1", np.array([0, 2]), ActionError),
        ("CartPole-v1", np.array([0, -1]), ActionError),
        ("CartPole-v1", np.array([0, 1, 0]), ValueError),
        ("Pendulum-v1", np.array([[0.0], [np.nan]], np.float32), ActionError),
        ("Pendulum-v1", np.zeros((2, 2), np.float32), ValueError),
    ],
)
def test_wrong_actions_change_nothing(env_id: str, actions: np.ndarray, error: type[Exception], device: str) -> None:
    one, two = (vec(env_id, 2, device=device, seed=3) for _ in range(2))
    one.reset()
    two.reset()
    with pytest.raises(error):
        one.step(actions)
    good = actions_for(one, 1)[0]
    assert_same_bits(one.step(good)[:3], two.step(good)[:3])


def test_a_closed_environment_is_not_stepped(device: str) -> None:
    venv = sb3.VecEnv("CartPole-v1", 2, device=device)
    venv.reset()
    venv.close()
    venv.close()
    assert venv.env.closed
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        venv.step(np.zeros(2, np.int64))


# --- first episodes that begin midway ---


def test_staggered_replicas_end_apart(device: str) -> None:
    venv = vec("Pendulum-v1", 200, device=device, max_episode_steps=20, stagger=True, seed=9)
    together = vec("Pendulum-v1", 200, device=device, max_episode_steps=20, seed=9)
    assert_same_bits(venv.reset(), together.reset())  # Pendulum shows no time
    actions = actions_for(venv, 45)
    ends = np.zeros(200, int)
    reported = np.zeros(200, int)
    first = np.full(200, -1)
    for step in range(45):
        _, _, dones, infos = venv.step(actions[step])
        for i in np.flatnonzero(dones):
            assert infos[i]["TimeLimit.truncated"] is True
            if ends[i] == 0:  # not a whole episode
                assert "episode" not in infos[i]
                first[i] = step
            else:
                assert infos[i]["episode"]["l"] == 20
                reported[i] += 1
            ends[i] += 1
    assert set(first) == set(range(20))
    assert (reported == ends - 1).all()
    assert ends.min() >= 2


def test_staggering_follows_the_seed(device: str) -> None:
    kwargs: dict[str, Any] = {"device": device, "max_episode_steps": 20, "stagger": True}
    venvs = [vec("Pendulum-v1", 50, seed=seed, **kwargs) for seed in (1, 1, 2)]
    for venv in venvs:
        venv.reset()
    elapsed = [numpy_of(venv.env.elapsed) for venv in venvs]
    assert (elapsed[0] == elapsed[1]).all()
    assert (elapsed[0] != elapsed[2]).any()
    venvs[0].reset()
    assert (numpy_of(venvs[0].env.elapsed) != elapsed[0]).any()


def test_staggering_needs_a_limit(device: str) -> None:
    venv = vec("CartPole-v1", 2, device=device, max_episode_steps=-1, stagger=True)
    with pytest.raises(ValueError, match="none; leave it out"):
        venv.reset()


# --- Stable-Baselines3's own checker ---


@pytest.mark.parametrize("env_id", IDS)
def test_the_checker_of_single_environments(env_id: str) -> None:
    env = gymnasium.make(f"gpu_envs/{env_id}", device="cpu")
    with warnings.catch_warnings():
        # of Pendulum and others: that actions are best between -1 and 1
        warnings.filterwarnings("ignore", "We recommend you to use a symmetric and normalized Box action space")
        check_env(env, skip_render_check=True)
    env.close()


def test_attributes_that_are_arrays_are_given_by_environment(device: str) -> None:
    venv = sb3.VecEnv("CartPole-v1", 3, device=device, seed=0)
    venv.reset()
    venv.step(np.zeros(3, int))
    assert venv.get_attr("elapsed") == [1, 1, 1]
    assert [row.shape for row in venv.env_method("observe", indices=[0, 2])] == [(4,), (4,)]


def test_equal_options_in_other_objects_are_equal(device: str) -> None:
    venv = sb3.VecEnv("TagGridWorld-v0", 2, role="tagger", device=device, seed=0)
    x, y = np.arange(5), np.arange(5)[::-1].copy()
    venv.set_options([{"x": x, "y": y} if i % 2 else {"y": y, "x": x.copy()} for i in range(venv.num_envs)])
    venv.reset()
    assert_same_bits(numpy_of(venv.env.state["x"]), np.stack([x, x]).astype(np.int32))
