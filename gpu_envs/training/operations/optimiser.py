"""Adam over one flat buffer that a policy's parameters are views of, with everything that changes on the device."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import MemberValue, Repeated, load_kernels
from gpu_envs.backend.program import Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.errors import did_you_mean
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.process.group import Group
from gpu_envs.training.process.peers import ALONE, PEERS, blocks_of, settings

_FACTORS = 4
"""What the preparation leaves for all elements."""

SUM_NUMBERS = f"constexpr int SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')}, ALIVE = {SUMS.index('alive')};"
"""Of the loss's sums those that decide."""

_SUMS = (
    ("Index", "count"),
    ("int", "blocks"),
    ("float*", "message", ("words",)),
    *PEERS,
    ("const float*", "learning_rate", (1,)),
    ("int*?", "stop", (1,)),
    ("float*?", "figures", (len(SUMS),)),
    ("i64*", "steps", (1,)),
    ("float*", "norm", (1,)),
    ("float", "max_norm"),
    ("float", "most_kl"),
    ("double", "log_beta1"),
    ("double", "log_beta2"),
)
"""What the step depends on."""

_MOMENTS = (
    ("float*", "weights", ("count",)),
    ("float*", "means", ("count",)),
    ("float*", "squares", ("count",)),
    ("float", "rate1"),
    ("float", "rate2"),
    ("float", "beta2"),
    ("float", "epsilon"),
)
"""What it changes."""

STEP_MEMBERS = (*_SUMS, *_MOMENTS, ("int*", "arrivals", (1,)))
"""Of a kernel that does it all: filled with ``Adam.members``, and launched with ``Step.members``."""

COLLECT_CALL = Struct.of(
    "CollectCall",
    "float",
    *_SUMS,
    ("float*", "block_squares", ("blocks",)),
    ("int*", "arrived", (1,)),
    ("float*", "factors", (_FACTORS,)),
)

ADAM_CALL = Struct.of(
    "AdamCall",
    "float",
    ("Index", "count"),
    ("const float*", "factors", (_FACTORS,)),
    ("const float*", "message", ("words",)),
    *_MOMENTS,
)


def program(processes: int = 1) -> Program:
    """The source, where the gradients of so many processes are added up through memory of their GPUs."""
    parts = ("training/common/peers.cuh", "training/common/adam.cuh", "training/common/optimise.cuh")
    return program_of(parts, {"collect": COLLECT_CALL, "adam": ADAM_CALL}, settings(processes, SUM_NUMBERS))


@final
@dataclasses.dataclass(frozen=True)
class Step:
    """How a step is taken, and what it reports."""

    learning_rate: torch.Tensor
    """``[1]`` on the device."""
    max_norm: float | None
    """The mean gradient is shortened to this; None: never."""
    norm: torch.Tensor
    """``[1]``, written where a step is taken: of the mean gradient, before it is shortened."""
    stop: torch.Tensor | None = None
    """int32 ``[1]`` on the device: 0 to go on; None: always. Becomes 1 where the divergence exceeds ``most_kl``."""
    most_kl: float = math.inf
    """Bounds the mean divergence."""
    figures: torch.Tensor | None = None
    """Where the totals are added, unless it is stopped; None: nowhere."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """What kernels are told of it."""
        return {**vars(self), "max_norm": self.max_norm or 0.0}


@final
class Adam:
    """The optimiser of one policy.

    Attributes:
        flat: The parameters.
        message: What processes that train together add up: ``gradient``, and ``totals`` for the loss's ``SUMS``.
        gradient: Of a sum over samples.
        totals: The sums over those samples, the last of them their number.
        sums_apart: Processes' messages are added up between the kernels.
        processes: How many add theirs up within them.
        members: What a kernel of ``STEP_MEMBERS`` is filled with.
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
        """Moves the parameters into one buffer, of which they become views.

        Args:
            parameters: What is trained: float32, on the device, each once.
            eps: Keeps steps finite where gradients have been zero.
            betas: How much of the gradient's running mean, and of its square's, is kept each step.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: For the CPU: the most threads to use; None: one for each core.
            group: The processes whose gradients are added up; None: this one trains alone.
        """
        if not parameters or len({id(p) for p in parameters}) != len(parameters):
            raise ValueError(f"there are {len(parameters)} parameters; give at least one, and each of them once")
        if not all(0 <= beta < 1 for beta in betas) or eps < 0:
            raise ValueError(f"betas are {betas} and eps {eps}; give betas from 0 to below 1, and eps from 0 up")
        backend = open_backend(resolve_device(device), threads)
        for number, parameter in enumerate(parameters):
            if parameter.dtype != torch.float32 or parameter.device != torch.device(backend.device):
                raise ValueError(
                    f"parameter {number} is {parameter.dtype} on {parameter.device}; give float32 on {backend.device}"
                )
        self._shapes: Final = [parameter.shape for parameter in parameters]
        self.flat: Final = flattened(parameters)
        self.message: Final = self.flat.new_zeros(self.flat.numel() + len(SUMS))
        self.gradient: Final = self.message[: self.flat.numel()]
        self.totals: Final = self.message[self.flat.numel() :]
        self._means: Final = torch.zeros_like(self.flat)
        self._squares: Final = torch.zeros_like(self.flat)
        self._steps: Final = torch.zeros(1, dtype=torch.int64, device=self.flat.device)
        self._group: Final = group or Group()
        self._peers: Final = self._group.peer_memory(len(self.message), self.flat.device)
        self.sums_apart: Final = self._peers is None and self._group.size > 1
        self.processes: Final = self._group.size if self._peers else 1
        collect, adam = load_kernels(backend, program(self.processes))
        count, (beta1, beta2) = self.flat.numel(), betas
        self._blocks: Final = blocks_of(len(self.message))

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return self.flat.new_zeros(shape, dtype=dtype)

        sums: dict[str, Any] = {
            "count": count,
            "blocks": self._blocks,
            "words": len(self.message),
            "message": self.message,
            "steps": self._steps,
            "log_beta1": _log(beta1),
            "log_beta2": _log(beta2),
            **(self._peers.members if self._peers else ALONE),
        }
        moments: dict[str, Any] = {
            "weights": self.flat,
            "means": self._means,
            "squares": self._squares,
            "rate1": 1 - beta1,
            "rate2": 1 - beta2,
            "beta2": beta2,
            "epsilon": eps,
        }
        factors = made(_FACTORS)
        arrived, squares = made(1, dtype=torch.int32), made(self._blocks)
        collect.fill(**sums, factors=factors, block_squares=squares, arrived=arrived)
        self._collect: Final = Repeated(collect)
        adam.fill(count=count, words=len(self.message), factors=factors, message=self.message, **moments)
        self._kernel: Final = adam
        self.members: Final = {**sums, **moments, "arrivals": made(1, dtype=torch.int32)}

    @functools.cached_property
    def _adam(self) -> Callable[..., None]:
        return self._kernel.bind(blocks_of(self.flat.numel()))

    def keeps(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter lies in this buffer."""
        same_device = parameter.device == self.flat.device
        return same_device and parameter.untyped_storage().data_ptr() == self.flat.untyped_storage().data_ptr()

    @torch.no_grad()
    def gather(self, grads: Sequence[torch.Tensor]) -> None:
        """Takes the gradients of a sum over samples, in the order of the parameters."""
        shapes = [grad.shape for grad in grads]
        if shapes != self._shapes:
            raise ValueError(
                f"gradients have shapes {[list(s) for s in shapes]}; give those of the parameters, "
                f"{[list(s) for s in self._shapes]}"
            )
        torch.cat([grad.reshape(-1) for grad in grads], out=self.gradient)

    def step(self, how: Step) -> None:
        """Adds up ``message`` over the processes, and takes a step; none where there were no samples, or at a stop."""
        if self.sums_apart:
            self._group.sum(self.message)
        self._collect.bound((how,), self._blocks, lambda: how.members)()
        self._adam()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of what the next step depends on beside the parameters."""
        return {name: tensor.clone() for name, tensor in self._kept().items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on from what ``state`` returned; the memory stays where it is."""
        kept = self._kept()
        for name in state:
            if name not in kept:
                raise ValueError(f"an optimiser's state has no {name!r}{did_you_mean(name, kept)}")
        for name, tensor in kept.items():
            if name not in state or state[name].shape != tensor.shape:
                given = list(state[name].shape) if name in state else "missing"
                raise ValueError(f"{name} of the optimiser's state is {given}; give {list(tensor.shape)}")
        for name, tensor in kept.items():
            tensor.copy_(state[name])

    def _kept(self) -> dict[str, torch.Tensor]:
        return {"means": self._means, "squares": self._squares, "steps": self._steps}


def flattened(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Moves parameters into one buffer, of which they become views."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return flat


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf
