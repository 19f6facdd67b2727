"""Ends and restarts of episodes in each mode, against Gymnasium's SyncVectorEnv over the single environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import MODES, PLACES, Make, Place, address, assert_same_bits, defaults, moved, numpy_of
from harness import random_actions as draw

import gpu_envs
from gpu_envs import ActionError

COUNT, STEPS, LIMIT = 6, 120, 13
NUMPY_PLACES = [place for place in PLACES if place.output == "numpy"]

each_numpy = pytest.mark.parametrize("at", NUMPY_PLACES, ids=lambda at: f"{at.device}-{at.output}")


def sync(env_id: str, mode: str, count: int = COUNT, limit: int = LIMIT) -> SyncVectorEnv:
    """Gymnasium's vector environment, each replica behind Gymnasium's own TimeLimit."""

    def single() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(f"gpu_envs/{env_id}", device="cpu", max_episode_steps=limit, disable_env_checker=True)

    return SyncVectorEnv([single] * count, autoreset_mode=mode)


def assert_step_equals(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """Compares two steps' results, whose rewards differ in type alone; infos too."""
    assert_same_bits(ours[0], theirs[0], "observations")
    assert_same_bits(ours[1].astype(np.float64), theirs[1], "rewards")
    assert_same_bits(ours[2:4], theirs[2:4], "flags")
    assert set(ours[4]) == set(theirs[4])
    for name, values in theirs[4].items():
        if name != "final_obs":
            assert_same_bits(ours[4][name], values, name)
            continue
        dense = [np.zeros_like(ours[0][0]) if row is None else row for row in values]  # Gymnasium's has holes of None
        assert_same_bits(ours[4][name], np.stack(dense), name)


@each_numpy
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("automatic", ["NextStep", "SameStep"])
def test_equals_sync_vector_env(make: Make, env_id: str, at: Place, automatic: str, live: bool) -> None:
    """120 steps agree with SyncVectorEnv bit for bit, infos included; also where the simulator's memory is returned."""
    if live and at.device != "cpu":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    theirs = sync(env_id, automatic)
    ours = make(env_id, COUNT, device=at.device, autoreset_mode=automatic, max_episode_steps=LIMIT, copy=not live)
    assert_same_bits(ours.reset(seed=17)[0], theirs.reset(seed=17)[0])
    ends = 0
    for actions in draw(env_id, STEPS, COUNT):
        step = theirs.step(actions)
        assert_step_equals(ours.step(actions), step)
        ends += int((step[2] | step[3]).sum())
    assert ends >= COUNT * STEPS // (LIMIT + 1) - COUNT
    theirs.close()


@each_numpy
def test_disabled_equals_sync_vector_env(make: Make, env_id: str, at: Place) -> None:
    """Where the user resets by mask, 120 steps agree with SyncVectorEnv bit for bit."""
    theirs = sync(env_id, "Disabled")
    ours = make(env_id, COUNT, device=at.device, autoreset_mode="Disabled", max_episode_steps=LIMIT)
    assert_same_bits(ours.reset(seed=17)[0], theirs.reset(seed=17)[0])
    for actions in draw(env_id, STEPS, COUNT):
        step = theirs.step(actions)
        assert_step_equals(ours.step(actions), step)
        over = step[2] | step[3]
        if over.any():
            resets = [env.reset(options={"reset_mask": over.copy()}) for env in (ours, theirs)]
            assert_same_bits(resets[0], resets[1])
    theirs.close()


@each_numpy
def test_partial_reset_equals_sync_vector_env(make: Make, env_id: str, at: Place, mode: str) -> None:
    """A mask restarts some replicas in the midst of their episodes, in every mode, with seeds or without."""
    theirs = sync(env_id, mode, limit=50)
    ours = make(env_id, COUNT, device=at.device, autoreset_mode=mode, max_episode_steps=50)
    for env in (ours, theirs):
        env.reset(seed=17)
    rng = np.random.default_rng(0)
    seeds: Any
    for t, actions in enumerate(draw(env_id, 40, COUNT)):
        step = theirs.step(actions)
        assert_step_equals(ours.step(actions), step)
        mask = rng.random(COUNT) < 0.2
        mask |= (step[2] | step[3]) & (mode == "Disabled")
        seeds = (None, 1000 + t, [None, 5, None, 6, 7, None])[t % 3]
        if mask.any():
            given = ours.reset(seed=seeds, options={"reset_mask": mask.copy()})
            assert_same_bits(given, theirs.reset(seed=seeds, options={"reset_mask": mask.copy()}))
    theirs.close()


def test_partial_reset_clears_a_pending_restart(make: Make, env_id: str, place: Place) -> None:
    """In NextStep mode a replica that was reset by mask after its end takes an ordinary step next."""
    env = make(env_id, 3, **place._asdict(), max_episode_steps=2)
    env.reset(seed=0)
    actions = moved(draw(env_id, 3, 3), place)
    env.step(actions[0])
    assert numpy_of(env.step(actions[1])[3]).all()
    mask = np.array([True, False, True])
    env.reset(options={"reset_mask": moved(mask, place)})
    env.step(actions[2])
    assert env.get_state()["episode"]["elapsed"].tolist() == [1, 0, 1]


def test_masks_of_every_library(make: Make, env_id: str, place: Place, mode: str) -> None:
    """A mask may come from the host or from the environment's own library, and selects the same."""
    arguments = {**place._asdict(), "autoreset_mode": mode}
    mask = np.array([True, False, True, True, False])
    libraries = [moved(mask, Place(place.device, other.output)) for other in PLACES if other.device == place.device]
    if place.output == "torch":
        libraries.append(moved(mask, Place("cpu", "torch")))
    results = []
    for given in [mask, *libraries]:
        env = make(env_id, 5, **arguments)
        first = numpy_of(env.reset(seed=2)[0])
        after = numpy_of(env.reset(options={"reset_mask": given})[0])
        assert ((first != after).any(axis=1) == mask).all()
        results.append(after)
    for other in results[1:]:
        assert_same_bits(results[0], other)


def test_options_are_not_changed(make: Make, env_id: str, place: Place) -> None:
    """The caller's dict stays as it was, its mask too."""
    env = make(env_id, 3, **place._asdict())
    env.reset(seed=0)
    mask = moved(np.array([True, False, True]), place)
    options = {"reset_mask": mask}
    env.reset(options=options)
    assert options == {"reset_mask": mask}
    assert options["reset_mask"] is mask
    assert numpy_of(mask).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False, True], TypeError),
        (True, TypeError),
        ("mask", TypeError),
        (np.array([1, 0, 1]), TypeError),
        (np.array([1.0, 0.0, 1.0]), TypeError),
        (np.array([True, False]), ValueError),
        (np.array([[True, False, True]]), ValueError),
        (np.array(True), ValueError),
        (np.zeros(3, bool), ValueError),
    ],
)
def test_bad_masks(make: Make, env_id: str, place: Place, mask: Any, error: type[Exception]) -> None:
    """A mask that is none is refused, says why, and changes nothing."""
    env = make(env_id, 3, **place._asdict())
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(error, match="reset_mask"):
        env.reset(options={"reset_mask": mask})
    assert_same_bits(before, env.get_state())


def test_first_reset_is_of_all(make: Make, env_id: str, device: str) -> None:
    """A mask before there is any episode leaves replicas without a state."""
    env = make(env_id, 3, device=device)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, True])})


def options_of(env_id: str) -> dict[str, float]:
    """Reset options that leave a single state to begin in, and it is not one that the defaults allow."""
    settings = gpu_envs.spec(env_id).options
    return {"low": 0.25, "high": 0.25} if "low" in settings else dict.fromkeys(settings, 0.0)


def test_options_hold_for_one_reset(make: Make, env_id: str, device: str, mode: str) -> None:
    """Reset options apply to the reset they are given to, not to the restarts and resets after it."""
    count = 40
    env, plain = (make(env_id, count, device=device, autoreset_mode=mode, max_episode_steps=1) for _ in range(2))
    usual = plain.reset(seed=3)[0]
    chosen = env.reset(seed=3, options=options_of(env_id))[0]
    assert (chosen == chosen[0]).all()
    assert (chosen != usual).any(axis=1).all()
    for action in draw(env_id, 2, count):
        observations = [each.step(action)[0] for each in (env, plain)]
        if mode == "Disabled":
            observations = [each.reset()[0] for each in (env, plain)]
    assert_same_bits(observations[0], observations[1])
    assert_same_bits(env.reset()[0], plain.reset()[0])
    assert env.params.keys() >= options_of(env_id).keys()
    assert {name: env.params[name] for name in options_of(env_id)} == {
        name: defaults(env_id)[name] for name in options_of(env_id)
    }


def test_options_hold_for_the_masked(make: Make, env_id: str, device: str) -> None:
    """With a mask, options move the replicas it names alone."""
    env = make(env_id, 4, device=device)
    first = env.reset(seed=3)[0]
    mask = np.array([False, True, False, True])
    after = env.reset(options={**options_of(env_id), "reset_mask": mask})[0]
    assert_same_bits(first[~mask], after[~mask])
    assert (after[1] == after[3]).all()


@pytest.mark.parametrize("bounds", [(-0.3, -0.2), (0.1, 0.3), (0.2, 0.2)])
def test_option_bounds(make: Make, env_id: str, device: str, bounds: tuple[float, float]) -> None:
    """``low`` and ``high`` bound what a reset draws, evenly; ``x_init`` and ``y_init`` do so either way."""
    env = make(env_id, 20_000, device=device, precision="float64")
    if "low" in gpu_envs.spec(env_id).options:
        env.reset(seed=3, options=dict(zip(("low", "high"), bounds, strict=True)))
        limits = [bounds] * len(env.state)
    else:
        low, high = (abs(bound) for bound in bounds)
        env.reset(seed=3, options={"x_init": low, "y_init": high})
        limits = [(-low, low), (-high, high)]
    for (name, field), (low, high) in zip(env.state.items(), limits, strict=True):
        values = numpy_of(field)
        if name == "velocity":  # a car starts at rest
            assert not values.any()
            continue
        assert low <= values.min() <= values.max() <= high
        assert abs(values.mean() - (low + high) / 2) <= 0.02 * (high - low) + 1e-12
        if high > low:
            assert np.abs(np.histogram(values, 10, (low, high))[0] / len(values) - 0.1).max() < 0.01


@each_numpy
@pytest.mark.parametrize("live", [False, True])
def test_final_obs_is_zero_elsewhere(make: Make, env_id: str, at: Place, live: bool) -> None:
    """In NumPy output ``final_obs`` holds final observations and zeros, never what an earlier step left."""
    if live and at.device != "cpu":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    env = make(env_id, 5, device=at.device, autoreset_mode="SameStep", max_episode_steps=7, copy=not live)
    env.reset(seed=0)
    seen = 0
    for t, action in enumerate(draw(env_id, 40, 5)):
        infos = env.step(action)[4]
        if t % 3 == 0:  # so that episodes end at different times
            env.reset(options={"reset_mask": np.arange(5) == t % 5})
        if infos:
            finished = infos["_final_obs"]
            assert (infos["final_obs"][~finished] == 0).all()
            assert (infos["final_obs"][finished] != 0).any(axis=1).all()
            seen += int(finished.any() and not finished.all())
    assert seen > 5


def test_final_obs_is_what_next_step_returns(make: Make, env_id: str, place: Place) -> None:
    """The final observation in SameStep mode is the observation that NextStep mode gives with the flags."""
    same, following = (
        make(env_id, 9, **place._asdict(), autoreset_mode=mode, max_episode_steps=5)
        for mode in ("SameStep", "NextStep")
    )
    for env in (same, following):
        env.reset(seed=1)
    for action in draw(env_id, 5, 9):
        one, other = same.step(moved(action, place)), following.step(moved(action, place))
        assert_same_bits(one[1:4], other[1:4])
    assert numpy_of(one[4]["_final_obs"]).all()
    assert_same_bits(one[4]["final_obs"], other[0])
    assert_same_bits(one[0], following.step(moved(action, place))[0])


def test_restart_step_of_next_step_mode(make: Make, env_id: str, place: Place) -> None:
    """The step after an end ignores its action, rewards nothing, and counts for nothing."""
    env = make(env_id, 4, **place._asdict(), max_episode_steps=3)
    env.reset(seed=1)
    actions = draw(env_id, 8, 4)
    for action in actions[:3]:
        step = env.step(moved(action, place))
    assert numpy_of(step[3]).all()
    returns = numpy_of(env.episode_return)
    _, rewards, terminations, truncations, _ = env.step(moved(actions[3], place))
    assert not any(numpy_of(part).any() for part in (rewards, terminations, truncations))
    assert not numpy_of(env.get_state()["episode"]["elapsed"]).any()
    assert_same_bits(returns, env.episode_return)
    for action in actions[4:7]:
        step = env.step(moved(action, place))
    assert numpy_of(step[3]).all()


def test_disabled_refuses_finished_replicas(make: Make, env_id: str, device: str) -> None:
    """Stepping a replica whose episode is over raises, changes nothing, and a reset mends it."""
    env = make(env_id, 3, device=device, autoreset_mode="Disabled", max_episode_steps=2)
    env.reset(seed=0)
    actions = draw(env_id, 4, 3)
    env.step(actions[0])
    env.reset(options={"reset_mask": np.array([True, False, True])})
    assert env.step(actions[1])[3].tolist() == [False, True, False]
    before = env.get_state()
    for _ in range(2):
        with pytest.raises(ActionError, match=r"replica 1.*over.*reset"):
            env.step(actions[2])
        assert_same_bits(before, env.get_state())
    env.reset(options={"reset_mask": np.array([False, True, False])})
    assert env.step(actions[2])[3].tolist() == [True, False, True]


def test_disabled_freezes_finished_replicas(make: Make, env_id: str, place: Place) -> None:
    """Where frozen steps are allowed, a finished replica keeps state, observation and flags, for no reward."""
    env = make(env_id, 3, **place._asdict(), autoreset_mode="Disabled", max_episode_steps=2)
    env.allow_frozen_steps()
    env.reset(seed=0)
    actions = draw(env_id, 5, 3)
    env.step(moved(actions[0], place))
    last = [numpy_of(part) for part in env.step(moved(actions[1], place))[:4]]
    before = env.get_state()
    for action in actions[2:]:
        again = [numpy_of(part) for part in env.step(moved(action, place))[:4]]
        assert_same_bits((again[0], again[2], again[3]), (last[0], last[2], last[3]))
        assert not again[1].any()
    after = env.get_state()
    for snapshot in (before, after):
        snapshot["episode"].pop("finished")  # the mask of the last step's ends
    assert_same_bits(before, after)
    env.check()


@pytest.mark.parametrize("wanted", [True, None, False])
def test_episode_infos(make: Make, env_id: str, place: Place, mode: str, wanted: bool | None) -> None:
    """Return and length of an episode are given where it ends, and stay readable after."""
    env = make(env_id, 7, **place._asdict(), autoreset_mode=mode, max_episode_steps=9, statistics=wanted)
    env.reset(seed=1)
    expected = (place.output != "numpy") if wanted is None else wanted
    total, length = np.zeros(7, np.float32), np.zeros(7, np.int32)
    latest, fresh = np.zeros((2, 7)), np.zeros(7, bool)
    for action in draw(env_id, 30, 7):
        _, rewards, terminations, truncations, infos = env.step(moved(action, place))
        restarted = fresh & (mode == "NextStep")
        total, length = total + numpy_of(rewards), length + ~restarted
        over = (numpy_of(terminations) | numpy_of(truncations)) & ~restarted
        latest[:, over] = np.stack([total, length])[:, over]
        assert_same_bits(env.episode_return, latest[0].astype(np.float32), "episode_return")
        assert_same_bits(env.episode_length, latest[1].astype(np.int32), "episode_length")
        given = expected and (over.any() or place.output != "numpy")
        assert ("episode" in infos, "_episode" in infos) == (given, given)
        if given:
            assert_same_bits(infos["_episode"], over)
            assert_same_bits(numpy_of(infos["episode"]["r"])[over], total[over])
            assert_same_bits(numpy_of(infos["episode"]["l"])[over], length[over].astype(np.int32))
        if given and place.output == "numpy":
            assert not any(values[~over].any() for values in infos["episode"].values())
        if given and mode == "SameStep":
            assert_same_bits(infos["final_info"]["episode"]["r"], infos["episode"]["r"])
        total, length = np.where(over, np.float32(0), total), np.where(over, 0, length)
        fresh = over
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
    assert latest[1].all()


def test_episode_infos_are_kept_by_copies(make: Make, env_id: str) -> None:
    """Infos of a step with ``copy=True`` do not change with the next."""
    env = make(env_id, 2, device="cpu", autoreset_mode="SameStep", max_episode_steps=2, statistics=True)
    env.reset(seed=1)
    actions = draw(env_id, 4, 2)
    kept = [env.step(action)[4] for action in actions[:2]][1]
    before = {name: np.array(kept[name]) for name in ("final_obs", "_final_obs", "_episode")}
    addresses = {address(kept["final_obs"])}
    for action in actions[2:]:
        addresses.add(address(env.step(action)[4].get("final_obs", np.empty(1))))
    assert_same_bits(before, {name: kept[name] for name in before})
    assert len(addresses) > 1


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_time_limit(make: Make, env_id: str, device: str, limit: int) -> None:
    """The limit given takes the place of the spec's."""
    env = make(env_id, 3, device=device, autoreset_mode="SameStep", max_episode_steps=limit)
    env.reset(seed=0)
    truncations = env.rollout(1000, per_step=True).truncations
    first = np.where(truncations.any(0), truncations.argmax(0) + 1, 0)
    assert first.max() == limit or (limit == 1000 and not truncations.any())
    if limit < 8:  # no episode ends by itself so soon
        assert truncations.sum() == 3 * (1000 // limit)


def test_no_time_limit(make: Make, env_id: str, device: str) -> None:
    """-1 lifts the limit, None is the spec's."""
    spec = gpu_envs.spec(env_id)
    assert spec.max_episode_steps is not None
    steps = spec.max_episode_steps + 1
    for limit, truncated in ((-1, False), (None, True)):
        env = make(env_id, 50, device=device, max_episode_steps=limit)
        env.reset(seed=0)
        env.set_state({**env.get_state(), "episode": {**env.get_state()["episode"], "elapsed": np.full(50, steps - 2)}})
        assert env.step(draw(env_id, 50))[3].all() == truncated


@pytest.mark.parametrize("limit", [0, -2, 1.5, True, "5"])
def test_bad_time_limits(env_id: str, limit: Any) -> None:
    """A limit that is none is refused."""
    with pytest.raises(ValueError, match="max_episode_steps"):
        gpu_envs.make(env_id, max_episode_steps=limit)


@pytest.mark.parametrize("automatic", MODES)
def test_terminated_and_truncated_at_once(make: Make, device: str, automatic: str) -> None:
    """An episode may end in both ways in one step, and both are told."""
    env = make("CartPole-v1", 2, device=device, autoreset_mode=automatic, max_episode_steps=1)
    env.reset(seed=0)
    env.state["x"] = np.array([0.0, 3.0])
    _, _, terminations, truncations, _ = env.step(np.zeros(2, int))
    assert (terminations.tolist(), truncations.tolist()) == ([False, True], [True, True])


def test_mode_is_told(make: Make, env_id: str, mode: str) -> None:
    """The mode is Gymnasium's enum, as an attribute and in the metadata; it may be given as enum or string."""
    for given in (mode, AutoresetMode(mode)):
        env = make(env_id, 1, device="cpu", autoreset_mode=given)
        assert env.autoreset_mode is env.metadata["autoreset_mode"] is AutoresetMode(mode)


def test_parameters_stay_after_a_partial_reset(make: Make, env_id: str, device: str) -> None:
    """A reset with options leaves per-replica parameters as they are."""
    name = next(n for n, p in gpu_envs.spec(env_id).params.items() if p.kind == "real")
    values = defaults(env_id)[name] * np.linspace(1, 1.1, 3)
    env = make(env_id, 3, device=device, **{name: values})
    env.reset(seed=0)
    env.reset(options={**options_of(env_id), "reset_mask": np.array([True, False, False])})
    assert np.allclose(numpy_of(env.params[name]), values.astype(np.float32))
