"""Stable-Baselines3's PPO on many replicas through the adapter, and on SB3's own containers of Gymnasium's CartPole."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.adapters.plan import AdapterPlan, judged, reached
from benchmarks.adapters.timing import medians
from gpu_envs.training.process.device import torch_threads

ENV = "CartPole-v1"
WAIT_BAR = 0.05
"""Of the time of collect_rollouts that our step_wait may take."""
RATE_BAR = 10.0
"""Times the steps per second of the better of SB3's containers."""

EPOCHS = 4
OURS = ("gpu_envs_ppo", "stock_ppo")


@torch_threads("cpu", 1)
def sb3(plan: AdapterPlan) -> dict[str, Any]:
    """Collecting rollouts with a policy that has learnt nothing and with one that balances, and whole training."""
    from benchmarks.peers import sb3_vec

    threads = (1,) if plan.quick else sb3_vec.thread_counts()
    seconds = 0.02 if plan.quick else 1.0
    sizes = {kind: tuple(2**k for k in range(plan.size(len(sizes), 2))) for kind, sizes in sb3_vec.SIZES.items()}
    theirs = 8 if plan.quick else None
    best = {kind: sb3_vec.search(kind, sizes[kind], threads, seconds, theirs) for kind in sb3_vec.KINDS}
    for kind, found in best.items():
        plan.log(
            f"SB3's {kind}: {found['steps_per_s'] / 1e3:,.0f} k steps/s of collect_rollouts at its best, "
            f"{found['num_envs']} environments, {found['torch_threads']} torch threads"
        )
    num_envs, n_steps = plan.size(4096, 64), plan.size(32, 8)
    found = {
        "num_envs": num_envs,
        "n_steps": n_steps,
        "policy": "MlpPolicy, SB3's default",
        "peers": best,
        "collect_rollouts": {},
    }
    for policy in ("fresh", "balancing"):
        with collectors(plan, num_envs, n_steps, best, theirs) as sides:
            if policy == "balancing":
                for side in sides.values():
                    sb3_vec.balance(side.model)
            tried = {name: sb3_vec.best_threads(sides[name], threads, seconds) for name in OURS}
            measured = rates(sides, seconds, plan.size(5, 1))
            found["collect_rollouts"][policy] = {"tried_torch_threads": tried} | measured
            tell(plan, f"policy {policy}", measured)
    found["learn"] = plan.part("learn", lambda: whole(plan, num_envs, n_steps, best, threads))
    return found


@contextlib.contextmanager
def collectors(
    plan: AdapterPlan, num_envs: int, n_steps: int, best: Mapping[str, Any], theirs: int | None
) -> Iterator[dict[str, Any]]:
    """A collector of each side: our environment with our PPO and with SB3's, and SB3's containers at their best.

    Args:
        plan: Where to measure.
        num_envs: Our replicas.
        n_steps: Of a rollout of ours.
        best: What was found of each container.
        theirs: Steps of a rollout of theirs; None: SB3's default.
    """
    import stable_baselines3

    from benchmarks.peers import sb3_vec
    from gpu_envs.adapters import sb3 as adapter

    with contextlib.ExitStack() as stack:

        def opened(venv: Any) -> Any:
            stack.callback(venv.close)
            return venv

        sides = {}
        for name, algorithm in zip(OURS, (adapter.PPO, stable_baselines3.PPO), strict=True):
            sides[name] = sb3_vec.Collector(opened(ours(plan, num_envs)), algorithm, n_steps)
        for kind, chosen in best.items():
            venv = opened(sb3_vec.environments(kind, chosen["num_envs"]))
            sides[kind] = sb3_vec.Collector(venv, n_steps=theirs, threads=chosen["torch_threads"])
        yield sides


def ours(plan: AdapterPlan, num_envs: int) -> Any:
    """Our environment, whose first episodes are cut short, so that not all reach their time limit at once."""
    from gpu_envs.adapters import sb3 as adapter

    return adapter.VecEnv(ENV, num_envs, device=plan.device, stagger=True, seed=0)


def rates(sides: Mapping[str, Any], seconds: float, rounds: int) -> dict[str, Any]:
    """Steps per second of each side in turns, what shares policy and steps take, and how ours compares."""
    for side in sides.values():
        side.collect()
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            measured[name].append(side.rate(seconds))
    shares = {name: side.shares(seconds) for name, side in sides.items()}
    rate = medians(measured)
    better = max(rate[name] for name in sides if name not in OURS)
    return {
        "steps_per_s": rate,
        "rounds": measured,
        "torch_threads": {name: side.threads for name, side in sides.items()},
        "shares": shares,
        "times_the_better_container": {name: rate[name] / better for name in OURS},
    }


def tell(plan: AdapterPlan, title: str, measured: Mapping[str, Any]) -> None:
    """Prints what was found of one policy."""
    rate, shares = measured["steps_per_s"], measured["shares"]
    plan.log(f"SB3 collect_rollouts, {title}: " + ", ".join(f"{k} {v / 1e3:,.0f} k steps/s" for k, v in rate.items()))
    for name in OURS:
        ratio = measured["times_the_better_container"][name]
        plan.log(
            f"  {name}: {ratio:.1f} x the better container ({reached(ratio, RATE_BAR)}); step_wait "
            f"{shares[name]['step_wait']:.1%} of the time ({judged(shares[name]['step_wait'], WAIT_BAR)}), "
            f"with step_async {shares[name]['step_wait'] + shares[name]['step_async']:.1%}, the policy "
            f"{shares[name]['policy']:.1%}"
        )


def whole(
    plan: AdapterPlan, num_envs: int, n_steps: int, best: Mapping[str, Any], threads: tuple[int, ...]
) -> dict[str, Any]:
    """Steps per second of ``learn``, with as many transitions to a rollout and all other settings equal."""
    import stable_baselines3

    from benchmarks.peers import sb3_vec
    from gpu_envs.adapters import sb3 as adapter

    transitions = num_envs * n_steps
    shared = {"n_epochs": EPOCHS, "batch_size": transitions // plan.size(16, 2), "seed": 0, "device": "cpu"}
    kind = max(best, key=lambda name: float(best[name]["steps_per_s"]))
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(plan, num_envs),
        "peer": lambda: sb3_vec.environments(kind, best[kind]["num_envs"]),
    }
    algorithms = {"ours": adapter.PPO, "peer": stable_baselines3.PPO}
    with contextlib.ExitStack() as stack:
        models: dict[str, Any] = {}
        for name, make in makers.items():
            venv = make()
            stack.callback(venv.close)
            models[name] = algorithms[name]("MlpPolicy", venv, n_steps=transitions // venv.num_envs, **shared)
        tried = {name: [learning_rate(model, count, 1) for count in threads] for name, model in models.items()}
        chosen = {name: threads[found.index(max(found))] for name, found in tried.items()}
        measured: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(plan.size(3, 1)):
            for name, model in models.items():
                measured[name].append(learning_rate(model, chosen[name], plan.size(2, 1)))
    rate = medians(measured)
    ratio = rate["ours"] / rate["peer"]
    plan.log(
        f"SB3 learn, {transitions:,} transitions an update, {EPOCHS} epochs: {rate['ours'] / 1e3:,.0f} k steps/s; "
        f"{kind}: {rate['peer'] / 1e3:,.0f} k ({ratio:.1f} x)"
    )
    return {
        "equal": {"transitions": transitions, **shared, "policy": "MlpPolicy, SB3's default"},
        "peer": kind,
        "num_envs": {name: model.n_envs for name, model in models.items()},
        "n_steps": {name: model.n_steps for name, model in models.items()},
        "torch_threads": chosen,
        "tried_torch_threads": {
            name: dict(zip(map(str, threads), found, strict=True)) for name, found in tried.items()
        },
        "steps_per_s": rate,
        "rounds": measured,
        "times_the_peer": ratio,
    }


def learning_rate(model: Any, threads: int, updates: int) -> float:
    """Steps per second of training that goes on for some updates."""
    import torch

    torch.set_num_threads(threads)
    steps = model.n_envs * model.n_steps * updates
    begin = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return float(steps / (time.perf_counter() - begin))
