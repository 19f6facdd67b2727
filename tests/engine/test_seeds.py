"""What seeds give: whole numbers that count up, and sequences whose batches have nothing in common."""

import copy
import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import Make, Place, assert_all_same, assert_same_bits, numpy_of, random_actions, to_place
from numpy.random import SeedSequence
from players import PLAYERS, Player, is_there, played
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


def sequences(entropy: int) -> list[SeedSequence]:
    """Fresh ones that are next to one another in every way."""
    parents = [SeedSequence(entropy + i) for i in range(10)]
    children = [child for parent in parents[:3] for child in parent.spawn(10)]
    return [*parents, *children, *children[0].spawn(10), SeedSequence([entropy, 0, 1]), SeedSequence()]


def test_batches_of_sequences_share_no_replica(make: Make, device: str) -> None:
    env, count = make("CartPole-v1", 4096, device=device), 4096
    seen: set[int] = set()
    given = sequences(int.from_bytes(np.random.default_rng().bytes(4), "little"))
    for sequence in given:
        env.reset(seed=sequence)
        seen.update(env.np_random_seed or ())
    assert len(seen) == count * len(given), given[0]


def test_lists_may_hold_sequences(make: Make, device: str) -> None:
    env, alone = make("Pendulum-v1", 3, device=device), make("Pendulum-v1", 1, device=device)
    one, other = SeedSequence(5).spawn(2)
    given: list[Any] = [one, 8, other]
    observations = env.reset(seed=given)[0].copy()
    for i, seed in enumerate(given):
        assert_same_bits(observations[i : i + 1], alone.reset(seed=seed)[0].copy(), str(i))
    env.reset(seed=[None, one, None])
    assert [*(env.np_random_seed or ())][1] == check_seed(one)


@pytest.mark.parametrize("seed", [SeedSequence, "SeedSequence(1)", [SeedSequence(1)], np.random.default_rng(1)])
def test_what_is_no_sequence_is_refused(make: Make, seed: Any) -> None:
    env = make("CartPole-v1", 2, device="cpu")
    with pytest.raises((TypeError, ValueError), match="seed"):
        env.reset(seed=seed)
    env.reset(seed=SeedSequence(1))


# --- everything that takes a seed takes one ---


def test_gymnasium_takes_them() -> None:
    sequence: Any = SeedSequence(5)  # Gymnasium's types know whole numbers
    expected = gpu_envs.make("CartPole-v1", 2, device="cpu").reset(seed=sequence)[0]
    with gymnasium.make("gpu_envs/CartPole-v1") as single:
        assert_same_bits(expected[0], single.reset(seed=sequence)[0])
        assert single.unwrapped.np_random_seed == check_seed(sequence)
    envs = gymnasium.make_vec("gpu_envs/CartPole-v1", num_envs=2, device="cpu")
    assert_same_bits(expected, envs.reset(seed=sequence)[0])
    envs.close()


def test_stagger_takes_them(make: Make, device: str) -> None:
    offsets = []
    seeds: list[Any] = [SeedSequence(5), SeedSequence(5), check_seed(SeedSequence(5)), SeedSequence(6)]
    for seed in seeds:
        env = make("CartPole-v1", 50, device=device)
        env.reset(seed=0)
        env.stagger(seed)
        offsets.append(np.array(env.get_attr("offset")))
    assert_all_same(offsets[:3])
    assert (offsets[0] != offsets[3]).any()


def test_recordings_take_them() -> None:
    pages = [recorded("CartPole-v1", replicas=2, steps=5, seed=s, device="cpu") for s in (SeedSequence(5), 5)]
    again = recorded("CartPole-v1", replicas=2, steps=5, seed=SeedSequence(5), device="cpu")
    assert pages[0].facts["Seed"] == again.facts["Seed"] != pages[1].facts["Seed"]


@pytest.mark.parametrize("player", [player for player in PLAYERS if is_there(player)])
@pytest.mark.usefixtures("one_thread")
def test_adapters_take_them(player: type[Player]) -> None:
    """A sequence is the whole number that it stands for, and others are others, at the beginning and later."""

    def first_of(seed: Any, later: bool) -> np.ndarray:
        options = {"stagger": True} if player.staggers else {}
        begun = played(player, next(iter(player.cases)), 3, "cpu", seed=0 if later else seed, **options)
        if later:
            begun.seed(seed)
        return np.concatenate([values.ravel() for values in begun.begin()[0].values()])

    sequence = SeedSequence(5)
    for later in (False, True)[: 1 if player.module in ("skrl", "rsl_rl") else 2]:
        assert_all_same(first_of(seed, later) for seed in (sequence, sequence, check_seed(sequence)))
        for one, other in itertools.combinations([sequence, *sequence.spawn(3)], 2):
            assert (first_of(one, later) != first_of(other, later)).any()


@pytest.mark.parametrize("seed", [5, SeedSequence(4), 2**64 - 3, 2**70])
def test_a_part_of_a_batch_is_what_it_is_in_the_whole(make: Make, variant: Variant, device: str, seed: Any) -> None:
    """Its seeds, its offsets, and all that follows from them, copies included."""
    place, count = Place(device, "numpy"), 40
    whole = make_variant(make, variant, count, place)
    actions = draw_actions(whole, 8)
    staggered = whole.max_episode_steps is not None

    def begun(env: Any) -> dict[str, np.ndarray]:
        seen = env.reset(seed=seed)[0]
        return numpy_by_role(env, env.stagger(seed=2) if staggered else seen)

    first, steps = begun(whole), record(whole, actions)
    for begin, end in ((0, 7), (7, 8), (8, 40)):
        env, here = make_variant(make, variant, end - begin, place, first_replica=begin), slice(begin, end)
        assert_same_bits({r: v[here] for r, v in first.items()}, begun(env))
        kept = env.get_state()
        assert_same_bits(
            record_of_replicas(steps, here),
            record(env, actions_of_replicas(actions, here)),
            f"replicas {begin} to {end - 1}",
        )
        env.set_state(kept)
        assert_same_bits(
            record_of_replicas(steps, here), record(copy.deepcopy(env), actions_of_replicas(actions, here)), "a copy"
        )


def test_offsets_of_replicas_with_great_numbers(make: Make) -> None:
    many = 2**20 + 5
    whole = make("CartPole-v1", many)
    few = make("CartPole-v1", 4, first_replica=many - 4)
    for env in (whole, few):
        env.reset(seed=1)
        env.stagger(seed=3)
    assert_same_bits(numpy_of(whole.offset)[-4:], numpy_of(few.offset))


def test_errors_name_the_replica_by_its_number_in_the_whole(make: Make) -> None:
    env = make("CartPole-v1", 4, device="cpu", first_replica=1000)
    env.reset(seed=0)
    with pytest.raises(gpu_envs.ActionError, match=r"replica 1002 \(here 2\), step 0 of its episode"):
        env.step(np.array([0, 1, 7, 0]))
    with pytest.raises(ValueError, match=r"step 0 of the block, replica 1003 \(here 3\)"):
        env.rollout(1, actions=np.array([[0, 1, 0, 7]]))


def test_parts_fork_as_often_as_memory_allows(make: Make) -> None:
    """The number of the first replica grows with each fork, from any that a user gives."""
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
def test_first_replica_is_a_number(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"first_replica is .*; give a whole number from 0"):
        gpu_envs.make("CartPole-v1", 2, device="cpu", first_replica=wrong)


# --- seeds that count up, and those that do not ---

UP, OWN = [*range(40, 49)], [5, 2**64 - 1, *range(100, 107)]
FIRST = np.arange(9) < 3

WAYS: dict[str, tuple[list[tuple[Any, Any]], list[int]]] = {
    "one": ([(40, None)], UP),
    "one that wraps": ([(2**64 - 2, None)], [(2**64 - 2 + i) % 2**64 for i in range(9)]),
    "a list": ([(40, None), (OWN, None)], OWN),
    "a list that counts up": ([(UP, None)], UP),
    "one after a list": ([(OWN, None), (40, None)], UP),
    "some anew": ([(40, None), (70, FIRST)], [70, 71, 72, *UP[3:]]),
    "all but the first anew": ([(40, None), (70, ~FIRST)], [*UP[:3], *range(73, 79)]),
    "some anew by a list": ([(40, None), ([None, 3, *[None] * 7], None)], [40, 3, *UP[2:]]),
    "no seeds later": ([(40, None), (None, None), (None, FIRST)], UP),
}
"""What resets are given, one after the other, seeds and masks, and the seeds that replicas have then."""


@pytest.mark.fast_cases(43)
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_starts_follow_from_seeds_however_they_came(
    make: Make, place: Place, mode: str, way: str, snapshot: bool
) -> None:
    """Each replica's next episodes are those of its own seed, also where a snapshot has brought it."""
    resets, seeds = WAYS[way]
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
    if snapshot or way != "a list that counts up":
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
        given = numpy_of(env.step(to_place(actions, place))[0])
        expected = [numpy_of(one.step(to_place(actions[i : i + 1], place))[0])[0] for i, one in enumerate(alone)]
        assert_same_bits(given, np.stack(expected))
        starts.add(given[1].tobytes())
    assert mode == "Disabled" or len(starts) > 2
