"""How much faster several GPUs of one host train than the same GPUs each alone, at the same time and without sums."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.timing import graph_of, milliseconds
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

TRAINED: Mapping[str, Mapping[str, Any]] = {
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
"""Settings of a GPU, whose rates are compared."""

STEPPED = 2**22
"""Replicas of a GPU where environments are stepped alone."""

SOLVED: Mapping[str, Any] = {
    **CARTPOLE,
    "num_envs": 8192,
    "horizon": 16,
    "epochs": 4,
    "minibatches": 16,
    "learning_rate": 0.004,
    "total_steps": 12_000_000,
    "target_return": 475.0,
}
"""With which CartPole is solved, by so many replicas in all."""


def several(plan: TrainingPlan) -> dict[str, Any]:
    """Every figure, with a process for each GPU."""
    from gpu_envs.backend.driver import device_count
    from gpu_envs.cli.launch import create_launcher

    gpus = device_count()
    if gpus < 2:
        return {"skipped": f"there is one GPU, or none: {gpus}"}
    found: dict[str, Any] = create_launcher(gpus, _process)(plan.rounds, plan.seconds, plan.seeds)[0]
    for name, rates in found["trained"].items():
        plan.log(
            f"{name}: {gpus} GPUs {rates['together'] / 1e6:,.1f} M steps/s, {100 * rates['share']:.2f} % of what they "
            f"do each alone, {100 * rates['share_of_the_slowest']:.2f} % of as many of the slowest"
        )
    sums, solved = found["sums"], found["solved"]
    plan.log(
        f"the sum of {sums['numbers']:,} numbers, in a graph: {sums['gather_us']:.2f} us; with the norm "
        f"and Adam {sums['together_us']:.2f} us, {sums['alone_us']:.2f} us on one"
    )
    plan.log(f"environments alone: {100 * found['stepped']['share']:.2f} % of what each does while the others rest")
    plan.log(
        f"CartPole, {SOLVED['num_envs']:,} replicas: {solved['together_s']:.4f} s; on one GPU {solved['alone_s']:.4f} "
        f"s: {solved['together_s'] / solved['alone_s']:.3f} times"
    )
    return {"gpus": gpus, **found}


def _process(rounds: int, seconds: float, seeds: int) -> dict[str, Any]:
    """What one process of several measures; the first one's figures are of all."""
    from gpu_envs.cli.launch import join_process_group

    with join_process_group("cuda") as (group, device, _):
        from gpu_envs.training.process.group import Group

        own = Group(group)
        return {
            "way": own.way,
            "sums": _sums(own, str(device)),
            "trained": {name: _trained(group, given, rounds, seconds) for name, given in TRAINED.items()},
            "stepped": _stepped(own, str(device), rounds, min(seconds, 1.0)),
            "solved": _solved(group, seeds),
        }


def _sums(group: Any, device: str, calls: int = 100) -> dict[str, Any]:
    """What it takes to add up CartPole's gradient, and to take its norm too, in a graph of many."""
    import torch

    from gpu_envs.training.engines.optimiser import Adam, Step

    parameters = [torch.nn.Parameter(torch.zeros(9219, device=device))]
    rate, norm = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def microseconds(work: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(calls):
                work()

        many()
        group.told(None)
        return milliseconds(graph_of(many).replay, repeats=21, inner=calls) * 1e3

    alone, together = (Adam(parameters, device=device, group=of) for of in (None, group))
    for adam in (alone, together):
        adam.totals.fill_(1.0)  # without samples no step is taken
    return {
        "numbers": len(together.message),
        "gather_us": microseconds(lambda: group.gathered(together.message)),
        "together_us": microseconds(lambda: together.step(Step(rate, 0.5, norm))),
        "alone_us": microseconds(lambda: alone.step(Step(rate, 0.5, norm))),
    }


def _trained(group: Any, given: Mapping[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Training together and each alone, in turn; every round takes so many seconds."""
    import torch

    from gpu_envs.training import Run, Trainer
    from gpu_envs.training.process.group import Group

    own = Group(group)
    device = f"cuda:{torch.cuda.current_device()}"
    run = Run.from_flat({**given, "device": device, "run_dir": "", "total_steps": 10**12})
    trainers = {"together": Trainer(run, group=group), "alone": Trainer(run)}
    counts: dict[str, int] = {}
    for name, trainer in trainers.items():
        trainer.iterate(10)
        begin = time.perf_counter()
        trainer.iterate(10)
        counts[name] = max(1, round(10 * seconds / max(own.told(time.perf_counter() - begin))))
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            own.told(None)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.iterate(counts[name])
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
    steps = run.steps_per_update
    rates = {name: [steps * counts[name] / each for each in times[name]] for name in trainers}
    of_all = own.told(rates)
    each_alone = [statistics.median(rank["alone"]) for rank in of_all]
    summed = {name: [sum(rank[name][n] for rank in of_all) for n in range(rounds)] for name in trainers}
    together, alone = (statistics.median(summed[name]) for name in ("together", "alone"))
    return {
        "settings": dict(given),
        "rounds": summed,
        "together": together,
        "alone": alone,
        "each_alone": each_alone,
        "share": together / alone,
        "share_of_the_slowest": together / (own.size * min(each_alone)),
    }


def _stepped(group: Any, device: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Rollouts of random actions on all GPUs at once, and on each while the others rest."""
    import torch

    import gpu_envs

    first = group.rank * STEPPED
    env = gpu_envs.make("CartPole-v1", STEPPED, device=device, output="torch", first_replica=first)
    env.reset(seed=0)
    steps = 64
    times = [_time_of(lambda: env.rollout(steps)) for _ in range(3)]
    count = max(1, round(seconds / max(group.told(times[-1]))))

    def rollouts() -> None:
        for _ in range(count):
            env.rollout(steps)

    def rate() -> float:
        return float(STEPPED * steps * count / _time_of(rollouts))

    at_once, alone = [], []
    for _ in range(rounds):
        group.told(None)
        at_once.append(sum(group.told(rate())))
        own = 0.0
        for rank in range(group.size):
            if group.told(None) and rank == group.rank:
                own = rate()
        alone.append(sum(group.told(own)))
    torch.cuda.synchronize()
    share = statistics.median(at_once) / statistics.median(alone)
    return {"num_envs": STEPPED, "at_once": at_once, "alone": alone, "share": share}


def _time_of(work: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _solved(group: Any, seeds: int) -> dict[str, Any]:
    """Seconds of training until CartPole is solved, with equally many replicas in all."""
    import torch

    from gpu_envs.training import Run, Trainer
    from gpu_envs.training.process.group import Group

    own = Group(group)
    times: dict[str, list[float]] = {"together": [], "alone": []}
    device = f"cuda:{torch.cuda.current_device()}"
    for seed in range(seeds):
        for name, of, size in (("together", group, own.size), ("alone", None, 1)):
            given = {**SOLVED, "num_envs": SOLVED["num_envs"] // size, "seed": seed, "device": device, "run_dir": ""}
            trainer = Trainer(Run.from_flat(given), group=of)
            trainer.prepare()
            own.told(None)
            result = trainer.run(progress=False)
            if result.reason != "target_return":
                sys.exit(f"CartPole was not solved with seed {seed}: {result}")
            times[name].append(result.seconds)
    return {"settings": dict(SOLVED), "runs_s": times, **{f"{n}_s": statistics.median(t) for n, t in times.items()}}
