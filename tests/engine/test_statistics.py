"""Environments made with ``statistics=False``: what they leave out, and that all else is as it was, bit for bit."""

import functools
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from harness import Make, Place, assert_same_bits, numpy_of
from registered import (
    Variant,
    all_buffers,
    assert_refused,
    draw_actions,
    each_variant,
    join_actions,
    make_variant,
    place_actions,
    roles_of,
    shape_of,
    step_outcome,
    storage_place,
)

import gpu_envs
from gpu_envs import Step
from gpu_envs.codegen import generate, layout_of

KEPT = ("episode_return", "episode_length", "episode_metrics")

NAMES = (*KEPT, "running_return", "left_at", "last_metrics", "totals")
"""Of all memory that is there for statistics alone."""


def both(make: Make, variant: Variant, count: int, place: Place, **kwargs: Any) -> tuple[Any, Any]:
    """The same replicas with statistics and without."""
    plain, bare = (make_variant(make, variant, count, place, statistics=kept, **kwargs) for kept in (None, False))
    for env in (plain, bare):
        env.reset(seed=3)
        env.stagger(seed=4)
        env.allow_frozen_steps()
    return plain, bare


def of_statistics(name: str) -> bool:
    """Whether a buffer is there for them alone."""
    return name.removeprefix("state.").removeprefix("_").partition(".")[0] in NAMES


def all_else(env: Any) -> dict[str, np.ndarray]:
    """All memory but that of statistics, and the rows in which they lie beside other things."""
    return {name: array for name, array in all_buffers(env).items() if not of_statistics(name) and name != "records"}


@pytest.mark.fast_cases(14)
@each_variant
def test_all_else_is_the_same(make: Make, variant: Variant, place: Place, mode: str) -> None:
    """Memory that is not there is null for the kernels, so that to touch it would end the process."""
    plain, bare = both(make, variant, 9, place, autoreset_mode=mode)
    ends = 0
    for t, actions in enumerate(draw_actions(plain, 30)):
        given, expected = (
            bare.step(place_actions(bare, actions, place)),
            plain.step(place_actions(plain, actions, place)),
        )
        assert_same_bits(step_outcome(bare, given), step_outcome(plain, expected), f"step {t}")
        assert not {"episode", "_episode"} & given[4].keys()
        over = numpy_of(plain.simulation.buffers["finished"])
        ends += int(over.sum())
        if t % 7 == 6:
            mask = np.arange(9) % 3 == t % 3
            for env in (plain, bare):
                env.reset(seed=(None, 100)[t % 2], options={"reset_mask": mask})
    assert ends
    assert_same_bits(all_else(bare), all_else(plain))


@pytest.mark.parametrize("per_step", [False, True])
def test_rollouts_are_the_same(make: Make, env_id: str, place: Place, per_step: bool) -> None:
    plain, bare = both(make, Variant(env_id, {}), 9, place, autoreset_mode="SameStep")
    given, expected = bare.rollout(30, per_step=per_step), plain.rollout(30, per_step=per_step)
    assert (given.episode_returns, given.episode_lengths) == (None, None)
    there = {name: values for name, values in given._asdict().items() if values is not None}
    assert len(there) >= 5
    assert_same_bits(there, {name: getattr(expected, name) for name in there})
    assert numpy_of(given.episodes).sum()
    assert_same_bits(all_else(bare), all_else(plain))


@each_variant
def test_memory_that_is_not_there(make: Make, variant: Variant, device: str, mode: str) -> None:
    """Neither returns nor lengths nor metrics have memory, and so a replica needs less of it."""
    plain, bare = both(make, variant, 2, Place(device, "numpy"), autoreset_mode=mode)
    buffers = plain.simulation.buffers.keys() - bare.simulation.buffers.keys()
    assert {name.partition(".")[0] for name in buffers} >= {"running_return", *KEPT[:2]}
    assert all(of_statistics(name) or name == "records" for name in buffers)
    assert not [name for name in bare.simulation.buffers if of_statistics(name)]
    bytes_of = [sum(array.nbytes for array in env.simulation._allocated.values()) for env in (plain, bare)]  # noqa: SLF001 - what is allocated, which nothing public sums
    real = 4 * sum(np.prod(shape_of(plain, "rewards", role)[0]) for role in roles_of(plain))
    assert bytes_of[0] - bytes_of[1] >= real, "at least the running returns"
    layout = layout_of(bare.simulation.config, bare.backend.traits)
    assert {"STATISTICS = false" in generate(layout, module).source for module in layout.modules} == {True}


def test_an_end_writes_one_sector_or_none(make: Make, device: str) -> None:
    """Of CartPole: return, length, two metrics and the last observation, or that alone, 32 bytes together."""
    found = {}
    for mode, kept in itertools.product(("SameStep", "NextStep"), (None, False)):
        env = make("CartPole-v1", 3, device=device, autoreset_mode=mode, statistics=kept)
        found[mode, kept] = getattr(env.simulation.buffers.get("records"), "nbytes", None)
    sector = 3 * 32
    assert list(found.values()) == [sector, sector, sector, None]


# --- what is said of it ---


@each_variant
def test_what_is_not_kept_cannot_be_had(make: Make, variant: Variant, place: Place) -> None:
    plain, bare = both(make, variant, 2, place, autoreset_mode="SameStep")
    assert (plain.keeps_statistics, bare.keeps_statistics) == (True, False)
    for name in KEPT:
        assert hasattr(plain, name)
        match = f"no {name}, as it was made with statistics=False; make it without that"
        with pytest.raises(AttributeError, match=match):
            getattr(bare, name)
    with bare.live_metrics() as so_far:
        assert so_far is None
    storage = storage_place(place)
    for name in KEPT[:2]:
        out = Step(**{name: join_actions(bare, {r: np.zeros(shape_of(plain, name, r)[0]) for r in roles_of(bare)})})
        actions = place_actions(bare, draw_actions(bare, 1)[0], storage)
        match = rf"out\.{name} is written by environments that were not made with statistics=False"
        assert_refused(bare, functools.partial(bare.step, actions, out=out), ValueError, match)


@each_variant
def test_states_of_one_kind_do_not_suit_the_other(make: Make, variant: Variant, device: str) -> None:
    plain, bare = both(make, variant, 2, Place(device, "numpy"))
    for env, other, here in ((plain, bare, "with statistics"), (bare, plain, "with statistics=False")):
        match = f"and this one was made {here}; make both alike"
        assert_refused(env, functools.partial(env.set_state, other.get_state()), ValueError, match)


@each_variant
def test_states_and_pickles(make: Make, variant: Variant, device: str, mode: str) -> None:
    """They go on where the environment was, and a pickle is without statistics too."""
    bare = both(make, variant, 4, Place(device, "numpy"), autoreset_mode=mode)[1]
    steps = draw_actions(bare, 12)
    for actions in steps[:5]:
        bare.step(place_actions(bare, actions))
    twin = make_variant(make, variant, 4, Place(device, "numpy"), autoreset_mode=mode, statistics=False)
    twin.set_state(bare.get_state())
    twin.allow_frozen_steps()
    pickled = pickle.loads(pickle.dumps(bare))
    assert not pickled.keeps_statistics
    for actions in steps[5:]:
        expected = step_outcome(bare, bare.step(place_actions(bare, actions)))
        for env in (twin, pickled):
            assert_same_bits(step_outcome(env, env.step(place_actions(env, actions))), expected)


def test_numbers_are_looked_at_where_the_step_is_known(make: Make, env_id: str, device: str, mode: str) -> None:
    """A step that went wrong is told by its number, which after a restart only the length of the episode tells."""
    arguments: dict[str, Any] = {"device": device, "autoreset_mode": mode, "checking": True, "statistics": False}
    if mode == "SameStep":
        with pytest.raises(ValueError, match=r"checking=True .*leave out statistics=False"):
            make(env_id, 2, **arguments)
        return
    env = make(env_id, 2, max_episode_steps=1, **arguments)
    env.reset(seed=0)
    name = next(iter(env.env_spec.fields))
    env.state[name] = np.nan
    with pytest.raises(gpu_envs.NotFiniteError, match="step 1 of its episode"):
        env.step(place_actions(env, draw_actions(env, 1)[0]))
