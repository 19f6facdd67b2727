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
    HAS_TORCH,
    THREADED,
    Make,
    Place,
    Recorded,
    assert_all_same,
    assert_same_bits,
    numpy_of,
    random_actions,
    record,
)

import gpu_envs

SHORT = 7
"""A time limit that ends many episodes in few steps."""

STEPS = 40
PLACES_OF_STATE = [Place("cpu", "numpy")]
if HAS_TORCH:
    PLACES_OF_STATE.append(Place("cpu", "torch"))
if HAS_CUDA:
    PLACES_OF_STATE.append(Place("cuda", "cupy"))


def progress(env: gpu_envs.VectorEnv) -> dict[str, Any]:
    """All that a trajectory depends on, and the statistics; not the mask of what the last single step finished."""
    state: dict[str, Any] = env.get_state()
    state["episode"] = {name: numpy_of(values) for name, values in state["episode"].items() if name != "finished"}
    return state


def part(recorded: Recorded, replicas: slice) -> Recorded:
    """The results of some of the replicas."""
    return Recorded(*(column[:, replicas] for column in recorded))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("count", [1, 7])
def test_batch_size_changes_nothing(make: Make, env_id: str, device: str, mode: str, count: int) -> None:
    """The first replicas of 4,096 are those of a batch of 1 and of 7."""
    actions = random_actions(env_id, STEPS, 4096)
    trajectories = []
    for size in (4096, count):
        env = make(env_id, size, device=device, autoreset_mode=mode, max_episode_steps=SHORT)
        first = numpy_of(env.reset(seed=11)[0])[:count]
        trajectories.append((first, part(record(env, actions[:, :size]), slice(count))))
    assert_all_same(trajectories)


@pytest.mark.parametrize("index", [1, 63, 64, 4095])
def test_replica_is_single_environment(make: Make, env_id: str, device: str, index: int) -> None:
    """Replica i of a batch seeded s is the single environment seeded s + i."""
    actions = random_actions(env_id, STEPS, 4096)
    batch = make(env_id, 4096, device=device, autoreset_mode="SameStep", max_episode_steps=SHORT)
    single = make(env_id, 1, device=device, autoreset_mode="SameStep", max_episode_steps=SHORT)
    here = slice(index, index + 1)
    assert_same_bits(batch.reset(seed=11)[0][here], single.reset(seed=11 + index)[0])
    assert_same_bits(part(record(batch, actions), here), record(single, actions[:, here]))


def test_thread_count_changes_nothing(make: Make, env_id: str) -> None:
    """One thread and two give the same, in steps and in rollouts."""
    actions = random_actions(env_id, 12, THREADED)
    results = []
    for threads in (1, 2):
        env = make(env_id, THREADED, device="cpu", threads=threads, autoreset_mode="SameStep", max_episode_steps=SHORT)
        first = env.reset(seed=5)[0]
        results.append((first, record(env, actions), env.rollout(10, per_step=True), progress(env)))
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("block_size", [32, 256, 1024])
def test_block_size_changes_nothing(make: Make, env_id: str, block_size: int) -> None:
    """Launches of other shapes give the same, also where the last block is not full."""
    count = 5_001
    actions, results = random_actions(env_id, 12, count), []
    for size in (None, block_size):
        env = make(env_id, count, device="cuda", block_size=size, autoreset_mode="SameStep", max_episode_steps=SHORT)
        first = env.reset(seed=5)[0]
        results.append((first, record(env, actions), env.rollout(10, per_step=True), progress(env)))
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("replicas_own", [False, True])
def test_cpu_and_cuda_agree(make: Make, env_id: str, replicas_own: bool) -> None:
    """4,096 replicas for 1,000 steps are the same on the CPU and on CUDA, also with parameters of their own."""
    count, steps = 4096, 1000
    params = own_params(env_id, count, spread=0.1) if replicas_own else {}
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
    assert_same_bits(Recorded(*result[:4]), record(single, result.actions))
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
    assert_same_bits(Recorded(*fused.rollout(STEPS, actions, per_step=True)[:4]), record(single, actions))
    assert_same_bits(progress(fused), progress(single))


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
        before = record(env, actions[:limit])
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
    """Before a reset, for no steps, in Disabled mode, with a block of another shape."""
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
    disabled = make(env_id, 3, device=device, autoreset_mode="Disabled")
    disabled.reset(seed=0)
    with pytest.raises(ValueError, match="Disabled"):
        disabled.rollout(5)


def test_same_seed_same_episodes(make: Make, env_id: str, device: str) -> None:
    """A reset with a seed begins anew, whatever was before."""
    env = make(env_id, 33, device=device, max_episode_steps=SHORT)
    actions = random_actions(env_id, STEPS, 33)
    first = env.reset(seed=4)[0], record(env, actions)
    again = env.reset(seed=4)[0], record(env, actions)
    other = env.reset(seed=5)[0]
    assert_same_bits(first, again)
    assert (first[0] != other).any(axis=1).all()


def test_reset_without_seed_is_the_next_episode(make: Make, env_id: str, device: str) -> None:
    """A reset without a seed begins the episode that an automatic restart would."""
    by_hand = make(env_id, 33, device=device)
    by_itself = make(env_id, 33, device=device, autoreset_mode="SameStep", max_episode_steps=1)
    first = by_hand.reset(seed=4)[0]
    assert_same_bits(first, by_itself.reset(seed=4)[0])
    actions = random_actions(env_id, 3, 33)
    seen = [first]
    for action in actions:
        following = by_hand.reset()[0]
        assert_same_bits(following, by_itself.step(action)[0])
        assert all((following != earlier).any(axis=1).all() for earlier in seen)
        seen.append(following)


def test_unseeded_environments_differ(make: Make, env_id: str, device: str) -> None:
    """Without any seed, every environment has its own."""
    first, second = (make(env_id, 5, device=device).reset()[0] for _ in range(2))
    assert (first != second).any(axis=1).all()


def test_list_of_seeds(make: Make, env_id: str, device: str) -> None:
    """A list gives each replica its seed, and None lets one go on with its own."""
    env = make(env_id, 3, device=device)
    counted = env.reset(seed=9)[0]
    assert env.np_random_seed == (9, 10, 11)
    assert_same_bits(counted, env.reset(seed=[9, 10, 11])[0])
    assert_same_bits(counted[::-1], env.reset(seed=[11, 10, 9])[0])
    following = env.reset()[0]
    env.reset(seed=[11, 10, 9])
    mixed = env.reset(seed=[3, None, 9])[0]
    assert_same_bits(mixed[1:2], following[1:2])
    assert_same_bits(mixed[2:], counted[:1])
    assert env.np_random_seed == (3, 10, 9)


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**70, 2**200 + 1])
def test_long_seeds(make: Make, env_id: str, device: str, seed: int) -> None:
    """A seed may be of any length; one longer than 64 bits is hashed, not cut."""
    env = make(env_id, 3, device=device)
    given, again, cut = (env.reset(seed=s)[0] for s in (seed, seed, seed % 2**64))
    assert_same_bits(given, again)
    assert_same_bits(given[:1], make(env_id, 1, device=device).reset(seed=seed)[0])
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
    ],
)
def test_bad_seeds(make: Make, env_id: str, device: str, seed: Any, error: type[Exception]) -> None:
    """A seed that is none is refused, and changes nothing."""
    env = make(env_id, 3, device=device)
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(error, match="seed"):
        env.reset(seed=seed)
    assert_same_bits(before, env.get_state())


@pytest.mark.parametrize("place_of_state", PLACES_OF_STATE, ids=lambda place: f"{place.device}-{place.output}")
def test_snapshots_continue(make: Make, env_id: str, mode: str, place_of_state: Place) -> None:
    """A state set again, here or elsewhere, a pickled and a deep copy go on as the original does."""
    count = 50
    arguments: dict[str, Any] = {**place_of_state._asdict(), "autoreset_mode": mode, "max_episode_steps": SHORT}
    env = make(env_id, count, **arguments)
    env.reset(seed=6)
    actions = random_actions(env_id, STEPS, count)
    record(env, actions[: 3 if mode == "Disabled" else 2 * SHORT - 1])  # in NextStep mode: restarts pending
    state = env.get_state()
    elsewhere = make(env_id, count, **arguments)
    elsewhere.set_state(state)
    copies = [elsewhere, pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    ahead = 2 if mode == "Disabled" else STEPS  # no episode is over so soon
    expected = record(env, actions[:ahead]), progress(env)
    for other in copies:
        assert_same_bits(expected, (record(other, actions[:ahead]), progress(other)))
    env.set_state(state)
    assert_same_bits(expected, (record(env, actions[:ahead]), progress(env)))


def test_snapshot_is_a_copy(make: Make, env_id: str, place: Place) -> None:
    """What ``get_state`` gave does not change with the environment."""
    env = make(env_id, 5, **place._asdict())
    env.reset(seed=6)
    state = env.get_state()
    frozen = copy.deepcopy(state)
    env.step(random_actions(env_id, 5))
    assert_same_bits(state, frozen)
    with pytest.raises(AssertionError):
        assert_same_bits(state, env.get_state())


def test_unused_copies(make: Make, env_id: str, device: str) -> None:
    """Environments copied before their first reset, and after they were closed, stay what they were."""
    fresh = make(env_id, 2, device=device)
    twin = pickle.loads(pickle.dumps(fresh))
    assert_same_bits(fresh.reset(seed=1)[0], twin.reset(seed=1)[0])
    fresh.close()
    assert pickle.loads(pickle.dumps(fresh)).closed


def test_bad_snapshots(make: Make, env_id: str, device: str) -> None:
    """A state of another size or shape is refused, and changes nothing."""
    env, larger = (make(env_id, count, device=device) for count in (3, 4))
    for each in (env, larger):
        each.reset(seed=0)
    before = env.get_state()
    partial = {name: values for name, values in before.items() if name != "episode"}
    renamed = {**before, "state": {**before["state"], "mass": np.zeros(3)}}
    for bad in (larger.get_state(), partial, renamed, {}):
        with pytest.raises(ValueError, match="state"):
            env.set_state(bad)
        assert_same_bits(before, env.get_state())


def own_params(env_id: str, count: int, spread: float) -> dict[str, np.ndarray]:
    """An array for every real parameter, around its default; the order of pairs is kept."""
    rng = np.random.default_rng(3)
    shift = rng.uniform(0, spread, count)
    settings = gpu_envs.spec(env_id).params
    return {
        name: np.full(count, p.default) * (1 + shift if spread else 1)
        for name, p in settings.items()
        if p.kind == "real"
    }


def test_arrays_of_equal_parameters_change_nothing(make: Make, env_id: str, device: str) -> None:
    """Parameters given to each replica, all the same, are the parameter given once."""
    count = 130
    actions, results = random_actions(env_id, STEPS, count), []
    for params in ({}, own_params(env_id, count, spread=0.0)):
        env = make(env_id, count, device=device, max_episode_steps=SHORT, **params)
        results.append((env.reset(seed=2)[0], record(env, actions), env.rollout(9, per_step=True)))
    assert_all_same(results)


def test_replicas_follow_their_own_parameters(make: Make, env_id: str, device: str) -> None:
    """Replica i with an array of parameters is the single environment with the i-th."""
    count, index = 70, 65
    params = own_params(env_id, count, spread=0.1)
    actions = random_actions(env_id, STEPS, count)
    batch = make(env_id, count, device=device, max_episode_steps=SHORT, **params)
    single = make(
        env_id, 1, device=device, max_episode_steps=SHORT, **{name: float(v[index]) for name, v in params.items()}
    )
    here = slice(index, index + 1)
    assert_same_bits(batch.reset(seed=2)[0][here], single.reset(seed=2 + index)[0])
    one, other = part(record(batch, actions), here), record(single, actions[:, here])
    assert_same_bits(one, other)


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_stepping_goes_on_after_fork() -> None:
    """A child forked after its parent stepped with several threads steps with several, too."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=60)
