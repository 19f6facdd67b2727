"""Teams with array fields, tables and action masks, compared with their rules in NumPy."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from carriers import CARRIERS, FIRST_CHOICE, HOLDS, PIT, Replica, path
from gymnasium.spaces import Box, Discrete, MultiBinary
from harness import (
    HAS_CUDA,
    Array,
    assert_all_same,
    assert_same_bits,
    numpy_of,
)
from nvrtc import H200, check_program, nvrtc_missing

import gpu_envs
from gpu_envs import MultiAgentEnv, Step, TeamSpec
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, SimulationConfig, TeamLayout, generate, layout_of

REPLICAS, STEPS = 5, 40


class Variant(NamedTuple):
    """A size of the team, and its schedule on a GPU."""

    params: dict[str, Any]
    schedule: str
    writing: str
    replicas: int = 1
    in_place: bool = False


SMALL = {
    "several": Variant({}, "BLOCK", "BY_BLOCK", 32),
    "alone": Variant({"carriers": 1, "diggers": 1, "cells": 2, "lines": 2}, "BLOCK", "BY_BLOCK", 128),
    "block": Variant({"carriers": 60, "diggers": 20}, "BLOCK", "BY_BLOCK"),
    "warps": Variant({"carriers": 50, "diggers": 20, "cells": 40, "lines": 50, "goal": 40}, "BLOCK", "BY_WARP"),
    "wide": Variant({"cells": 140, "lines": 150}, "BLOCK", "BY_WARP"),
    "directly": Variant({"cells": 2800, "lines": 2800}, "BLOCK", "DIRECTLY"),
    "in place": Variant({"lines": 300_000}, "BLOCK", "BY_BLOCK", in_place=True),
}
"""Variants whose rules in NumPy are fast enough."""

VARIANTS = {
    **SMALL,
    "spread": Variant({"carriers": 2000, "diggers": 100, "goal": 2000}, "SPREAD", "DIRECTLY"),
    "spread wide": Variant({"carriers": 2000, "diggers": 100, "cells": 150, "lines": 150}, "SPREAD", "DIRECTLY"),
    "spread few": Variant({"cells": 60_000, "lines": 60_000}, "SPREAD", "DIRECTLY"),
}

each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
each_small_variant = pytest.mark.parametrize("variant", SMALL.values(), ids=SMALL)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")


def make_team(
    params: Mapping[str, Any] | None = None, count: int = REPLICAS, spec: TeamSpec = CARRIERS, **kwargs: Any
) -> MultiAgentEnv:
    """Makes a team that is not registered."""
    return MultiAgentEnv(spec, count, **{"device": "cpu", **kwargs, **(params or {})})


def layout(
    params: Mapping[str, Any], mode: str = "SameStep", precision: str = "float32", count: int = 100
) -> TeamLayout:
    """The layout for a large GPU."""
    found = layout_of(SimulationConfig(CARRIERS, count, mode, precision, 13, CARRIERS.check_params(params, 1)), H200)
    assert isinstance(found, TeamLayout)
    return found


def draw(
    env: MultiAgentEnv, rng: np.random.Generator, masks: Mapping[str, Array] | None = None
) -> dict[str, np.ndarray]:
    """Random actions, among the possible ones if masks are given."""
    shape = (env.num_envs, env.counts["carrier"]), (env.num_envs, env.counts["digger"])
    allowed = {
        role: np.ones((*s, 5)) if masks is None else numpy_of(masks[role])
        for role, s in zip(env.roles, shape, strict=True)
    }

    def chosen(weights: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(rng.random(weights.shape) * weights, axis=-1))

    diggers = allowed["digger"]
    return {
        "carrier": chosen(allowed["carrier"]) + FIRST_CHOICE,
        "digger": np.stack([chosen(diggers[..., :3]), chosen(diggers[..., 3:])], axis=-1),
    }


def agents_of(env: MultiAgentEnv, by_role: Mapping[str, Array], replica: int) -> list[np.ndarray]:
    """Each agent's part of the roles' arrays in a replica."""
    return [row for role in env.roles for row in numpy_of(by_role[role][replica])]


def fields_of(env: MultiAgentEnv) -> list[dict[str, np.ndarray]]:
    """A copy of each replica's state."""
    host = {name: numpy_of(array) for name, array in env.state.items()}
    return [{name: np.array(array[k]) for name, array in host.items()} for k in range(env.num_envs)]


def both(actions: Mapping[str, np.ndarray], replica: int) -> np.ndarray:
    """A replica's actions in the form of the rules in NumPy."""
    carriers = actions["carrier"][replica] - FIRST_CHOICE
    return np.concatenate([np.stack([carriers, 0 * carriers], 1), actions["digger"][replica]])


def assert_shown(
    env: MultiAgentEnv, k: int, world: Replica, present: np.ndarray, seen: Any, masks: Any, what: str
) -> None:
    """Checks that a replica's observations and masks match a state."""
    rows, allowed = agents_of(env, seen, k), agents_of(env, masks, k)
    for i in range(world.agents):
        row = world.observe(i) if present[i] else np.zeros_like(rows[i])
        mask = world.allow(i) if present[i] else np.ones_like(allowed[i])
        assert_same_bits(rows[i], row, f"{what}: the row of agent {i} of replica {k}")
        assert_same_bits(allowed[i], mask, f"{what}: the mask of agent {i} of replica {k}")


# --- the rules ---


@pytest.mark.fast_cases(7)
@each_small_variant
@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_steps_agree_with_numpy(variant: Variant, mode: str, device: str) -> None:
    """State, rewards, ends, observations and masks of every step, also with forbidden actions."""
    check_against_numpy(make_team(variant.params, device=device, autoreset_mode=mode), variant.params)


def check_against_numpy(
    env: MultiAgentEnv, given: Mapping[str, Any], real: type[np.floating[Any]] = np.float32
) -> None:
    params, rng = CARRIERS.check_params(given, 1), np.random.default_rng(3)
    mode = env.metadata["autoreset_mode"].value
    seen, infos = env.reset(seed=7)
    everybody = np.ones(env.num_agents, bool)
    ended = np.zeros(env.num_envs, bool)
    counts = np.zeros(3, int)  # ended episodes, agents that left, forbidden choices
    for k, fields in enumerate(fields_of(env)):
        assert_first_state(fields)
        assert_shown(env, k, Replica(params, fields), everybody, seen, infos["action_mask"], "reset")
    for t in range(STEPS if len(given) < 3 else STEPS // 2):
        before, actions = fields_of(env), draw(env, rng, infos["action_mask"] if t % 2 else None)
        seen, rewards, terminations, truncations, infos = env.step(actions)
        after = fields_of(env)
        for k, fields in enumerate(before):
            now, what = Replica(params, after[k]), f"step {t} of replica {k}"
            if ended[k]:  # restarted in NextStep
                assert_first_state(after[k])
                assert_shown(env, k, now, everybody, seen, infos["action_mask"], what)
                ended[k] = False
                continue
            world, present = Replica(params, fields, real), np.array(fields["in_game"])
            fields["elapsed"] += 1
            gained, terminated = world.step(both(actions, k), int(fields["elapsed"]))
            out, limit = ~fields["in_game"], fields["elapsed"] >= env.max_episode_steps
            ended[k] = limit or terminated
            counts += (
                ended[k],
                (present & out).sum(),
                sum((m == 0).sum() for m in agents_of(env, infos["action_mask"], k)),
            )
            assert_same_bits(np.array(agents_of(env, rewards, k)), gained, what)
            assert_same_bits(np.array(agents_of(env, terminations, k)), out | terminated, what)
            assert_same_bits(np.array(agents_of(env, truncations, k)), ~out & limit, what)
            if ended[k] and mode == "SameStep":
                for i, row in enumerate(agents_of(env, infos["final_obs"], k)):
                    assert_same_bits(row, world.observe(i) if present[i] else np.zeros_like(row), what)
                assert_first_state(after[k])
                world, present = now, everybody
            else:
                assert_same_bits(after[k], fields, what)
            assert_shown(env, k, world, present, seen, infos["action_mask"], what)
        if mode == "SameStep":
            ended[:] = False
        if mode == "Disabled" and ended.any():
            seen, infos = env.reset(options={"reset_mask": ended})
            for k in np.flatnonzero(ended).tolist():
                fields = fields_of(env)[k]
                assert_first_state(fields)
                assert_shown(env, k, Replica(params, fields), everybody, seen, infos["action_mask"], f"reset {k}")
            ended[:] = False
    pits = path(env.state["board"].shape[1])[:, PIT].any()
    assert (counts > (0, 0 if pits else -1, 0)).all()


def assert_first_state(fields: Mapping[str, np.ndarray]) -> None:
    """Checks the initial state of an episode."""
    assert fields["in_game"].all()
    assert not fields["elapsed"]
    for name, value in {"cargo": 0, "paid": 0, "met": -1, "ledger": -1, "delivered": 0, "dearest": 0}.items():
        assert (fields[name] == value).all(), name
    assert ((fields["board"] >= 0) & (fields["board"] < 3)).all()
    agents, cells = fields["visited"].shape
    assert_same_bits(fields["visited"], fields["place"][:, None] == np.arange(cells))
    assert (fields["place"] % 7 != 3).all()
    assert agents == len(fields["place"])


@needs_cuda
@each_variant
@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_both_devices_give_the_same_bits(variant: Variant, mode: str) -> None:
    """All results and the state, in every schedule."""
    compare_devices(variant, mode)


@needs_cuda
@pytest.mark.parametrize("block_size", [32, 64, 1024])
def test_block_sizes_change_nothing(block_size: int) -> None:
    compare_devices(VARIANTS["several"], "SameStep", block_size=block_size)
    compare_devices(VARIANTS["warps"], "SameStep", block_size=block_size)


@needs_cuda
def test_both_devices_give_the_same_bits_in_float64() -> None:
    """State and masks; observations are float32."""
    compare_devices(VARIANTS["several"], "NextStep", precision="float64")


def compare_devices(variant: Variant, mode: str, block_size: int | None = None, **kwargs: Any) -> None:
    many = 3 if variant.schedule == "SPREAD" else 301
    host = make_team(variant.params, many, autoreset_mode=mode, **kwargs)
    card = make_team(variant.params, many, device="cuda", autoreset_mode=mode, block_size=block_size, **kwargs)
    rng, steps = np.random.default_rng(5), 8 if variant.schedule == "SPREAD" else 30
    firsts = [env.reset(seed=9) for env in (host, card)]
    assert_all_same(firsts)
    masks = firsts[0][1]["action_mask"]
    for t in range(steps):
        actions = draw(host, rng, masks if t % 2 else None)
        results = [env.step(actions) for env in (host, card)]
        assert_all_same(results, f"step {t}")
        masks = results[0][4]["action_mask"]
        ended = numpy_of(host.simulation.buffers["finished"])
        if mode == "Disabled" and ended.any():
            assert_all_same(env.reset(options={"reset_mask": ended}) for env in (host, card))
    assert_all_same(env.get_state() for env in (host, card))


# --- schedules ---


@each_variant
def test_each_variant_has_its_schedule(variant: Variant) -> None:
    schedule = layout(variant.params).schedule
    assert (schedule.kind, schedule.writing, schedule.replicas) == (variant.schedule, variant.writing, variant.replicas)
    assert schedule.shared_bytes <= H200.shared_bytes
    grid = generate(layout(variant.params), "multi_agent").grid
    assert grid is not None
    assert (grid.phased, grid.cooperative) == (variant.schedule == "SPREAD", False)
    assert ("place" in schedule.offsets) == (variant.schedule == "BLOCK")
    assert ("ledger" in schedule.offsets) == (variant.schedule == "BLOCK" and not variant.in_place)


needs_nvrtc = pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing())


@pytest.mark.fast_cases(1)
@needs_nvrtc
@each_variant
def test_nvrtc_compiles_every_schedule(variant: Variant) -> None:
    check_program(generate(layout(variant.params), "multi_agent"), "sm_90a", "float32")


# --- state ---


def test_rules_read_assigned_values(device: str) -> None:
    """An assigned state is observed and stepped as in NumPy."""
    env, rng = make_team(device=device), np.random.default_rng(2)
    env.reset(seed=0)
    env.state["board"] = rng.integers(0, 6, (REPLICAS, 6))
    env.state["cargo"] = rng.integers(0, 3, (REPLICAS, 6, HOLDS))
    env.state["visited"] = rng.integers(0, 2, (REPLICAS, 6, 6))
    env.state["paid"] = rng.random((REPLICAS, 6, 2), np.float32)
    env.set_attr("met", rng.integers(-1, 6, (REPLICAS, 6, 2)))
    env.set_attr("ledger", 3)
    kinds = {"cargo": "uint8", "met": "int8", "visited": "bool", "board": "int32", "ledger": "int8"}
    assert {name: str(numpy_of(env.state[name]).dtype) for name in kinds} == kinds
    seen, params = env.observe(), CARRIERS.check_params({}, 1)
    before = fields_of(env)
    masks = env.action_mask
    for k, fields in enumerate(before):
        assert_shown(env, k, Replica(params, fields), np.ones(6, bool), seen, masks, "assigned")
    assert env.get_attr("board") == tuple(fields["board"].tolist() for fields in before)
    assert env.get_attr("met")[2] == before[2]["met"].tolist()
    assert env.get_attr("ledger") == ([3] * 8,) * REPLICAS
    actions = draw(env, rng)
    env.step(actions)
    for k, (fields, now) in enumerate(zip(before, fields_of(env), strict=True)):
        fields["elapsed"] += 1
        Replica(params, fields).step(both(actions, k), 1)
        assert_same_bits(now, fields)
    with pytest.raises(ValueError, match=r"'cargo' got values of shape \(5, 6\); expected \(5, 6, 3\)"):
        env.state["cargo"] = np.zeros((REPLICAS, 6))


def test_tables_follow_parameters(device: str) -> None:
    """Another path length gives another table, which the rules read in the precision of the state."""
    for precision in PRECISIONS:
        env = make_team({"cells": 11, "lines": 11}, device=device, precision=precision, autoreset_mode="SameStep")
        check_against_numpy(env, {"cells": 11, "lines": 11}, np.float32 if precision == "float32" else np.float64)


# --- masks ---


def unmasked(**changes: Any) -> TeamSpec:
    """The same team without masks."""
    return dataclasses.replace(CARRIERS, **{"action_mask": False, **changes})


def test_masks_do_not_change_the_steps(device: str) -> None:
    """If the spec does not request masks, ``allow`` is not called."""
    masked, env = make_team(device=device), make_team(spec=unmasked(), device=device)
    assert env.action_mask is None
    (seen, infos), (expected, _) = env.reset(seed=3), masked.reset(seed=3)
    assert_same_bits(seen, expected)
    assert set(infos) == {"alive"}
    actions = draw(env, np.random.default_rng(0))
    step = env.step(actions)
    assert_same_bits(step[:4], masked.step(actions)[:4])
    assert set(step[4]) == {"alive"}
    with pytest.raises(
        ValueError, match=r"out\.action_mask is written by environments whose spec has action_mask=True"
    ):
        env.step(actions, out=Step(action_mask={"carrier": np.zeros((5, 4, 5), np.int8)}))
    spec = unmasked()
    config = SimulationConfig(spec, 5, "SameStep", "float32", 13, spec.check_params({}, 1))
    source = generate(layout_of(config, H200), "multi_agent").source
    assert "mask_actions(const World" not in source


def test_masks_of_multi_discrete_actions() -> None:
    roles = tuple(dataclasses.replace(role, action=Box(-1, 1, (2,), np.float32)) for role in CARRIERS.roles)
    with pytest.raises(
        ValueError, match=r"Carriers-v0: action_mask=True, but the action space of the role '\w+' is Box"
    ):
        make_team(spec=dataclasses.replace(CARRIERS, roles=roles))


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (2,), np.float32), MultiBinary(3)], ids=lambda space: type(space).__name__
)
def test_kinds_of_actions_are_not_mixed(space: gymnasium.Space[Any]) -> None:
    """The message precedes errors in the rules."""
    roles = (CARRIERS.roles[0], dataclasses.replace(CARRIERS.roles[1], action=space))
    message = r"must be Discrete or MultiDiscrete, or all of them Box; digger has (Box|MultiBinary)"
    with pytest.raises(ValueError, match=message):
        make_team(spec=dataclasses.replace(CARRIERS, roles=roles, action_mask=False, header="no/such/file.cuh"))


def test_missing_allow(tmp_path: Path) -> None:
    header = tmp_path / "carriers.cuh"
    text = Path(str(CARRIERS.header)).read_text().replace("allow(", "permit(")
    header.write_text(f"// allow(...) is to follow\n{text}")
    with pytest.raises(ValueError, match=r"Carriers-v0: action_mask=True, but .*carriers\.cuh has no function allow"):
        make_team(spec=dataclasses.replace(CARRIERS, header=header))


@pytest.mark.parametrize(
    "space",
    [Discrete(3), Box(0, 1, (2, 2), np.float32), Box(0, 1, (2,), np.float64), Box(0, 255, (4,), np.uint8)],
    ids=str,
)
def test_observations_are_float32_boxes_of_one_dimension(space: gymnasium.Space[Any]) -> None:
    roles = (CARRIERS.roles[0], dataclasses.replace(CARRIERS.roles[1], observation=space))
    with pytest.raises(
        ValueError, match=r"the role 'digger': observation is .*; a team needs one-dimensional float32 Boxes"
    ):
        make_team(spec=dataclasses.replace(CARRIERS, roles=roles))


# --- PettingZoo ---


@pytest.mark.usefixtures("temporary_registry")
def test_each_agent_gets_its_mask(device: str) -> None:
    """The agents of one replica and their spaces, whose samples are possible actions, match ``MultiAgentEnv``."""
    pettingzoo = pytest.importorskip("gpu_envs.adapters.pettingzoo", exc_type=ImportError)
    gpu_envs.register(CARRIERS)
    env = pettingzoo.parallel_env("Carriers-v0", device=device)
    batch = make_team(count=1, device=device, autoreset_mode="Disabled")
    _, infos = env.reset(seed=6)
    masks = batch.reset(seed=6)[1]["action_mask"]
    for name in env.possible_agents:
        env.action_space(name).seed(1)
    while env.agents:
        names = list(env.agents)
        actions = {}
        for name in names:
            mask = infos[name]["action_mask"]
            role, _, number = name.partition("_")
            actions[name] = env.action_space(name).sample(mask=mask)
            if role == "digger":
                assert [len(part) for part in mask] == [3, 2]
                assert mask[1][actions[name][1]]
                mask = np.concatenate(mask)
            assert_same_bits(mask, masks[role][0, int(number)])
            assert mask[np.atleast_1d(actions[name])[0] - (FIRST_CHOICE if role == "carrier" else 0)]
        everybody = {
            "carrier": np.array([[actions.get(f"carrier_{i}", FIRST_CHOICE) for i in range(4)]]),
            "digger": np.array([[actions.get(f"digger_{i}", [0, 0]) for i in range(2)]]),
        }
        *_, infos = env.step(actions)
        masks = batch.step(everybody)[4]["action_mask"]
        assert list(infos) == names
    assert env.state_space.contains(env.state())


def test_a_reset_with_arrays(device: str) -> None:
    spec, rng = dataclasses.replace(CARRIERS, start_fields=("board", "cargo", "visited")), np.random.default_rng(4)
    env = make_team(spec=spec, device=device)
    cargo, visited = rng.integers(0, 9, (REPLICAS, 6, HOLDS)), rng.random((6, 6)) < 0.5
    given = {"board": rng.integers(0, 9, 6), "cargo": cargo, "visited": visited}
    seen, infos = env.reset(seed=1, options=given)
    params = CARRIERS.check_params({}, 1)
    for k, fields in enumerate(fields_of(env)):
        np.testing.assert_array_equal(fields["board"], given["board"])
        np.testing.assert_array_equal(fields["cargo"], cargo[k])
        np.testing.assert_array_equal(fields["visited"], visited)
        assert_shown(env, k, Replica(params, fields), np.ones(6, bool), seen, infos["action_mask"], "laid out")
