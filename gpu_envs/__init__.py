"""Reinforcement-learning environments that run on the GPU, thousands of replicas at a time.

    import gpu_envs
    env = gpu_envs.make("CartPole-v1", num_envs=4096, output="torch")

Importing registers every environment with Gymnasium, as ``gpu_envs/<id>``; CuPy and torch are not imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gpu_envs.envs import ALL as _ALL
from gpu_envs.errors import (
    ActionError,
    CompileError,
    NoCompilerError,
    NotFiniteError,
    SourceError,
    TranslationError,
    UnknownEnvironmentError,
)
from gpu_envs.registry.catalog import add as _add
from gpu_envs.registry.catalog import ids, register, spec
from gpu_envs.registry.sources import Origin as _Origin
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Choice, LogUniform, Normal, Uniform
from gpu_envs.specs.fields import Field, Table
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.rules import Rules
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import Role, TeamSpec

if TYPE_CHECKING:
    from gpu_envs.engine.results import Rollout, Step
    from gpu_envs.evaluating import Estimate, Evaluation, Evaluations, evaluate
    from gpu_envs.making import make
    from gpu_envs.multi_agent_env import MultiAgentEnv
    from gpu_envs.vector_env import VectorEnv

__version__ = "0.1.0"

_LAZY = {
    "Estimate": "gpu_envs.evaluating",
    "Evaluation": "gpu_envs.evaluating",
    "Evaluations": "gpu_envs.evaluating",
    "MultiAgentEnv": "gpu_envs.multi_agent_env",
    "Rollout": "gpu_envs.engine.results",
    "Step": "gpu_envs.engine.results",
    "VectorEnv": "gpu_envs.vector_env",
    "evaluate": "gpu_envs.evaluating",
    "make": "gpu_envs.making",
}
"""Names imported on first access, and their modules: listing and describing environments does not need them."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


for _spec in _ALL:
    _add(_spec, _Origin("gpu_envs", _spec.id))

__all__ = [
    "ActionError",
    "Choice",
    "CompileError",
    "Derived",
    "EnvSpec",
    "Estimate",
    "Evaluation",
    "Evaluations",
    "Field",
    "LogUniform",
    "Metric",
    "MultiAgentEnv",
    "NoCompilerError",
    "Normal",
    "NotFiniteError",
    "Param",
    "Role",
    "Rollout",
    "Rules",
    "SourceError",
    "Spec",
    "Step",
    "Table",
    "TeamSpec",
    "TranslationError",
    "Uniform",
    "UnknownEnvironmentError",
    "VectorEnv",
    "evaluate",
    "ids",
    "make",
    "register",
    "spec",
]
