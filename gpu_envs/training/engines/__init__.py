"""The engines, which compute the networks of policies, and the choice of one."""

from gpu_envs.backend.several import current_runs
from gpu_envs.training.engines.base import Engine
from gpu_envs.training.engines.cpu import CpuPolicyEngine, CpuQEngine
from gpu_envs.training.engines.functions import FunctionsEngine
from gpu_envs.training.engines.gru_kernels import missing_support
from gpu_envs.training.engines.off_policy import TorchActorCriticEngine
from gpu_envs.training.engines.off_policy_kernels import CpuEngine, GpuFunctionsEngine
from gpu_envs.training.engines.small import SmallEngine
from gpu_envs.training.engines.small_batch import SmallBatchEngine
from gpu_envs.training.engines.torch import TorchEngine
from gpu_envs.training.engines.wide import WideEngine
from gpu_envs.training.networks import Case

ENGINES: tuple[Engine, ...] = (
    *(SmallEngine(), WideEngine(), FunctionsEngine(), CpuPolicyEngine(), CpuQEngine(), TorchEngine()),
    *(SmallBatchEngine(), GpuFunctionsEngine(), CpuEngine(), TorchActorCriticEngine()),
)
"""Engines of on-policy and of off-policy algorithms, the fastest first; the last of each uses torch, for all cases."""


def choose(case: Case) -> tuple[Engine, str]:
    """Returns the fastest engine that can run a policy's case, and why faster engines cannot; empty: none is faster.

    Raises:
        ValueError: ``fused`` is True, but only torch can run the case.
    """
    *kernels, torch = (engine for engine in ENGINES if isinstance(case.algorithm, engine.learns))
    reasons: dict[str, str] = {}
    if case.network.fused is False:
        reason = "fused is False"
    elif not case.default:
        reason = "only the default policy has kernels"
    elif case.network.memory is not None:
        if not (reason := missing_support(case)):
            return torch, ""  # with kernels for the trunk
    else:
        for engine in kernels:
            if case.device.startswith(engine.device):
                reason = engine.fallback_reason(case)
                if not (reason or engine.of_populations or current_runs() is None):
                    reason = "the kernels train one run at a time"
                if not reason:
                    return engine, _joined(reasons)
                reasons[engine.name] = reason
        reason = _joined(reasons)
    if case.network.fused:
        raise ValueError(f"fused is True, but {reason}; leave fused out")
    return torch, reason


def torch_engine(case: Case) -> Engine:
    """Returns the engine that runs a case with torch, whatever ``fused`` is."""
    return [engine for engine in ENGINES if isinstance(case.algorithm, engine.learns)][-1]


def _joined(reasons: dict[str, str]) -> str:
    """Joins reasons, by engine name, in a sentence; without the names if all reasons are the same."""
    if len({*reasons.values()}) <= 1:
        return next(iter(reasons.values()), "")
    return ", and ".join(f"{reason} (for {name} networks' kernels)" for name, reason in reasons.items())


__all__ = ["ENGINES", "Case", "Engine", "choose", "torch_engine"]
