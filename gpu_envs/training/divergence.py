"""Stops a run whose numbers are NaN or infinite and says where that showed first; warns of updates without a step."""

import math
import warnings
from collections.abc import Mapping

import torch

from gpu_envs.errors import DivergedError
from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.learner import Learner
from gpu_envs.training.record.reports import IterationReport
from gpu_envs.training.record.run_directory import RunDirectory


def check_figures(report: IterationReport, learners: Mapping[str, Learner], run: RunDirectory | None) -> None:
    """Raises a DivergedError if the figures of an iteration are not finite; warns of a policy that took no step."""
    for name, figures in report.figures.items():
        algorithm = learners[name].algorithm
        kl_limit = algorithm.kl_limit if isinstance(algorithm, OnPolicy) else None
        if kl_limit is not None and figures["samples"] == 0:
            warnings.warn(
                f"updates of the policy {name!r} stop before their first step and learn nothing: it acts in evaluation "
                "mode and learns in training mode, between which dropout or batch normalisation change its actions by "
                f"more than target_kl, {kl_limit:g}. Leave target_kl or these layers out, or give a larger target_kl",
                stacklevel=2,
            )
        wrong = [n for n, v in figures.items() if not math.isfinite(v) and n != "explained_variance"]
        if not wrong:
            continue
        found = [n for n, tensor in learners[name].tensors().items() if not bool(torch.isfinite(tensor).all())]
        if "largest_observation" in wrong:
            found.insert(0, "observations")
        raise DivergedError(_message(name, [*found, *wrong][0], report.iteration, run))


def check_weights(learners: Mapping[str, Learner], iteration: int, run: RunDirectory | None) -> None:
    """Raises a DivergedError if some weights are not finite."""
    for name, learner in learners.items():
        weights = [parameter.detach().cpu() for parameter in learner.module.parameters()]  # a GPU loads kernels to ask
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights):
            raise DivergedError(_message(name, "the parameters", iteration, run)) from None


def _message(policy: str, what: str, iteration: int, run: RunDirectory | None) -> str:
    saved = run.checkpoints.latest() if run is not None else None
    rest = f"the last good checkpoint is {saved}" if saved else "there is no checkpoint"
    advice = "a lower learning_rate, or normalise_observations and normalise_rewards, often help"
    return f"iteration {iteration}: {what} of the policy {policy!r} hold a NaN or an infinity; {rest}; {advice}"
