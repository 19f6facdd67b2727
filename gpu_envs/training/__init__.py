"""Training of registered environments on their device, by PPO, A2C, PQN, SAC, TD3 and DDPG.

    from gpu_envs.training import PPO, Run, train
    train(Run(env="CartPole-v1", algorithm=PPO(epochs=2), target_return=475))

Importing this package does not import torch; using a name from it does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gpu_envs.errors import CheckpointError

if TYPE_CHECKING:
    from gpu_envs.training.algorithms import A2C as A2C
    from gpu_envs.training.algorithms import DDPG as DDPG
    from gpu_envs.training.algorithms import PPO as PPO
    from gpu_envs.training.algorithms import PQN as PQN
    from gpu_envs.training.algorithms import SAC as SAC
    from gpu_envs.training.algorithms import TD3 as TD3
    from gpu_envs.training.callbacks import Callback as Callback
    from gpu_envs.training.comparison import Comparison as Comparison
    from gpu_envs.training.comparison import compare as compare
    from gpu_envs.training.export import export_policies as export_policies
    from gpu_envs.training.heads import Head as Head
    from gpu_envs.training.joint_iterations import Outcome as Outcome
    from gpu_envs.training.joint_iterations import PopulationReport as PopulationReport
    from gpu_envs.training.networks import ActorCritic as ActorCritic
    from gpu_envs.training.networks import PolicyModule as PolicyModule
    from gpu_envs.training.policy import Network as Network
    from gpu_envs.training.policy import Policy as Policy
    from gpu_envs.training.population import Population as Population
    from gpu_envs.training.population import extract as extract
    from gpu_envs.training.population_result import PopulationResult as PopulationResult
    from gpu_envs.training.record.reports import Report as Report
    from gpu_envs.training.record.reports import Result as Result
    from gpu_envs.training.record.run_directory import RunDirectory as RunDirectory
    from gpu_envs.training.recurrent import RecurrentModule as RecurrentModule
    from gpu_envs.training.recurrent_settings import GRU as GRU
    from gpu_envs.training.recurrent_settings import LSTM as LSTM
    from gpu_envs.training.rollout.evaluation import Acting as Acting
    from gpu_envs.training.rollout.evaluation import TrainedPolicies as TrainedPolicies
    from gpu_envs.training.run import Run as Run
    from gpu_envs.training.runs import evaluate as evaluate
    from gpu_envs.training.runs import load_policies as load_policies
    from gpu_envs.training.runs import resume as resume
    from gpu_envs.training.runs import train as train
    from gpu_envs.training.schedule import Schedule as Schedule
    from gpu_envs.training.settings_file import load_settings as load_settings
    from gpu_envs.training.tournaments import Tournament as Tournament
    from gpu_envs.training.tournaments import tournament as tournament
    from gpu_envs.training.trainer import Trainer as Trainer
    from gpu_envs.training.tuning import Size as Size
    from gpu_envs.training.tuning import Tuning as Tuning
    from gpu_envs.training.tuning import choose_num_envs as choose_num_envs
    from gpu_envs.training.tuning import tune as tune

_MODULES = {
    "algorithms": ("A2C", "DDPG", "PPO", "PQN", "SAC", "TD3"),
    "callbacks": ("Callback",),
    "comparison": ("Comparison", "compare"),
    "export": ("export_policies",),
    "joint_iterations": ("Outcome", "PopulationReport"),
    "networks": ("ActorCritic", "PolicyModule"),
    "heads": ("Head",),
    "policy": ("Network", "Policy"),
    "population": ("Population", "extract"),
    "population_result": ("PopulationResult",),
    "record.reports": ("Report", "Result"),
    "record.run_directory": ("RunDirectory",),
    "recurrent": ("RecurrentModule",),
    "recurrent_settings": ("GRU", "LSTM"),
    "rollout.evaluation": ("Acting", "TrainedPolicies"),
    "run": ("Run",),
    "runs": ("evaluate", "load_policies", "resume", "train"),
    "schedule": ("Schedule",),
    "settings_file": ("load_settings",),
    "tournaments": ("Tournament", "tournament"),
    "trainer": ("Trainer",),
    "tuning": ("Size", "Tuning", "choose_num_envs", "tune"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
"""Lazily imported names, and the modules that define them."""

__all__ = ["CheckpointError", *sorted(_MODULE_OF)]  # noqa: PLE0604


def __dir__() -> list[str]:
    """List the module's names, including lazily imported ones."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a lazily imported name at its first use."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"gpu_envs.training.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
