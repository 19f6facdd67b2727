"""The cost of callbacks: rates of training with many that do nothing, and with parameters that change all the time."""

import statistics
from typing import Any

from benchmarks.training.plan import TrainingPlan

EMPTY = 20
"""Callbacks that do nothing."""
NUM_ENVS = {"cpu": 256, "cuda": 4096}
ITERATIONS = {"cpu": 100, "cuda": 2000}


class _Empty:
    def on_iteration(self, trainer: Any, report: Any) -> None:
        """Do nothing."""


class _Changing:
    """Changes a parameter per replica, the numbers of a distribution and a schedule after every iteration."""

    parameters = ("gravity",)

    def on_iteration(self, trainer: Any, report: Any) -> None:
        """Change them, to values near the default ones."""
        share = (report.iteration % 100) / 100
        trainer.set_params(gravity=9.75 + 0.1 * share, pole_mass=f"uniform:{0.09 + 0.01 * share}:0.11")
        trainer.set_schedule("learning_rate", 0.001 * (1 + share))


class _Constant:
    """Needs the same program as ``_Changing``, and changes nothing."""

    parameters = ("gravity",)

    def on_start(self, trainer: Any) -> None:
        """Do nothing."""


def callbacks(plan: TrainingPlan) -> dict[str, Any]:
    """Measure all runs in turns; return the median ratio of rates over the rounds."""
    from gpu_envs.training import PPO, Network, Run, Trainer

    kind = "cuda" if plan.on_gpu else "cpu"
    num_envs, horizon = NUM_ENVS[kind], 16
    runs: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "none": ([], {}),
        "empty": ([_Empty() for _ in range(EMPTY)], {}),
        "constant": ([_Constant()], {"pole_mass": "uniform:0.09:0.11"}),
        "changing": ([_Changing()], {"pole_mass": "uniform:0.09:0.11"}),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(plan.rounds):
        for name, (given, params) in runs.items():
            run = Run(
                env="CartPole-v1",
                params=params,
                algorithm=PPO(),
                network=Network(precision="tf32"),
                device=plan.device,
                num_envs=num_envs,
                horizon=horizon,
                total_steps=num_envs * horizon * ITERATIONS[kind],
                run_dir="",
            )
            result = Trainer(run, callbacks=given).run(progress=False)
            rates[name].append(result.steps / result.seconds)
    ratios = {name: _ratio(rates[name], rates[base]) for name, base in (("empty", "none"), ("changing", "constant"))}
    plan.log(
        f"{rates['none'][0] / 1e6:.0f} M steps/s; {EMPTY} empty callbacks {ratios['empty']:.3f}, changes in every "
        f"iteration {ratios['changing']:.3f}"
    )
    return {"num_envs": num_envs, "horizon": horizon, "empty": EMPTY, "rates": rates, "ratios": ratios}


def _ratio(rates: list[float], base: list[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, base, strict=True))
