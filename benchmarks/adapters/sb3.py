"""SB3's PPO with the adapter and many replicas, compared with SB3's vectorised environments of Gymnasium's CartPole."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.adapters.plan import AdapterPlan, check_maximum, check_minimum
from benchmarks.adapters.timing import medians
from gpu_envs.training.process.device import torch_threads

ENV = "CartPole-v1"
WAIT_BAR = 0.05
"""Maximum share of step_wait in the time of collect_rollouts."""
RATE_BAR = 10.0
"""Minimum ratio to the steps per second of SB3's faster vectorised environment."""

EPOCHS = 4
OURS = ("gpu_envs_ppo", "stock_ppo")


@torch_threads("cpu", 1)
def sb3(plan: AdapterPlan) -> dict[str, Any]:
    """Measure collect_rollouts with an untrained and with a balancing policy, and learn."""
    from benchmarks.peers import sb3_vec

    threads = (1,) if plan.quick else sb3_vec.thread_counts()
    seconds = 0.02 if plan.quick else 1.0
    sizes = {kind: tuple(2**k for k in range(plan.size(len(sizes), 2))) for kind, sizes in sb3_vec.SIZES.items()}
    peer_steps = 8 if plan.quick else None
    best = {kind: sb3_vec.search(kind, sizes[kind], threads, seconds, peer_steps) for kind in sb3_vec.KINDS}
    for kind, result in best.items():
        plan.log(
            f"SB3's {kind}: {result['steps_per_s'] / 1e3:,.0f} k steps/s of collect_rollouts at its best, "
            f"{result['num_envs']} environments, {result['torch_threads']} torch threads"
        )
    num_envs, n_steps = plan.size(4096, 64), plan.size(32, 8)
    result = {
        "num_envs": num_envs,
        "n_steps": n_steps,
        "policy": "MlpPolicy, SB3's default",
        "peers": best,
        "collect_rollouts": {},
    }
    for policy in ("fresh", "balancing"):
        with collectors(plan, num_envs, n_steps, best, peer_steps) as collectors_by_name:
            if policy == "balancing":
                for collector in collectors_by_name.values():
                    sb3_vec.balance(collector.model)
            tried = {name: sb3_vec.best_threads(collectors_by_name[name], threads, seconds) for name in OURS}
            measured = rates(collectors_by_name, seconds, plan.size(5, 1))
            result["collect_rollouts"][policy] = {"tried_torch_threads": tried} | measured
            log_rates(plan, f"policy {policy}", measured)
    result["learn"] = plan.part("learn", lambda: measure_learn(plan, num_envs, n_steps, best, threads))
    return result


@contextlib.contextmanager
def collectors(
    plan: AdapterPlan, num_envs: int, n_steps: int, best: Mapping[str, Any], peer_steps: int | None
) -> Iterator[dict[str, Any]]:
    """Create the collectors: the adapter with its PPO and with SB3's, and SB3's environments with their best sizes.

    Args:
        plan: The device and the sizes.
        num_envs: The adapter's number of replicas.
        n_steps: The adapter's steps of a rollout.
        best: The fastest size of each vectorised environment of SB3.
        peer_steps: The steps of a rollout of these; None: SB3's default.
    """
    import stable_baselines3

    from benchmarks.peers import sb3_vec
    from gpu_envs.adapters import sb3 as adapter

    with contextlib.ExitStack() as stack:

        def register(venv: Any) -> Any:
            stack.callback(venv.close)
            return venv

        collectors_by_name = {}
        for name, algorithm in zip(OURS, (adapter.PPO, stable_baselines3.PPO), strict=True):
            collectors_by_name[name] = sb3_vec.Collector(register(make_adapter(plan, num_envs)), algorithm, n_steps)
        for kind, chosen in best.items():
            venv = register(sb3_vec.environments(kind, chosen["num_envs"]))
            collectors_by_name[kind] = sb3_vec.Collector(venv, n_steps=peer_steps, threads=chosen["torch_threads"])
        yield collectors_by_name


def make_adapter(plan: AdapterPlan, num_envs: int) -> Any:
    """Create the adapter's environment, staggered so that replicas do not reach the time limit together."""
    from gpu_envs.adapters import sb3 as adapter

    return adapter.VecEnv(ENV, num_envs, device=plan.device, stagger=True, seed=0)


def rates(collectors_by_name: Mapping[str, Any], seconds: float, rounds: int) -> dict[str, Any]:
    """Measure each collector in turns: steps per second, shares of policy and steps, and ratios."""
    for collector in collectors_by_name.values():
        collector.collect()
    measured: dict[str, list[float]] = {name: [] for name in collectors_by_name}
    for _ in range(rounds):
        for name, collector in collectors_by_name.items():
            measured[name].append(collector.rate(seconds))
    shares = {name: collector.shares(seconds) for name, collector in collectors_by_name.items()}
    rate = medians(measured)
    better = max(rate[name] for name in collectors_by_name if name not in OURS)
    return {
        "steps_per_s": rate,
        "rounds": measured,
        "torch_threads": {name: collector.threads for name, collector in collectors_by_name.items()},
        "shares": shares,
        "times_the_better_container": {name: rate[name] / better for name in OURS},
    }


def log_rates(plan: AdapterPlan, title: str, measured: Mapping[str, Any]) -> None:
    """Print the results for one policy."""
    rate, shares = measured["steps_per_s"], measured["shares"]
    plan.log(f"SB3 collect_rollouts, {title}: " + ", ".join(f"{k} {v / 1e3:,.0f} k steps/s" for k, v in rate.items()))
    for name in OURS:
        ratio = measured["times_the_better_container"][name]
        plan.log(
            f"  {name}: {ratio:.1f} x the faster peer ({check_minimum(ratio, RATE_BAR)}); step_wait "
            f"{shares[name]['step_wait']:.1%} of the time ({check_maximum(shares[name]['step_wait'], WAIT_BAR)}), "
            f"with step_async {shares[name]['step_wait'] + shares[name]['step_async']:.1%}, the policy "
            f"{shares[name]['policy']:.1%}"
        )


def measure_learn(
    plan: AdapterPlan, num_envs: int, n_steps: int, best: Mapping[str, Any], threads: tuple[int, ...]
) -> dict[str, Any]:
    """Measure steps per second of ``learn``, with equal transitions per rollout and equal settings."""
    import stable_baselines3

    from benchmarks.peers import sb3_vec
    from gpu_envs.adapters import sb3 as adapter

    transitions = num_envs * n_steps
    shared = {"n_epochs": EPOCHS, "batch_size": transitions // plan.size(16, 2), "seed": 0, "device": "cpu"}
    kind = max(best, key=lambda name: float(best[name]["steps_per_s"]))
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: make_adapter(plan, num_envs),
        "peer": lambda: sb3_vec.environments(kind, best[kind]["num_envs"]),
    }
    algorithms = {"ours": adapter.PPO, "peer": stable_baselines3.PPO}
    with contextlib.ExitStack() as stack:
        models: dict[str, Any] = {}
        for name, make in makers.items():
            venv = make()
            stack.callback(venv.close)
            models[name] = algorithms[name]("MlpPolicy", venv, n_steps=transitions // venv.num_envs, **shared)
        tried = {name: [training_rate(model, count, 1) for count in threads] for name, model in models.items()}
        chosen = {name: threads[rates.index(max(rates))] for name, rates in tried.items()}
        measured: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(plan.size(3, 1)):
            for name, model in models.items():
                measured[name].append(training_rate(model, chosen[name], plan.size(2, 1)))
    rate = medians(measured)
    ratio = rate["ours"] / rate["peer"]
    plan.log(
        f"SB3 learn, {transitions:,} transitions per update, {EPOCHS} epochs: {rate['ours'] / 1e3:,.0f} k steps/s; "
        f"{kind}: {rate['peer'] / 1e3:,.0f} k ({ratio:.1f} x)"
    )
    return {
        "equal": {"transitions": transitions, **shared, "policy": "MlpPolicy, SB3's default"},
        "peer": kind,
        "num_envs": {name: model.n_envs for name, model in models.items()},
        "n_steps": {name: model.n_steps for name, model in models.items()},
        "torch_threads": chosen,
        "tried_torch_threads": {
            name: dict(zip(map(str, threads), rates, strict=True)) for name, rates in tried.items()
        },
        "steps_per_s": rate,
        "rounds": measured,
        "times_the_peer": ratio,
    }


def training_rate(model: Any, threads: int, updates: int) -> float:
    """Return the steps per second of ``updates`` more updates."""
    import torch

    torch.set_num_threads(threads)
    steps = model.n_envs * model.n_steps * updates
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return float(steps / (time.perf_counter() - start))
