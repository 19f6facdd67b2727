"""Training on several GPUs of one host, compared with separate runs on each GPU at the same time."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.timing import capture_graph, device_milliseconds
from benchmarks.training.plan import TrainingPlan

CARTPOLE: Mapping[str, Any] = {
    "env": "CartPole-v1",
    "horizon": 32,
    "hidden": (64, 64),
    "activation": "tanh",
    "precision": "tf32",
    "minibatches": 4,
    "learning_rate": 3e-4,
}

TRAINING_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "cartpole_65536_1": {**CARTPOLE, "num_envs": 65_536, "epochs": 1},
    "cartpole_65536_4": {**CARTPOLE, "num_envs": 65_536, "epochs": 4},
    "cartpole_4096_4": {**CARTPOLE, "num_envs": 4096, "epochs": 4},
    "tag_2000": {
        "env": "TagContinuous-v0",
        "num_envs": 2000,
        "horizon": 32,
        "hidden": (256, 256),
        "shared_trunk": True,
        "stagger": True,
        "algorithm": "a2c",
        "precision": "tf32",
        "learning_rate": 3e-4,
    },
}
"""Settings of the compared runs, per GPU."""

STEP_REPLICAS = 2**22
"""Replicas per GPU in the measurement of steps without training."""

SOLVE_SETTINGS: Mapping[str, Any] = {
    **CARTPOLE,
    "num_envs": 8192,
    "horizon": 16,
    "epochs": 4,
    "minibatches": 16,
    "learning_rate": 0.004,
    "total_steps": 12_000_000,
    "target_return": 475.0,
}
"""Settings that solve CartPole; ``num_envs`` is the total over all GPUs."""


def measure_gpus(plan: TrainingPlan) -> dict[str, Any]:
    """Run all measurements, in a process for each GPU."""
    from gpu_envs.backend.driver import device_count
    from gpu_envs.cli.launch import create_launcher

    gpus = device_count()
    if gpus < 2:
        return {"skipped": f"needs two GPUs or more; this machine has {gpus}"}
    results: dict[str, Any] = create_launcher(gpus, _run_process)(plan.rounds, plan.seconds, plan.seeds)[0]
    for name, rates in results["trained"].items():
        plan.log(
            f"{name}: {gpus} GPUs {rates['together'] / 1e6:,.1f} M steps/s, {100 * rates['share']:.2f} % of separate "
            f"runs, {100 * rates['share_of_the_slowest']:.2f} % of that number of runs on the slowest GPU"
        )
    sums, solved = results["sums"], results["solved"]
    plan.log(
        f"sum of {sums['numbers']:,} gradients, in a CUDA graph: {sums['gather_us']:.2f} us; with the norm "
        f"and Adam {sums['together_us']:.2f} us, {sums['alone_us']:.2f} us on one GPU"
    )
    plan.log(f"environments alone: {100 * results['stepped']['share']:.2f} % of each GPU alone")
    plan.log(
        f"CartPole, {SOLVE_SETTINGS['num_envs']:,} replicas: {solved['together_s']:.4f} s; on one GPU "
        f"{solved['alone_s']:.4f} s: {solved['together_s'] / solved['alone_s']:.3f} times"
    )
    return {"gpus": gpus, **results}


def _run_process(rounds: int, seconds: float, seeds: int) -> dict[str, Any]:
    """Run all measurements in one of several processes; rank 0 returns the results of all."""
    from gpu_envs.cli.launch import join_process_group

    with join_process_group("cuda") as (group, device, _):
        from gpu_envs.training.process.group import Group

        group_wrapper = Group(group)
        return {
            "way": group_wrapper.transport,
            "sums": _measure_sums(group_wrapper, str(device)),
            "trained": {
                name: _measure_training(group, settings, rounds, seconds)
                for name, settings in TRAINING_SETTINGS.items()
            },
            "stepped": _measure_steps(group_wrapper, str(device), rounds, min(seconds, 1.0)),
            "solved": _measure_solving(group, seeds),
        }


def _measure_sums(group: Any, device: str, calls: int = 100) -> dict[str, Any]:
    """Measure the sum of CartPole's gradient over GPUs, and a step of Adam, in a CUDA graph."""
    import torch

    from gpu_envs.training.engines.optimiser import Adam, Step

    parameters = [torch.nn.Parameter(torch.zeros(9219, device=device))]
    rate, norm = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def microseconds(work: Callable[[], object]) -> float:
        def repeat() -> None:
            for _ in range(calls):
                work()

        repeat()
        group.all_gather_objects(None)
        return device_milliseconds(capture_graph(repeat).replay, repeats=21, inner=calls) * 1e3

    alone, together = (Adam(parameters, device=device, group=adam_group) for adam_group in (None, group))
    for adam in (alone, together):
        adam.totals.fill_(1.0)  # Adam takes no step without samples
    return {
        "numbers": len(together.message),
        "gather_us": microseconds(lambda: group.all_gather(together.message)),
        "together_us": microseconds(lambda: together.step(Step(rate, 0.5, norm))),
        "alone_us": microseconds(lambda: alone.step(Step(rate, 0.5, norm))),
    }


def _measure_training(group: Any, settings: Mapping[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Measure training together and separately, in turns; a round takes about ``seconds``."""
    import torch

    from gpu_envs.training import Run, Trainer
    from gpu_envs.training.process.group import Group

    group_wrapper = Group(group)
    device = f"cuda:{torch.cuda.current_device()}"
    run = Run.from_flat({**settings, "device": device, "run_dir": "", "total_steps": 10**12})
    trainers = {"together": Trainer(run, group=group), "alone": Trainer(run)}
    counts: dict[str, int] = {}
    for name, trainer in trainers.items():
        trainer.iterate(10)
        start = time.perf_counter()
        trainer.iterate(10)
        counts[name] = max(1, round(10 * seconds / max(group_wrapper.all_gather_objects(time.perf_counter() - start))))
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            group_wrapper.all_gather_objects(None)
            torch.cuda.synchronize()
            start = time.perf_counter()
            trainer.iterate(counts[name])
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    steps = run.steps_per_update
    rates = {name: [steps * counts[name] / seconds_of_round for seconds_of_round in times[name]] for name in trainers}
    rates_by_rank = group_wrapper.all_gather_objects(rates)
    each_alone = [statistics.median(rank["alone"]) for rank in rates_by_rank]
    total_rates = {name: [sum(rank[name][n] for rank in rates_by_rank) for n in range(rounds)] for name in trainers}
    together, alone = (statistics.median(total_rates[name]) for name in ("together", "alone"))
    return {
        "settings": dict(settings),
        "rounds": total_rates,
        "together": together,
        "alone": alone,
        "each_alone": each_alone,
        "share": together / alone,
        "share_of_the_slowest": together / (group_wrapper.size * min(each_alone)),
    }


def _measure_steps(group: Any, device: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure rollouts with random actions on all GPUs together, and on each while the others are idle."""
    import torch

    import gpu_envs

    first = group.rank * STEP_REPLICAS
    env = gpu_envs.make("CartPole-v1", STEP_REPLICAS, device=device, output="torch", first_replica=first)
    env.reset(seed=0)
    steps = 64
    times = [_seconds_of(lambda: env.rollout(steps)) for _ in range(3)]
    count = max(1, round(seconds / max(group.all_gather_objects(times[-1]))))

    def rollouts() -> None:
        for _ in range(count):
            env.rollout(steps)

    def rate() -> float:
        return float(STEP_REPLICAS * steps * count / _seconds_of(rollouts))

    at_once, alone = [], []
    for _ in range(rounds):
        group.all_gather_objects(None)
        at_once.append(sum(group.all_gather_objects(rate())))
        rank_rate = 0.0
        for rank in range(group.size):
            if group.all_gather_objects(None) and rank == group.rank:
                rank_rate = rate()
        alone.append(sum(group.all_gather_objects(rank_rate)))
    torch.cuda.synchronize()
    share = statistics.median(at_once) / statistics.median(alone)
    return {"num_envs": STEP_REPLICAS, "at_once": at_once, "alone": alone, "share": share}


def _seconds_of(work: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _measure_solving(group: Any, seeds: int) -> dict[str, Any]:
    """Measure the seconds of training until CartPole is solved, with the same total number of replicas."""
    import torch

    from gpu_envs.training import Run, Trainer
    from gpu_envs.training.process.group import Group

    group_wrapper = Group(group)
    times: dict[str, list[float]] = {"together": [], "alone": []}
    device = f"cuda:{torch.cuda.current_device()}"
    for seed in range(seeds):
        for name, trainer_group, size in (("together", group, group_wrapper.size), ("alone", None, 1)):
            settings = {
                **SOLVE_SETTINGS,
                "num_envs": SOLVE_SETTINGS["num_envs"] // size,
                "seed": seed,
                "device": device,
                "run_dir": "",
            }
            trainer = Trainer(Run.from_flat(settings), group=trainer_group)
            trainer.prepare()
            group_wrapper.all_gather_objects(None)
            result = trainer.run(progress=False)
            if result.reason != "target_return":
                sys.exit(f"CartPole was not solved with seed {seed}: {result}")
            times[name].append(result.seconds)
    return {
        "settings": dict(SOLVE_SETTINGS),
        "runs_s": times,
        **{f"{n}_s": statistics.median(t) for n, t in times.items()},
    }
