"""Search settings of PPO with Optuna: the trials of a batch train at once, as a population.

pip install gpu_envs[torch] optuna
python examples/optuna_populations.py --batches 4 --batch 32 --seeds 2
"""

import argparse
import math

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState

from gpu_envs.training import Population, Run

SPACE: dict[str, BaseDistribution] = {
    "learning_rate": FloatDistribution(1e-4, 3e-2, log=True),
    "entropy_weight": FloatDistribution(1e-4, 0.1, log=True),
    "gamma": FloatDistribution(0.9, 0.999),
    "gae_lambda": FloatDistribution(0.8, 1.0),
}


def search(run: Run, batches: int, batch: int, seeds: int) -> optuna.Study:
    """Run a study whose value is the mean, over seeds, of the return of the last 100 episodes."""
    sampler = optuna.samplers.TPESampler(seed=run.seed, constant_liar=True)  # trials of a batch differ
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(batches):
        trials = [study.ask(SPACE) for _ in range(batch)]
        population = Population(run, seeds=seeds, vary=[trial.params for trial in trials])
        outcomes = population.train().outcomes
        unusable = ("diverged", "interrupted")
        returns = [math.nan if outcome.reason in unusable else outcome.returns for outcome in outcomes]
        for trial, value in zip(trials, np.reshape(returns, (batch, seeds)).mean(axis=1), strict=True):
            if math.isnan(value):
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, value)
        if any(outcome.reason == "interrupted" for outcome in outcomes):  # by Ctrl-C
            break
    return study


def main() -> None:
    """Search, and print the best settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="a single-agent environment (default: CartPole-v1)")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of a run (default: 50000)")
    parser.add_argument("--batches", type=int, default=4, help="batches, one after the other (default: 4)")
    parser.add_argument("--batch", type=int, default=32, help="trials of a batch, which train at once (default: 32)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of a trial (default: 2)")
    options = parser.parse_args()
    run = Run(env=options.env, num_envs=16, horizon=64, total_steps=options.steps, run_dir="")
    study = search(run, options.batches, options.batch, options.seeds)
    print(f"best return {study.best_value:.1f} with {study.best_params}")


if __name__ == "__main__":
    main()
