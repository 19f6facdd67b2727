"""Search settings of PPO with Optuna, which ends trials early whose mean return stays behind the others.

pip install gpu_envs[torch] optuna
python examples/optuna_search.py --trials 20
"""

import argparse
import math
from typing import Any

import optuna

from gpu_envs.training import PPO, Run, train


class Pruning:
    """A callback that reports the mean return to a trial, and ends the run if Optuna wants to."""

    def __init__(self, trial: optuna.Trial, every: int = 5) -> None:
        """Report every ``every`` iterations."""
        self.trial, self.every = trial, every

    def on_iteration(self, trainer: Any, report: Any) -> str | None:  # noqa: ARG002
        """Report the figure of an iteration; return the reason to stop."""
        if report.iteration % self.every or math.isnan(report["return"]):
            return None
        self.trial.report(report["return"], report.iteration)
        return "pruned" if self.trial.should_prune() else None


def objective(trial: optuna.Trial, env: str, steps: int) -> float:
    """Train with a trial's settings; return the mean return of the last 100 episodes."""
    run = Run(
        env=env,
        algorithm=PPO(
            learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            epochs=trial.suggest_int("epochs", 1, 8),
            entropy_weight=trial.suggest_float("entropy_weight", 1e-4, 0.1, log=True),
        ),
        num_envs=256,
        horizon=trial.suggest_categorical("horizon", [8, 16, 32]),
        total_steps=steps,
        run_dir="",
    )
    result = train(run, callbacks=[Pruning(trial)], progress=False)
    if result.reason == "pruned":
        raise optuna.TrialPruned
    return result.returns["agent"]


def search(env: str, trials: int, steps: int, seed: int = 0) -> optuna.Study:
    """Run a study, and return it."""
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(lambda trial: objective(trial, env, steps), n_trials=trials)
    return study


def main() -> None:
    """Search, and print the best settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="a single-agent environment (default: CartPole-v1)")
    parser.add_argument("--trials", type=int, default=20, help="number of trials (default: 20)")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of a trial (default: 200000)")
    options = parser.parse_args()
    study = search(options.env, options.trials, options.steps)
    print(f"best return {study.best_value:.1f} with {study.best_params}")


if __name__ == "__main__":
    main()
