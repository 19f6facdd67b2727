"""A trajectory depends on seed, actions and parameters, and on nothing else: bit for bit."""

import copy
import functools
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from harness import (
    HAS_CUDA,
    MODES,
    PLACES,
    THREADED,
    Make,
    Place,
    Recorded,
    assert_all_same,
    assert_same_bits,
    numpy_of,
    random_actions,
)
from harness import record as record_alone
from registered import (
    COVID,
    HOST,
    LIMIT,
    RICE,
    STEPS,
    VARIANTS,
    Variant,
    all_buffers,
    assert_refused,
    draw,
    each_variant,
    joined,
    limit_name,
    made,
    numpy_by_role,
    part,
    placed,
    progress,
    record,
    rows,
    some,
    take,
)

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.backend.host import LEAST_PER_THREAD

SHORT = 7
"""A time limit that ends many episodes in few steps."""

KEPT = [(mode, place) for place in PLACES if place != ("cuda", "numpy") for mode in MODES]
KEPT = [(mode, place) for mode, place in KEPT if place == HOST or mode == "SameStep"]
"""Modes on the host, and one of them in every other library and on every other device."""

each_automatic = pytest.mark.parametrize(
    ("automatic", "precision"), [("NextStep", "float32"), ("SameStep", "float32"), ("SameStep", "float64")]
)


def start(env: Any, seed: int) -> dict[str, np.ndarray]:
    """What is observed after a reset."""
    return numpy_by_role(env, env.reset(seed=seed)[0])


@pytest.mark.fast_cases(12)
@each_variant
@each_automatic
def test_replica_is_single_environment(
    make: Make, variant: Variant, device: str, automatic: str, precision: str
) -> None:
    """Replica i of a batch seeded s is the single environment seeded s + i, and a batch of 7 is the first 7."""
    size, place = 70 if variant.has_team else 4096, Place(device, "numpy")
    arguments = {"autoreset_mode": automatic, "precision": precision}
    batch = made(make, variant, size, place, **arguments)
    first = start(batch, 11)
    actions = draw(batch, STEPS)
    whole = record(batch, actions)
    if variant.has_team:
        last = list(whole["terminations"])[-1]
        endless = variant.env_id == COVID or variant == VARIANTS["continuous-stay"]
        assert whole["terminations"][last].any() == (not endless)
    for index, count in ((0, 7), (0, 1), (1, 1), (63, 1), (64, 1), (size - 1, 1)):
        here = slice(index, index + count)
        env = made(make, variant, count, place, **arguments)
        assert_same_bits({role: values[here] for role, values in first.items()}, start(env, 11 + index))
        assert_same_bits(part(whole, here), record(env, some(actions, here)), f"replica {index}")


@pytest.mark.slow
def test_thread_count_changes_nothing(make: Make, variant: Variant, mode: str) -> None:
    """One thread and two give the same, in steps and in rollouts."""
    results: list[Any] = []
    for threads in (1, 2):
        env = made(make, variant, 300 if variant.has_team else THREADED, threads=threads, autoreset_mode=mode)
        results.append([start(env, 5), record(env, draw(env, 25 if variant.has_team else 12)), progress(env)])
        results[-1].append(all_buffers(env))
        if variant.has_team:
            assert env.num_envs * 32 * env.num_agents >= 2 * LEAST_PER_THREAD  # enough for two
        if variant.has_team or mode != "Disabled":
            results[-1] += [env.rollout(10, per_step=True), progress(env)]
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize(("block_size", "precision"), [(32, "float32"), (256, "float32"), (1024, "float64")])
def test_block_size_changes_nothing(make: Make, env_id: str, block_size: int, precision: str) -> None:
    """Launches of other shapes give the same, also where the last block is not full."""
    count = 5_001
    actions, results = random_actions(env_id, 12, count), []
    for size in (None, block_size):
        more: dict[str, Any] = {"autoreset_mode": "SameStep", "max_episode_steps": SHORT, "precision": precision}
        env = make(env_id, count, device="cuda", block_size=size, **more)
        first = env.reset(seed=5)[0]
        results.append((first, record_alone(env, actions), env.rollout(10, per_step=True), progress(env)))
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("replicas_own", [False, True])
def test_cpu_and_cuda_agree(make: Make, env_id: str, replicas_own: bool) -> None:
    """4,096 replicas for 1,000 steps are the same on the CPU and on CUDA, also with parameters of their own."""
    count, steps = 4096, 1000
    shift = 1 + np.random.default_rng(3).uniform(0, 0.1, count)  # the order of pairs is kept
    real = {name: p.default * shift for name, p in gpu_envs.spec(env_id).params.items() if p.kind == "real"}
    params = real if replicas_own else {}
    envs = [make(env_id, count, device=d, autoreset_mode="SameStep", **params) for d in ("cpu", "cuda")]
    assert_all_same(env.reset(seed=21)[0] for env in envs)
    for t in range(steps):
        actions = random_actions(env_id, count, seed=t)
        assert_all_same((env.step(actions)[:4] for env in envs), f"step {t}")
    assert_all_same(progress(env) for env in envs)


def test_rollout_is_single_steps(make: Make, env_id: str, device: str) -> None:
    """A fused random rollout is the single steps with the actions it records, statistics included."""
    count, steps = 300, 300
    fused, single = (make(env_id, count, device=device, autoreset_mode="SameStep") for _ in range(2))
    for env in (fused, single):
        env.reset(seed=8)
    result = fused.rollout(steps, per_step=True)
    assert_same_bits(Recorded(*result[:4]), record_alone(single, result.actions))
    assert_same_bits(progress(fused), progress(single))


def test_rollout_of_given_actions_is_single_steps(make: Make, env_id: str, device: str) -> None:
    """A fused rollout of ``[T, N, ...]`` actions is the single steps."""
    count = 300
    fused, single = (
        make(env_id, count, device=device, autoreset_mode="SameStep", max_episode_steps=SHORT) for _ in range(2)
    )
    for env in (fused, single):
        env.reset(seed=8)
    actions = random_actions(env_id, STEPS, count)
    assert_same_bits(Recorded(*fused.rollout(STEPS, actions, per_step=True)[:4]), record_alone(single, actions))
    assert_same_bits(progress(fused), progress(single))


@pytest.mark.slow
def test_where_nothing_restarts_a_rollout_stays_at_the_ends(make: Make, env_id: str, device: str) -> None:
    """In Disabled mode it is the single steps, of which those after an end change nothing, in two parts as in one."""
    count = 300
    fused, single, summed = (
        make(env_id, count, device=device, autoreset_mode="Disabled", max_episode_steps=SHORT) for _ in range(3)
    )
    for env in (fused, single, summed):
        env.reset(seed=8)
        env.stagger(seed=2)
        env.allow_frozen_steps()
    actions = random_actions(env_id, STEPS, count)
    cut = STEPS // 3
    parts = [fused.rollout(len(part), part, per_step=True) for part in (actions[:cut], actions[cut:])]
    found = Recorded(*(np.concatenate([numpy_of(part[i]) for part in parts]) for i in range(4)))
    assert_same_bits(found, record_alone(single, actions))
    assert_same_bits(progress(fused), progress(single))
    result = summed.rollout(STEPS, actions)
    assert_same_bits(progress(summed), progress(single))
    assert_same_bits(result.episodes, np.ones(count, np.int32))  # no more than one, and none goes on beyond the limit
    np.testing.assert_allclose(numpy_of(result.rewards), found.rewards.sum(0), rtol=1e-5, atol=1e-4)
    assert_same_bits(result.episode_returns, single.episode_return)
    assert_same_bits(result.episode_lengths, single.episode_length)
    assert (numpy_of(result.terminations) + numpy_of(result.truncations) >= 1).all()
    assert not found.rewards[-1].any()


@pytest.mark.parametrize("steps", [1, 50])
def test_summed_rollout_is_the_sum(make: Make, env_id: str, device: str, steps: int) -> None:
    """What a rollout sums is the sum, in the order of the steps, of what it gives per step."""
    count = 200
    one, other = (
        make(env_id, count, device=device, autoreset_mode="SameStep", max_episode_steps=SHORT) for _ in range(2)
    )
    for env in (one, other):
        env.reset(seed=8)
    each, summed = one.rollout(steps, per_step=True), other.rollout(steps)
    assert_same_bits(summed.observations, each.observations[-1], "observations")
    assert_same_bits(summed.rewards, functools.reduce(np.add, each.rewards, np.zeros(count, np.float32)), "rewards")
    assert_same_bits(summed.terminations, each.terminations.sum(0, dtype=np.int32), "terminations")
    assert_same_bits(summed.truncations, each.truncations.sum(0, dtype=np.int32), "truncations")
    ends = each.terminations | each.truncations
    assert_same_bits(summed.episodes, ends.sum(0, dtype=np.int32), "episodes")
    assert summed.actions is None
    running, lengths = np.zeros(count, np.float32), np.zeros(count, np.int32)
    returns, totals = np.zeros(count, np.float32), np.zeros(count, np.int32)
    for rewards, over in zip(each.rewards, ends, strict=True):
        running, lengths = running + rewards, lengths + 1
        returns, totals = returns + np.where(over, running, np.float32(0)), totals + np.where(over, lengths, 0)
        running, lengths = np.where(over, np.float32(0), running), np.where(over, 0, lengths)
    assert_same_bits(summed.episode_returns, returns, "episode_returns")
    assert_same_bits(summed.episode_lengths, totals.astype(np.int32), "episode_lengths")
    assert_same_bits((each.episodes, each.episode_returns), (summed.episodes, summed.episode_returns))
    assert_same_bits(progress(one), progress(other))


def test_two_rollouts_are_one(make: Make, env_id: str, device: str) -> None:
    """50 steps and 50 more are 100."""
    halves, whole = (make(env_id, 200, device=device, max_episode_steps=23) for _ in range(2))
    for env in (halves, whole):
        env.reset(seed=8)
    first, second = (halves.rollout(50, per_step=True) for _ in range(2))
    joined = [np.concatenate(pair) for pair in zip(first[:5], second[:5], strict=True)]
    assert_same_bits(joined, list(whole.rollout(100, per_step=True)[:5]))
    assert_same_bits(progress(halves), progress(whole))


def test_rollout_restarts_pending_replicas_first(make: Make, env_id: str, device: str) -> None:
    """In NextStep mode a rollout begins with the restarts that are due, so that it counts real steps alone."""
    count, limit = 100, 4  # no episode ends by itself in 4 steps
    actions = random_actions(env_id, limit + STEPS, count)
    results = []
    for mode in ("NextStep", "SameStep"):
        env = make(env_id, count, device=device, autoreset_mode=mode, max_episode_steps=limit)
        env.reset(seed=8)
        before = record_alone(env, actions[:limit])
        assert before.truncations[-1].all()
        results.append((env.rollout(STEPS, actions[limit:], per_step=True), progress(env)))
    assert_all_same(results)


def test_random_actions_are_fair(make: Make, env_id: str, device: str) -> None:
    """The actions that a rollout draws fill the action space evenly."""
    env = make(env_id, 2_000, device=device)
    env.reset(seed=1)
    actions = env.rollout(100, per_step=True).actions
    space: Any = env.single_action_space
    if hasattr(space, "n"):
        shares = np.bincount(actions.ravel().astype(np.int64), minlength=space.n) / actions.size
        assert len(shares) == space.n
        assert np.abs(shares - 1 / space.n).max() < 0.01  # five standard deviations of 200,000 draws: 0.006
    else:
        share = (actions - space.low) / (space.high - space.low)
        assert 0 <= share.min() < 0.001
        assert 0.999 < share.max() <= 1
        assert np.abs(np.histogram(share, 10, (0, 1))[0] / actions.size - 0.1).max() < 0.01
    assert actions.dtype == (np.int64 if hasattr(space, "n") else np.float32)


def test_rollout_refuses_what_it_cannot_do(make: Make, env_id: str, device: str) -> None:
    """Before a reset, for no steps, with a block of another shape."""
    env = make(env_id, 3, device=device)
    with pytest.raises(Exception, match="reset"):
        env.rollout(5)
    env.reset(seed=0)
    bad: list[Any] = [0, -1, 1.5, True]
    for steps in bad:
        with pytest.raises(ValueError, match="steps"):
            env.rollout(steps)
    with pytest.raises(ValueError, match="shape"):
        env.rollout(5, random_actions(env_id, 4, 3))


# --- seeds ---


@each_variant
def test_same_seed_same_episodes(make: Make, variant: Variant, device: str) -> None:
    """A reset with a seed begins anew, whatever was before; so does another environment."""
    env, other = (made(make, variant, 33, Place(device, "numpy")) for _ in range(2))
    actions = draw(env, STEPS)
    runs = [(start(one, 4), record(one, actions)) for one in (env, env, other)]
    assert_all_same(runs)
    assert not variant.draws or (rows(env, runs[0][0]) != rows(env, start(env, 5))).any(axis=(1, 2)).all()


@pytest.mark.fast_cases(4)
def test_reset_without_seed_is_the_next_episode(make: Make, variant: Variant, place: Place) -> None:
    """A reset without a seed begins the episode that an automatic restart would, and all of them differ."""
    by_hand = made(make, variant, 33, place)
    by_itself = made(make, variant, 33, place, autoreset_mode="SameStep", max_episode_steps=1)
    whole = slice(-1 if variant.has_team else None)  # of a team without the time, which it shows
    seen = [rows(by_hand, start(by_hand, 4))[..., whole]]
    by_itself.reset(seed=4)
    for action in draw(by_hand, 3):
        following = joined(by_hand, by_hand.reset()[0])[..., whole]
        restarted = rows(by_itself, take(by_itself, action, place)["observations"])[..., whole]
        assert_same_bits(following, restarted)
        assert_same_bits(dict(by_hand.state), dict(by_itself.state))
        assert not variant.draws or all((following != earlier).any(axis=(1, 2)).all() for earlier in seen)
        seen.append(following)


@pytest.mark.slow
def test_replicas_differ(make: Make, variant: Variant, place: Place) -> None:
    """No two replicas begin alike, nor two environments without seeds; but where nothing is drawn all do."""
    env, other = (made(make, variant, 20, place) for _ in range(2))
    firsts = [row.tobytes() for one in (env, other) for row in joined(one, one.reset()[0])]
    assert len(set(firsts)) == (40 if variant.draws else 1)


def test_list_of_seeds(make: Make, variant: Variant, place: Place) -> None:
    """A list gives each replica its seed, and None lets one go on with its own."""
    env = made(make, variant, 3, place)

    def begun(seed: Any = None, env: Any = env) -> np.ndarray:
        return joined(env, env.reset(seed=seed)[0])

    counted = begun(9)
    assert_same_bits(counted, begun([9, 10, 11]))
    assert_same_bits(counted[::-1], begun([11, 10, 9]))
    following = begun()
    begun([11, 10, 9])
    mixed = begun([3, None, 9])
    assert_same_bits(mixed[1:2], following[1:2])
    assert_same_bits(mixed[2:], counted[:1])
    assert variant.has_team or env.np_random_seed == (3, 10, 9)
    fresh = made(make, variant, 3, place)
    assert_same_bits(begun([None, 10, None], fresh)[1], counted[1])


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**70, 2**200 + 1])
def test_long_seeds(make: Make, variant: Variant, device: str, seed: int) -> None:
    """A seed may be of any length; one longer than 64 bits is hashed, not cut."""
    env, one = (made(make, variant, count, Place(device, "numpy")) for count in (3, 1))
    given, again, cut = (rows(env, start(env, s)) for s in (seed, seed, seed % 2**64))
    assert_same_bits(given, again)
    assert_same_bits(given[:1], rows(one, start(one, seed)))
    if variant.draws:
        assert (given == cut).all() == (seed < 2**64)
        assert len({row.tobytes() for row in given}) == 3


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (-1, ValueError),
        ([0, -1, 2], ValueError),
        ([0, 1], ValueError),
        ([0, 1, 2, 3], ValueError),
        (1.5, TypeError),
        ("1", TypeError),
        (True, TypeError),
        ([0, "1", 2], TypeError),
        ({"tagger": 1}, TypeError),
    ],
)
def test_bad_seeds(make: Make, variant: Variant, device: str, seed: Any, error: type[Exception]) -> None:
    """A seed that is none is refused, and changes nothing."""
    env = made(make, variant, 3, Place(device, "numpy"))
    env.reset(seed=0)
    assert_refused(env, lambda: env.reset(seed=seed), error, "seed")


def test_masked_seeds(make: Make, variant: Variant, device: str) -> None:
    """With a mask, seeds go to the replicas it names alone."""
    env, fresh = (made(make, variant, 4, Place(device, "numpy")) for _ in range(2))
    env.reset(seed=0)
    mask = np.array([False, True, False, True])
    after = env.reset(seed=50, options={"reset_mask": mask})[0]
    expected = fresh.reset(seed=[0, 51, 2, 53])[0]
    assert_same_bits(joined(env, after), joined(fresh, expected))
    assert_same_bits(joined(env, env.reset()[0]), joined(fresh, fresh.reset()[0]))


# --- snapshots and copies ---


@pytest.mark.fast_cases(4)
@each_variant
@pytest.mark.parametrize(("mode", "place"), KEPT, ids=[f"{mode}-{'-'.join(place)}" for mode, place in KEPT])
def test_snapshots_continue(make: Make, variant: Variant, mode: str, place: Place) -> None:
    """A state set again, here or elsewhere, a pickled and a deep copy go on as the original does."""
    env, elsewhere = (made(make, variant, 30, place, autoreset_mode=mode) for _ in range(2))
    env.reset(seed=6)
    actions = draw(env, STEPS)
    record(env, actions[: 2 * LIMIT - 1], place)  # in the midst, with agents out and restarts pending
    state = env.get_state()
    elsewhere.set_state(state)
    copies = [elsewhere, pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    shown = numpy_by_role(env, env.observe())
    expected = record(env, actions, place), progress(env)
    for other in copies:
        assert (other.device, other.output, other.autoreset_mode) == (env.device, env.output, env.autoreset_mode)
        assert_same_bits(shown, numpy_by_role(other, other.observe()))
        assert_same_bits(expected, (record(other, actions, place), progress(other)))
    env.set_state(state)
    assert_same_bits(expected, (record(env, actions, place), progress(env)))


def test_pickled_frozen_replicas(make: Make, variant: Variant) -> None:
    """A copy of a Disabled environment knows which episodes are over."""
    env = made(make, variant, 2, autoreset_mode="Disabled", max_episode_steps=1)
    env.reset(seed=0)
    action = placed(env, draw(env, 1)[0])
    env.step(action)
    twin = pickle.loads(pickle.dumps(env))
    with pytest.raises(ActionError, match="over"):
        twin.step(action)


def test_snapshot_is_a_copy(make: Make, variant: Variant, place: Place) -> None:
    """What ``get_state`` gave does not change with the environment."""
    env = made(make, variant, 5, place)
    env.reset(seed=6)
    state = env.get_state()
    frozen = copy.deepcopy(state)
    env.step(placed(env, draw(env, 1)[0], place))
    assert_same_bits(state, frozen)
    with pytest.raises(AssertionError):
        assert_same_bits(state, env.get_state())


def test_unused_copies(make: Make, variant: Variant, device: str) -> None:
    """Environments copied before their first reset, and after they were closed, stay what they were."""
    fresh = made(make, variant, 2, Place(device, "numpy"))
    twin = pickle.loads(pickle.dumps(fresh))
    assert_same_bits(fresh.reset(seed=1)[0], twin.reset(seed=1)[0])
    fresh.close()
    assert pickle.loads(pickle.dumps(fresh)).closed


@pytest.mark.slow
def test_pickled_parameters(make: Make) -> None:
    """A copy has the parameters of its original: its replicas' own, and those set since."""
    own = {"max_speed": np.array([0.5, 1.0, 2.0]), "runner_exits_game_after_tagged": [True, False, True]}
    env = made(make, Variant("TagContinuous-v0", own), 3, max_episode_steps=-1, episode_length=5)
    env.set_attr("tag_reward_for_tagger", 3.0)
    twin = pickle.loads(pickle.dumps(env))
    assert twin.max_episode_steps is None
    assert_same_bits(env.params, twin.params)
    assert_all_same((e.reset(seed=2)[0], record(e, draw(e, 15))) for e in (env, twin))


@pytest.mark.fast_cases(2)
def test_bad_snapshots(make: Make, variant: Variant) -> None:
    """A state of another size, kind or shape is refused, and changes nothing."""
    env, larger = (made(make, variant, count) for count in (3, 4))
    other = next(v for v in VARIANTS.values() if v.has_team == variant.has_team and v.env_id != variant.env_id)
    strangers = [larger, made(make, other, 3)]
    if variant.has_team:
        size = "num_regions" if variant.env_id == RICE else limit_name(gpu_envs.spec(variant.env_id))
        strangers.append(made(make, variant, 3, **{size: 4}))  # type: ignore[arg-type]  # not its place
    for one in (env, *strangers):
        one.reset(seed=0)
    good = env.get_state()
    field = next(iter(good["state"]))
    partial = {name: values for name, values in good.items() if name != "episode"}
    renamed = {**good, "state": {**good["state"], "mass": np.zeros(3)}}
    shorter = {**good, "state": {**good["state"], field: good["state"][field][..., 1:]}}
    for bad in (*(one.get_state() for one in strangers), partial, renamed, shorter, {}):
        assert_refused(env, functools.partial(env.set_state, bad), ValueError, "state")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["continuous-nearest", "grid-full"])
def test_snapshots_keep_fixed_parameters(make: Make, name: str) -> None:
    """A state whose fixed parameters are another environment's is refused: shapes may agree by chance."""
    env = made(make, VARIANTS[name], 3)
    longer = made(make, VARIANTS[name], 3, episode_length=LIMIT)
    for one in (env, longer):
        one.reset(seed=0)
    assert_refused(env, lambda: env.set_state(longer.get_state()), ValueError, "episode_length")
    assert env.params["episode_length"] != LIMIT


FORKED = f"""
import os, sys
import gpu_envs
env = gpu_envs.make("CartPole-v1", {THREADED}, device="cpu", threads=2, autoreset_mode="SameStep")
env.reset(seed=0)
env.rollout(20)
child = os.fork()
total = float(env.rollout(20).episodes.sum())
if child == 0:
    os._exit(0 if total > 0 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_stepping_goes_on_after_fork() -> None:
    """A child forked after its parent stepped with several threads steps with several, too."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=60)
