"""Policies with memory: the speed of training compared with JAX, and environments that need a memory."""

import statistics
from typing import Any

from benchmarks.timing import training_rate
from benchmarks.training.plan import EPISODES, TrainingPlan, preset, train_preset
from benchmarks.training.solving import options, run_jax_peer

SIZES = {True: ((65_536, 1), (65_536, 4), (4_096, 4)), False: ((64, 4),)}
"""Replicas and epochs, by whether the device is a GPU."""

SEEDS = 5
STACKS = (1, 4, 8)
"""Numbers of observations that feed-forward policies see."""

MAZES = ((20, {"horizon": 32}), (50, {"horizon": 64, "total_steps": 100_000_000, "target_return": None}))
"""Lengths of T-mazes, and settings that suit them; a horizon is a sequence."""

TAG = {"num_other_agents_observed": 1, "observe_speeds": False}
"""Parameters of TagContinuous: taggers observe one other agent, and no speeds."""
TAG_MEMORY = {"hidden": (64,), "memory": "gru:64", "precision": "tf32"}
"""The network of taggers with memory, in place of the preset's of 256 x 256."""
TAG_LEARNING = {"learning_rate": "0:0.003,1:0.0001", "normalise_observations": True, "normalise_values": True}
"""Settings of taggers with and without memory."""


def recurrent(plan: TrainingPlan) -> dict[str, Any]:
    """Measure rates, and train with and without memory."""
    return {"rates": rates(plan), "cartpole": cartpole(plan), "mazes": mazes(plan), "tag": tag(plan)}


def rates(plan: TrainingPlan) -> dict[str, Any]:
    """Measure training of one trunk, 64 tanh units and a GRU of 64, for actor and critic."""
    results = {}
    for replicas, epochs in SIZES[plan.on_gpu]:
        setting: dict[str, float | str] = {"num_envs": replicas, "horizon": 32, "minibatches": 4, "epochs": epochs}
        setting |= {"learning_rate": 3e-4, "precision": "tf32" if plan.on_gpu else "float32"}
        network = {"hidden": (64,), "memory": "gru:64", "shared_trunk": True}
        ours = training_rate({**setting, **network, "env": "CartPoleHidden-v1", "device": plan.device}, 5, 5)
        jax = run_jax_peer(plan, "recurrent", "--updates", 20, *options(setting))
        results[f"{replicas} x {epochs}"] = {"settings": setting | network, "ours": ours, "jax": jax}
        other = f"skipped: {jax['skipped']}" if "skipped" in jax else f"{jax['steps_per_s']:,.0f}"
        plan.log(
            f"PPO with a GRU, {replicas:,} replicas, {epochs} epochs: {ours['steps_per_s']:,.0f} steps/s; JAX {other}"
        )
    return results


def _train(plan: TrainingPlan, env_id: str, what: str, role: str, metric: str, **settings: Any) -> dict[str, Any]:
    """Train an environment's preset with other settings and several seeds; evaluate greedy actions."""
    runs = []
    for seed in range(min(SEEDS, plan.seeds)):
        trainer, run = train_preset(plan, env_id, "default", seed, extra_settings=settings)
        evaluation = trainer.evaluate(episodes=EPISODES)[role]
        run["evaluated"] = evaluation.metrics[metric].mean if metric else evaluation.mean
        runs.append(run)
    ends = sorted(run["evaluated"] for run in runs)
    seconds = statistics.median(run["seconds"] for run in runs)
    plan.log(f"{env_id}, {what}: from {ends[0]:.4g} to {ends[-1]:.4g}; median {seconds:.2f} s")
    return {"settings": {**preset(env_id), **settings}, "runs": runs}


def cartpole(plan: TrainingPlan) -> dict[str, Any]:
    """Train CartPole without speeds to its target return, with memory and with stacks of observations."""
    results = {"memory": _train(plan, "CartPoleHidden-v1", "memory", "agent", "")}
    for frames in STACKS:
        what = f"a stack of {frames}"
        results[what] = _train(plan, "CartPoleHidden-v1", what, "agent", "", memory=None, frame_stack=frames)
    return results


def mazes(plan: TrainingPlan) -> dict[str, Any]:
    """Train in T-mazes with and without memory; evaluated is the share of episodes that end on the correct side."""
    results = {}
    for length, suited in MAZES:
        for what, memory in (("memory", {}), ("no memory", {"memory": None})):
            settings = {"params": {"length": length}, **suited, **memory}
            name = f"{length}, {what}"
            results[name] = _train(plan, "TMaze-v0", f"length {name}", "agent", "correct", **settings)
    return results


def tag(plan: TrainingPlan) -> dict[str, Any]:
    """Train taggers that see one other agent and no speeds; evaluated is the survival of random runners."""
    taggers = dict(preset("TagContinuous-v0", "taggers"))
    taggers["params"] = {**taggers.get("params", {}), **TAG}
    results = {}
    for what, network in (("memory", TAG_MEMORY), ("no memory", {})):
        settings = {**taggers, **TAG_LEARNING, **network}
        results[what] = _train(plan, "TagContinuous-v0", what, "runner", "survival", **settings)
    return results
