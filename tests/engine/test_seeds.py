"""Seeds: integers, with replicas counting up, and seed sequences, whose batches have no seed in common."""

import copy
import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import Make, Place, assert_all_same, assert_same_bits, numpy_of, random_actions, to_place
from numpy.random import SeedSequence
from players import PLAYERS, Player, is_installed, make_player
from registered import (
    Variant,
    actions_of_replicas,
    draw_actions,
    make_variant,
    numpy_by_role,
    record,
    record_of_replicas,
)

import gpu_envs
from gpu_envs.replays import record as recorded
from gpu_envs.seeds import check_seed


def similar_sequences(entropy: int) -> list[SeedSequence]:
    """Seed sequences with neighbouring entropies and spawn keys."""
    parents = [SeedSequence(entropy + i) for i in range(10)]
    children = [child for parent in parents[:3] for child in parent.spawn(10)]
    return [*parents, *children, *children[0].spawn(10), SeedSequence([entropy, 0, 1]), SeedSequence()]


def test_batches_of_sequences_share_no_seed(make: Make, device: str) -> None:
    env, count = make("CartPole-v1", 4096, device=device), 4096
    seeds: set[int] = set()
    sequences = similar_sequences(int.from_bytes(np.random.default_rng().bytes(4), "little"))
    for sequence in sequences:
        env.reset(seed=sequence)
        seeds.update(env.np_random_seed or ())
    assert len(seeds) == count * len(sequences), sequences[0]


def test_lists_of_seeds_may_contain_sequences(make: Make, device: str) -> None:
    env, alone = make("Pendulum-v1", 3, device=device), make("Pendulum-v1", 1, device=device)
    first, second = SeedSequence(5).spawn(2)
    seeds: list[Any] = [first, 8, second]
    observations = env.reset(seed=seeds)[0].copy()
    for i, seed in enumerate(seeds):
        assert_same_bits(observations[i : i + 1], alone.reset(seed=seed)[0].copy(), str(i))
    env.reset(seed=[None, first, None])
    assert [*(env.np_random_seed or ())][1] == check_seed(first)


@pytest.mark.parametrize("seed", [SeedSequence, "SeedSequence(1)", [SeedSequence(1)], np.random.default_rng(1)])
def test_other_types_are_refused(make: Make, seed: Any) -> None:
    env = make("CartPole-v1", 2, device="cpu")
    with pytest.raises((TypeError, ValueError), match="seed"):
        env.reset(seed=seed)
    env.reset(seed=SeedSequence(1))


# --- all functions with a seed accept sequences ---


def test_gymnasium_accepts_sequences() -> None:
    sequence: Any = SeedSequence(5)  # Gymnasium's annotation is int
    expected = gpu_envs.make("CartPole-v1", 2, device="cpu").reset(seed=sequence)[0]
    with gymnasium.make("gpu_envs/CartPole-v1") as single:
        assert_same_bits(expected[0], single.reset(seed=sequence)[0])
        assert single.unwrapped.np_random_seed == check_seed(sequence)
    envs = gymnasium.make_vec("gpu_envs/CartPole-v1", num_envs=2, device="cpu")
    assert_same_bits(expected, envs.reset(seed=sequence)[0])
    envs.close()


def test_stagger_accepts_sequences(make: Make, device: str) -> None:
    offsets = []
    seeds: list[Any] = [SeedSequence(5), SeedSequence(5), check_seed(SeedSequence(5)), SeedSequence(6)]
    for seed in seeds:
        env = make("CartPole-v1", 50, device=device)
        env.reset(seed=0)
        env.stagger(seed)
        offsets.append(np.array(env.get_attr("offset")))
    assert_all_same(offsets[:3])
    assert (offsets[0] != offsets[3]).any()


def test_recordings_accept_sequences() -> None:
    pages = [recorded("CartPole-v1", replicas=2, steps=5, seed=s, device="cpu") for s in (SeedSequence(5), 5)]
    again = recorded("CartPole-v1", replicas=2, steps=5, seed=SeedSequence(5), device="cpu")
    assert pages[0].facts["Seed"] == again.facts["Seed"] != pages[1].facts["Seed"]


@pytest.mark.parametrize("player", [player for player in PLAYERS if is_installed(player)])
@pytest.mark.usefixtures("one_thread")
def test_adapters_accept_sequences(player: type[Player]) -> None:
    """A sequence equals the integer of ``check_seed``, and other sequences differ, at first and for later resets."""

    def first_of(seed: Any, later: bool) -> np.ndarray:
        options = {"stagger": True} if player.staggers else {}
        begun = make_player(player, next(iter(player.cases)), 3, "cpu", seed=0 if later else seed, **options)
        if later:
            begun.seed(seed)
        return np.concatenate([values.ravel() for values in begun.begin()[0].values()])

    sequence = SeedSequence(5)
    for later in (False, True)[: 1 if player.module in ("skrl", "rsl_rl") else 2]:
        assert_all_same(first_of(seed, later) for seed in (sequence, sequence, check_seed(sequence)))
        for first, second in itertools.combinations([sequence, *sequence.spawn(3)], 2):
            assert (first_of(first, later) != first_of(second, later)).any()


@pytest.mark.parametrize("seed", [5, SeedSequence(4), 2**64 - 3, 2**70])
def test_a_part_of_a_batch_equals_the_batch(make: Make, variant: Variant, device: str, seed: Any) -> None:
    """A part with ``first_replica`` has the same seeds, offsets and steps, and so have copies of it."""
    place, count = Place(device, "numpy"), 40
    batch = make_variant(make, variant, count, place)
    actions = draw_actions(batch, 8)
    staggered = batch.max_episode_steps is not None

    def reset(env: Any) -> dict[str, np.ndarray]:
        observations = env.reset(seed=seed)[0]
        return numpy_by_role(env, env.stagger(seed=2) if staggered else observations)

    first, steps = reset(batch), record(batch, actions)
    for start, end in ((0, 7), (7, 8), (8, 40)):
        env, here = make_variant(make, variant, end - start, place, first_replica=start), slice(start, end)
        assert_same_bits({r: v[here] for r, v in first.items()}, reset(env))
        state = env.get_state()
        assert_same_bits(
            record_of_replicas(steps, here),
            record(env, actions_of_replicas(actions, here)),
            f"replicas {start} to {end - 1}",
        )
        env.set_state(state)
        assert_same_bits(
            record_of_replicas(steps, here), record(copy.deepcopy(env), actions_of_replicas(actions, here)), "a copy"
        )


def test_offsets_of_replicas_with_large_indices(make: Make) -> None:
    count = 2**20 + 5
    batch = make("CartPole-v1", count)
    last_four = make("CartPole-v1", 4, first_replica=count - 4)
    for env in (batch, last_four):
        env.reset(seed=1)
        env.stagger(seed=3)
    assert_same_bits(numpy_of(batch.offset)[-4:], numpy_of(last_four.offset))


def test_errors_have_the_replicas_index_in_the_full_batch(make: Make) -> None:
    env = make("CartPole-v1", 4, device="cpu", first_replica=1000)
    env.reset(seed=0)
    with pytest.raises(gpu_envs.ActionError, match=r"replica 1002 \(here 2\), step 0 of its episode"):
        env.step(np.array([0, 1, 7, 0]))
    with pytest.raises(ValueError, match=r"step 0 of the block, replica 1003 \(here 3\)"):
        env.rollout(1, actions=np.array([[0, 1, 0, 7]]))


def test_parts_can_be_forked_repeatedly(make: Make) -> None:
    """Each fork multiplies the index of the first replica, which wraps around."""
    first = 2**32 - 1
    part = make("CartPole-v1", 1, device="cpu", first_replica=first)
    part.reset(seed=3)
    for k in (2, 4, 8):
        part, first = part.fork(k, randomness="fresh"), first * k
    part.reset(seed=5)
    part.stagger(seed=6)
    assert numpy_of(part.get_state()["episode"]["seeds"]).view(np.uint64).tolist() == [5 + first + i for i in range(64)]
    last = make("CartPole-v1", 1, device="cpu", first_replica=2**64 - 1)
    last.reset(seed=3)
    assert last.fork(2).num_envs == 2


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.0, True, None, "0"])
def test_invalid_first_replica(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"first_replica is .*; give an integer from 0"):
        gpu_envs.make("CartPole-v1", 2, device="cpu", first_replica=wrong)


# --- seeds that count up, and other seeds ---

COUNTING, ARBITRARY = [*range(40, 49)], [5, 2**64 - 1, *range(100, 107)]
FIRST_THREE = np.arange(9) < 3

RESETS: dict[str, tuple[list[tuple[Any, Any]], list[int]]] = {
    "one seed": ([(40, None)], COUNTING),
    "wraps around": ([(2**64 - 2, None)], [(2**64 - 2 + i) % 2**64 for i in range(9)]),
    "a list": ([(40, None), (ARBITRARY, None)], ARBITRARY),
    "a list that counts up": ([(COUNTING, None)], COUNTING),
    "one seed after a list": ([(ARBITRARY, None), (40, None)], COUNTING),
    "reseed some": ([(40, None), (70, FIRST_THREE)], [70, 71, 72, *COUNTING[3:]]),
    "reseed all but the first": ([(40, None), (70, ~FIRST_THREE)], [*COUNTING[:3], *range(73, 79)]),
    "reseed some by a list": ([(40, None), ([None, 3, *[None] * 7], None)], [40, 3, *COUNTING[2:]]),
    "no seeds later": ([(40, None), (None, None), (None, FIRST_THREE)], COUNTING),
}
"""Seeds and masks of successive resets, and the resulting seeds of the replicas."""


@pytest.mark.fast_cases(43)
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("case", RESETS)
def test_episodes_depend_on_the_current_seeds_only(
    make: Make, place: Place, mode: str, case: str, snapshot: bool
) -> None:
    """Each replica's next episodes follow its current seed, also if a snapshot has set the seed."""
    resets, seeds = RESETS[case]
    options: dict[str, Any] = {**place._asdict(), "autoreset_mode": mode, "max_episode_steps": 2}
    env = make("CartPole-v1", 9, **options)
    for seed, mask in resets:
        env.reset(seed=seed, options=None if mask is None else {"reset_mask": mask})
    if snapshot:
        env, other = make("CartPole-v1", 9, **options), env
        env.reset(seed=1)
        env.set_state(other.get_state())
    assert env.np_random_seed == tuple(seeds)
    counts_up = seeds == [(seeds[0] + i) % 2**64 for i in range(9)]
    if snapshot or case != "a list that counts up":
        assert bool(numpy_of(env.simulation.buffers["counted"])[0]) == counts_up
    episodes = numpy_of(env.simulation.buffers["episodes"])
    alone = [make("CartPole-v1", 1, **options) for _ in seeds]
    for single, seed, episode in zip(alone, seeds, episodes.tolist(), strict=True):
        single.reset(seed=seed)
        for _ in range(episode):
            single.reset()
    for each in (env, *alone):
        each.allow_frozen_steps()
        each.reset(options={"reset_mask": np.ones(each.num_envs, bool)})
    starts = set()
    for actions in random_actions("CartPole-v1", 9, 9):
        observations = numpy_of(env.step(to_place(actions, place))[0])
        expected = [numpy_of(twin.step(to_place(actions[i : i + 1], place))[0])[0] for i, twin in enumerate(alone)]
        assert_same_bits(observations, np.stack(expected))
        starts.add(observations[1].tobytes())
    assert mode == "Disabled" or len(starts) > 2


# --- spaces ---


@pytest.mark.parametrize("env_id", ["CartPole-v1", "TagGridWorld-v0"])
def test_spaces_of_environments_are_independent(make: Make, env_id: str) -> None:
    """Equal seeds give equal samples; without seeds, samples differ also between environments of one spec."""
    env, other = make(env_id, 64), make(env_id, 64)

    def samples(space: gymnasium.Space[Any]) -> list[Any]:
        return [numpy_of(space.sample()).tolist() for _ in range(20)]

    def space(env: Any, name: str) -> Any:
        return getattr(env, name) if env_id == "CartPole-v1" else getattr(env, f"{name}s")["runner"]

    for name in ("single_action_space", "action_space", "single_observation_space", "observation_space"):
        ours, others = space(env, name), space(other, name)
        assert samples(ours) != samples(others), name
        ours.seed(3)
        first = samples(ours)
        ours.seed(3)
        others.seed(4)
        assert samples(ours) == first, name
