"""Environments outside the package, named by spec paths, have all features of built-in ones."""

from typing import Any

import numpy as np
import pytest
from custom import ALL, COURIER, CRANE, FORAGERS, GREENHOUSE, REGATTA, TEAMS, WARP_TAG, draw_possible_actions
from harness import DEVICES, HAS_CUDA, Make, assert_all_same, assert_same_bits
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing, programs
from trainers import run_of

import gpu_envs
import gpu_envs.testing
from gpu_envs.backend.arrays import to_numpy

each = pytest.mark.parametrize("id", ALL)

REPLICAS, STEPS = 33, 70


@pytest.mark.slow
@each
def test_the_checker_passes(id: str) -> None:
    """With bounds checks in all; sanitizers are slow to compile."""
    gpu_envs.testing.check_environment(gpu_envs.spec(id), num_envs=7, steps=30, sanitize=id in (COURIER, FORAGERS))


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing())
@pytest.mark.parametrize("precision", ["float32", "float64"])
@each
def test_nvrtc_compiles_it(id: str, precision: str) -> None:
    for program in programs(id, "SameStep", precision):
        found = list(kernel_resources(compile_with_nvrtc(program.source).cubin))
        made = {name for name, kind, _ in found if kind == "registers" and not name.startswith("_")}
        assert made == {f"kernel_{name}" for name in program.calls}
        assert max(value for _, kind, value in found if kind == "local") <= 64  # arrays stay in registers


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@each
def test_the_gpu_has_the_same_bits(make: Make, id: str, mode: str) -> None:
    trajectories = []
    for device in DEVICES:
        env, rng = make(id, REPLICAS, device=device, autoreset_mode=mode), np.random.default_rng(0)
        steps: list[Any] = [env.reset(seed=5)]
        for _ in range(STEPS):
            steps.append(env.step(draw_possible_actions(env, rng, steps[-1][-1])))
        trajectories.append([step[:-1] for step in steps])
    assert_all_same(trajectories)


@pytest.mark.parametrize("id", TEAMS)
def test_pettingzoo_tests_it(id: str) -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    from gpu_envs.adapters import pettingzoo

    parallel_api_test(pettingzoo.parallel_env(id), num_cycles=100)


TRAINED: dict[str, tuple[dict[str, Any], str, float]] = {
    COURIER: ({"total_steps": 400_000, "learning_rate": "0:0.003,1:0", "gamma": 0.97}, "agent", 1.8),
    CRANE: ({"total_steps": 600_000, "learning_rate": "0:0.003,1:0", "gamma": 0.97}, "agent", 1.5),
    GREENHOUSE: ({"total_steps": 400_000, "learning_rate": "0:0.003,1:0"}, "agent", 65.0),
    FORAGERS: ({"total_steps": 200_000, "learning_rate": 0.003, "horizon": 30, "epochs": 2}, "forager", 3.0),
    REGATTA: ({"total_steps": 600_000, "learning_rate": "0:0.003,1:0"}, "agent", 6.0),
}
"""Settings, the role to check, and its minimum mean return."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("id", TRAINED)
def test_the_trainer_learns_it(id: str) -> None:
    pytest.importorskip("torch")
    from gpu_envs.training import train

    settings, role, reached = TRAINED[id]
    common: dict[str, Any] = {"num_envs": 256, "horizon": 32, "run_dir": "", "device": "cpu", "threads": 1}
    result = train(run_of(env=id, **(common | settings), target_return=reached, target_role=role))
    assert result.reason == "target_return", result
    assert result.returns[role] >= reached


@pytest.mark.parametrize("num_taggers", [1, 4, 12])
def test_the_port_of_tag_equals_the_built_in(make: Make, device: str, num_taggers: int) -> None:
    """Bit for bit, with the same parameters."""
    params = {"num_taggers": num_taggers, "grid_length": 6, "episode_length": 30, "wall_hit_penalty": 0.3}
    made: list[Any] = [
        make(WARP_TAG, 64, device=device, autoreset_mode="SameStep", **params),
        make("TagGridWorld-v0", 64, device=device, autoreset_mode="SameStep", start="fixed", **params),
    ]
    assert_all_same(env.reset(seed=1)[0] for env in made)
    rng = np.random.default_rng(0)
    caught = 0
    for _ in range(100):
        actions = draw_possible_actions(made[0], rng, {})
        steps = [env.step(actions) for env in made]
        assert_same_bits(steps[0][:4], steps[1][:4])
        assert_all_same(step[4].get("final_obs") for step in steps)
        for name in ("x", "y"):
            assert_same_bits(to_numpy(made[0].state[name]), to_numpy(made[1].state[name]))
        caught += int(steps[0][2]["runner"].sum())
    assert caught > 0
