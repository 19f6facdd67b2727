"""Tag in the plane: whole episodes, what holds in every step, starts and parameters."""

import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_all_same, assert_same_bits, numpy_of
from tag_oracles import (
    CONTINUOUS,
    CONTINUOUS_DEFAULTS,
    GRID,
    GRID_DEFAULTS,
    MakeTeam,
    Moved,
    Outcome,
    Params,
    World,
    by_role,
    joined,
    move,
    observe,
    play,
    resolve_tags,
    settle,
    take_step,
    unstacked,
)
from tag_worlds import SCENE, TURN, VARIANTS, columns, draw_actions, draw_worlds, num_agents, scene

import gpu_envs

PLAIN: Params = {**CONTINUOUS_DEFAULTS, "episode_length": 60, "grid_length": 5.0, "tagging_distance": 0.06}

EPISODES: dict[str, tuple[int, Params]] = {
    "exits": (8, {**PLAIN, "num_taggers": 3, "num_runners": 9, "num_other_agents_observed": 3}),
    "stay": (
        4,
        {
            **PLAIN,
            "num_taggers": 3,
            "num_runners": 9,
            "use_full_observation": True,
            "runner_exits_game_after_tagged": False,
        },
    ),
    "continuous": (6, {**PLAIN, "num_taggers": 2, "num_runners": 6, "actions": "continuous"}),
    "large": (2, {**PLAIN, "num_taggers": 5, "num_runners": 60, "grid_length": 20.0, "tagging_distance": 0.03}),
    "two": (
        12,
        {
            **PLAIN,
            "num_taggers": 1,
            "num_runners": 1,
            "num_other_agents_observed": 1,
            "grid_length": 2.0,
            "tagging_distance": 0.15,
        },
    ),
}


def settle_ours(params: Params, before: World, ours: World, moved: Moved) -> Outcome[World]:
    """What the rules make of the places that this package moved everybody to, in integers exactly."""
    start = dataclasses.replace(
        moved.world, x=ours.x, y=ours.y, speed=ours.speed, heading=ours.heading, acceleration=ours.acceleration
    )
    assert start.elapsed == before.elapsed
    return settle(params, start, moved.hits)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("count", "params"), EPISODES.values(), ids=EPISODES)
def test_whole_episodes_in_integers(make: MakeTeam, device: str, count: int, params: Params) -> None:
    """Who is tagged by whom and when, who is left, the flags and the order of the nearest are the rules', exactly."""
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=3)
    restarting, tags, episodes = np.zeros(count, bool), 0, 0
    for t, actions in enumerate(draw_actions(params, 2 * params["episode_length"], count, seed=4)):
        befores = unstacked(World, env.state)
        result = take_step(env, params, actions)
        afters = unstacked(World, env.state)
        for i in range(count):
            before, after = befores[i], afters[i]
            if restarting[i]:
                assert after.elapsed == 0
                assert after.in_game.all()
                assert after.runners_left == params["num_runners"]
                assert not result.rewards[i].any()
                assert not (result.terminated | result.truncated)[i].any()
                continue
            moved = move(params, before, actions[i])
            for name in ("speed", "heading", "acceleration"):
                assert np.array_equal(getattr(after, name), getattr(moved.world, name)), (name, t)
            # Two sines differ by four units in their last place, 2.4e-7; the sums by one in theirs, 1.9e-6 from 16.
            assert np.abs(after.x - moved.world.x).max() <= 2.5e-6
            assert np.abs(after.y - moved.world.y).max() <= 2.5e-6
            expected = settle_ours(params, before, after, moved)
            assert np.array_equal(after.in_game, expected.world.in_game)
            assert (after.elapsed, after.runners_left) == (expected.world.elapsed, expected.world.runners_left)
            assert np.array_equal(result.rewards[i], expected.rewards)  # whole numbers: who tagged whom
            assert np.array_equal(result.terminated[i], expected.terminated)
            assert np.array_equal(result.truncated[i], expected.truncated)
            if t % 3 == 0 or expected.over:
                np.testing.assert_allclose(result.observations[i], expected.observations, rtol=0, atol=5e-7)
            tags += len(expected.tags)
            episodes += expected.over
        restarting = (result.terminated | result.truncated).all(axis=1)
    assert episodes >= count
    assert tags >= count


def test_final_observations(make: MakeTeam, device: str) -> None:
    """Where an episode ends within its step, its last views are those that other modes return, zero for who was out."""
    count, params = EPISODES["exits"]
    next_step, same_step = (
        make(CONTINUOUS, count, device=device, autoreset_mode=mode, **params) for mode in ("NextStep", "SameStep")
    )
    for env in (next_step, same_step):
        env.reset(seed=3)
    running = np.ones(count, bool)  # in their first episode, which is the same
    for actions in draw_actions(params, params["episode_length"], count, seed=4):
        out = ~numpy_of(next_step.state["in_game"])
        expected = take_step(next_step, params, actions)
        observations, rewards, terminations, truncations, infos = same_step.step(by_role(params, actions))
        for ours, theirs in zip((rewards, terminations, truncations), expected[1:4], strict=True):
            assert_same_bits(joined(ours)[running], theirs[running])
        over = (expected.terminated | expected.truncated).all(axis=1) & running
        if over.any():
            final = joined(infos["final_obs"])
            assert numpy_of(infos["_final_obs"])[running].tolist() == over[running].tolist()
            assert_same_bits(final[over], expected.observations[over])
            assert not final[out & over[:, None]].any()
            worlds = unstacked(World, same_step.state)
            for i in np.flatnonzero(over).tolist():
                assert worlds[i].elapsed == 0
                first = observe(params, worlds[i], worlds[i].in_game)
                np.testing.assert_allclose(joined(observations)[i], first, rtol=0, atol=5e-7)
        running &= ~over
    assert not running.any()


def test_a_long_episode_of_the_defaults(make: MakeTeam, device: str) -> None:
    """500 steps of 10 taggers and 100 runners: who is tagged by whom and when, who is left."""
    params = CONTINUOUS_DEFAULTS
    env = make(CONTINUOUS, 2, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=5)
    present = np.ones((2, num_agents(params)), bool)
    for t, actions in enumerate(draw_actions(params, params["episode_length"], 2, seed=6)):
        result = take_step(env, params, actions)
        expected = np.zeros_like(result.rewards)
        xs, ys = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        for i in range(2):
            for tagger, runner in resolve_tags(params, xs[i], ys[i], present[i]):
                expected[i, tagger] += 10
                expected[i, runner] -= 10
                present[i, runner] = False
        last = t + 1 == params["episode_length"]
        if last:
            expected[:, params["num_taggers"] :] += present[:, params["num_taggers"] :]
        assert np.array_equal(result.rewards, expected)
        assert np.array_equal(result.alive, present)
        assert np.array_equal(numpy_of(env.state["runners_left"]), present[:, params["num_taggers"] :].sum(axis=1))
        assert np.array_equal(result.terminated, ~present)
        assert np.array_equal(result.truncated, present & last)
    assert 20 < (~present).sum() < 200


CROWD: Params = {**PLAIN, "num_taggers": 4, "num_runners": 20, "num_other_agents_observed": 6}


@pytest.mark.parametrize("exits", [True, False])
def test_rewards_balance(make: MakeTeam, device: str, exits: bool) -> None:
    """Taggers earn together what their tags are worth, runners lose what theirs cost; all else is accounted for."""
    params = {**CROWD, "runner_exits_game_after_tagged": exits, "tag_reward_for_tagger": 4.0}
    params |= {"step_penalty_for_tagger": -0.25, "step_reward_for_runner": 0.125, "tag_penalty_for_runner": -16.0}
    count, seen = 50, 0
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    restarting = np.zeros(count, bool)
    for actions in draw_actions(params, 100, count, seed=2):
        runners_before = numpy_of(env.state["runners_left"])
        present = numpy_of(env.state["in_game"])[:, 4:]
        result = take_step(env, params, actions)
        over = (result.terminated | result.truncated).all(axis=1)
        timed_out = numpy_of(env.state["elapsed"]) == params["episode_length"]
        playing = ~restarting
        runners = result.rewards[:, 4:] - 0.125 * present - (timed_out[:, None] & result.alive[:, 4:])
        tagged = (runners < 0)[playing]
        assert np.isin(runners[playing], (0, -16)).all()
        tags = tagged.sum(axis=1)
        assert np.array_equal((result.rewards[playing, :4] + 0.25).sum(axis=1), 4 * tags)
        assert np.isin((result.rewards[playing, :4] + 0.25) / 4, np.arange(21)).all()
        if exits:
            gone = (runners_before - numpy_of(env.state["runners_left"]))[playing]
            assert np.array_equal(gone, tags)
            assert np.array_equal(present[playing] & ~result.alive[playing, 4:], tagged)
        else:
            assert (numpy_of(env.state["runners_left"]) == 20).all()
            assert result.alive.all()
        assert not result.rewards[restarting].any()
        restarting, seen = over, seen + int(tags.sum())
    assert seen > 20 * count


def test_wall_hits_are_accounted_for(make: MakeTeam, device: str) -> None:
    """Whoever pays for a wall stands at one, once a step; and whoever came to one paid, but for exact landings."""
    params = {**CROWD, "edge_hit_penalty": -1.0, "tagging_distance": 0.0}
    env = make(CONTINUOUS, 50, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    hits = exact = 0
    for actions in draw_actions(params, params["episode_length"] - 1, 50, seed=2):
        before = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        result = take_step(env, params, actions)
        after = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        at_wall, was_at_wall = (np.isin(places, (0, 5)).any(axis=0) for places in (after, before))
        assert np.isin(result.rewards, (0, -1)).all()
        paid = result.rewards < 0
        assert (at_wall | ~paid).all()
        hits += int(paid.sum())
        exact += int((at_wall & ~was_at_wall & ~paid).sum())
    assert hits > 10_000
    assert exact < 5


def test_what_always_holds(make: MakeTeam, device: str) -> None:
    """Nobody leaves the square, breaks a limit or comes back; who is out is still, and sees and earns nothing."""
    params = {**CROWD, "step_reward_for_runner": 0.125, "edge_hit_penalty": -0.5, "max_speed": 0.75}
    params |= {"skill_level_tagger": 1.5}
    count, nearest, compared = 50, params["num_other_agents_observed"], 0
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    fastest = np.float32(0.75) * np.where(np.arange(24) < 4, np.float32(1.5), np.float32(1))
    for actions in draw_actions(params, 100, count, seed=2):
        before = {name: numpy_of(values) for name, values in env.state.items()}
        result = take_step(env, params, actions)
        after = {name: numpy_of(values) for name, values in env.state.items()}
        restarted = after["elapsed"] == 0
        assert all(((values >= 0) & (values <= 5)).all() for values in (after["x"], after["y"]))
        assert ((after["speed"] >= 0) & (after["speed"] <= fastest)).all()
        assert ((after["heading"] >= 0) & (after["heading"] < np.float32(TURN))).all()
        assert after["in_game"][:, :4].all()
        out = ~before["in_game"] & ~restarted[:, None]
        assert not after["in_game"][out].any()
        assert result.terminated[out].all()
        assert not result.truncated[out].any()
        for name in ("speed", "heading", "acceleration"):
            assert not after[name][out].any()
        for name in ("x", "y"):
            assert np.array_equal(after[name][out], before[name][out])
        assert not result.rewards[out].any()
        assert not result.observations[out].any()
        shown = result.observations[..., :-1].reshape(count, 24, 7, nearest)
        distances = np.square(shown[:, :, :2].astype(np.float64)).sum(axis=2)
        listed = shown[:, :, 6] != 0
        assert np.isin(shown[:, :, 6], (0, 1)).all()
        assert not shown.transpose(0, 1, 3, 2)[~listed].any()
        assert (np.diff(listed.astype(int), axis=2) <= 0).all()  # no gaps
        assert (np.diff(distances, axis=2)[listed[..., 1:]] > -1e-6).all()
        others = after["in_game"].sum(axis=1)[:, None] - after["in_game"]
        seeing = ~out
        assert np.array_equal(listed.sum(axis=2)[seeing], np.minimum(others, nearest)[seeing])
        # Among fewer than K others, all taggers are listed, but never oneself.
        few = seeing & (others <= nearest)
        taggers = np.where(np.arange(24) < 4, 3, 4)
        assert np.array_equal(shown[:, :, 5].sum(axis=2)[few], np.broadcast_to(taggers, few.shape)[few])
        compared += int(few.sum())
    assert compared > 100


def test_sums_are_the_same_every_time(make: MakeTeam, device: str) -> None:
    """Two runs with many tags in a step agree in every bit."""
    params = {**CROWD, "tagging_distance": 0.2}
    actions = draw_actions(params, 10, 200, seed=9)
    runs = []
    for _ in range(2):
        env = make(CONTINUOUS, 200, device=device, autoreset_mode="NextStep", **params)
        env.reset(seed=8)
        runs.append([tuple(take_step(env, params, action)) for action in actions])
    assert_all_same(runs)


def test_continuous_actions_are_the_levels(make: MakeTeam, device: str) -> None:
    """The same changes of acceleration and the same turns, given by index or as numbers, make the same step."""
    discrete = {**SCENE, "num_acceleration_levels": 3, "num_turn_levels": 3}
    worlds = draw_worlds(discrete, "float32", 100, seed=3)
    indices = draw_actions(discrete, 100, seed=4)
    tables = np.array([[0, -0.25, 0, 0.25], [0, -2, 0, 2]], np.float32)
    numbers = np.stack([tables[k][indices[..., k]] for k in range(2)], axis=-1)
    one = play(make, World, discrete, worlds, indices, device=device)
    other = play(make, World, {**discrete, "actions": "continuous"}, worlds, numbers, device=device)
    assert_same_bits(columns(one), columns(other))


def test_spaces(make: MakeTeam, device: str) -> None:
    """Roles, agents and spaces follow from the parameters."""
    env = make(CONTINUOUS, 3, device=device, autoreset_mode="Disabled", **VARIANTS["full"])
    actions: Any = env.single_action_spaces
    assert env.roles == ("tagger", "runner")
    assert env.counts == {"tagger": 3, "runner": 9}
    assert env.possible_agents == [*(f"tagger_{i}" for i in range(3)), *(f"runner_{i}" for i in range(9))]
    for role, count in env.counts.items():
        assert actions[role].nvec.tolist() == [8, 6]
        assert env.single_observation_spaces[role].shape == (7 * 11 + 1,)
        assert env.single_observation_spaces[role].dtype == np.float32
        assert env.action_spaces[role].shape == (3, count, 2)
        assert env.observation_spaces[role].shape == (3, count, 78)
    env = make(CONTINUOUS, 3, device=device, autoreset_mode="Disabled", **VARIANTS["padded-continuous"])
    actions = env.single_action_spaces
    for role in env.roles:
        np.testing.assert_allclose(actions[role].low, [-0.2, -1.0], rtol=1e-7)
        np.testing.assert_allclose(actions[role].high, [0.3, 2.0], rtol=1e-7)
        assert env.single_observation_spaces[role].shape == (7 * 16 + 1,)


START: Params = {**SCENE, "num_taggers": 1, "num_runners": 3}


def snapshot(env: gpu_envs.MultiAgentEnv) -> dict[str, np.ndarray]:
    """A copy of the state."""
    return {name: numpy_of(values) for name, values in env.state.items()}


def layout(env: gpu_envs.MultiAgentEnv) -> np.ndarray:
    """Who stands where, and looks where: ``[replicas, 3 * agents]``."""
    return np.concatenate([numpy_of(env.state[name]) for name in ("x", "y", "heading")], axis=1)


@pytest.mark.parametrize("start", ["random", "fixed"])
def test_every_start(make: MakeTeam, device: str, start: str) -> None:
    """Everybody is in the game, standing in the square, looking along an axis; what they see is the state."""
    env = make(CONTINUOUS, 200, device=device, start=start, **START)
    observations, infos = env.reset(seed=0)
    state = snapshot(env)
    assert all(((values >= 0) & (values < 8)).all() for values in (state["x"], state["y"]))
    axes = np.float32(math.pi / 2) * np.arange(4)
    assert (np.abs(state["heading"][..., None] - axes).min(axis=-1) < 5e-7).all()
    assert not state["speed"].any()
    assert not state["acceleration"].any()
    assert state["in_game"].all()
    assert (state["runners_left"] == 3).all()
    assert not state["elapsed"].any()
    assert joined(infos["alive"]).all()
    for world, rows in zip(unstacked(World, env.state), joined(observations), strict=True):
        np.testing.assert_allclose(rows, observe(START, world, world.in_game), rtol=0, atol=5e-7)
        assert not rows[:, -1].any()


def test_random_starts_are_even(make: MakeTeam, device: str) -> None:
    """Places and headings are uniform and independent."""
    env = make(CONTINUOUS, 5_000, device=device, **START)
    env.reset(seed=0)
    state = snapshot(env)
    shares = [np.histogram(state[name], 20, (0, 8))[0] / 20_000 for name in ("x", "y")]
    assert np.abs(np.array(shares) - 0.05).max() < 0.0085  # five and a half standard deviations
    quarters = np.rint(state["heading"] / (math.pi / 2)).astype(int)
    assert np.abs(np.bincount(quarters.ravel(), minlength=4) / 20_000 - 0.25).max() < 0.017
    columns = np.concatenate([state["x"], state["y"], quarters], axis=1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(12)).max() < 0.08  # standard deviation 0.014


def test_fixed_start(make: MakeTeam, device: str) -> None:
    """One layout for all replicas and all episodes, another for another seed."""
    env = make(
        CONTINUOUS, 50, device=device, autoreset_mode="SameStep", start="fixed", **{**START, "episode_length": 1}
    )
    env.reset(seed=7)
    first = layout(env)
    assert (first == first[0]).all()
    assert len(np.unique(first[0, :8])) == 8
    env.step(by_role(START, np.zeros((50, 4, 2), int)))
    assert_same_bits(layout(env), first)
    env.reset()
    assert_same_bits(layout(env), first)
    env.reset(options={"reset_mask": np.arange(50) % 2 == 0})
    assert_same_bits(layout(env), first)
    env.reset(seed=8)
    other = layout(env)
    assert (other == other[0]).all()
    assert (other[0, :8] != first[0, :8]).all()
    env.reset(seed=7)
    assert_same_bits(layout(env), first)


def test_the_length_of_an_episode_is_its_limit(make: MakeTeam, device: str) -> None:
    """Where no other is given; what is seen of the time is a share of the length."""
    others = {name: value for name, value in START.items() if name != "episode_length"}
    for length, given in ((3, {}), (4, {"max_episode_steps": 3})):
        env = make(CONTINUOUS, 1, device=device, episode_length=length, **others, **given)
        assert env.max_episode_steps == 3
        env.reset(seed=0)
        ends = [take_step(env, START, np.zeros((1, 4, 2), int)) for _ in range(3)]
        assert [bool(end.truncated.any()) for end in ends] == [False, False, True]
        np.testing.assert_allclose([end.observations[0, 0, -1] for end in ends], np.arange(1, 4) / length, rtol=1e-6)


def test_one_agent_a_role(make: MakeTeam, device: str) -> None:
    """The smallest game there is: a tagger, a runner, one level of each action."""
    params = {**SCENE, "num_taggers": 1, "num_runners": 1, "num_acceleration_levels": 1, "num_turn_levels": 1}
    worlds = [scene(((1.0, 1.0),), ((x, 1.0),), acceleration={0: 0.5}) for x in (1.5, 4.0)]
    tagged, free = play(make, World, params, worlds, np.array([[[1, 1], [0, 0]]] * 2), device=device)
    assert tagged.over
    assert tagged.rewards.tolist() == [10, -10]
    assert not free.over
    np.testing.assert_allclose(free.world.speed, [0.25, 0])  # 0.5 and the least change, -0.25
    np.testing.assert_allclose(free.world.heading, [TURN - 2, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "params", [{}, {"use_full_observation": True}, {"actions": "continuous", "skill_level_tagger": 1.5}]
)
def test_observations_stay_within_their_space(make: MakeTeam, device: str, params: dict[str, Any]) -> None:
    """The space is bounded, and whole random episodes stay within it."""
    env = make("TagContinuous-v0", 20, device=device, autoreset_mode="SameStep", num_runners=12, **params)
    observations, _ = env.reset(seed=0)
    for space in env.single_observation_spaces.values():
        assert isinstance(space, gymnasium.spaces.Box)
        assert np.isfinite(space.low).all()
        assert np.isfinite(space.high).all()
    for space in env.action_spaces.values():
        space.seed(1)
    for _ in range(600):
        for role, space in env.observation_spaces.items():
            assert space.contains(observations[role]), role
        observations = env.step({role: space.sample() for role, space in env.action_spaces.items()})[0]


PUBLISHED = {name: value for name, value in CONTINUOUS_DEFAULTS.items() if name not in ("max_speed", "actions")}
"""WarpDrive's published run configuration of the game in the plane; that of the grid is all of its defaults."""


@pytest.mark.parametrize(
    ("env_id", "published", "defaults"),
    [(CONTINUOUS, PUBLISHED, CONTINUOUS_DEFAULTS), (GRID, GRID_DEFAULTS, GRID_DEFAULTS)],
)
def test_a_published_configuration_ports_by_copying(
    device: str, env_id: str, published: Params, defaults: Params
) -> None:
    """WarpDrive's names and values are taken as they are, and are the defaults; a length may be a whole number."""
    settings = gpu_envs.spec(env_id).params
    assert {name: settings[name].default for name in defaults} == dict(defaults)
    assert settings["start"].default == "random"
    runs = []
    for given in ({**published, "grid_length": int(published["grid_length"])}, {}):
        env: Any = gpu_envs.make(env_id, 2, device=device, **given)
        assert env.max_episode_steps == published["episode_length"]
        observations, _ = env.reset(seed=1)
        actions: Any = env.single_action_spaces["runner"]
        if env_id == CONTINUOUS:
            assert (observations["tagger"].shape, actions.nvec.tolist()) == ((2, 10, 71), [21, 21])
        else:
            assert (observations["runner"].shape, actions.n) == ((2, 1, 21), 5)
        block = np.random.default_rng(2).integers(0, 5, (3, 2, env.num_agents, *actions.shape))
        runs.append([tuple(take_step(env, published, given)) for given in block])
        env.close()
    assert_all_same(runs)
