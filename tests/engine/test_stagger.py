"""Staggered episodes are cut short by the time limit, and nothing else of them changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import assert_same_bits, numpy_of
from registered import progress

import gpu_envs
from gpu_envs import EnvSpec, Field, Role, Table, TeamSpec
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.codegen import AUTORESET_MODES
from gpu_envs.engine.by_role import ByRole

LIMIT = 12
COUNT = 70  # more than a tile

ONE = """\
FN void reset(State& s, const Params&, Random& random) {
    s.clock = 0;
    s.x     = random.uniform(real(0), real(1));
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    s.x += p.tide(s.clock) * real(action) + random.uniform(real(0), real(1));
    s.clock += 1;
    return {s.x, false};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = float(s.clock);
    observation[1] = float(s.x);
}
"""

TEAM = """\
FN void reset(World& w, const Params&, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) w.x[i] = team.random(RESET, i).uniform(0, 1);
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] += p.tide(w.elapsed - 1) * real(actions[i]) + team.random(STEP, i, w.elapsed).uniform(0, 1);
        w.reward[i] = team.last_step ? real(100) : w.x[i];
    }
}

FN void look(World&, const Params&, Team&) {}

FN void observe(const World& w, const Params&, int i, const Row& row) {
    row[0] = float(w.elapsed);
    row[1] = float(w.x[i]);
}
"""
SEEN = Box(-np.inf, np.inf, (2,), np.float32)
TIDE = {"tide": Table(np.linspace(-1, 1, LIMIT))}


@pytest.fixture(params=["one", "team", "spread"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An environment whose rules index a table by the time."""
    common: dict[str, Any] = {"params": {}, "tables": TIDE, "max_episode_steps": LIMIT, "header": tmp_path / "tide.cuh"}
    (tmp_path / "tide.cuh").write_text(ONE if request.param == "one" else TEAM)
    if request.param == "one":
        yield EnvSpec(
            id="Tide-v0", state={"clock": Field("int"), "x": Field()}, observation=SEEN, action=Discrete(2), **common
        )
        return
    count = 3 if request.param == "team" else 1100  # few replicas of many agents: each phase is a launch
    roles = (Role("boat", count, SEEN, Discrete(2)), Role("buoy", 1, SEEN, Discrete(2)))
    yield TeamSpec(id="Tides-v0", roles=roles, state={"x": Field()}, **common)


def made(spec: Any, device: str, **options: Any) -> Any:
    kind: Any = gpu_envs.MultiAgentEnv if spec.has_team else gpu_envs.VectorEnv
    few = spec.has_team and sum(role.count for role in spec.roles) > 1000
    return kind(spec, 3 if few else COUNT, **{"device": device, "checking": False} | options)


def actions_of(env: Any, count: int) -> list[Any]:
    by_role, rng = ByRole(env), np.random.default_rng(5)
    drawn = ({n: rng.integers(0, 2, r.rows(env.num_envs)) for n, r in by_role.roles.items()} for _ in range(count))
    return [by_role.join(each) for each in drawn]


def flat(value: Any) -> list[np.ndarray]:
    return [np.array(to_numpy(v)) for v in (value.values() if isinstance(value, dict) else [value])]


def offsets_of(env: Any) -> np.ndarray:
    return np.array(numpy_of(env.get_state()["episode"]["offset"]))


def test_what_happens_is_what_happens_without(spec: Any, device: str) -> None:
    """State, observations, rewards and the clock that rules read, up to each replica's cut."""
    plain, env = (made(spec, device, autoreset_mode="Disabled") for _ in range(2))
    for one in (plain, env):
        one.reset(seed=1)
        one.allow_frozen_steps()
    assert_same_bits(flat(env.stagger(seed=3)), flat(plain.observe()))
    assert not numpy_of(env.elapsed).any()
    offsets = offsets_of(env)
    assert offsets.min() >= 0
    assert offsets.max() < LIMIT
    assert len(set(offsets)) > min(3, env.num_envs) - 1
    for t, actions in enumerate(actions_of(env, LIMIT), start=1):
        expected, found = (one.step(actions) for one in (plain, env))
        running = t <= LIMIT - offsets
        for part in range(2):
            for a, b in zip(flat(expected[part]), flat(found[part]), strict=True):
                assert_same_bits(a[running], b[running])
        for a in flat(found[3]):
            assert (a.reshape(env.num_envs, -1) == (t >= LIMIT - offsets)[:, None]).all()
        assert numpy_of(env.elapsed).tolist() == np.minimum(t, LIMIT - offsets).tolist()
    for length in flat(env.episode_length):
        assert (length.reshape(env.num_envs, -1) == (LIMIT - offsets)[:, None]).all()


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_later_episodes_are_whole(spec: Any, device: str, mode: str) -> None:
    env = made(spec, device, autoreset_mode=mode)
    env.reset(seed=1)
    env.stagger(seed=3)
    lengths: list[list[int]] = [[] for _ in range(env.num_envs)]
    first = LIMIT - offsets_of(env)
    for actions in actions_of(env, 3 * LIMIT + 3):
        results = env.step(actions)
        over = flat(results[3])[0].reshape(env.num_envs, -1)[:, 0]
        for i in np.flatnonzero(over):
            lengths[i].append(int(flat(env.episode_length)[0].reshape(env.num_envs, -1)[i, 0]))
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
    for replica, own in enumerate(lengths):
        assert own[0] == first[replica]
        assert set(own[1:]) == {LIMIT}
    assert not offsets_of(env).any()
    assert not numpy_of(env.simulation.buffers["staggered"]).any()


def test_a_reset_begins_whole_episodes(spec: Any, device: str) -> None:
    env = made(spec, device)
    env.reset(seed=1)
    env.stagger(seed=3)
    before = offsets_of(env)
    chosen = np.arange(env.num_envs) % 2 == 0
    env.reset(options={"reset_mask": chosen})
    assert offsets_of(env).tolist() == np.where(chosen, 0, before).tolist()
    assert numpy_of(env.simulation.buffers["staggered"]).tolist() == [np.count_nonzero(before[~chosen])]
    env.reset(seed=2)
    assert not offsets_of(env).any()


def test_a_snapshot_holds_the_cuts(spec: Any, device: str) -> None:
    """One of a version that knew none has none."""
    env, other = (made(spec, device, autoreset_mode="SameStep") for _ in range(2))
    env.reset(seed=1)
    env.stagger(seed=3)
    actions = actions_of(env, 2 * LIMIT)
    for each in actions[:2]:
        env.step(each)
    saved = env.get_state()
    other.set_state(saved)
    for each in actions[2:]:
        for a, b in zip(env.step(each)[:4], other.step(each)[:4], strict=True):
            assert_same_bits(flat(a), flat(b))
    env.set_state(saved)
    del saved["episode"]["offset"]
    env.set_state(saved)
    assert not offsets_of(env).any()
    cut = 0
    for each in actions[2 : LIMIT - 1]:
        cut += int(flat(env.step(each)[3])[0].sum())
    assert not cut


def test_a_rollout_is_cut_as_steps_are(spec: Any, device: str) -> None:
    single, fused = (made(spec, device, autoreset_mode="SameStep") for _ in range(2))
    for env in (single, fused):
        env.reset(seed=1)
        env.stagger(seed=3)
    result = fused.rollout(2 * LIMIT, per_step=True)
    by_role = ByRole(single)
    drawn = {role: numpy_of(values) for role, values in by_role.split(result.actions).items()}
    for t in range(2 * LIMIT):
        found = single.step(by_role.join({role: values[t] for role, values in drawn.items()}))
        for name, part in zip(("observations", "rewards", "terminations", "truncations"), found, strict=False):
            for role, values in by_role.split(getattr(result, name)).items():
                assert_same_bits(numpy_of(values)[t], numpy_of(by_role.split(part)[role]), f"{name}, step {t}")
    assert_same_bits(progress(single), progress(fused))
    assert not numpy_of(fused.simulation.buffers["staggered"]).any()
