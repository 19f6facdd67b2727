"""Rules with arrays and tables do not run for episodes that are over, where an index may be out of range."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import Place, assert_same_bits, numpy_of, to_place

from gpu_envs import EnvSpec, Field, Table, VectorEnv
from gpu_envs.testing import check_environment

RULES = """
FN void reset(State& s, const Params& p, Random& random) { s.at = 1; for (int k = 0; k < 4; ++k) s.seen[k] = 0; }
FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    s.seen[s.at] += 1;
    const real toll = p.toll[s.at];
    s.at += 1 + action;
    return {-toll, s.at >= 4};
}
FN void observe(const State& s, const Params& p, Observation& o) {
    o[0] = float(s.at) + float(p.toll[minimum(s.at, 4) - 1]);
}
FN void allow(const State& s, const Params& p, Mask& mask) { mask[1] = s.seen[s.at] == 0 && p.toll[s.at] < real(2); }
"""
REPLICAS = 70


@pytest.fixture(params=[False, True], ids=["free", "masked"])
def spec(tmp_path: Path, request: pytest.FixtureRequest) -> EnvSpec:
    """A walk over four fields that starts before the first and ends after the last."""
    header = tmp_path / "stroll.cuh"
    header.write_text(RULES if request.param else RULES[: RULES.index("FN void allow")])
    return EnvSpec(
        id="Stroll-v0",
        header=header,
        state={"at": Field("int"), "seen": Field("int", 4)},
        params={},
        tables={"toll": Table([0.0, 1.0, 2.0, 3.0])},
        observation=Box(0, 10, (1,), np.float32),
        action=Discrete(2),
        action_mask=request.param,
        max_episode_steps=50,
    )


@pytest.mark.slow
def test_no_index_is_out_of_range(spec: EnvSpec) -> None:
    """In each autoreset mode, with builds that check bounds."""
    check_environment(spec, devices=["cpu"], steps=20, report=lambda _: None)


def test_steps_agree_with_numpy(spec: EnvSpec, place: Place, mode: str) -> None:
    env = VectorEnv(spec, REPLICAS, device=place.device, output=place.output, autoreset_mode=mode)
    env.allow_frozen_steps() if mode == "Disabled" else None
    env.reset(seed=0)
    rng, toll = np.random.default_rng(1), np.arange(4)
    at, seen, over = np.ones(REPLICAS, int), np.zeros((REPLICAS, 4), int), np.zeros(REPLICAS, bool)
    for _ in range(12):
        actions = rng.integers(0, 2, REPLICAS)
        _, rewards, terminations, _, infos = env.step(to_place(actions, place))
        expected = np.where(over, 0, -toll[np.minimum(at, 3)]).astype(np.float32)
        seen[np.flatnonzero(~over), at[~over]] += 1
        at = np.where(over, at, at + 1 + actions)
        ended = at >= 4
        assert_same_bits(numpy_of(rewards), expected)
        assert (numpy_of(terminations) == (ended & ~over if mode == "NextStep" else ended)).all()
        begins = over if mode == "NextStep" else ended & (mode == "SameStep")
        at, seen = np.where(begins, 1, at), np.where(begins[:, None], 0, seen)
        over = ended & ~begins
        assert (numpy_of(env.state["at"]) == at).all()
        assert (numpy_of(env.state["seen"]) == seen).all()
        if spec.action_mask:
            inside = np.minimum(at, 3)
            possible = over | ((seen[np.arange(REPLICAS), inside] == 0) & (toll[inside] < 2))
            assert (numpy_of(infos["action_mask"]) == np.stack([np.ones(REPLICAS), possible], 1)).all()
