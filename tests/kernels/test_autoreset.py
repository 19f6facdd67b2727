"""Ends and restarts of episodes in each autoreset mode; single-agent ones against Gymnasium's SyncVectorEnv."""

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from harness import PLACES, Make, Place, assert_same_bits, numpy_of, to_place
from harness import random_actions as draw_alone
from registered import (
    CONTINUOUS,
    LIMIT,
    Variant,
    agent_rows,
    assert_refused,
    distant_starts,
    draw_actions,
    each_variant,
    ended_replicas,
    join_agents,
    make_variant,
    numpy_by_role,
    place_actions,
    reset_info_names,
    set_elapsed,
    step_outcome,
    take_step,
    time_limit_name,
    zero_actions,
)

import gpu_envs
from gpu_envs import ActionError

COUNT, STEPS, SYNC_LIMIT = 6, 120, 13
NUMPY_PLACES = [place for place in PLACES if place.output == "numpy"]

each_numpy = pytest.mark.parametrize("at", NUMPY_PLACES, ids=lambda at: f"{at.device}-{at.output}")


def sync(env_id: str, mode: str) -> SyncVectorEnv:
    """Gymnasium's SyncVectorEnv, with Gymnasium's TimeLimit around each replica."""

    def single() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(
            f"gpu_envs/{env_id}", device="cpu", max_episode_steps=SYNC_LIMIT, disable_env_checker=True
        )

    return SyncVectorEnv([single] * COUNT, autoreset_mode=mode)


def assert_step_equals(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """Compares two steps' results including infos; rewards may differ in dtype."""
    assert_same_bits(ours[0], theirs[0], "observations")
    assert_same_bits(ours[1].astype(np.float64), theirs[1], "rewards")
    assert_same_bits(ours[2:4], theirs[2:4], "flags")
    assert set(ours[4]) == set(theirs[4])
    for name, values in theirs[4].items():
        if name != "final_obs":
            assert_same_bits(ours[4][name], values, name)
            continue
        dense = [np.zeros_like(ours[0][0]) if row is None else row for row in values]  # None: missing
        assert_same_bits(ours[4][name], np.stack(dense), name)


@each_numpy
@pytest.mark.parametrize("live", [False, True])
def test_equals_sync_vector_env(make: Make, env_id: str, at: Place, mode: str, live: bool) -> None:
    """120 steps agree with SyncVectorEnv bit for bit, infos included; also where the simulator's memory is returned.

    Masks restart some replicas in the midst of their episodes, with seeds or without.
    """
    if live and at.device != "cpu":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    theirs = sync(env_id, mode)
    ours = make(env_id, COUNT, device=at.device, autoreset_mode=mode, max_episode_steps=SYNC_LIMIT, copy=not live)
    assert_same_bits(ours.reset(seed=17)[0], theirs.reset(seed=17)[0])
    rng = np.random.default_rng(0)
    ends = both = 0
    for t, actions in enumerate(draw_alone(env_id, STEPS, COUNT)):
        step = theirs.step(actions)
        assert_step_equals(ours.step(actions), step)
        over = step[2] | step[3]
        ends, both = ends + int(over.sum()), both + int((step[2] & step[3]).sum())
        mask = (rng.random(COUNT) < 0.3) & (t % 7 == 6)
        mask |= over & (mode == "Disabled")
        seeds: Any = (None, 1000 + t, [None, 5, None, 6, 7, None])[t % 3]
        if mask.any():
            given = ours.reset(seed=seeds, options={"reset_mask": mask.copy()})
            assert_same_bits(given, theirs.reset(seed=seeds, options={"reset_mask": mask.copy()}))
    assert ends > COUNT * STEPS // SYNC_LIMIT // 2
    assert (both > 0) == env_id.startswith("CartPole"), "terminated and truncated at once"
    theirs.close()


# --- masks ---


@each_variant
def test_partial_reset_keeps_other_replicas(make: Make, variant: Variant, place: Place, mode: str) -> None:
    """A masked reset changes no bit of the other replicas' states, observations, later steps and pending restarts."""
    count = 12
    env, plain = (make_variant(make, variant, count, place, autoreset_mode=mode) for _ in range(2))
    for one in (env, plain):
        one.allow_frozen_steps()
        one.reset(seed=2)
    rng = np.random.default_rng(0)
    untouched = np.ones(count, bool)
    for t, action in enumerate(draw_actions(env, 30)):
        before, expected = (take_step(one, action, place) for one in (env, plain))
        for name, by_role in before.items():
            for role, values in by_role.items():
                assert_same_bits(values[untouched], expected[name][role][untouched], f"{t} {name}")
        mask = rng.random(count) < 0.3 * (t % 4 == 3)
        if not mask.any():
            continue
        state = {name: numpy_of(values) for name, values in env.state.items()}
        after, infos = env.reset(seed=(None, 100 + t)[t % 2], options={"reset_mask": to_place(mask, place)})
        for role, values in numpy_by_role(env, after).items():
            assert_same_bits(values[~mask], before["observations"][role][~mask])
            assert not variant.has_team or numpy_of(infos["alive"][role])[mask].all()
        for name, values in state.items():
            assert_same_bits(values[~mask], numpy_of(env.state[name])[~mask], name)
        assert not numpy_of(env.elapsed)[mask].any()
        untouched &= ~mask
        if untouched.sum() < 3:
            for one in (env, plain):
                one.reset(seed=t)
            untouched[:] = True


def test_partial_reset_clears_a_pending_restart(make: Make, variant: Variant, place: Place) -> None:
    """In NextStep mode, a replica that is reset by mask after its end takes a normal step next."""
    env = make_variant(make, variant, 3, place, max_episode_steps=2)
    env.reset(seed=0, options=distant_starts(env))
    for ended in (False, True):
        assert ended_replicas(take_step(env, zero_actions(env), place)).all() == ended
    env.reset(options={"reset_mask": to_place(np.array([True, False, True]), place)})
    env.step(place_actions(env, zero_actions(env), place))
    assert numpy_of(env.elapsed).tolist() == [1, 0, 1]


def test_masks_of_every_library(make: Make, variant: Variant, place: Place, mode: str) -> None:
    """Masks from the host and from the environment's array library select the same replicas, and are not modified."""
    mask = np.array([True, False, True, True, False])
    libraries = [to_place(mask, Place(place.device, other.output)) for other in PLACES if other.device == place.device]
    if place.output == "torch":
        libraries.append(to_place(mask, Place("cpu", "torch")))
    results = []
    for given in [mask, *libraries]:
        env = make_variant(make, variant, 5, place, autoreset_mode=mode)
        env.reset(seed=2)
        first = join_agents(env, env.step(place_actions(env, zero_actions(env), place))[0])
        options = {"reset_mask": given}
        results.append(join_agents(env, env.reset(options=options)[0]))
        assert ((numpy_of(env.elapsed) == 0) == mask).all()
        assert_same_bits(first[~mask], results[-1][~mask])
        assert options.keys() == {"reset_mask"}
        assert options["reset_mask"] is given
        assert numpy_of(given).tolist() == mask.tolist()
    for other in results[1:]:
        assert_same_bits(results[0], other)


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
        (np.ones((3, 5), bool), ValueError),
        (np.array(True), ValueError),
        (np.zeros(3, bool), ValueError),
    ],
)
def test_bad_masks(make: Make, variant: Variant, place: Place, mask: Any, error: type[Exception]) -> None:
    """Invalid masks, and any mask before the first reset, raise an error with a reason, and change nothing."""
    env = make_variant(make, variant, 3, place)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, True])})
    env.reset(seed=0)
    assert_refused(env, lambda: env.reset(options={"reset_mask": mask}), error, "reset_mask")


# --- ends in each mode ---


@each_variant
@pytest.mark.parametrize("live", [False, True])
def test_episodes_of_agents(make: Make, variant: Variant, place: Place, mode: str, live: bool) -> None:
    """Return, length, flags, ``alive`` and final observations of every agent agree with the sums over its steps."""
    if live and place == ("cuda", "numpy"):
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    statistics = True if place.output == "numpy" else None  # the default for other libraries
    env = make_variant(make, variant, 9, place, autoreset_mode=mode, statistics=statistics, copy=not live)
    infos = env.reset(seed=1)[1]
    assert set(infos) == reset_info_names(env)
    shape = join_agents(env, env.episode_length).shape
    total, length = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    latest_r, latest_l = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    here, fresh = (
        np.ones(shape, bool),
        np.zeros(9, bool),
    )  # agents that act; replicas that restart
    uneven = 0
    for action in draw_actions(env, 40):
        step = env.step(place_actions(env, action, place))
        infos, result = step[4], step_outcome(env, step)
        rewards, terminated, truncated, seen, final = (
            agent_rows(env, result[name])
            for name in ("rewards", "terminations", "truncations", "observations", "final_obs")
        )
        took_part = here & ~fresh[:, None]
        assert not rewards[~took_part].any()
        total += rewards
        length += took_part
        ended = ended_replicas(result) & ~fresh
        if variant.has_team:
            alive = agent_rows(env, result["alive"])
            if mode != "SameStep":
                assert not seen[~took_part & ~fresh[:, None]].any(), "who was out observes zeros"
                assert_same_bits(numpy_of(env.state["in_game"]), alive)
            assert (terminated[~fresh] | took_part[~fresh]).all(), "inactive agents stay terminated"
            assert not (truncated & ~took_part).any()
            assert mode != "SameStep" or alive[ended].all()
        if mode == "SameStep":
            assert not final[~(took_part & ended[:, None])].any()
            assert final[took_part & ended[:, None]].any(axis=-1).all()
        else:
            assert seen[took_part].any(axis=-1).all(), "an agent observes the step that ends its episode"
        latest_r, latest_l = (
            np.where(ended[:, None], now, then) for now, then in ((total, latest_r), (length, latest_l))
        )
        assert_same_bits(join_agents(env, env.episode_return), latest_r, "episode_return")
        assert_same_bits(join_agents(env, env.episode_length), latest_l, "episode_length")
        uneven += int((length[ended].min(axis=1) < length[ended].max(axis=1)).sum())
        always = place.output != "numpy"
        keys = reset_info_names(env)
        if always or ended.any():
            keys |= {"episode", "_episode"} | ({"final_obs", "_final_obs"} if mode == "SameStep" else set())
        assert set(infos) - {"final_info", "_final_info"} == keys
        if "episode" in infos:
            assert_same_bits(numpy_of(infos["_episode"]), ended)
            for key, values in (("r", total), ("l", length)):
                given = join_agents(env, infos["episode"][key])
                assert_same_bits(given[ended], values[ended])
                assert always or not given[~ended].any()
            if mode == "SameStep":
                assert_same_bits(numpy_of(infos["_final_obs"]), ended)
                if not variant.has_team:
                    assert_same_bits(infos["final_info"]["episode"]["r"], infos["episode"]["r"])
        if "final_obs" in infos and not always:
            assert not join_agents(env, infos["final_obs"])[~ended].any(), "no rows of an earlier step remain"
        total[ended], length[ended] = 0, 0
        here = np.where(fresh[:, None], True, here & ~(terminated | truncated))
        fresh = ended & (mode == "NextStep")
        here[ended] = True
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
    assert latest_l.all()
    exits = variant.env_id == CONTINUOUS and variant.params.get("runner_exits_game_after_tagged", True)
    assert (uneven > 0) == exits, "some were tagged before the end"


def test_disabled_refuses_finished_replicas(make: Make, variant: Variant, device: str) -> None:
    """Stepping a replica whose episode is over raises an error and changes nothing, also in a copy; a reset helps."""
    env = make_variant(make, variant, 3, Place(device, "numpy"), autoreset_mode="Disabled", max_episode_steps=2)
    env.reset(seed=0, options=distant_starts(env))
    take_step(env, zero_actions(env))
    env.reset(options={"reset_mask": np.array([True, False, True]), **distant_starts(env)})
    assert ended_replicas(take_step(env, zero_actions(env))).tolist() == [False, True, False]
    for _ in range(2):
        match = r"replica 1, step 2 .*over.*reset"
        assert_refused(env, lambda: take_step(env, zero_actions(env)), ActionError, match)
    twin = pickle.loads(pickle.dumps(env))
    with pytest.raises(ActionError, match=match):
        take_step(twin, zero_actions(env))
    env.reset(options={"reset_mask": np.array([False, True, False]), **distant_starts(env)})
    assert ended_replicas(take_step(env, zero_actions(env))).tolist() == [True, False, True]


@each_variant
def test_disabled_freezes_finished_replicas(make: Make, variant: Variant, place: Place) -> None:
    """If frozen steps are allowed, a finished replica keeps state, observations and flags, with zero reward."""
    env = make_variant(make, variant, 30, place, autoreset_mode="Disabled")
    env.allow_frozen_steps()
    env.reset(seed=0)
    actions = draw_actions(env, LIMIT + 4)
    frozen = np.zeros(30, bool)
    last: dict[str, dict[str, np.ndarray]] = {}
    kept: dict[str, np.ndarray] = {}
    early = 0
    for action in actions:
        for values in action.values():
            values[frozen] = 99 if values.dtype.kind == "i" else np.nan
        result = take_step(env, action, place)
        state = {name: numpy_of(values) for name, values in env.state.items()}
        for name, by_role in result.items():
            for role, values in by_role.items():
                assert name != "rewards" or not values[frozen].any()
                if last and name != "rewards":
                    assert_same_bits(values[frozen], last[name][role][frozen], name)
        for name, values in kept.items():
            assert_same_bits(values[frozen], state[name][frozen], name)
        last, kept, frozen = result, state, ended_replicas(result)
        early += int(frozen.any() and not frozen.all())
    assert frozen.all()
    assert early or variant.env_id != "TagGridWorld-v0"
    before = env.get_state()
    env.step(place_actions(env, actions[0], place))
    after = env.get_state()
    other = make_variant(make, variant, 30, place, autoreset_mode="Disabled")
    other.allow_frozen_steps()
    other.reset(seed=1)
    other.set_state(before)
    for each in (other, copy.deepcopy(env)):
        assert_same_bits(take_step(each, actions[0], place), last, "a copy knows how they ended")
    for snapshot in (before, after):
        snapshot["episode"].pop("finished")  # the replicas that finished in the last step
    assert_same_bits(before, after)
    env.check()


# --- limits ---


def test_limits(make: Make, variant: Variant) -> None:
    """-1 means no limit, None the spec's limit, which may be a parameter."""
    spec = gpu_envs.spec(variant.env_id)
    default, named = spec.step_limit(spec.check_params({}, 1)), time_limit_name(spec)
    longest = default or 30
    cases: list[tuple[dict[str, Any], int | None]] = [({}, default), ({"max_episode_steps": 9}, 9)]
    cases += [({"max_episode_steps": None}, default)]
    cases += [({"max_episode_steps": -1}, None)] if spec.longest_episode is None else []
    if named:
        cases += [({named: 9}, 9), ({"max_episode_steps": 8, named: 9}, 8)]
    for given, expected in cases:
        env = make(variant.env_id, 2, device="cpu", **given)
        assert env.max_episode_steps == expected
        for elapsed in (longest - 1, (expected or 2 * longest) - 1):
            env.reset(seed=0, options=distant_starts(env))
            set_elapsed(env, elapsed)
            assert agent_rows(env, take_step(env, zero_actions(env))["truncations"]).all() == (expected is not None)


@pytest.mark.parametrize("limit", [0, -2, 1.5, True, "5"])
def test_bad_limits(variant: Variant, limit: Any) -> None:
    """Invalid limits raise an error."""
    for name in filter(None, ("max_episode_steps", time_limit_name(gpu_envs.spec(variant.env_id)))):
        with pytest.raises(ValueError, match=name):
            gpu_envs.make(variant.env_id, device="cpu", **{name: limit})
