"""Snapshots of some replicas, one moment in many, and forks: all go on bit for bit, and nobody else is touched."""

import gc
import io
import pickle
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from harness import Make, Place, assert_all_same, assert_same_bits, numpy_of, to_place
from registered import (
    HOST,
    LIMIT,
    VARIANTS,
    Variant,
    all_buffers,
    assert_refused,
    draw_actions,
    make_variant,
    needs_cuda,
    parametrize_variants,
    record,
    take_step,
    trajectory_state,
)
from small_envs import walk

import gpu_envs
from gpu_envs.engine import row_copies

COUNT = 7
FEW = {name: VARIANTS[name] for name in ("CartPole-v1", "Pendulum-v1", "continuous-nearest", "rice-talks")}


def begun(make: Make, variant: Variant, place: Place = HOST, count: int = COUNT, steps: int = 4, **kwargs: Any) -> Any:
    """Replicas in the midst of episodes that began apart."""
    env = make_variant(make, variant, count, place, **{"autoreset_mode": "SameStep", **kwargs})
    env.reset(seed=5)
    env.stagger(seed=1)
    env.allow_frozen_steps()  # where nothing restarts, who is at an end stays there
    for actions in draw_actions(env, steps):
        take_step(env, actions, place)
    return env


def picked(kept: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Of a snapshot, what is of some of its replicas."""
    of_each = {part: {n: v for n, v in kept[part].items() if n != "layout_seed"} for part in ("state", "episode")}
    return {part: {name: numpy_of(values)[rows] for name, values in of.items()} for part, of in of_each.items()}


def test_some_go_on_from_the_moments_of_others(variant: Variant, place: Place, make: Make) -> None:
    """In the same environment: the copies as the originals, and who was not written as if nothing had happened."""
    env, twin = (begun(make, variant, place) for _ in range(2))
    env.set_state(env.get_state([6, 2]), replicas=np.array([0, 3]))
    assert_same_bits(picked(env.get_state(), [0, 3]), picked(twin.get_state(), [6, 2]))
    actions = draw_actions(env, 2 * LIMIT, seed=2)
    for step in actions:
        for values in step.values():
            values[[0, 3]] = values[[6, 2]]
    found, expected = (record(one, actions, place) for one in (env, twin))
    for name, by_role in found.items():
        for role, values in by_role.items():
            assert_same_bits(values[:, [0, 3]], expected[name][role][:, [6, 2]], name)
            rest = [1, 2, 4, 5, 6]
            assert_same_bits(values[:, rest], expected[name][role][:, rest], name)


@parametrize_variants(FEW)
def test_one_moment_in_all(variant: Variant, place: Place, make: Make) -> None:
    """In an environment of another size, from the device and from the host, chosen by number or by a mask."""
    env = begun(make, variant, place)
    kept = [
        env.get_state(chosen)
        for chosen in ([2], to_place(np.array([2]), place), to_place(np.arange(COUNT) == 2, place))
    ]
    assert kept[0]["params"].keys() == env.get_state()["params"].keys()
    on_host = {part: {n: v if np.ndim(v) == 0 else numpy_of(v) for n, v in of.items()} for part, of in kept[0].items()}
    for one in (*kept, on_host):
        many = make_variant(make, variant, 33, place, autoreset_mode="SameStep")
        many.set_state(one)
        assert_same_bits(picked(many.get_state(), slice(None)), picked(env.get_state(), [2] * 33))


@pytest.mark.parametrize("replicas", [None, [0, 1]])
@pytest.mark.parametrize("name", ["CartPole-v1", "grid-full"])
@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_same_step_begins_the_next_episode_of_one_that_is_over(
    mode: str, name: str, replicas: Any, place: Place, make: Make
) -> None:
    """As it has no later step for that, and rules never see the step after an episode's last."""
    over = begun(make, VARIANTS[name], place, 2, steps=LIMIT + 1, autoreset_mode="Disabled")
    env = make_variant(make, VARIANTS[name], 2, place, autoreset_mode=mode)
    env.set_state(over.get_state())
    target = begun(make, VARIANTS[name], place, 2)
    target.set_state(env.get_state(replicas))
    over.reset(options={"reset_mask": to_place(np.array([True, True]), place)})
    assert_same_bits(trajectory_state(target), trajectory_state(over))


@parametrize_variants(FEW)
def test_a_fork_continues_each_replica(variant: Variant, mode: str, place: Place, make: Make) -> None:
    env = begun(make, variant, place, count=3, autoreset_mode=mode)
    forked = env.fork(4)
    assert (forked.num_envs, forked.output, forked.max_episode_steps) == (12, env.output, env.max_episode_steps)
    each_of = np.repeat(np.arange(3), 4)
    for step in draw_actions(env, 2 * LIMIT, seed=2):
        found = take_step(forked, {role: values[each_of] for role, values in step.items()}, place)
        expected = take_step(env, step, place)
        for name, by_role in found.items():
            for role, values in by_role.items():
                assert_same_bits(values, expected[name][role][each_of], name)
    forked.close()


def test_parameters_of_each_replica_s_own_go_along(make: Make) -> None:
    """So do those that all had in common: where the rest has others, each gets its own."""
    lengths = np.linspace(0.3, 0.9, 5).astype(np.float32)
    env = make("CartPole-v1", 5, device="cpu", length=lengths)
    env.reset(seed=0)
    assert_same_bits(env.fork(2).params["length"], np.repeat(lengths, 2))
    plain = make("CartPole-v1", 4, device="cpu", gravity=9.0)
    plain.reset(seed=0)
    plain.set_state(env.get_state([4, 1]), replicas=[0, 3])
    assert_same_bits(plain.params["length"], np.array([lengths[4], 0.5, 0.5, lengths[1]], np.float32))
    assert_same_bits(plain.params["gravity"], np.array([9.8, 9.0, 9.0, 9.8], np.float32))
    env.set_state(plain.get_state([1]), replicas=[2])
    assert env.params["length"][2] == 0.5


def starts(env: Any) -> np.ndarray:
    """Where the episodes after this one begin."""
    env.reset()
    return np.stack([numpy_of(field) for field in env.state.values()], -1)


def test_randomness_is_kept_or_fresh(place: Place, make: Make) -> None:
    """Fresh numbers differ between replicas and calls, and follow from the seed and the number of calls."""
    env, again, other = (make("CartPole-v1", 6, **place._asdict()) for _ in range(3))
    for one, seed in ((env, 3), (again, 3), (other, 4)):
        one.reset(seed=seed)
    kept, whole = env.get_state([4]), env.get_state()
    env.set_state(kept)
    same = starts(env)
    assert (same == same[0]).all()
    found = []
    for _ in range(2):
        for one in (env, again):
            one.set_state(kept, randomness="fresh")
        found.append(starts(env))
        assert_same_bits(starts(again), found[-1])
    assert len(np.unique(np.concatenate([same[:1], *found]), axis=0)) == 13
    forks = []
    for _ in range(2):
        env.set_state(whole)
        forks.append(starts(env.fork(2, randomness="fresh")))
    assert_same_bits(forks[0], forks[1])  # a snapshot holds the number of calls
    other.set_state(kept, randomness="fresh")
    assert not (starts(other) == found[0]).any()


@pytest.mark.parametrize("name", ["CartPole-v1", "grid-full"])
def test_mistakes_change_nothing(name: str, place: Place, make: Make) -> None:
    env = begun(make, VARIANTS[name], place)
    kept = env.get_state([1, 2, 3])
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "randomness is 'new'; give one of 'kept', 'fresh'", {"randomness": "new"}),
        (ValueError, "the state is of 3 replicas; give one of 1 or of 2, which are written", {"replicas": [0, 4]}),
        (ValueError, "replicas name 7; there are 0 to 6", {"replicas": [0, 1, 7]}),
        (ValueError, "replicas name -1; there are 0 to 6", {"replicas": [0, 1, -1]}),
        (ValueError, "replicas name one more than once", {"replicas": [0, 1, 1]}),
        (ValueError, r"replicas are float64 \[3\]; give a mask, bool \[7\], or numbers", {"replicas": [0.0, 1, 2]}),
        (ValueError, r"replicas are bool \[3\]", {"replicas": np.ones(3, bool)}),
        (ValueError, "replicas name none", {"replicas": np.zeros(COUNT, bool)}),
    ]
    for error, match, given in wrong:
        assert_refused(env, lambda given=given: env.set_state(kept, **given), error, match)  # type: ignore[misc]
    field = next(iter(kept["state"]))
    short = {**kept, "state": {**kept["state"], field: kept["state"][field][:2]}}
    assert_refused(env, lambda: env.set_state(short, [0, 1, 2]), ValueError, f"'{field}' has shape")
    lacking = {**kept, "state": {}}
    assert_refused(env, lambda: env.set_state(lacking, [0, 1, 2]), ValueError, "the state's part 'state' must have")
    assert_refused(env, lambda: env.fork(0), ValueError, "k is 0; a whole number from 1 up")
    new = make_variant(make, VARIANTS[name], COUNT, place)
    with pytest.raises(ValueError, match="some replicas were never reset"):
        new.set_state(kept, [0, 1, 2])
    env.set_state(kept, [0, 1, 2])


def test_masks_are_those_of_the_state(make: Make) -> None:
    env = begun(make, VARIANTS["rice-talks"])
    env.set_state(env.get_state([3]))
    masks = numpy_of(env.action_mask["region"])
    assert_same_bits(masks, np.repeat(masks[3:4], COUNT, 0))


@needs_cuda
def test_numbers_of_a_gpu_are_looked_at_later(make: Make) -> None:
    """Nothing waits; what is no replica's is left out, and told of by check."""
    place = Place("cuda", "torch")
    env = make_variant(make, VARIANTS["CartPole-v1"], COUNT, place)
    env.reset(seed=0)
    before = trajectory_state(env)
    kept = env.get_state(to_place(np.array([2]), place))
    env.set_state(kept, to_place(np.array([1, 70]), place))
    with pytest.raises(ValueError, match=r"replicas\[1\] is no replica"):
        env.check()
    env.check()
    after = trajectory_state(env)
    assert_same_bits(after["state"]["x"][[0, 2, 3, 4, 5, 6]], before["state"]["x"][[0, 2, 3, 4, 5, 6]])
    assert_same_bits(after["state"]["x"][1:2], before["state"]["x"][2:3])


def test_what_all_have_in_common_stays_common(make: Make) -> None:
    """Choices too; with some replicas alone they become each one's own."""
    env = make("Acrobot-v1", 3, device="cpu", book_or_nips="nips", link_mass_1=2.0)
    env.reset(seed=0)
    whole, some_of_it = (make("Acrobot-v1", 4, device="cpu") for _ in range(2))
    for one in (whole, some_of_it):
        one.reset(seed=0)
    whole.set_state(env.get_state([1]))
    assert (whole.params["book_or_nips"], whole.params["link_mass_1"]) == ("nips", 2.0)
    some_of_it.set_state(env.get_state([1]), [2])
    assert some_of_it.get_attr("book_or_nips") == ("book", "book", "nips", "book")
    assert some_of_it.get_attr("link_mass_1") == (1.0, 1.0, 2.0, 1.0)


def test_parameters_are_looked_at_before_anything_changes(make: Make) -> None:
    env, other = make("Pendulum-v1", 4, device="cpu"), make("Pendulum-v1", 4, device="cpu", g=9.0)
    for one in (env, other):
        one.reset(seed=0)
    kept = other.get_state([1])
    for part, name, value in (("params", "g", np.nan), ("params", "m", -5.0), ("state", "theta", np.zeros((1, 1)))):
        wrong = {**kept, part: {**kept[part], name: value}}
        assert_refused(env, lambda wrong=wrong: env.set_state(wrong, [1]), ValueError, name)  # type: ignore[misc]
        assert env.params["g"] == 10.0


def test_nobody_else_has_fresh_numbers(make: Make) -> None:
    """Not the other part of a larger batch, nor after a reset of some, nor a fork and what it was made of."""

    def seeds(env: Any) -> list[int]:
        return [int(seed) for seed in numpy_of(env.get_state()["episode"]["seeds"])]

    found = []
    for first in (0, 4):
        env = make("CartPole-v1", 4, device="cpu", first_replica=first)
        env.reset(seed=0)
        moment = env.get_state([1])
        env.set_state(moment, [0, 1], "fresh")
        env.reset(seed=0, options={"reset_mask": np.array([False, False, True, True])})
        env.set_state(moment, [2, 3], "fresh")
        found += seeds(env)
    assert len({*found}) == 8
    forks = []
    for first, count in ((0, 8), (0, 4), (4, 4)):
        part = make("CartPole-v1", count, device="cpu", first_replica=first)
        part.reset(seed=3)
        forks.append(seeds(part.fork(2, randomness="fresh").fork(3, randomness="fresh")))
    assert forks[0] == forks[1] + forks[2]
    assert len({*forks[0]}) == 48
    forked, twin = env.fork(1), pickle.loads(pickle.dumps(env))
    for one in (env, forked, twin):
        one.set_state(moment, randomness="fresh")
    assert not {*seeds(env)} & {*seeds(forked)}
    assert seeds(env) == seeds(twin)  # a pickle knows how often numbers were fresh


def test_a_field_may_be_called_totals(tmp_path: Path) -> None:
    """As a snapshot calls what metrics add up."""
    spec = walk(
        tmp_path,
        more={"state": ("x", "totals"), "metrics": {"far": gpu_envs.Metric("m", "sum")}},
        reset="s.x = random.uniform(-1, 1);\n    s.totals = 0;",
        step="s.x += real(action);\n    s.totals += s.x;\n    return {s.x, false};",
        observe="observation[0] = observation[1] = float(s.x);",
        further="FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.far = s.x; }",
    )
    env = gpu_envs.VectorEnv(spec, 4, device="cpu")
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.ones(4, int))
    assert_same_bits(env.get_state([2])["state"]["totals"], env.state["totals"][2:3])
    totals = env.get_state()["episode"]["totals"]
    assert totals.all()
    assert_same_bits(env.fork(2).get_state()["episode"]["totals"], np.repeat(totals, 2, 1))


def test_gymnasiums_spec_goes_along() -> None:
    env: Any = gymnasium.make_vec("gpu_envs/CartPole-v1", num_envs=2).unwrapped
    env.reset(seed=0)
    assert env.fork(2).spec == env.spec is not None


def test_a_snapshot_that_somebody_looked_into_says_the_same(variant: Variant, place: Place, make: Make) -> None:
    """Its arrays are the snapshot: what is written into them counts; how many have offsets is kept all along."""
    env, twin = (begun(make, variant, place, steps=2) for _ in range(2))
    kept, seen = env.get_state([2, 5, 0]), env.get_state([2, 5, 0])
    seen = {part: dict(values) for part, values in seen.items()}
    for one, moment in ((env, kept), (twin, seen)):
        one.set_state(moment, [6, 0, 3])
        one.observe()
    assert_same_bits(all_buffers(env), all_buffers(twin))
    assert int(numpy_of(all_buffers(env)["staggered"])[0]) == np.count_nonzero(numpy_of(all_buffers(env)["offset"]))
    kept["episode"]["offset"][...] = 0
    env.set_state(kept, [4, 5, 6])
    assert not numpy_of(env.get_state([4, 5, 6])["episode"]["offset"]).any()
    assert int(numpy_of(all_buffers(env)["staggered"])[0]) == np.count_nonzero(numpy_of(all_buffers(env)["offset"]))


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_snapshot_is_pickled_as_a_dict(output: str, make: Make) -> None:
    """And saved by torch, which reads it back without running code."""
    env = make("CartPole-v1", 3, device="cpu", output=output)
    env.reset(seed=0)
    kept = env.get_state([2, 1])
    copies = [pickle.loads(pickle.dumps(kept))]
    if output == "torch":
        file = io.BytesIO()
        torch.save({"environment": kept}, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=True)["environment"])
    for again in copies:
        assert isinstance(again, dict)
        env.reset()
        env.set_state(again, [0, 1])
        assert_same_bits(picked(env.get_state(), [0, 1]), picked(kept, slice(None)))


@parametrize_variants(FEW)
@pytest.mark.parametrize("looked_into", [False, True])
def test_a_snapshot_of_all_goes_into_other_memory(
    variant: Variant, looked_into: bool, place: Place, make: Make
) -> None:
    """As it is, or array by array, with what fresh numbers follow from."""
    env = begun(make, variant)
    env.set_state(env.get_state([3]), [5], randomness="fresh")
    kept = env.get_state()
    if looked_into:
        assert len(kept["state"])
    target = begun(make, variant, place, steps=2)
    target.set_state(kept)
    assert target.simulation.randomness == env.simulation.randomness
    assert_same_bits(trajectory_state(target), trajectory_state(env))
    actions = draw_actions(env, LIMIT, seed=2)
    assert_same_bits(record(target, actions, place), record(env, actions, HOST))


@pytest.mark.parametrize("threads", [2, 32])
@parametrize_variants(FEW)
def test_several_threads_copy_a_row_as_one_does(
    variant: Variant, threads: int, place: Place, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where rows are long."""
    found = []
    for count in (1, threads):
        with monkeypatch.context() as patched:
            patched.setattr(row_copies, "threads_per_row", lambda *_, count=count: count)
            env = begun(make, variant, place)
            env.set_state(env.get_state([6, 2]), [0, 3])
            env.set_state(env.get_state([1]), [4, 5], randomness="fresh")
            env.set_state(env.get_state())
            found.append((all_buffers(env), env.get_state()))
    assert_all_same(found)


def test_derived_parameters_follow_a_changed_snapshot(tmp_path: Path) -> None:
    """Of all replicas, and of some."""
    params = {"scale": gpu_envs.Param(1.0), "twice": gpu_envs.Derived(lambda p: 2 * p["scale"])}
    env = gpu_envs.VectorEnv(walk(tmp_path, more={"params": params}), 3, device="cpu", scale=[1.0, 2.0, 3.0])
    env.reset(seed=0)
    for rows, to, twice in ((None, None, [2, 10, 6]), ([2], [0], [10, 10, 6])):
        kept = env.get_state(rows)
        kept["params"]["scale"][-1 if rows else 1] = 5
        env.set_state(kept, to)
        env.step(np.ones(3, int))
        assert env.params["twice"].tolist() == twice


def test_what_snapshots_keep_does_not_keep_the_environment() -> None:
    """Else its memory would wait for the garbage collector."""
    env = gpu_envs.make("CartPole-v1", 3, device="cpu")
    env.reset(seed=0)
    env.set_state(env.get_state([1]), [2])
    sim = weakref.ref(env.simulation)
    gc.disable()
    try:
        del env
        assert sim() is None
    finally:
        gc.enable()
