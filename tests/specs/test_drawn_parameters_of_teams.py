"""Parameters of teams drawn from distributions at the start of an episode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODES, Place, assert_same_bits, numpy_of
from small_envs import chase

from gpu_envs import MultiAgentEnv, Param, Uniform

STEPS = 30


def acted(env: Any, count: int) -> list[Any]:
    """Observations, rewards and current parameters, with constant actions."""
    actions = {"hunter": np.full((env.num_envs, 1), 2), "prey": np.full((env.num_envs, 3), 2)}
    found = []
    for _ in range(count):
        seen, rewards, *_ = env.step(actions)
        params = {name: np.array(numpy_of(env.params[name])) for name in ("pace", "bonus")}
        found.append(
            [{role: np.array(numpy_of(a)) for role, a in given.items()} for given in (seen, rewards)] + [params]
        )
    return found


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    """A hunt with a drawn pace and a drawn bonus for each agent."""
    params = {
        "num_hunters": Param(1, fixed=True),
        "num_prey": Param(3, fixed=True),
        "pace": Param(Uniform(0.5, 1.5), minimum=0),
        "bonus": Param("normal:0:1", shape=(lambda p: 2 * (p["num_hunters"] + p["num_prey"]) + 1,)),
        "kept": Param(1.0),
    }
    step = """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = clip(w.x[i] + p.pace * real(actions[i] - 1), real(0), real(10));
        w.reward[i] = p.bonus[2 * i] + p.kept;
    }
    FOR_EACH_AGENT(i, 1) w.terminated = w.x[0] >= real(10);"""
    reset = """FOR_EACH_AGENT(i, AGENTS) {
        w.x[i] = team.random(RESET, i).uniform(0, 2) + p.bonus[2 * i + 1];
        if (i == 0) w.caught = 0;
    }"""
    return chase(tmp_path, more={"params": params}, step=step, reset=reset)


@pytest.mark.parametrize("mode", MODES)
def test_teams_draw_for_each_replica_and_episode(spec: Any, place: Place, mode: str) -> None:
    """A replica gets the same draws in any batch, in a slice of it, and after a snapshot."""
    given: Any = {"autoreset_mode": mode, "max_episode_steps": 11}
    whole = MultiAgentEnv(spec, 5, device=place.device, output=place.output, **given)
    single = [MultiAgentEnv(spec, 1, device="cpu", first_replica=i, **given) for i in range(5)]
    for env in (whole, *single):
        env.reset(seed=4)
        env.allow_frozen_steps()
    first = np.array(numpy_of(whole.params["bonus"]))
    assert first.shape == (5, 9)
    assert len(np.unique(first)) == 45
    kept = whole.get_state()
    rows = acted(whole, STEPS)
    alone = [acted(env, STEPS) for env in single]
    for t, row in enumerate(rows):
        for part in range(3):
            for name, values in row[part].items():
                assert_same_bits(values, np.concatenate([each[t][part][name] for each in alone]))
    assert (rows[-1][2]["bonus"] == first).all() == (mode == "Disabled")
    whole.set_state(kept)
    assert_same_bits(acted(whole, STEPS), rows)
