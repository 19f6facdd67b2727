"""Environments that live outside the package do all that ours do: they are named by the places of their specs."""

import dataclasses
import math
import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from custom import ALL, COURIER, CRANE, FORAGERS, GREENHOUSE, REGATTA, SINGLE, TEAMS, WARP_TAG, drawn, place
from gymnasium.spaces import Box
from gymnasium.utils.env_checker import check_env
from harness import DEVICES, HAS_CUDA, Make, assert_all_same, assert_same_bits
from nvrtc import compile_with_nvrtc, nvrtc_missing, programs, resources

import gpu_envs
import gpu_envs.testing
from gpu_envs import EnvSpec, Rules
from gpu_envs.backend.arrays import to_numpy

each = pytest.mark.parametrize("id", ALL)
each_single = pytest.mark.parametrize("id", SINGLE)
each_team = pytest.mark.parametrize("id", TEAMS)

REPLICAS, STEPS = 33, 70


# --- all that is promised of an environment ---


@pytest.mark.slow
@each
def test_the_checker_passes(id: str) -> None:
    """Of all it looks at every index; sanitizers are slow to compile."""
    gpu_envs.testing.check_environment(gpu_envs.spec(id), num_envs=7, steps=30, sanitize=id in (COURIER, FORAGERS))


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing())
@pytest.mark.parametrize("precision", ["float32", "float64"])
@each
def test_nvrtc_compiles_it(id: str, precision: str) -> None:
    for program in programs(id, "SameStep", precision):
        found = list(resources(compile_with_nvrtc(program.source).cubin))
        made = {name for name, kind, _ in found if kind == "registers" and not name.startswith("_")}
        assert made == {f"kernel_{name}" for name in program.calls}
        assert max(value for _, kind, value in found if kind == "local") <= 64  # arrays stay in registers


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@each
def test_the_gpu_has_the_same_bits(make: Make, id: str, mode: str) -> None:
    trajectories = []
    for device in DEVICES:
        env, rng = make(id, REPLICAS, device=device, autoreset_mode=mode), np.random.default_rng(0)
        steps: list[Any] = [env.reset(seed=5)]
        for _ in range(STEPS):
            steps.append(env.step(drawn(env, rng, steps[-1][-1])))
        trajectories.append([step[:-1] for step in steps])
    assert_all_same(trajectories)


# --- interfaces ---


@each_single
def test_gymnasium_makes_it(id: str) -> None:
    single = gymnasium.make(f"gpu_envs/{id}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its advice on how bounds of spaces should be
        check_env(single.unwrapped, skip_render_check=True)
    vector: Any = gymnasium.make_vec(f"gpu_envs/{id}", num_envs=3)
    observations, infos = vector.reset(seed=0)
    assert vector.observation_space.contains(observations)
    step = vector.step(drawn(vector.unwrapped, np.random.default_rng(0), infos))
    assert vector.observation_space.contains(step[0])
    vector.close()
    single.close()


@each_team
def test_pettingzoo_tests_it(id: str) -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    from gpu_envs.adapters import pettingzoo

    parallel_api_test(pettingzoo.parallel_env(id), num_cycles=100)


@pytest.mark.usefixtures("one_thread")
@each_single
def test_sb3_learns_in_it(id: str) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from gpu_envs.adapters import sb3

    env = sb3.VecEnv(id, num_envs=8)
    model = stable_baselines3.PPO("MlpPolicy", env, n_steps=16, batch_size=64, device="cpu", seed=0)
    model.learn(256)
    assert model.num_timesteps == 256
    env.close()


@each_single
def test_it_is_drawn(id: str) -> None:
    env = gpu_envs.make(id, 2, device="cpu", render_mode="rgb_array")
    _, infos = env.reset(seed=0)
    before = [np.array(frame) for frame in env.render()]
    assert all(len(np.unique(frame.reshape(-1, 3), axis=0)) > 3 for frame in before)
    assert not np.array_equal(before[0], before[1])
    rng = np.random.default_rng(0)
    for _ in range(8):
        infos = env.step(drawn(env, rng, infos))[-1]
    assert not np.array_equal(before[0], np.array(env.render()[0]))
    env.close()


def test_a_team_is_drawn() -> None:
    env = gpu_envs.make(FORAGERS, 2, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    frames = [np.array(frame) for frame in env.render()]
    assert not np.array_equal(frames[0], frames[1])
    env.close()


# --- learning ---

TRAINED: dict[str, tuple[dict[str, Any], str, float]] = {
    COURIER: ({"total_steps": 400_000, "learning_rate": "0:0.003,1:0", "gamma": 0.97}, "agent", 1.8),
    CRANE: ({"total_steps": 600_000, "learning_rate": "0:0.003,1:0", "gamma": 0.97}, "agent", 1.5),
    GREENHOUSE: ({"total_steps": 400_000, "learning_rate": "0:0.003,1:0"}, "agent", 65.0),
    FORAGERS: ({"total_steps": 200_000, "learning_rate": 0.003, "horizon": 30, "epochs": 2}, "forager", 3.0),
    REGATTA: ({"total_steps": 600_000, "learning_rate": "0:0.003,1:0"}, "agent", 6.0),
}
"""Settings, the role that is looked at, and the mean return that it reaches."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("id", TRAINED)
def test_the_trainer_learns_it(id: str) -> None:
    pytest.importorskip("torch")
    from gpu_envs.training import Config, train

    settings, role, reached = TRAINED[id]
    common: dict[str, Any] = {"num_envs": 256, "horizon": 32, "run_dir": "", "device": "cpu", "threads": 1}
    result = train(Config(env=id, **(common | settings), target_return=reached, target_role=role))
    assert result.reason == "target_return", result
    assert result.returns[role] >= reached


# --- the rules ---


def test_fields_are_arrays_of_their_types(make: Make, device: str) -> None:
    env: Any = make(COURIER, 3, device=device)
    env.reset(seed=0)
    assert {name: (array.shape, str(array.dtype)) for name, array in env.state.items()} == {
        "x": ((3,), "int32"),
        "y": ((3,), "int32"),
        "laden": ((3,), "bool"),
        "shelf": ((3, 2), "int32"),
        "status": ((3, 2), "uint8"),
    }
    team: Any = make(FORAGERS, 3, device=device, side=5)
    team.reset(seed=0)
    assert team.state["cargo"].shape == (3, 4, 2)
    assert (team.state["board"].shape, str(team.state["board"].dtype)) == ((3, 25), "uint8")


def test_couriers_stay_on_the_floor_and_carry_one_parcel_at_a_time(make: Make) -> None:
    """Whatever they do, be it possible or not."""
    spec, rng = gpu_envs.spec(COURIER), np.random.default_rng(0)
    walls = spec.tables["walls"].array({})
    env = make(COURIER, 500, device="cpu", autoreset_mode="SameStep", max_episode_steps=-1)
    _, infos = env.reset(seed=0)
    delivered = 0
    for t in range(300):
        actions = drawn(env, rng, infos) if t % 4 else rng.integers(0, 6, 500)
        _, rewards, terminations, _, infos = env.step(actions)
        s = {name: np.array(values) for name, values in env.state.items()}
        assert not walls[s["y"], s["x"]].any()
        assert np.array_equal((s["status"] == 1).sum(1), s["laden"])
        assert not (s["status"] == 2).all(1).any()  # that is the end
        assert (rewards[terminations] > 0.9).all()  # the last delivery's
        delivered += int(terminations.sum())
        beyond = np.pad(walls, 1, constant_values=True)
        for move, (dx, dy) in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
            assert np.array_equal(infos["action_mask"][:, move] == 1, ~beyond[s["y"] + dy + 1, s["x"] + dx + 1])
    assert delivered > 50  # about 100


def test_plants_and_seeds_are_conserved(make: Make) -> None:
    env: Any = make(FORAGERS, 300, device="cpu", autoreset_mode="Disabled")
    _, infos = env.reset(seed=0)
    rng, foragers = np.random.default_rng(0), env.counts["forager"]
    sown = env.state["growing"] + env.state["seeds"]
    for _ in range(130):
        _, _, terminations, _, infos = env.step(drawn(env, rng, infos))
        s = {name: np.array(values) for name, values in env.state.items()}
        assert np.array_equal((s["board"] != 0).sum(1), s["growing"])
        assert np.array_equal(s["cargo"][:, foragers:].sum((1, 2)), s["seeds"])
        assert np.array_equal(s["cargo"][:, :foragers].sum((1, 2)), s["harvest"])
        assert np.array_equal(s["growing"] + s["seeds"] + s["harvest"], sown)
        full = s["cargo"][:, :foragers].sum(2) == 4
        assert np.array_equal(full, s["in_game"][:, :foragers] == 0)
        assert np.array_equal(terminations["sower"][:, 0], s["growing"] + s["seeds"] == 0)
        over = terminations["sower"][:, 0] | (s["elapsed"] == 60)
        if over.any():
            _, infos = env.reset(options={"reset_mask": over})
            sown = env.state["growing"] + env.state["seeds"] + env.state["harvest"]


@pytest.mark.slow
@pytest.mark.parametrize("id", [REGATTA, GREENHOUSE])
def test_a_python_step_is_what_python_itself_makes_of_it(make: Make, monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    """The functions are never run by the package; here they are, with NumPy's numbers."""
    spec = gpu_envs.spec(id)
    assert isinstance(spec, EnvSpec)
    assert isinstance(spec.header, Rules)
    env: Any = make(id, 200, device="cpu", precision="float64", autoreset_mode="SameStep", max_episode_steps=50)
    env.reset(seed=0)
    real = isinstance(env.single_action_space, Box)
    monkeypatch.setitem(spec.header.step.__globals__, "clip", lambda x, low, high: min(max(x, low), high))
    values: dict[str, Any] = {name: param.default for name, param in spec.params.items()}
    p = SimpleNamespace(**values, **{name: table.array({}) for name, table in spec.tables.items()})
    rng, ended = np.random.default_rng(0), 0
    for _ in range(60):
        before = {name: np.array(array) for name, array in env.state.items()}
        actions = rng.uniform(-1.5, 1.5, (200, 1)).astype(np.float32) if real else drawn(env, rng, {})
        _, rewards, terminations, truncations, infos = env.step(actions)
        for i in range(200):
            s = SimpleNamespace(**{name: array[i].copy() for name, array in before.items()})
            reward, terminated = spec.header.step(s, p, actions[i].astype(np.float64) if real else actions[i], None)
            assert math.isclose(reward, rewards[i], rel_tol=1e-11, abs_tol=1e-11)
            assert bool(terminated) == terminations[i]
            observed = np.zeros(env.single_observation_space.shape)
            spec.header.observe(s, p, observed)
            if terminated or truncations[i]:
                ended += 1
                assert np.allclose(infos["final_obs"][i], observed, rtol=1e-6, atol=1e-6)
                continue
            for name in spec.fields:
                assert np.allclose(env.state[name][i], getattr(s, name), rtol=1e-12, atol=1e-12), name
            if spec.header.allow is not None:
                possible = np.ones(env.action_mask.shape[1], np.int8)
                spec.header.allow(s, p, possible)
                assert_same_bits(infos["action_mask"][i], possible)
    assert ended > 20


@pytest.mark.parametrize("num_taggers", [1, 4, 12])
def test_the_port_of_tag_is_the_built_in(make: Make, device: str, num_taggers: int) -> None:
    """Bit for bit, under the same parameters."""
    params = {"num_taggers": num_taggers, "grid_length": 6, "episode_length": 30, "wall_hit_penalty": 0.3}
    made: list[Any] = [
        make(WARP_TAG, 64, device=device, autoreset_mode="SameStep", **params),
        make("TagGridWorld-v0", 64, device=device, autoreset_mode="SameStep", start="fixed", **params),
    ]
    assert_all_same(env.reset(seed=1)[0] for env in made)
    rng = np.random.default_rng(0)
    caught = 0
    for _ in range(100):
        actions = drawn(made[0], rng, {})
        steps = [env.step(actions) for env in made]
        assert_same_bits(steps[0][:4], steps[1][:4])
        assert_all_same(step[4].get("final_obs") for step in steps)
        for name in ("x", "y"):
            assert_same_bits(to_numpy(made[0].state[name]), to_numpy(made[1].state[name]))
        caught += int(steps[0][2]["runner"].sum())
    assert caught > 0


def test_a_spec_and_its_place_are_one_environment() -> None:
    spec = gpu_envs.spec(place("courier.py:COURIER_V0"))
    assert spec is gpu_envs.spec(COURIER)
    assert dataclasses.replace(spec) == spec
