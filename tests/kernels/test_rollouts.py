"""A rollout equals single steps bit for bit, in every mode and for every output."""

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from harness import (
    HAS_CUDA,
    HAS_TORCH,
    IDS,
    MODES,
    TEAM_IDS,
    Make,
    Place,
    assert_all_same,
    assert_same_bits,
    on_host,
    to_place,
)
from registered import (
    CONTINUOUS,
    GRID,
    HOST,
    LIMIT,
    MAZE,
    RESULTS,
    TEAM_VARIANTS,
    VARIANTS,
    Actions,
    Team,
    Variant,
    assert_refused,
    draw_actions,
    ended_replicas,
    make_variant,
    needs_cuda,
    numpy_by_role,
    parametrize_variants,
    place_actions,
    take_step,
    trajectory_state,
)
from small_kernels import philox

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.engine.roles import RoleInterface

COUNT, STEPS = 9, 3 * LIMIT

FEW = {name: TEAM_VARIANTS[name] for name in ("continuous-nearest", "rice-talks", "covid")}
OTHERS = {name: Variant(name, {}) for name in TEAM_IDS if name not in {v.env_id for v in TEAM_VARIANTS.values()}}

each_mode = pytest.mark.parametrize("mode", MODES)
each_one, each_of_few = parametrize_variants(VARIANTS | OTHERS), parametrize_variants(FEW)


def started(make: Make, variant: Variant, mode: str, place: Place = HOST, count: int = COUNT) -> Any:
    """A new environment after its first reset, with replicas at different steps; more replicas for single agents."""
    count, more = (count, {}) if variant.has_team else (300, {"max_episode_steps": 20})
    env = make_variant(make, variant, count, place, autoreset_mode=mode, **more)
    env.reset(seed=8)
    env.stagger(seed=2)
    if mode == "Disabled":
        env.allow_frozen_steps()
    return env


def block(env: Any, actions: list[Actions], place: Place) -> Any:
    """The actions of several steps, in the form that ``rollout`` takes."""
    return place_actions(env, {role: np.stack([step[role] for step in actions]) for role in actions[0]}, place)


def stepped(env: Any, actions: list[Actions], place: Place = HOST) -> dict[str, dict[str, np.ndarray]]:
    """The results of single steps, ``[steps, num_envs, ...]`` by result and role."""
    steps = [take_step(env, action, place) for action in actions]
    return {name: {r: np.stack([step[name][r] for step in steps]) for r in actions[0]} for name in RESULTS}


def rollout_results(env: Any, result: Any) -> dict[str, dict[str, np.ndarray]]:
    """The results of a rollout, in the same form."""
    return {name: numpy_by_role(env, getattr(result, name)) for name in RESULTS}


def step_by_step(mode: str) -> str:
    """The mode whose single steps equal a rollout's: SameStep for NextStep, which has steps that only restart."""
    return "Disabled" if mode == "Disabled" else "SameStep"


@each_one
@each_mode
def test_a_rollout_equals_single_steps(make: Make, variant: Variant, mode: str, place: Place) -> None:
    """Also in two parts; NextStep restarts take no step; in Disabled mode nothing changes after an end."""
    many = started(make, variant, mode, place)
    single = started(make, variant, step_by_step(mode), place)
    actions = draw_actions(many, STEPS)
    parts = [
        rollout_results(many, many.rollout(len(part), block(many, part, place), per_step=True))
        for part in (actions[:7], actions[7:])
    ]
    found = {n: {r: np.concatenate([part[n][r] for part in parts]) for r in actions[0]} for n in RESULTS}
    assert_same_bits(found, stepped(single, actions, place))
    assert_same_bits(trajectory_state(many), trajectory_state(single))
    assert_same_bits(on_host(many.observe()), on_host(single.observe()))


@each_one
@each_mode
def test_sums_equal_those_of_single_steps(make: Make, variant: Variant, mode: str, place: Place) -> None:
    """Sums are in the order of steps; an agent's end counts once, returns count when episodes end."""
    many = started(make, variant, mode, place)
    single = started(make, variant, step_by_step(mode))
    actions = draw_actions(many, STEPS)
    result = many.rollout(STEPS, block(many, actions, place))
    roles, count, view = list(actions[0]), many.num_envs, RoleInterface(many)
    column = (count, 1) if variant.has_team else (count,)
    zeros = {r: np.zeros(view.batch_shape(r), np.float32) for r in roles}
    rewards, returns = dict(zeros), dict(zeros)
    terminated, truncated, lengths = ({r: zeros[r].astype(np.int32) for r in roles} for _ in range(3))
    ended, frozen = np.zeros(count, np.int32), np.zeros(count, bool)
    alive = {r: np.ones(zeros[r].shape, bool) for r in roles}
    for action in actions:
        step = take_step(single, action)
        finished, last = ended_replicas(step) & ~frozen, (ended_replicas(step) & ~frozen).reshape(column)
        latest = [numpy_by_role(single, values) for values in (single.episode_return, single.episode_length)]
        for r in roles:
            rewards[r] = rewards[r] + step["rewards"][r]
            playing = alive[r] & ~frozen.reshape(column)
            terminated[r] = terminated[r] + (playing & step["terminations"][r])
            truncated[r] = truncated[r] + (playing & step["truncations"][r])
            returns[r] = returns[r] + np.where(last, latest[0][r], np.float32(0))
            lengths[r] = lengths[r] + np.where(last, latest[1][r], 0)
        ended = ended + finished
        frozen = frozen | (finished & (mode == "Disabled"))
        alive = step.get("alive", alive)
    assert ended.any() or variant.env_id == "CovidEconomy-v0" or mode == "Disabled"
    assert_same_bits(numpy_by_role(many, result.observations), step["observations"])
    names = ("rewards", "terminations", "truncations", "episode_returns", "episode_lengths")
    for name, expected in zip(names, (rewards, terminated, truncated, returns, lengths), strict=True):
        assert_same_bits(numpy_by_role(many, getattr(result, name)), expected, name)
    assert_same_bits(result.episodes, ended.astype(np.int32))
    assert result.actions is None
    assert_same_bits(trajectory_state(many), trajectory_state(single))


@each_one
@each_mode
def test_random_actions_depend_on_seed_episode_and_step(make: Make, variant: Variant, mode: str, place: Place) -> None:
    """The same in two parts, in a batch of another size, and in single steps with the recorded actions."""
    whole, parted, summed = (started(make, variant, mode, place) for _ in range(3))
    single = started(make, variant, step_by_step(mode), place)
    result = whole.rollout(STEPS, per_step=True)
    halves = [parted.rollout(n, per_step=True) for n in (5, STEPS - 5)]
    for name in (*RESULTS, "actions"):
        both = [numpy_by_role(parted, getattr(half, name)) for half in halves]
        joined = {r: np.concatenate([each_half[r] for each_half in both]) for r in both[0]}
        assert_same_bits(numpy_by_role(whole, getattr(result, name)), joined, name)
    drawn = numpy_by_role(whole, result.actions)
    actions = [{r: values[t] for r, values in drawn.items()} for t in range(STEPS)]
    assert_same_bits(rollout_results(whole, result), stepped(single, actions, place))
    sums = summed.rollout(STEPS)
    for r, rewards in numpy_by_role(whole, result.rewards).items():
        total = functools.reduce(np.add, rewards, np.zeros_like(rewards[0]))
        assert_same_bits(numpy_by_role(whole, sums.rewards)[r], total)
    assert_same_bits(on_host(result[-3:]), on_host(sums[-3:]))
    assert_all_same(trajectory_state(env) for env in (whole, parted, summed, single))


RANDOM_ACTION = 4

UNMASKED = {
    **{name: VARIANTS[name] for name in (*IDS, "continuous-nearest", "continuous-box")},
    **OTHERS,
    "grid": Variant(GRID, {"grid_length": 100}),
    MAZE: Variant(MAZE, {"length": 10}),
}


@parametrize_variants(UNMASKED)
def test_random_actions_are_philox_words(make: Make, variant: Variant, device: str) -> None:
    """Philox words for seed, episode, step and agent, four per call, in the order of an action's elements.

    A single agent with one-element actions uses one word per step; with two or four choices, one or two bits per step.
    """
    ends = 3 if variant.has_team else 6  # steps before any episode terminates
    env = make_variant(make, variant, 3, Place(device, "numpy"), autoreset_mode="SameStep", max_episode_steps=ends)
    env.reset(seed=2**32 + 5)
    actions, first = numpy_by_role(env, env.rollout(8, per_step=True).actions), 0
    for role, seen in RoleInterface(env).roles.items():
        space: Any = seen.action
        size = int(np.prod(space.shape or (1,)))
        bits = 0 if variant.has_team else {2: 1, 4: 2}.get(getattr(space, "n", 0), 0)
        by_agent = actions[role] if variant.has_team else actions[role][:, :, None]
        for t, replica, agent in np.ndindex(8, 3, by_agent.shape[2]):
            step, skipped = (t % ends, 0) if variant.has_team else (0, 0) if bits else divmod(t % ends, 4)
            calls = range(-(-size // 4))
            counters = np.array([[d, step, t // ends, RANDOM_ACTION << 24 | first + agent] for d in calls])
            words = philox(counters, (5 + replica, 1)).ravel()[skipped : skipped + size]
            words = words >> bits * (t % ends) << 32 - bits if bits else words
            if isinstance(space, Box):
                units = (words >> 8).astype(np.float32) * np.float32(2**-24)
                low, high = space.low.ravel(), space.high.ravel()
                expected = (low + (high - low) * units).reshape(space.shape)
            else:
                counts = np.ravel(space.nvec if hasattr(space, "nvec") else space.n).astype(np.uint64)
                starts = np.ravel(getattr(space, "start", 0))
                expected = (starts + (words * counts >> np.uint64(32)).astype(np.int64)).reshape(space.shape or ())
            assert_same_bits(by_agent[t, replica, agent], expected)
        first += len(seen.agents)


@parametrize_variants({name: TEAM_VARIANTS[name] for name in ("rice", "rice-talks", "covid")})
def test_random_actions_are_uniform_over_possible_actions(make: Make, variant: Variant, device: str) -> None:
    env = make_variant(make, variant, 400, Place(device, "numpy"), autoreset_mode="SameStep")
    env.reset(seed=1)
    masks = on_host(env.action_mask)
    actions = numpy_by_role(env, env.rollout(1, per_step=True).actions)
    for role, seen in RoleInterface(env).roles.items():
        space: Any = seen.action
        assert actions[role].dtype == np.int64
        chosen = actions[role].reshape(-1, int(np.prod(space.shape or 1))) - np.ravel(space.start)
        counts = np.ravel(space.nvec if hasattr(space, "nvec") else space.n)
        assert (chosen >= 0).all()
        assert (chosen < counts).all()
        parts = np.split(masks[role].reshape(len(chosen), -1) != 0, np.cumsum(counts)[:-1], axis=1)
        for j, (n, possible) in enumerate(zip(counts, parts, strict=True)):
            assert possible[np.arange(len(chosen)), chosen[:, j]].all()
            share = possible / possible.sum(1, keepdims=True)
            spread = np.sqrt((share * (1 - share)).sum(0))
            assert (np.abs(np.bincount(chosen[:, j], minlength=n) - share.sum(0)) <= 5 * spread + 1e-9).all()


@each_mode
def test_masks_follow_the_state_after_user_steps(make: Make, mode: str, place: Place) -> None:
    """Rollouts use the state's masks, although the last step wrote its masks into user memory."""
    variant = TEAM_VARIANTS["rice-talks"]
    one, other = (started(make, variant, mode, place) for _ in range(2))
    action = block(one, draw_actions(one, 1), place)
    shape, kind = one.simulation.shapes["action_mask.region"]
    elsewhere = gpu_envs.Step(action_mask={"region": to_place(np.zeros(shape, kind), place)})
    if place == ("cuda", "numpy"):
        elsewhere = gpu_envs.Step()
    one.step({r: v[0] for r, v in action.items()}, out=elsewhere)
    other.step({r: v[0] for r, v in action.items()})
    assert_same_bits(on_host(one.rollout(3, per_step=True)), on_host(other.rollout(3, per_step=True)))


@each_of_few
@pytest.mark.parametrize("kwargs", [{"precision": "float64"}, {"statistics": False, "autoreset_mode": "SameStep"}])
def test_other_precisions_and_no_statistics(make: Make, variant: Variant, kwargs: dict[str, Any], device: str) -> None:
    """Sums have the environment's precision; without statistics there are no returns."""
    mode = kwargs.get("autoreset_mode", "NextStep")
    many = make_variant(make, variant, COUNT, Place(device, "numpy"), **kwargs)
    single = make_variant(
        make, variant, COUNT, Place(device, "numpy"), **kwargs | {"autoreset_mode": step_by_step(mode)}
    )
    for env in (many, single):
        env.reset(seed=8)
    actions = draw_actions(many, STEPS)
    result = many.rollout(STEPS, block(many, actions, HOST))
    rewards = stepped(single, actions)["rewards"]
    for r, values in rewards.items():
        assert_same_bits(result.rewards[r], functools.reduce(np.add, values, np.zeros_like(values[0])))
        assert values.dtype == kwargs.get("precision", "float32")
    assert (result.episode_returns is None) == (result.episode_lengths is None) == ("statistics" in kwargs)
    assert_same_bits(trajectory_state(many), trajectory_state(single))


def test_invalid_rollouts_raise_errors(make: Make, variant: Variant, place: Place) -> None:
    """Before a reset, for zero steps or more than a C++ int holds, or with actions of another length."""
    env = make_variant(make, variant, 3, place)
    with pytest.raises(Exception, match=r"reset\(\) before rollout"):
        env.rollout(5)
    env.reset(seed=0)
    for steps in (0, -1, 1.5, True, 2**31, 2**32 + 5):
        assert_refused(env, lambda steps=steps: env.rollout(steps), ValueError, "steps is")  # type: ignore[misc]
    assert_refused(
        env, lambda: env.rollout(4, block(env, draw_actions(env, 5), HOST)), ValueError, "actions have shape"
    )


def test_a_team_s_actions_are_checked_before_the_first_step(make: Make, place: Place) -> None:
    env = make_variant(make, TEAM_VARIANTS["grid-full"], 3, place)
    env.reset(seed=0)
    good = block(env, draw_actions(env, 5), HOST)
    assert_refused(env, lambda: env.rollout(4, good), ValueError, r"role 'tagger': actions have shape")
    assert_refused(env, lambda: env.rollout(5, {"tagger": good["tagger"]}), ValueError, "'runner' are missing")
    assert_refused(env, lambda: env.rollout(5, good["tagger"]), TypeError, "give a mapping from roles")
    other = {**good, "walker": good["runner"]}
    assert_refused(env, lambda: env.rollout(5, other), ValueError, "no role is named 'walker'")
    bad = {role: values.copy() for role, values in good.items()}
    bad["runner"][3, 1, 0] = 99
    match = r"step 3 of the block, replica 1, runner_0: an action is out of range \(99\)"
    assert_refused(env, lambda: env.rollout(5, bad), ActionError, match)
    env.rollout(5, good)


@pytest.mark.skipif(not (HAS_TORCH and HAS_CUDA), reason="needs a CUDA device and torch")
def test_check_reports_actions_from_a_device(make: Make) -> None:
    place = Place("cuda", "torch")
    env = make_variant(make, TEAM_VARIANTS["grid-full"], 3, place)
    env.reset(seed=0)
    actions = draw_actions(env, 4)
    actions[2]["runner"][1, 0] = 99
    env.rollout(4, block(env, actions, place))
    with pytest.raises(ActionError, match=r"replica 1, runner_0, step 2 of its episode: an action is out of range"):
        env.check()


def test_frozen_replicas_may_be_rolled_out(make: Make, device: str) -> None:
    """Afterwards they still count as finished."""
    env = make_variant(make, TEAM_VARIANTS["grid-full"], 3, Place(device, "numpy"), autoreset_mode="Disabled")
    env.reset(seed=0)
    env.rollout(2 * LIMIT)
    result = env.rollout(2)
    assert not any(values.any() for values in (*result.rewards.values(), *result.truncations.values(), result.episodes))
    with pytest.raises(ActionError, match="the episode is over"):
        env.step(draw_actions(env, 1)[0])


def test_checking_names_the_step(make: Make, device: str) -> None:
    """The step of the first non-finite number."""
    params: dict[str, Any] = {"tagging_distance": 0.1, "tag_reward_for_tagger": 3e38}  # two tags in a step overflow
    env: Any = make(CONTINUOUS, 2, device=device, checking=True, autoreset_mode="SameStep", **params)
    env.reset(seed=0)
    twin: Any = make(CONTINUOUS, 2, device=device, autoreset_mode="SameStep", **params)
    twin.reset(seed=0)
    rewards = on_host(twin.rollout(200, per_step=True).rewards)
    wrong = [t for t in range(200) if not all(np.isfinite(values[t]).all() for values in rewards.values())]
    assert wrong
    with pytest.raises(gpu_envs.NotFiniteError, match="the reward") as told:
        env.rollout(200, per_step=True)
    assert told.value.step == wrong[0] + 1


@needs_cuda
@each_one
@each_mode
def test_cpu_and_cuda_agree(make: Make, variant: Variant, mode: str) -> None:
    """Also random actions and sums."""
    envs = [started(make, variant, mode, Place(device, "numpy"), 300) for device in ("cpu", "cuda")]
    assert_all_same(on_host(env.rollout(STEPS)) for env in envs)
    assert_all_same(on_host(env.rollout(5, per_step=True)) for env in envs)
    assert_all_same(trajectory_state(env) for env in envs)


@needs_cuda
def test_a_large_team_agrees(make: Make) -> None:
    """Its steps have one launch per phase."""
    params = Team(100, 2900).params
    envs: list[Any] = [
        make(CONTINUOUS, 2, device=d, autoreset_mode="NextStep", max_episode_steps=4, **params) for d in ("cpu", "cuda")
    ]
    for env in envs:
        env.reset(seed=3)
    assert_all_same(on_host(env.rollout(7)) for env in envs)
    assert_all_same(trajectory_state(env) for env in envs)


@pytest.mark.skipif(not (HAS_TORCH and HAS_CUDA), reason="needs a CUDA device and torch")
@each_mode
def test_a_rollout_can_be_captured(make: Make, mode: str) -> None:
    """A rollout never synchronises the host, and a captured one repeats exactly."""
    import torch

    place = Place("cuda", "torch")
    one, other = (started(make, Variant(GRID, {}), mode, place) for _ in range(2))
    actions = block(one, draw_actions(one, 6), place)
    other.rollout(6, actions)  # compiles
    other.set_state(one.get_state())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = other.rollout(6, actions)
    for _ in range(3):
        graph.replay()
        assert_same_bits(on_host(one.rollout(6, actions)), on_host(result))
        assert_same_bits(trajectory_state(one), trajectory_state(other))
