"""A trajectory depends only on seed, actions and parameters, bit for bit."""

import copy
import functools
import pickle
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from custom import ALL, draw_possible_actions
from harness import (
    HAS_CUDA,
    IDS,
    MODES,
    MULTITHREADED_COUNT,
    PLACES,
    TEAM_IDS,
    UNOPTIMISED,
    Make,
    Place,
    assert_all_same,
    assert_same_bits,
    random_actions,
)
from harness import record as record_alone
from registered import (
    COVID,
    FEW_STARTS,
    HOST,
    LIMIT,
    RICE,
    STEPS,
    VARIANTS,
    Variant,
    actions_of_replicas,
    agent_rows,
    all_buffers,
    assert_refused,
    draw_actions,
    each_variant,
    join_agents,
    make_variant,
    numpy_by_role,
    record,
    record_of_replicas,
    take_step,
    time_limit_name,
    trajectory_state,
)

import gpu_envs
from gpu_envs.backend.host import MIN_STEPS_PER_THREAD

SHORT = 7
"""A time limit that ends many episodes in few steps."""

CLANG = ["clang++"] if shutil.which("clang++") else []

KEPT = [(mode, place) for place in PLACES if place != ("cuda", "numpy") for mode in MODES]
KEPT = [(mode, place) for mode, place in KEPT if place == HOST or mode == "SameStep"]
"""All modes on the host, and one mode in every other library and on every other device."""


def start(env: Any, seed: Any) -> dict[str, np.ndarray]:
    """The observations after a reset."""
    return numpy_by_role(env, env.reset(seed=seed)[0])


@pytest.mark.fast_cases(12)
@each_variant
@pytest.mark.parametrize(
    ("automatic", "precision"), [("NextStep", "float32"), ("SameStep", "float32"), ("SameStep", "float64")]
)
def test_replica_is_single_environment(
    make: Make, variant: Variant, device: str, automatic: str, precision: str
) -> None:
    """Replica i of a batch with seed s equals a single environment with seed s + i; a batch of 7 equals the first 7."""
    size, place = 70 if variant.has_team else 4096, Place(device, "numpy")
    arguments = {"autoreset_mode": automatic, "precision": precision}
    batch = make_variant(make, variant, size, place, **arguments)
    first = start(batch, 11)
    actions = draw_actions(batch, STEPS)
    whole = record(batch, actions)
    if variant.has_team:
        last = list(whole["terminations"])[-1]
        endless = variant.env_id == COVID or variant == VARIANTS["continuous-stay"]
        assert whole["terminations"][last].any() == (not endless)
    for index, count in ((0, 7), (0, 1), (1, 1), (63, 1), (64, 1), (size - 1, 1)):
        here = slice(index, index + count)
        env = make_variant(make, variant, count, place, **arguments)
        assert_same_bits({role: values[here] for role, values in first.items()}, start(env, 11 + index))
        assert_same_bits(
            record_of_replicas(whole, here), record(env, actions_of_replicas(actions, here)), f"replica {index}"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        *((env_id, "SameStep") for env_id in (*IDS, *TEAM_IDS)),
        *((env_id, mode) for env_id in ("CartPole-v1", "TagGridWorld-v0") for mode in ("NextStep", "Disabled")),
    ],
)
def test_thread_count_changes_nothing(make: Make, env_id: str, mode: str) -> None:
    """One thread and two threads give the same bits, in steps and in rollouts."""
    variant = Variant(env_id, {})
    results: list[Any] = []
    for threads in (1, 2):
        env = make_variant(
            make, variant, 300 if variant.has_team else MULTITHREADED_COUNT, threads=threads, autoreset_mode=mode
        )
        results.append(
            [start(env, 5), record(env, draw_actions(env, 25 if variant.has_team else 12)), trajectory_state(env)]
        )
        results[-1].append(all_buffers(env))
        if variant.has_team:
            assert env.num_envs * 32 * env.num_agents >= 2 * MIN_STEPS_PER_THREAD  # enough for two
        if variant.has_team or mode != "Disabled":
            results[-1] += [env.rollout(10, per_step=True), trajectory_state(env)]
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize(("block_size", "precision"), [(32, "float32"), (256, "float32"), (1024, "float64")])
def test_block_size_changes_nothing(make: Make, env_id: str, block_size: int, precision: str) -> None:
    """Launches of other shapes give the same bits, also if the last block is not full."""
    count = 5_001
    actions, results = random_actions(env_id, 12, count), []
    for size in (None, block_size):
        more: dict[str, Any] = {"autoreset_mode": "SameStep", "max_episode_steps": SHORT, "precision": precision}
        env = make(env_id, count, device="cuda", block_size=size, **more)
        first = env.reset(seed=5)[0]
        results.append((first, record_alone(env, actions), env.rollout(10, per_step=True), trajectory_state(env)))
    assert_all_same(results)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("replicas_own", [False, True])
def test_cpu_and_cuda_agree(make: Make, env_id: str, replicas_own: bool) -> None:
    """4,096 replicas for 1,000 steps are the same on the CPU and on CUDA, also with per-replica parameters."""
    count, steps = 4096, 1000
    shift = 1 + np.random.default_rng(3).uniform(0, 0.1, count)  # keeps the order of pairs
    real = {name: p.default * shift for name, p in gpu_envs.spec(env_id).params.items() if p.kind == "real"}
    params = real if replicas_own else {}
    envs = [make(env_id, count, device=d, autoreset_mode="SameStep", **params) for d in ("cpu", "cuda")]
    assert_all_same(env.reset(seed=21)[0] for env in envs)
    for t in range(steps):
        actions = random_actions(env_id, count, seed=t)
        assert_all_same((env.step(actions)[:4] for env in envs), f"step {t}")
    assert_all_same(trajectory_state(env) for env in envs)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("compiler", ["", *CLANG])
def test_compilers_agree(
    make: Make, monkeypatch: pytest.MonkeyPatch, variant: Variant, mode: str, compiler: str
) -> None:
    """Unoptimised code, as in most tests, equals optimised code; clang is tested in one mode."""
    if compiler and mode != "SameStep":
        pytest.skip("the default compiler is tested in every mode")
    results: list[Any] = []
    for command in (compiler, UNOPTIMISED):
        monkeypatch.setenv("CXX", command)
        env = make_variant(make, variant, 130, autoreset_mode=mode)
        env.reset(seed=3)
        results.append((record(env, draw_actions(env, 60)), trajectory_state(env)))
    assert_all_same(results)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ALL)
def test_compilers_agree_on_states_with_arrays_and_bools(
    make: Make, monkeypatch: pytest.MonkeyPatch, env_id: str
) -> None:
    envs: list[Any] = []
    for compiler in ("", UNOPTIMISED, *CLANG):
        monkeypatch.setenv("CXX", compiler)
        envs.append(make(env_id, 130, device="cpu", autoreset_mode="SameStep", max_episode_steps=25))
    results = [env.reset(seed=3) for env in envs]
    assert_all_same(results, "reset")
    rng = np.random.default_rng(0)
    for t in range(60):
        actions = draw_possible_actions(envs[0], rng, results[0][-1])
        results = [env.step(actions) for env in envs]
        assert_all_same((result[:4] for result in results), f"step {t}")
    assert_all_same(env.get_state() for env in envs)


# --- seeds ---


@each_variant
def test_same_seed_same_episodes(make: Make, variant: Variant, device: str) -> None:
    """A reset with a seed gives the same episodes, whatever was before, and in another environment."""
    env, other = (make_variant(make, variant, 33, Place(device, "numpy")) for _ in range(2))
    actions = draw_actions(env, STEPS)
    runs = [(start(one, 4), record(one, actions)) for one in (env, env, other)]
    assert_all_same(runs)
    assert not variant.draws or (agent_rows(env, runs[0][0]) != agent_rows(env, start(env, 5))).any(axis=(1, 2)).all()


@pytest.mark.fast_cases(4)
def test_reset_without_seed_is_the_next_episode(make: Make, variant: Variant, place: Place) -> None:
    """A reset without a seed starts the same next episode as an autoreset; all episodes differ."""
    by_hand = make_variant(make, variant, 33, place)
    by_itself = make_variant(make, variant, 33, place, autoreset_mode="SameStep", max_episode_steps=1)
    whole = slice(-1 if variant.has_team else None)  # without the time feature of a team
    seen = [agent_rows(by_hand, start(by_hand, 4))[..., whole]]
    by_itself.reset(seed=4)
    for action in draw_actions(by_hand, 3):
        following = join_agents(by_hand, by_hand.reset()[0])[..., whole]
        restarted = agent_rows(by_itself, take_step(by_itself, action, place)["observations"])[..., whole]
        assert_same_bits(following, restarted)
        assert_same_bits(dict(by_hand.state), dict(by_itself.state))
        assert not variant.draws or all((following != earlier).any(axis=(1, 2)).all() for earlier in seen)
        seen.append(following)


@pytest.mark.slow
def test_replicas_differ(make: Make, variant: Variant, place: Place) -> None:
    """Replicas, and environments without seeds, start differently, unless nothing is random."""
    env, other = (make_variant(make, variant, 20, place) for _ in range(2))
    firsts = [row.tobytes() for one in (env, other) for row in join_agents(one, one.reset()[0])]
    assert len(set(firsts)) == FEW_STARTS.get(variant.env_id, 40)


def test_the_first_list_of_seeds_may_have_none(make: Make, variant: Variant, device: str) -> None:
    env, counted = (make_variant(make, variant, 3, Place(device, "numpy")) for _ in range(2))
    assert_same_bits(agent_rows(env, start(env, [None, 10, None]))[1], agent_rows(counted, start(counted, 9))[1])


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**70, 2**200 + 1])
def test_long_seeds(make: Make, variant: Variant, device: str, seed: int) -> None:
    """Seeds may have any length; longer ones than 64 bits are hashed, not truncated."""
    env, one = (make_variant(make, variant, count, Place(device, "numpy")) for count in (3, 1))
    given, again, cut = (agent_rows(env, start(env, s)) for s in (seed, seed, seed % 2**64))
    assert_same_bits(given, again)
    assert_same_bits(given[:1], agent_rows(one, start(one, seed)))
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
    """Invalid seeds raise an error and change nothing."""
    env = make_variant(make, variant, 3, Place(device, "numpy"))
    env.reset(seed=0)
    assert_refused(env, lambda: env.reset(seed=seed), error, "seed")


# --- snapshots and copies ---


@pytest.mark.fast_cases(4)
@each_variant
@pytest.mark.parametrize(("mode", "place"), KEPT, ids=[f"{mode}-{'-'.join(place)}" for mode, place in KEPT])
def test_snapshots_continue(make: Make, variant: Variant, mode: str, place: Place) -> None:
    """A restored state, here or elsewhere, a pickle and a deep copy continue like the original."""
    env, elsewhere = (make_variant(make, variant, 30, place, autoreset_mode=mode) for _ in range(2))
    env.reset(seed=6)
    actions = draw_actions(env, STEPS)
    record(env, actions[: 2 * LIMIT - 1], place)  # mid-episode, with inactive agents and pending restarts
    state = env.get_state()
    elsewhere.set_state(state)
    copies = [elsewhere, pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    shown = numpy_by_role(env, env.observe())
    expected = record(env, actions, place), trajectory_state(env)
    for other in copies:
        assert (other.device, other.output, other.autoreset_mode) == (env.device, env.output, env.autoreset_mode)
        assert_same_bits(shown, numpy_by_role(other, other.observe()))
        assert_same_bits(expected, (record(other, actions, place), trajectory_state(other)))
    env.set_state(state)
    assert_same_bits(expected, (record(env, actions, place), trajectory_state(env)))


def test_unused_copies(make: Make, variant: Variant, device: str) -> None:
    """Copies before the first reset, and of closed environments, have the same status."""
    limit = -1 if gpu_envs.spec(variant.env_id).longest_episode is None else LIMIT
    fresh = make_variant(make, variant, 2, Place(device, "numpy"), max_episode_steps=limit)
    twin = pickle.loads(pickle.dumps(fresh))
    assert twin.max_episode_steps == fresh.max_episode_steps
    assert_same_bits(fresh.reset(seed=1)[0], twin.reset(seed=1)[0])
    fresh.close()
    assert pickle.loads(pickle.dumps(fresh)).closed


@pytest.mark.fast_cases(2)
def test_bad_snapshots(make: Make, variant: Variant) -> None:
    """A state of another size, environment or shape raises an error and changes nothing."""
    env, larger = (make_variant(make, variant, count) for count in (3, 4))
    other = next(v for v in VARIANTS.values() if v.has_team == variant.has_team and v.env_id != variant.env_id)
    strangers, size = [larger, make_variant(make, other, 3)], ""
    if variant.has_team:
        size = "num_regions" if variant.env_id == RICE else time_limit_name(gpu_envs.spec(variant.env_id))
        strangers.append(make_variant(make, variant, 3, **{size: 4}))  # type: ignore[arg-type]  # not its place
    for one in (env, *strangers):
        one.reset(seed=0)
    if size == "episode_length":  # shapes agree
        assert_refused(env, lambda: env.set_state(strangers[-1].get_state()), ValueError, size)
        assert env.params[size] != 4
    good = env.get_state()
    field = next(iter(good["state"]))
    partial = {name: values for name, values in good.items() if name != "episode"}
    renamed = {**good, "state": {**good["state"], "mass": np.zeros(3)}}
    shorter = {**good, "state": {**good["state"], field: good["state"][field][..., 1:]}}
    for bad in (*(one.get_state() for one in strangers), partial, renamed, shorter, {}):
        assert_refused(env, functools.partial(env.set_state, bad), ValueError, "state")


FORKED = f"""
import os, sys
import gpu_envs
env = gpu_envs.make("CartPole-v1", {MULTITHREADED_COUNT}, device="cpu", threads=2, autoreset_mode="SameStep")
env.reset(seed=0)
env.rollout(20)
child = os.fork()
total = float(env.rollout(20).episodes.sum())
if child == 0:
    os._exit(0 if total > 0 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_stepping_works_after_fork() -> None:
    """A child, forked after its parent used several threads, also steps with several."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=60)
