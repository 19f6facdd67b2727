"""Adam over one flat buffer; a policy's parameters are views of it, and all state is on the device."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import CachedLaunch, MemberValue
from gpu_envs.backend.program import Program, program_of
from gpu_envs.errors import did_you_mean
from gpu_envs.training.engines.kernels import load_filled
from gpu_envs.training.engines.ops import SUMS, float_struct
from gpu_envs.training.process.group import ALONE, PEERS, Group, blocks_of, settings

_FACTORS = 4
"""Number of factors that kernel_collect writes for kernel_adam."""

SUM_NUMBERS = f"constexpr int SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')}, ALIVE = {SUMS.index('alive')};"
"""Indices of the sums that ``adam.cuh`` reads, in C++."""

_SUMS: tuple[Any, ...] = (
    ("Index", "count"),
    ("int", "blocks"),
    ("float*", "message", ("words",)),
    *PEERS,
    ("const float*", "learning_rate", (1,)),
    ("int*?", "stop", (1,)),
    ("float*?", "metrics", (len(SUMS),)),
    ("i64*", "steps", (1,)),
    ("float*", "norm", (1,)),
    ("float", "max_norm"),
    ("float", "max_kl"),
    ("double", "log_beta1"),
    ("double", "log_beta2"),
)
"""Arguments that determine the step."""

_MOMENTS: tuple[Any, ...] = (
    *(("float*", name, ("count",)) for name in ("weights", "means", "squares")),
    *(("float", name) for name in ("rate1", "rate2", "beta2", "epsilon")),
)
"""Arguments for the parameters and their moments."""

STEP_MEMBERS = (*_SUMS, *_MOMENTS, ("int*", "arrivals", (1,)))
"""Arguments of a kernel that takes the step: constant ``Adam.members``, and ``Step.members`` per launch."""

COLLECT_CALL = float_struct(
    "CollectCall",
    *_SUMS,
    ("float*", "block_squares", ("blocks",)),
    ("int*", "arrived", (1,)),
    ("float*", "factors", (_FACTORS,)),
)

ADAM_CALL = float_struct(
    "AdamCall",
    ("Index", "count"),
    ("const float*", "factors", (_FACTORS,)),
    ("const float*", "message", ("words",)),
    *_MOMENTS,
)


def program(processes: int = 1) -> Program:
    """The program of ``kernel_collect`` and ``kernel_adam``; it sums gradients of several processes by peer memory."""
    parts = ("training/common/peers.cuh", "training/common/adam.cuh", "training/common/optimise.cuh")
    return program_of(parts, {"collect": COLLECT_CALL, "adam": ADAM_CALL}, settings(processes, SUM_NUMBERS))


@final
@dataclasses.dataclass(frozen=True)
class Step:
    """The arguments of an optimiser step, and tensors for what it reports."""

    learning_rate: Tensor
    """``[1]`` on the device."""
    max_norm: float | None
    """Maximum norm of the mean gradient, which is clipped to it; None: no clipping."""
    norm: Tensor
    """``[1]``, receives the norm of the mean gradient before clipping, if a step is taken."""
    stop: Tensor | None = None
    """int32 ``[1]`` on the device, set to 1 if the KL divergence exceeds ``max_kl``; 1 skips steps. None: no limit."""
    max_kl: float = math.inf
    """Maximum mean KL divergence."""
    metrics: Tensor | None = None
    """Accumulates the totals, unless the update is stopped; None: no accumulation."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """The arguments of kernels."""
        return {**vars(self), "max_norm": self.max_norm or 0.0}


@final
class Adam:
    """The optimiser of parameters in one flat buffer, for losses that are means over the samples of all processes.

    Attributes:
        flat: The parameters.
        message: ``gradient`` and ``totals`` in one tensor, which is summed over processes.
        gradient: The gradient of a loss summed over samples.
        totals: The loss's ``SUMS`` over these samples; the last one is their number.
        sums_apart: Whether messages are summed by a collective before the kernels.
        processes: Number of processes whose messages the kernels sum.
        members: Constant arguments of kernels with ``STEP_MEMBERS``.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        eps: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        device: str,
        threads: int | None = None,
        group: Group | None = None,
    ) -> None:
        """Moves the parameters into one flat buffer, whose views they become, and starts to compile the kernels.

        Args:
            parameters: The parameters to train: float32, on the device, each once.
            eps: Added to the denominator.
            betas: Decay rates of the running means of the gradient and of its square.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: Maximum threads on a CPU; None: one for each core.
            group: The processes that sum their gradients; None: this process alone.
        """
        if not parameters or len({id(p) for p in parameters}) != len(parameters):
            raise ValueError(f"there are {len(parameters)} parameters; give at least one, and each of them once")
        if not all(0 <= beta < 1 for beta in betas) or eps < 0:
            raise ValueError(f"betas are {betas} and eps {eps}; give betas from 0 to below 1, and eps from 0 up")
        backend = open_backend(resolve_device(device), threads)
        for number, parameter in enumerate(parameters):
            if parameter.dtype != torch.float32 or parameter.device != torch.device(backend.device):
                raise ValueError(
                    f"parameters[{number}] is {parameter.dtype} on {parameter.device}; give float32 on {backend.device}"
                    f": convert its module first, with module.to({backend.device!r}, torch.float32)"
                )
        self._shapes: Final = [parameter.shape for parameter in parameters]
        self.flat: Final = flattened(parameters)
        self.message: Final = self.flat.new_zeros(self.flat.numel() + len(SUMS))
        self.gradient: Final = self.message[: self.flat.numel()]
        self.totals: Final = self.message[self.flat.numel() :]
        self._state: Final = {
            "means": torch.zeros_like(self.flat),
            "squares": torch.zeros_like(self.flat),
            "steps": self.flat.new_zeros(1, dtype=torch.int64),
        }
        self._group: Final = group or Group()
        self._peers: Final = self._group.peer_memory(len(self.message), self.flat.device)
        self.sums_apart: Final = self._peers is None and self._group.size > 1
        self.processes: Final = self._group.size if self._peers else 1
        blocks, (beta1, beta2) = blocks_of(len(self.message)), betas
        sizes = {"count": self.flat.numel(), "words": len(self.message), "blocks": blocks}
        rates = {"rate1": 1 - beta1, "rate2": 1 - beta2, "beta2": beta2, "epsilon": eps}
        rates |= {f"log_beta{n}": math.log(beta) if beta else -math.inf for n, beta in enumerate(betas, 1)}
        tensors = {"message": self.message, "weights": self.flat, **self._state}
        arrivals, arrived = (self.flat.new_zeros(1, dtype=torch.int32) for _ in range(2))
        peers = self._peers.members if self._peers else ALONE
        self.members: Final[dict[str, Any]] = {**sizes, **rates, **tensors, **peers, "arrivals": arrivals}
        zeros = {"factors": self.flat.new_zeros(_FACTORS), "block_squares": self.flat.new_zeros(blocks)}
        kernels = load_filled(backend, [program(self.processes)], **self.members, **zeros, arrived=arrived).values()
        self._collect, self._adam = map(CachedLaunch, kernels)

    def owns(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter is in this optimiser's buffer."""
        same_device = parameter.device == self.flat.device
        return same_device and parameter.untyped_storage().data_ptr() == self.flat.untyped_storage().data_ptr()

    @torch.no_grad()
    def gather(self, grads: Sequence[Tensor]) -> None:
        """Copies the gradients of a loss summed over samples, in the order of the parameters, to ``gradient``."""
        shapes = [grad.shape for grad in grads]
        if shapes != self._shapes:
            raise ValueError(
                f"gradients have shapes {[list(s) for s in shapes]}; give the parameters' shapes, "
                f"{[list(s) for s in self._shapes]}"
            )
        torch.cat([grad.reshape(-1) for grad in grads], out=self.gradient)

    def step(self, how: Step) -> None:
        """Takes a step with the gradient summed over processes, unless it has no samples or ``how.stop`` is 1."""
        if self.sums_apart:
            self._group.sum(self.message)
        self._collect.bound((how,), blocks_of(len(self.message)), lambda: how.members)()
        self._adam.bound((), blocks_of(self.flat.numel()), dict)()

    def state(self) -> dict[str, Tensor]:
        """Copies of the moments and the number of steps."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies a result of ``state`` into the moments; ValueErrors for unknown, missing or misshapen entries."""
        for name in state:
            if name not in self._state:
                raise ValueError(f"an optimiser's state has no {name!r}{did_you_mean(name, self._state)}")
        for name, tensor in self._state.items():
            if name not in state or state[name].shape != tensor.shape:
                shape = f"of shape {list(state[name].shape)}" if name in state else "missing"
                raise ValueError(f"{name} of the optimiser's state is {shape}; give shape {list(tensor.shape)}")
        for name, tensor in self._state.items():
            tensor.copy_(state[name])


def flattened(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves parameters into one buffer; they become views of it."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return flat
