"""Parameters appended to observations: ``make(..., observe_params=...)``."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import MODES, Place, assert_same_bits, numpy_of
from registered import draw_actions, place_actions
from small_envs import walk

import gpu_envs
from gpu_envs import Param, Uniform, VectorEnv

NAMES = ("pole_mass", "sutton_barto_reward", "gravity")


@pytest.mark.parametrize("mode", MODES)
def test_observations_end_with_current_parameters(place: Place, mode: str) -> None:
    """The final observation has the values of its episode; other results do not change."""
    given: Any = {**place._asdict(), "autoreset_mode": mode, "pole_mass": Uniform(0.05, 0.4)}
    env, plain = (gpu_envs.make("CartPole-v1", 20, **given, observe_params=names) for names in (NAMES, None))
    space = env.single_observation_space
    assert space.shape == (7,)
    assert space.low[4:].tolist() == [0, 0, -np.inf]
    assert space.high[4:].tolist() == [np.inf, 1, np.inf]
    seen, wanted = (numpy_of(each.reset(seed=0)[0]) for each in (env, plain))
    for each in (env, plain):
        each.allow_frozen_steps()
    episodes = set()
    for _ in range(60):
        masses = numpy_of(env.params["pole_mass"])
        episodes.add(float(masses[0]))
        assert_same_bits(seen, np.column_stack([wanted, masses, np.zeros(20), np.full(20, 9.8)]).astype(np.float32))
        before = np.array(masses)
        actions = np.ones(20, np.int64)
        (seen, *_, infos), (wanted, *_, others) = env.step(actions), plain.step(actions)
        seen, wanted = numpy_of(seen), numpy_of(wanted)
        if mode == "SameStep" and "final_obs" in infos:
            for i in np.flatnonzero(numpy_of(infos["_final_obs"])):
                last, plain_last = (numpy_of(each["final_obs"][i]) for each in (infos, others))
                assert_same_bits(last, np.array([*plain_last, before[i], 0, 9.8], np.float32))
    assert (len(episodes) > 2) == (mode != "Disabled")


def test_rollouts_copies_and_forks(place: Place) -> None:
    env = gpu_envs.make("CartPole-v1", 6, **place._asdict(), pole_mass="choice:0.1:0.2", observe_params="pole_mass")
    env.reset(seed=1)
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env.fork(1)]
    actions = np.ones((30, 6), np.int64)
    wanted = numpy_of(env.rollout(30, actions, per_step=True).observations)
    assert wanted.shape == (30, 6, 5)
    assert set(wanted[..., 4].ravel().tolist()) == {float(np.float32(x)) for x in (0.1, 0.2)}
    for twin in twins:
        assert_same_bits(numpy_of(twin.rollout(30, actions, per_step=True).observations), wanted)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("team_id", ["TagContinuous-v0", "TagGridWorld-v0", "CovidEconomy-v0", "RiceN-v0"])
def test_teams(team_id: str, place: Place, shared: bool) -> None:
    """At the end of each agent's row, with and without shared observations."""
    spec = gpu_envs.spec(team_id)
    assert isinstance(spec, gpu_envs.TeamSpec)
    if shared and not spec.has_shared_observations:
        pytest.skip("its agents see nothing alike")
    free = {n: p for n, p in spec.params.items() if p.kind == "real" and not isinstance(p, gpu_envs.Derived)}
    drawn = next(n for n, p in free.items() if not p.rank)
    names = (drawn, *[n for n, p in free.items() if p.rank][:1], *[n for n, p in free.items() if not p.rank][1:2])
    given: Any = {
        **place._asdict(),
        "shared_observations": shared,
        "autoreset_mode": "SameStep",
        "max_episode_steps": 4,
    }
    given[drawn] = np.linspace(1, 2, 3)
    env, plain = (gpu_envs.make(team_id, 3, **given, observe_params=observed) for observed in (names, ()))
    seen: Any = env.reset(seed=0)[0]
    wanted: Any = plain.reset(seed=0)[0]
    params = np.concatenate([np.reshape(env.get_attr(name), (3, -1)) for name in names], 1)[:, None].astype(np.float32)
    for actions in draw_actions(env, 6):
        for role, rows in wanted.items():
            size = rows.shape[2]
            assert env.single_observation_spaces[role].shape == (size + params.shape[2],)
            row = numpy_of(seen[role])
            assert_same_bits(row[..., :size], numpy_of(rows))
            here = row.any(-1, keepdims=True)
            assert here.any()
            assert_same_bits(row[..., size:], np.where(here, params, np.float32(0)))
        seen, wanted = (each.step(place_actions(env, actions, place))[0] for each in (env, plain))


def test_the_default_of_a_spec(tmp_path: Path) -> None:
    params = {"pull": Param([[1.0, 2.0], [3.0, 4.0]], shape=(2, 2)), "kind": Param("b", choices=("a", "b"))}
    spec = walk(tmp_path, more={"params": params, "observe_params": ("kind", "pull")})
    env = VectorEnv(spec, 3, device="cpu")
    assert env.reset(seed=0)[0][:, 2:].tolist() == [[1, 1, 2, 3, 4]] * 3
    assert VectorEnv(spec, 3, device="cpu", observe_params=()).reset(seed=0)[0].shape == (3, 2)
    assert env.env_spec.observe_params == ("kind", "pull")
    image = gymnasium.spaces.Box(0, 255, (4, 4), np.uint8)
    with pytest.raises(ValueError, match="observe_params needs a one-dimensional float32 Box"):
        VectorEnv(dataclasses.replace(spec, observation=image), 3, device="cpu")


@pytest.mark.parametrize("names", [["pole_mas"], ["pole_mass", "pole_mass"], 3, ["low"]])
def test_wrong_names_are_refused(names: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"observe_params is {names!r}")):
        gpu_envs.make("CartPole-v1", 2, device="cpu", observe_params=names)
