"""The Multi Particle Environments against PettingZoo's mpe2: a step from recorded states, and whole episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import HAS_CUDA, Make, Place, assert_same_bits, numpy_of
from mpe_recordings import EPISODE_STEPS, PARTICLES, Recording, agent_arrays, record_mpe2, stack_by_role, write_state
from registered import (
    HOST,
    LIMIT,
    Variant,
    actions_of_replicas,
    draw_actions,
    make_variant,
    numpy_by_role,
    record,
    record_of_replicas,
)

import gpu_envs
from gpu_envs import Param, Role, TeamSpec
from gpu_envs.envs import particles
from gpu_envs.testing import check_environment

STATES = 5000

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("SimpleTag-v3", {"num_good": 3, "num_adversaries": 5, "num_obstacles": 0}),
    ("SimpleTag-v3", {"num_good": 2, "num_agent_neighbors": 2, "num_landmark_neighbors": 1}),
    ("SimpleTag-v3", {"num_agent_neighbors": 6, "num_landmark_neighbors": 4}),
    ("SimpleSpread-v3", {"N": 5, "local_ratio": 0.2}),
    ("SimpleSpread-v3", {"N": 4, "num_agent_neighbors": 2, "num_landmark_neighbors": 5}),
    ("SimpleAdversary-v3", {"N": 4}),
    ("SimpleAdversary-v3", {"N": 3, "num_agent_neighbors": 1, "num_landmark_neighbors": 2}),
    ("SimpleReference-v3", {"local_ratio": 0.9}),
    ("SimpleWorldComm-v3", {"num_good": 3, "num_adversaries": 2, "num_obstacles": 2, "num_food": 1, "num_forests": 3}),
    ("SimpleWorldComm-v3", {"num_forests": 0, "num_obstacles": 0}),
]
OF_STATE = ("x", "y", "x_dot", "y_dot", "c")


def named(kind: Any) -> str:
    return "-".join(map(str, kind[1].values())) if isinstance(kind, tuple) and kind[1] else ""


def stepped(make: Make, env_id: str, data: Recording, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
    """A step of this package from each of the states."""
    env = make(env_id, len(data.rewards), max_episode_steps=-1, autoreset_mode="Disabled", **kwargs)
    env.reset(seed=0)
    write_state(env, data.before)
    return env, env.step(stack_by_role(env, data.actions))


def assert_close(ours: Any, theirs: np.ndarray, tolerance: float, kept: np.ndarray) -> None:
    """Fails unless all values agree within the absolute or relative tolerance."""
    actual, expected = numpy_of(ours).astype(np.float64).reshape(theirs.shape)[kept], theirs[kept]
    assert (np.abs(actual - expected) <= tolerance * np.maximum(1, np.abs(expected))).all()


def assert_neighbours(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Fails unless values are equal or adjacent in float32, or, near zero, within 1e-9."""
    inward, outward = np.nextafter(theirs, np.float32(0)), np.nextafter(theirs, np.copysign(np.float32(np.inf), theirs))
    assert ((ours == theirs) | (ours == inward) | (ours == outward) | (np.abs(ours - theirs) < 1e-9)).all()


def check(
    make: Make, kind: tuple[str, dict[str, Any]], steps: int, precision: str, device: str, continuous: bool
) -> None:
    env_id, params = kind
    data = record_mpe2(env_id, steps, continuous, tuple(params.items()))
    given = {**params, "continuous_actions": continuous}
    env, (observations, rewards, *_) = stepped(make, env_id, data, precision=precision, device=device, **given)
    tolerance, threshold = (1e-9, 1e-9) if precision == "float64" else (1e-4, 1e-4)
    kept = data.margins > threshold
    # contact_force * time_step^2 is 1: a disc that stays in an obstacle for a step is just at its edge after the next
    assert kept.mean() > (0.99 if precision == "float64" else 0.9)
    for name in OF_STATE:
        if name in data.after:
            assert_close(env.state[name], data.after[name], tolerance, kept)
    for ours, theirs in zip(agent_arrays(rewards), data.rewards.T, strict=True):
        assert_close(ours, theirs, tolerance, kept)
    for ours, theirs in zip(agent_arrays(observations), data.observations, strict=True):
        assert ours.shape == theirs.shape
        if precision == "float64":
            assert_neighbours(ours[kept], theirs[kept])
        else:
            assert_close(ours, theirs, tolerance, kept)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("env_id", PARTICLES)
def test_steps_and_episodes(env_id: str, continuous: bool, device: str, make: Make) -> None:
    """One test for both, as the recording takes most of the time."""
    for precision in ("float64", "float32"):
        check(make, (env_id, {}), STATES, precision, device, continuous)

    data = record_mpe2(env_id, STATES, continuous, ())
    episodes = STATES // EPISODE_STEPS
    env = make(env_id, episodes, precision="float64", device=device, continuous_actions=continuous)
    env.reset(seed=0)
    write_state(env, {name: values[::EPISODE_STEPS] for name, values in data.before.items()})
    for step in range(EPISODE_STEPS):
        _, _, terminations, truncations, _ = env.step(
            stack_by_role(env, [actions[step::EPISODE_STEPS] for actions in data.actions])
        )
        for name in OF_STATE:
            if name in data.after:
                theirs = data.after[name][step::EPISODE_STEPS]
                assert_close(env.state[name], theirs, 1e-6, np.ones(episodes, bool))
    assert all(numpy_of(ended).all() for ended in truncations.values())
    assert not any(numpy_of(ended).any() for ended in terminations.values())


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: f"{kind[0]}-{named(kind)}")
def test_other_sizes(kind: tuple[str, dict[str, Any]], continuous: bool, device: str, make: Make) -> None:
    check(make, kind, 500, "float64", device, continuous)


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("env_id", PARTICLES)
def test_the_same_bits_in_any_batch_and_on_any_device(env_id: str, continuous: bool, make: Make) -> None:
    variant = Variant(env_id, {"continuous_actions": continuous})

    def run(count: int, place: Place = HOST) -> tuple[Any, Any]:
        env = make_variant(make, variant, count, place)
        return numpy_by_role(env, env.reset(seed=3)[0]), record(env, actions_of_replicas(actions, slice(count)), place)

    actions = draw_actions(make_variant(make, variant, 40), 2 * LIMIT)
    first, whole = run(40)
    few_first, few = run(7)
    assert_same_bits(few_first, {role: rows[:7] for role, rows in first.items()})
    assert_same_bits(few, record_of_replicas(whole, slice(7)))
    if HAS_CUDA:
        assert_same_bits(run(40, Place("cuda", "numpy")), (first, whole))


@pytest.mark.parametrize("env_id", PARTICLES)
def test_starts_have_mpe2_s_distribution(env_id: str, device: str, make: Make) -> None:
    """Means and maxima of 20,000 uniform draws; all goals are equally frequent."""
    count = 20_000
    env = make(env_id, count, device=device)
    env.reset(seed=0)
    state = {name: numpy_of(values) for name, values in env.state.items()}
    reach = 0.9 if env_id in ("SimpleTag-v3", "SimpleWorldComm-v3") else 1.0
    for name, most in (("x", 1.0), ("y", 1.0), ("landmark_x", reach), ("landmark_y", reach)):
        assert np.abs(state[name]).max() <= most
        assert (np.abs(state[name]).max(0) > 0.999 * most).all()
        # the mean has a standard deviation of most / sqrt(3 count), 0.0041
        assert (np.abs(state[name].mean(0)) < 5 * most / np.sqrt(3 * count)).all()
    for name in {"goal", "key"} & state.keys():
        goals = state[name].reshape(count, -1)
        for own in goals.T:
            frequencies = np.bincount(own) / count
            assert (np.abs(frequencies - 1 / len(frequencies)) < 5 * np.sqrt(1 / 4 / count)).all()
    assert not any(state[name].any() for name in ("x_dot", "y_dot", "c") if name in state)


def test_equal_positions_and_invalid_goals_are_safe(device: str, make: Make) -> None:
    """User-written states cause no division by zero and no access out of bounds."""
    env = make("SimplePush-v3", 2, device=device, checking=device == "cpu")
    env.reset(seed=0, options={"x": [0.5, 0.5], "y": [0.5, 0.5]})
    env.state["goal"] = np.array([-3, 99])
    observations, rewards, *_ = env.step({"adversary": np.zeros((2, 1), int), "agent": np.zeros((2, 1), int)})
    assert all(np.isfinite(numpy_of(values)).all() for values in (*observations.values(), *rewards.values()))
    with pytest.raises(ValueError, match=r"options\['goal'\]: expected integers from 0 to 1"):
        env.reset(options={"goal": 2})


BUMPERS = """
FN particles::Disc disc(const Params& p, int) { return {p.size, 4, infinity<real>()}; }

FN void reset(World& w, const Params&, Team& team) { particles::scatter(w, team, 3); }

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    particles::move(w, p, team, actions, 3, disc);
    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = -particles::price_outside(w, i);
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    particles::see_landmarks(w, i, row, particles::see_place(w, i, row, 0), 3, 2);
}
"""


@pytest.mark.slow
def test_user_rules_may_use_the_physics(tmp_path: Path) -> None:
    """Discs that start apart do not overlap once they rest; metrics count them."""
    header = tmp_path / "bumpers.cuh"
    header.write_text(BUMPERS)
    spec = TeamSpec(
        id="Bumpers-v0",
        header=header,
        roles=(Role("car", lambda params: 2 * params["pairs"], Box(-np.inf, np.inf, (6,), np.float32), Discrete(5)),),
        state=particles.AGENT_STATE,
        shared=particles.landmarks(lambda _: 3),
        scratch=particles.CONTACT_SCRATCH,
        params={"pairs": Param(2, fixed=True), "size": Param(0.1), **particles.common(None), **particles.contacts()},
    )
    check_environment(spec, devices=["cpu"], num_envs=4)
    env = gpu_envs.make(spec, 50, device="cpu", pairs=3)
    assert isinstance(env, gpu_envs.MultiAgentEnv)
    assert env.counts == {"car": 6}
    env.reset(seed=0)
    for _ in range(200):
        env.step({"car": np.zeros((50, 6), int)})
    places = np.stack([numpy_of(env.state["x"]), numpy_of(env.state["y"])], -1)
    marks = np.stack([numpy_of(env.state["landmark_x"]), numpy_of(env.state["landmark_y"])], -1)
    others = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)[:, *np.triu_indices(6, 1)]
    assert others.min() > 0.19
    assert np.linalg.norm(places[:, :, None] - marks[:, None], axis=-1).min() > 0.19
    env.close()
    with pytest.raises(ValueError, match="Bumpers-v0: the role 'car': its count is 0; give an integer of at least 1"):
        gpu_envs.make(spec, 1, device="cpu", pairs=0)
