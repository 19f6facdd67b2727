"""Environments made with ``statistics=False``: no statistics, and all other results are the same bit for bit."""

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

STATISTICS = ("episode_return", "episode_length", "episode_metrics")

BUFFERS = (*STATISTICS, "running_return", "left_at", "last_metrics", "totals")
"""Names of the buffers for statistics only."""


def make_both(make: Make, variant: Variant, count: int, place: Place, **kwargs: Any) -> tuple[Any, Any]:
    """The same environment with and without statistics."""
    plain, bare = (make_variant(make, variant, count, place, statistics=value, **kwargs) for value in (None, False))
    for env in (plain, bare):
        env.reset(seed=3)
        env.stagger(seed=4)
        env.allow_frozen_steps()
    return plain, bare


def is_for_statistics(name: str) -> bool:
    """Whether a buffer is for statistics only."""
    return name.removeprefix("state.").removeprefix("_").partition(".")[0] in BUFFERS


def other_buffers(env: Any) -> dict[str, np.ndarray]:
    """All buffers except those for statistics, and except ``records``, which mixes statistics and other results."""
    return {
        name: array for name, array in all_buffers(env).items() if not is_for_statistics(name) and name != "records"
    }


@pytest.mark.fast_cases(14)
@each_variant
def test_other_results_are_the_same(make: Make, variant: Variant, place: Place, mode: str) -> None:
    """Kernels get null pointers for the missing buffers, so that an access would crash the process."""
    plain, bare = make_both(make, variant, 9, place, autoreset_mode=mode)
    ends = 0
    for t, actions in enumerate(draw_actions(plain, 30)):
        results = bare.step(place_actions(bare, actions, place))
        expected = plain.step(place_actions(plain, actions, place))
        assert_same_bits(step_outcome(bare, results), step_outcome(plain, expected), f"step {t}")
        assert not {"episode", "_episode"} & results[4].keys()
        over = numpy_of(plain.simulation.buffers["finished"])
        ends += int(over.sum())
        if t % 7 == 6:
            mask = np.arange(9) % 3 == t % 3
            for env in (plain, bare):
                env.reset(seed=(None, 100)[t % 2], options={"reset_mask": mask})
    assert ends
    assert_same_bits(other_buffers(bare), other_buffers(plain))


@pytest.mark.parametrize("per_step", [False, True])
def test_rollouts_are_the_same(make: Make, env_id: str, place: Place, per_step: bool) -> None:
    plain, bare = make_both(make, Variant(env_id, {}), 9, place, autoreset_mode="SameStep")
    results, expected = bare.rollout(30, per_step=per_step), plain.rollout(30, per_step=per_step)
    assert (results.episode_returns, results.episode_lengths) == (None, None)
    present = {name: values for name, values in results._asdict().items() if values is not None}
    assert len(present) >= 5
    assert_same_bits(present, {name: getattr(expected, name) for name in present})
    assert numpy_of(results.episodes).sum()
    assert_same_bits(other_buffers(bare), other_buffers(plain))


@each_variant
def test_statistics_have_no_memory(make: Make, variant: Variant, device: str, mode: str) -> None:
    """No buffers for returns, lengths and metrics, so that a replica needs less memory."""
    plain, bare = make_both(make, variant, 2, Place(device, "numpy"), autoreset_mode=mode)
    buffers = plain.simulation.buffers.keys() - bare.simulation.buffers.keys()
    assert {name.partition(".")[0] for name in buffers} >= {"running_return", *STATISTICS[:2]}
    assert all(is_for_statistics(name) or name == "records" for name in buffers)
    assert not [name for name in bare.simulation.buffers if is_for_statistics(name)]
    bytes_of = [sum(array.nbytes for array in env.simulation._allocated.values()) for env in (plain, bare)]  # noqa: SLF001 - no public attribute has the allocated memory
    real = 4 * sum(np.prod(shape_of(plain, "rewards", role)[0]) for role in roles_of(plain))
    assert bytes_of[0] - bytes_of[1] >= real, "at least the running returns"
    layout = layout_of(bare.simulation.config, bare.backend.traits)
    assert {"STATISTICS = false" in generate(layout, module).source for module in layout.modules} == {True}


def test_the_end_of_an_episode_writes_at_most_one_sector(make: Make, device: str) -> None:
    """CartPole's return, length, two metrics and final observation are 32 bytes, a sector of GPU memory."""
    sizes = {}
    for mode, statistics in itertools.product(("SameStep", "NextStep"), (None, False)):
        env = make("CartPole-v1", 3, device=device, autoreset_mode=mode, statistics=statistics)
        sizes[mode, statistics] = getattr(env.simulation.buffers.get("records"), "nbytes", None)
    sectors = 3 * 32
    assert list(sizes.values()) == [sectors, sectors, sectors, None]


# --- messages ---


@each_variant
def test_missing_statistics_raise_errors(make: Make, variant: Variant, place: Place) -> None:
    plain, bare = make_both(make, variant, 2, place, autoreset_mode="SameStep")
    assert (plain.keeps_statistics, bare.keeps_statistics) == (True, False)
    for name in STATISTICS:
        assert hasattr(plain, name)
        match = f"the environment has no {name}, because it was made with statistics=False"
        with pytest.raises(AttributeError, match=match):
            getattr(bare, name)
    with bare.live_metrics() as metrics:
        assert metrics is None
    storage = storage_place(place)
    for name in STATISTICS[:2]:
        out = Step(**{name: join_actions(bare, {r: np.zeros(shape_of(plain, name, r)[0]) for r in roles_of(bare)})})
        actions = place_actions(bare, draw_actions(bare, 1)[0], storage)
        match = rf"out\.{name} is written by environments without statistics=False"
        assert_refused(bare, functools.partial(bare.step, actions, out=out), ValueError, match)


@each_variant
def test_snapshots_require_the_same_statistics_option(make: Make, variant: Variant, device: str) -> None:
    plain, bare = make_both(make, variant, 2, Place(device, "numpy"))
    for env, other, here in ((plain, bare, "with statistics"), (bare, plain, "with statistics=False")):
        match = f"and this environment was made {here}: make both with the same value of statistics"
        assert_refused(env, functools.partial(env.set_state, other.get_state()), ValueError, match)


@each_variant
def test_snapshots_and_pickles(make: Make, variant: Variant, device: str, mode: str) -> None:
    """They continue the environment, and an unpickled environment has no statistics either."""
    bare = make_both(make, variant, 4, Place(device, "numpy"), autoreset_mode=mode)[1]
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


def test_checking_requires_statistics_in_same_step_mode(make: Make, env_id: str, device: str, mode: str) -> None:
    """The message has the step, which after the reset within a step only the episode's recorded length tells."""
    arguments: dict[str, Any] = {"device": device, "autoreset_mode": mode, "checking": True, "statistics": False}
    if mode == "SameStep":
        with pytest.raises(ValueError, match=r"checking=True .*statistics=False does not record: leave out"):
            make(env_id, 2, **arguments)
        return
    env = make(env_id, 2, max_episode_steps=1, **arguments)
    env.reset(seed=0)
    name = next(iter(env.env_spec.fields))
    if env.env_spec.typed_state[name].type != "real":
        pytest.skip("its state has no reals")
    env.state[name] = np.nan
    with pytest.raises(gpu_envs.NotFiniteError, match="step 1 of its episode"):
        env.step(place_actions(env, draw_actions(env, 1)[0]))
