"""SAC: updates per second and sample efficiency, compared with other libraries."""

import statistics
from typing import Any

from benchmarks.peers import process
from benchmarks.training.plan import TrainingPlan

ENV = "Pendulum-v1"
SIZES = {"cpu": ((256, (64, 64)),), "cuda": ((256, (256, 256)), (32_768, (256, 256)))}
"""Batch sizes and hidden layers."""

STEPS = (5000, 10_000, 20_000)
"""Steps of one replica after which the policy is evaluated with greedy actions."""

LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}

_ROUNDS = 3
"""Number of measurements of each library, in turns, as the speed of a machine varies."""


def updates(plan: TrainingPlan) -> dict[str, Any]:
    """Measure SAC's updates per second, each with a new batch: medians over rounds."""
    results: dict[str, Any] = {}
    for batch, hidden in SIZES[plan.device]:
        turns: dict[str, list[dict[str, Any]]] = {}
        for _ in range(_ROUNDS):
            turns.setdefault("kernels", []).append(_rate(plan, batch, hidden, None))
            turns.setdefault("torch", []).append(_rate(plan, batch, hidden, False))
            for name in () if plan.on_gpu else LIBRARIES:
                turns.setdefault(name, []).append(_peer_rate(plan, name, batch, hidden))
        rates = {
            name: statistics.median(turn["updates_per_s"] for turn in turns_of_name)
            for name, turns_of_name in turns.items()
            if "updates_per_s" in turns_of_name[0]
        }
        results[str(batch)] = {"batch": batch, "hidden": list(hidden), "updates_per_s": rates, "turns": turns}
        text = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
        plan.log(f"SAC, batch {batch:,}, hidden {hidden}, updates/s: {text}")
    return results


def _rate(plan: TrainingPlan, batch: int, hidden: tuple[int, ...], fused: bool | None) -> dict[str, Any]:
    from gpu_envs.training import SAC, Network, Run, Trainer

    algorithm = SAC(gradient_steps=64, batch_size=batch, buffer_size=4096, learning_starts=0, max_grad_norm=None)
    network = Network(hidden=hidden, activation="relu", precision="tf32", fused=fused)
    trainer = Trainer(
        Run(env=ENV, algorithm=algorithm, network=network, device=plan.device, num_envs=64, horizon=8, run_dir="")
    )
    trainer.iterate(3)
    seconds: list[float] = []
    while sum(seconds) < plan.seconds:
        seconds += [report.update_seconds for report in trainer.iterate(5)]
    return {
        "updates_per_s": algorithm.gradient_steps / statistics.median(seconds),
        "torch_because": trainer.learners["agent"].fallback_reason or None,
    }


def _peer_rate(plan: TrainingPlan, name: str, batch: int, hidden: tuple[int, ...]) -> dict[str, Any]:
    library = LIBRARIES[name]
    arguments = ("--library", library, "--batch", batch, "--hidden", *hidden, "--seconds", plan.seconds)
    return process.run_peer(plan.sb3_python, library, "sb3_sac", "updates", *arguments)


def efficiency(plan: TrainingPlan) -> dict[str, Any]:
    """Measure the return of SAC with SB3's settings after different numbers of steps, compared with SB3."""
    runs: dict[str, list[Any]] = {"ours": [], "sb3": []}
    for seed in range(plan.seeds):
        runs["ours"].append({"seed": seed, "returns": _returns(plan, seed)})
        runs["sb3"].append(
            process.run_peer(
                plan.sb3_python, "stable_baselines3", "sb3_sac", "learning", "--seed", seed, "--steps", *STEPS
            )
        )
        for name, library_runs in runs.items():
            if "returns" in library_runs[-1]:
                text = ", ".join(f"{value:,.0f}" for value in library_runs[-1]["returns"])
                plan.log(f"SAC with SB3's settings, {name}, seed {seed}: {text} after {STEPS} steps")
    return {"env": ENV, "steps": list(STEPS), **runs}


def _returns(plan: TrainingPlan, seed: int) -> list[float]:
    from gpu_envs.training import SAC, Network, Run, Trainer

    run = Run(
        env=ENV,
        algorithm=SAC(
            gradient_steps=1,
            batch_size=256,
            buffer_size=STEPS[-1] + 1,
            learning_starts=100,
            learning_rate=3e-4,
            gamma=0.99,
            tau=0.005,
            max_grad_norm=None,
        ),
        network=Network(hidden=(256, 256), activation="relu"),
        device=plan.device,
        seed=seed,
        num_envs=1,
        horizon=1,
        total_steps=STEPS[-1],
        run_dir="",
    )
    trainer, returns = Trainer(run), []
    for before, after in zip((0, *STEPS), STEPS, strict=False):
        trainer.iterate(after - before)
        returns.append(trainer.evaluate(100)["agent"].mean)
    return returns
