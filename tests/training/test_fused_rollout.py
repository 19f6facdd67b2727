"""A horizon in one launch has the same results as acting and stepping, bit for bit."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from harness import HAS_CUDA, assert_same_bits, restored_registry
from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing
from trainers import GRID, small_run, without_times

import gpu_envs

torch = pytest.importorskip("torch")

from gpu_envs.backend.program import Device  # noqa: E402
from gpu_envs.codegen import SingleLayout, layout_of  # noqa: E402
from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.engines.small_programs import SmallNetwork, supports_act_and_step  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402

WALK = """
#define N 7
constexpr int ROWS = 3;

FN void reset(State& s, const Params&, Random& random) {
    s.x     = random.uniform(-1, 1);
    s.steps = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    s.x += p.pace * real(action - 3) + random.uniform(-1, 1);
    s.steps += 1;
    return {-abs(s.x), abs(s.x) > 4};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = float(s.x);
    observation[1] = float(s.x * s.x);
    observation[2] = float(s.steps);
}

FN void measure(const State& s, const Params&, Metrics& metrics) {
    metrics.far  = abs(s.x);
    metrics.last = s.x;
}
"""


@pytest.fixture(autouse=True)
def walk(tmp_path: Path) -> Iterator[None]:
    """Registers noisy environments with metrics: one with choices from 2, one without a time limit."""
    header = tmp_path / "walk.cuh"
    header.write_text(WALK)
    spec = gpu_envs.EnvSpec(
        id="NoisyWalk-v0",
        header=header,
        state=("x", "steps"),
        params={"pace": gpu_envs.Param(0.5)},
        observation=Box(-np.inf, np.inf, (3,), np.float32),
        action=Discrete(3, start=2),
        metrics={"far": gpu_envs.Metric("m", "max"), "last": gpu_envs.Metric("m")},
        max_episode_steps=11,
    )
    pairs = tmp_path / "pairs.cuh"
    pairs.write_text(WALK.replace("action - 3", "action[1] - action[0]"))
    endless = dataclasses.replace(
        spec, id="EndlessWalk-v0", header=pairs, action=MultiDiscrete([2, 3]), max_episode_steps=None
    )
    with restored_registry():
        for each in (spec, endless):
            gpu_envs.register(each)
        yield


WRITTEN = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length"),
)

RUNS: dict[str, dict[str, Any]] = {
    "CartPole": {"stagger": True},
    "CartPole, bf16": {"precision": "bf16", "normalise_observations": True},
    "CartPole, float32": {"precision": "float32", "activation": "relu"},
    "CartPole, drawn": {
        "params": {"length": gpu_envs.Uniform(0.3, 0.7), "observe_params": ["length", "gravity"]},
    },
    "Pendulum": {"env": "Pendulum-v1", "params": {"max_episode_steps": 9}, "stagger": True},
    "Acrobot": {"env": "Acrobot-v1", "params": {"max_episode_steps": 40}},
    "MountainCar": {"env": "MountainCar-v0", "hidden": (32, 64)},
    "walk": {"env": "NoisyWalk-v0", "params": {"pace": gpu_envs.LogUniform(0.1, 1.0)}, "stagger": True},
    "walk without a limit": {"env": "EndlessWalk-v0"},
}


def walking(name: str, device: str, **settings: Any) -> Any:
    small = {"precision": "tf32", "hidden": (64, 64)}
    return small_run(device, **(small | RUNS[name] | settings))


@pytest.mark.fast_cases(2)
@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("name", RUNS)
def test_compiles(name: str) -> None:
    """Without spilled registers, for small numbers of replicas."""
    for num_envs in (1000, 100_000):
        config = walking(name, "cpu", num_envs=num_envs)
        layout = layout_of(Plan(config, "cpu", num_envs).world, Device(on_gpu=True, processors=132))
        assert isinstance(layout, SingleLayout)
        assert supports_act_and_step(layout, config.params)
        head = Head.of(layout.action_space)
        net = config.network
        network = SmallNetwork(head, layout.parts[0].size, net.hidden, net.activation, net.precision)
        program = network.act_and_step_program(layout, 132)
        used = kernel_resources(compile_with_nvrtc(program.source).cubin)
        (spilled,) = (value for name, kind, value in used if (name, kind) == ("kernel_act_and_step", "local"))
        assert spilled == 0 or num_envs > 1000


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_envs", [1000, 40_007])
@pytest.mark.parametrize("name", RUNS)
def test_a_horizon_in_one_launch_changes_no_bit(name: str, num_envs: int) -> None:
    states = []
    for fused in (True, False):
        config = walking(name, "cuda", num_envs=num_envs, horizon=24, total_steps=10**9, graphs=fused)
        trainer = Trainer(config)
        assert trainer.fused_rollout is not None
        if not fused:
            trainer.fused_rollout = None
        trainer.iterate(3)
        storage = trainer.horizon_env.storage["agent"]
        tensors = {name: getattr(storage, name) for name in WRITTEN} | trainer.learners["agent"].tensors()
        tensors["episode_metrics"] = trainer.horizon_env.episode_metrics
        arrays = {name: array.cpu() for name, array in tensors.items() if array is not None}
        states.append((without_times(trainer.state()), arrays))
    assert_same_bits(states[0], states[1])


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_unsupported_runs_act_step_by_step() -> None:
    narrow = {"precision": "tf32", "hidden": (64, 64)}
    for settings in (
        {"env": GRID, **narrow},
        {"fused": False, **narrow},
        {"algorithm": "pqn", **narrow},
        {"hidden": (256, 256), "precision": "bf16"},
        {"params": {"checking": True}, **narrow},
    ):
        assert Trainer(small_run("cuda", **settings)).fused_rollout is None


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_changed_parameters_recompile_the_launch() -> None:
    states = []
    for fused in (True, False):
        trainer = Trainer(walking("walk", "cuda", num_envs=100, params={}, graphs=False, total_steps=10**9))
        if not fused:
            trainer.fused_rollout = None
        trainer.iterate(2)
        trainer.horizon_env.env.set_attr("pace", np.linspace(0.1, 0.9, 100))
        trainer.iterate(2)
        states.append(without_times(trainer.state()))
    assert_same_bits(states[0], states[1])
