"""Snapshots of some replicas, copies of one replica, and forks: all continue bit for bit; others do not change."""

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


def make_running(
    make: Make, variant: Variant, place: Place = HOST, count: int = COUNT, steps: int = 4, **kwargs: Any
) -> Any:
    """Replicas in the middle of staggered episodes."""
    env = make_variant(make, variant, count, place, **{"autoreset_mode": "SameStep", **kwargs})
    env.reset(seed=5)
    env.stagger(seed=1)
    env.allow_frozen_steps()  # in Disabled mode ended replicas stay in their last state
    for actions in draw_actions(env, steps):
        take_step(env, actions, place)
    return env


def select_rows(state: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """State and episodes of some replicas of a snapshot."""
    arrays = {part: {n: v for n, v in state[part].items() if n != "layout_seed"} for part in ("state", "episode")}
    return {
        part: {name: numpy_of(values)[rows] for name, values in by_name.items()} for part, by_name in arrays.items()
    }


def test_replicas_continue_from_snapshots_of_other_replicas(variant: Variant, place: Place, make: Make) -> None:
    """In the same environment; copies equal the originals, and other replicas do not change."""
    env, twin = (make_running(make, variant, place) for _ in range(2))
    env.set_state(env.get_state([6, 2]), replicas=np.array([0, 3]))
    assert_same_bits(select_rows(env.get_state(), [0, 3]), select_rows(twin.get_state(), [6, 2]))
    actions = draw_actions(env, 2 * LIMIT, seed=2)
    for step in actions:
        for values in step.values():
            values[[0, 3]] = values[[6, 2]]
    results, expected = (record(each, actions, place) for each in (env, twin))
    for name, by_role in results.items():
        for role, values in by_role.items():
            assert_same_bits(values[:, [0, 3]], expected[name][role][:, [6, 2]], name)
            rest = [1, 2, 4, 5, 6]
            assert_same_bits(values[:, rest], expected[name][role][:, rest], name)


@parametrize_variants(FEW)
def test_one_replica_copied_to_all(variant: Variant, place: Place, make: Make) -> None:
    """In an environment of another size, from device and host, selected by an index or a mask."""
    env = make_running(make, variant, place)
    states = [
        env.get_state(replicas)
        for replicas in ([2], to_place(np.array([2]), place), to_place(np.arange(COUNT) == 2, place))
    ]
    assert states[0]["params"].keys() == env.get_state()["params"].keys()
    on_host = {
        part: {n: v if np.ndim(v) == 0 else numpy_of(v) for n, v in values.items()}
        for part, values in states[0].items()
    }
    for state in (*states, on_host):
        many = make_variant(make, variant, 33, place, autoreset_mode="SameStep")
        many.set_state(state)
        assert_same_bits(select_rows(many.get_state(), slice(None)), select_rows(env.get_state(), [2] * 33))


@pytest.mark.parametrize("replicas", [None, [0, 1]])
@pytest.mark.parametrize("name", ["CartPole-v1", "grid-full"])
@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_same_step_restarts_ended_episodes_of_a_snapshot(
    mode: str, name: str, replicas: Any, place: Place, make: Make
) -> None:
    """At once, since SameStep has no reset steps, and rules never step an ended episode."""
    over = make_running(make, VARIANTS[name], place, 2, steps=LIMIT + 1, autoreset_mode="Disabled")
    env = make_variant(make, VARIANTS[name], 2, place, autoreset_mode=mode)
    env.set_state(over.get_state())
    target = make_running(make, VARIANTS[name], place, 2)
    target.set_state(env.get_state(replicas))
    over.reset(options={"reset_mask": to_place(np.array([True, True]), place)})
    assert_same_bits(trajectory_state(target), trajectory_state(over))


@parametrize_variants(FEW)
def test_a_fork_continues_each_replica(variant: Variant, mode: str, place: Place, make: Make) -> None:
    env = make_running(make, variant, place, count=3, autoreset_mode=mode)
    forked = env.fork(4)
    assert (forked.num_envs, forked.output, forked.max_episode_steps) == (12, env.output, env.max_episode_steps)
    originals = np.repeat(np.arange(3), 4)
    for step in draw_actions(env, 2 * LIMIT, seed=2):
        results = take_step(forked, {role: values[originals] for role, values in step.items()}, place)
        expected = take_step(env, step, place)
        for name, by_role in results.items():
            for role, values in by_role.items():
                assert_same_bits(values, expected[name][role][originals], name)
    forked.close()


def test_snapshots_contain_parameters(make: Make) -> None:
    """A shared parameter becomes values per replica if the other replicas have another value."""
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


def next_starts(env: Any) -> np.ndarray:
    """The initial states of the next episodes."""
    env.reset()
    return np.stack([numpy_of(field) for field in env.state.values()], -1)


def test_randomness_options(place: Place, make: Make) -> None:
    """Fresh random numbers differ between replicas and calls, and depend on the seed and the number of calls."""
    env, twin, other = (make("CartPole-v1", 6, **place._asdict()) for _ in range(3))
    for each, seed in ((env, 3), (twin, 3), (other, 4)):
        each.reset(seed=seed)
    of_one, of_all = env.get_state([4]), env.get_state()
    env.set_state(of_one)
    same = next_starts(env)
    assert (same == same[0]).all()
    fresh = []
    for _ in range(2):
        for each in (env, twin):
            each.set_state(of_one, randomness="fresh")
        fresh.append(next_starts(env))
        assert_same_bits(next_starts(twin), fresh[-1])
    assert len(np.unique(np.concatenate([same[:1], *fresh]), axis=0)) == 13
    forks = []
    for _ in range(2):
        env.set_state(of_all)
        forks.append(next_starts(env.fork(2, randomness="fresh")))
    assert_same_bits(forks[0], forks[1])  # a snapshot contains the number of calls
    other.set_state(of_one, randomness="fresh")
    assert not (next_starts(other) == fresh[0]).any()


@pytest.mark.parametrize("name", ["CartPole-v1", "grid-full"])
def test_mistakes_change_nothing(name: str, place: Place, make: Make) -> None:
    env = make_running(make, VARIANTS[name], place)
    state = env.get_state([1, 2, 3])
    mistakes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "randomness is 'new'; give 'kept' or 'fresh'", {"randomness": "new"}),
        (
            ValueError,
            "the state has 3 replicas, but 2 are written: give a state of 2, or of 1, which",
            {"replicas": [0, 4]},
        ),
        (ValueError, "replicas contain 7; allowed are 0 to 6", {"replicas": [0, 1, 7]}),
        (ValueError, "replicas contain -1; allowed are 0 to 6", {"replicas": [0, 1, -1]}),
        (ValueError, "replicas contain an index more than once", {"replicas": [0, 1, 1]}),
        (ValueError, r"replicas are float64 \[3\]; give a mask, bool \[7\], or indices", {"replicas": [0.0, 1, 2]}),
        (ValueError, r"replicas are bool \[3\]", {"replicas": np.ones(3, bool)}),
        (ValueError, "replicas are empty", {"replicas": np.zeros(COUNT, bool)}),
    ]
    for error, match, arguments in mistakes:
        assert_refused(
            env,
            lambda arguments=arguments: env.set_state(state, **arguments),  # type: ignore[misc]
            error,
            match,
        )
    field = next(iter(state["state"]))
    short = {**state, "state": {**state["state"], field: state["state"][field][:2]}}
    assert_refused(env, lambda: env.set_state(short, [0, 1, 2]), ValueError, f"'{field}' has shape")
    no_fields = {**state, "state": {}}
    assert_refused(env, lambda: env.set_state(no_fields, [0, 1, 2]), ValueError, "the state's part 'state' must have")
    assert_refused(env, lambda: env.fork(0), ValueError, "k is 0; give an integer of 1 or more")
    never_reset = make_variant(make, VARIANTS[name], COUNT, place)
    with pytest.raises(ValueError, match="some replicas were never reset"):
        never_reset.set_state(state, [0, 1, 2])
    env.set_state(state, [0, 1, 2])


def test_action_masks_follow_a_restored_state(make: Make) -> None:
    env = make_running(make, VARIANTS["rice-talks"])
    env.set_state(env.get_state([3]))
    masks = numpy_of(env.action_mask["region"])
    assert_same_bits(masks, np.repeat(masks[3:4], COUNT, 0))


@needs_cuda
def test_indices_on_a_gpu_are_checked_later(make: Make) -> None:
    """The host does not wait; invalid indices are skipped, and ``check`` raises an error."""
    place = Place("cuda", "torch")
    env = make_variant(make, VARIANTS["CartPole-v1"], COUNT, place)
    env.reset(seed=0)
    before = trajectory_state(env)
    state = env.get_state(to_place(np.array([2]), place))
    env.set_state(state, to_place(np.array([1, 70]), place))
    with pytest.raises(ValueError, match=r"replicas\[1\] is out of range and was skipped"):
        env.check()
    env.check()
    after = trajectory_state(env)
    assert_same_bits(after["state"]["x"][[0, 2, 3, 4, 5, 6]], before["state"]["x"][[0, 2, 3, 4, 5, 6]])
    assert_same_bits(after["state"]["x"][1:2], before["state"]["x"][2:3])


def test_shared_parameters_stay_shared(make: Make) -> None:
    """Choices too, if all replicas are written; otherwise they become values per replica."""
    env = make("Acrobot-v1", 3, device="cpu", book_or_nips="nips", link_mass_1=2.0)
    env.reset(seed=0)
    all_written, one_written = (make("Acrobot-v1", 4, device="cpu") for _ in range(2))
    for each in (all_written, one_written):
        each.reset(seed=0)
    all_written.set_state(env.get_state([1]))
    assert (all_written.params["book_or_nips"], all_written.params["link_mass_1"]) == ("nips", 2.0)
    one_written.set_state(env.get_state([1]), [2])
    assert one_written.get_attr("book_or_nips") == ("book", "book", "nips", "book")
    assert one_written.get_attr("link_mass_1") == (1.0, 1.0, 2.0, 1.0)


def test_invalid_parameters_of_a_snapshot_change_nothing(make: Make) -> None:
    env, other = make("Pendulum-v1", 4, device="cpu"), make("Pendulum-v1", 4, device="cpu", g=9.0)
    for each in (env, other):
        each.reset(seed=0)
    state = other.get_state([1])
    for part, name, value in (("params", "g", np.nan), ("params", "m", -5.0), ("state", "theta", np.zeros((1, 1)))):
        invalid = {**state, part: {**state[part], name: value}}
        assert_refused(env, lambda invalid=invalid: env.set_state(invalid, [1]), ValueError, name)  # type: ignore[misc]
        assert env.params["g"] == 10.0


def test_fresh_random_numbers_are_unique(make: Make) -> None:
    """Between the parts of a larger batch, after resets of some replicas, and between forks and their originals."""

    def seeds(env: Any) -> list[int]:
        return [int(seed) for seed in numpy_of(env.get_state()["episode"]["seeds"])]

    unique_seeds = []
    for first in (0, 4):
        env = make("CartPole-v1", 4, device="cpu", first_replica=first)
        env.reset(seed=0)
        state = env.get_state([1])
        env.set_state(state, [0, 1], "fresh")
        env.reset(seed=0, options={"reset_mask": np.array([False, False, True, True])})
        env.set_state(state, [2, 3], "fresh")
        unique_seeds += seeds(env)
    assert len({*unique_seeds}) == 8
    forks = []
    for first, count in ((0, 8), (0, 4), (4, 4)):
        part = make("CartPole-v1", count, device="cpu", first_replica=first)
        part.reset(seed=3)
        forks.append(seeds(part.fork(2, randomness="fresh").fork(3, randomness="fresh")))
    assert forks[0] == forks[1] + forks[2]
    assert len({*forks[0]}) == 48
    forked, twin = env.fork(1), pickle.loads(pickle.dumps(env))
    for each in (env, forked, twin):
        each.set_state(state, randomness="fresh")
    assert not {*seeds(env)} & {*seeds(forked)}
    assert seeds(env) == seeds(twin)  # a pickle contains the number of calls


def test_a_field_may_be_called_totals(tmp_path: Path) -> None:
    """Although a snapshot has sums of metrics of this name."""
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


def test_forks_have_gymnasiums_spec() -> None:
    env: Any = gymnasium.make_vec("gpu_envs/CartPole-v1", num_envs=2).unwrapped
    env.reset(seed=0)
    assert env.fork(2).spec == env.spec is not None


def test_snapshots_with_accessed_arrays(variant: Variant, place: Place, make: Make) -> None:
    """It is restored like an untouched one, with values written into its arrays; the count of offsets stays right."""
    env, twin = (make_running(make, variant, place, steps=2) for _ in range(2))
    state, accessed = env.get_state([2, 5, 0]), env.get_state([2, 5, 0])
    accessed = {part: dict(values) for part, values in accessed.items()}
    for each, snapshot in ((env, state), (twin, accessed)):
        each.set_state(snapshot, [6, 0, 3])
        each.observe()
    assert_same_bits(all_buffers(env), all_buffers(twin))
    assert int(numpy_of(all_buffers(env)["staggered"])[0]) == np.count_nonzero(numpy_of(all_buffers(env)["offset"]))
    state["episode"]["offset"][...] = 0
    env.set_state(state, [4, 5, 6])
    assert not numpy_of(env.get_state([4, 5, 6])["episode"]["offset"]).any()
    assert int(numpy_of(all_buffers(env)["staggered"])[0]) == np.count_nonzero(numpy_of(all_buffers(env)["offset"]))


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_snapshot_is_pickled_as_a_dict(output: str, make: Make) -> None:
    """``torch.save`` writes it too, and ``torch.load`` reads it with ``weights_only=True``."""
    env = make("CartPole-v1", 3, device="cpu", output=output)
    env.reset(seed=0)
    state = env.get_state([2, 1])
    copies = [pickle.loads(pickle.dumps(state))]
    if output == "torch":
        file = io.BytesIO()
        torch.save({"environment": state}, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=True)["environment"])
    for copy in copies:
        assert isinstance(copy, dict)
        env.reset()
        env.set_state(copy, [0, 1])
        assert_same_bits(select_rows(env.get_state(), [0, 1]), select_rows(state, slice(None)))


@parametrize_variants(FEW)
@pytest.mark.parametrize("accessed", [False, True])
def test_a_snapshot_restored_on_another_device(variant: Variant, accessed: bool, place: Place, make: Make) -> None:
    """As a block or array by array, and with the source of fresh random numbers."""
    env = make_running(make, variant)
    env.set_state(env.get_state([3]), [5], randomness="fresh")
    state = env.get_state()
    if accessed:
        assert len(state["state"])
    target = make_running(make, variant, place, steps=2)
    target.set_state(state)
    assert target.simulation.randomness == env.simulation.randomness
    assert_same_bits(trajectory_state(target), trajectory_state(env))
    actions = draw_actions(env, LIMIT, seed=2)
    assert_same_bits(record(target, actions, place), record(env, actions, HOST))


@pytest.mark.parametrize("threads", [2, 32])
@parametrize_variants(FEW)
def test_several_threads_can_copy_a_row(
    variant: Variant, threads: int, place: Place, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU if rows are long."""
    results = []
    for count in (1, threads):
        with monkeypatch.context() as patched:
            patched.setattr(row_copies, "threads_per_row", lambda *_, count=count: count)
            env = make_running(make, variant, place)
            env.set_state(env.get_state([6, 2]), [0, 3])
            env.set_state(env.get_state([1]), [4, 5], randomness="fresh")
            env.set_state(env.get_state())
            results.append((all_buffers(env), env.get_state()))
    assert_all_same(results)


def test_derived_parameters_follow_a_changed_snapshot(tmp_path: Path) -> None:
    """With all replicas and with some."""
    params = {"scale": gpu_envs.Param(1.0), "twice": gpu_envs.Derived(lambda p: 2 * p["scale"])}
    env = gpu_envs.VectorEnv(walk(tmp_path, more={"params": params}), 3, device="cpu", scale=[1.0, 2.0, 3.0])
    env.reset(seed=0)
    for rows, to, twice in ((None, None, [2, 10, 6]), ([2], [0], [10, 10, 6])):
        state = env.get_state(rows)
        state["params"]["scale"][-1 if rows else 1] = 5
        env.set_state(state, to)
        env.step(np.ones(3, int))
        assert env.params["twice"].tolist() == twice


def test_snapshots_do_not_keep_the_environment_alive() -> None:
    """A reference cycle would keep its memory until the garbage collector runs."""
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
