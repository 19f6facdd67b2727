"""Who computes the networks of a policy: the engines, and the only place where one is chosen."""

from gpu_envs.training.engines.base import Engine
from gpu_envs.training.engines.functions import FunctionsEngine
from gpu_envs.training.engines.off_policy import TorchActorCriticEngine
from gpu_envs.training.engines.off_policy_kernels import CpuEngine, GpuFunctionsEngine
from gpu_envs.training.engines.small import SmallEngine
from gpu_envs.training.engines.small_batch import SmallBatchEngine
from gpu_envs.training.engines.torch import TorchEngine
from gpu_envs.training.engines.wide import WideEngine
from gpu_envs.training.networks import Case

ENGINES: tuple[Engine, ...] = (
    *(SmallEngine(), WideEngine(), FunctionsEngine(), TorchEngine()),
    *(SmallBatchEngine(), GpuFunctionsEngine(), CpuEngine(), TorchActorCriticEngine()),
)
"""The fastest first; the last one of each kind of algorithm is torch's, which runs everything."""


def choose(case: Case) -> tuple[Engine, str]:
    """The fastest engine that can run a case, and why the faster ones cannot.

    Raises:
        ValueError: ``fused`` is True, and only torch can run it.
    """
    *kernels, torch = (engine for engine in ENGINES if isinstance(case.algorithm, engine.learns))
    reasons: dict[str, str] = {}
    if case.network.fused is False:
        reason = "they are turned off"
    elif not case.default:
        reason = "only the default policy has kernels of its own"
    else:
        for engine in kernels:
            if case.device.startswith(engine.device):
                reason = engine.fallback_reason(case)
                if not reason:
                    return engine, _joined(reasons)
                reasons[engine.name] = reason
        reason = _joined(reasons) or f"the device is {case.device}, and only CUDA has kernels for networks"
    if case.network.fused:
        raise ValueError(f"fused=True, and {reason}; leave it out")
    return torch, reason


def torch_engine(case: Case) -> Engine:
    """The engine that runs a case by torch, whatever else could."""
    return [engine for engine in ENGINES if isinstance(case.algorithm, engine.learns)][-1]


def _joined(reasons: dict[str, str]) -> str:
    """One sentence of why engines cannot run a case, which names them where their reasons differ."""
    if len({*reasons.values()}) <= 1:
        return next(iter(reasons.values()), "")
    return ", and ".join(f"{reason} (for {name} networks' kernels)" for name, reason in reasons.items())


__all__ = ["ENGINES", "Case", "Engine", "choose", "torch_engine"]
