"""Adam over one flat buffer that a policy's parameters are views of, with everything that changes on the device."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import CachedLaunch, MemberValue, load_kernels
from gpu_envs.backend.program import Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.errors import did_you_mean
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.process.group import ALONE, PEERS, Group, blocks_of, settings

_FACTORS = 4
"""What the preparation leaves for all elements."""

SUM_NUMBERS = f"constexpr int SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')}, ALIVE = {SUMS.index('alive')};"
"""Of the loss's sums those that decide."""

_SUMS: tuple[Any, ...] = (
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
    ("float", "max_kl"),
    ("double", "log_beta1"),
    ("double", "log_beta2"),
)
"""What the step depends on."""

_MOMENTS: tuple[Any, ...] = (
    *(("float*", name, ("count",)) for name in ("weights", "means", "squares")),
    *(("float", name) for name in ("rate1", "rate2", "beta2", "epsilon")),
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

    learning_rate: Tensor
    """``[1]`` on the device."""
    max_norm: float | None
    """The mean gradient is shortened to this; None: never."""
    norm: Tensor
    """``[1]``, written where a step is taken: of the mean gradient, before it is shortened."""
    stop: Tensor | None = None
    """int32 ``[1]`` on the device: 0 to go on; None: always. Becomes 1 where the divergence exceeds ``max_kl``."""
    max_kl: float = math.inf
    """Bounds the mean divergence."""
    figures: Tensor | None = None
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
        self._kept: Final = {
            "means": torch.zeros_like(self.flat),
            "squares": torch.zeros_like(self.flat),
            "steps": self.flat.new_zeros(1, dtype=torch.int64),
        }
        self._group: Final = group or Group()
        self._peers: Final = self._group.peer_memory(len(self.message), self.flat.device)
        self.sums_apart: Final = self._peers is None and self._group.size > 1
        self.processes: Final = self._group.size if self._peers else 1
        collect, adam = load_kernels(backend, program(self.processes))
        blocks, (beta1, beta2) = blocks_of(len(self.message)), betas
        message: dict[str, Any] = {"count": self.flat.numel(), "words": len(self.message), "message": self.message}
        sums = message | {
            "blocks": blocks,
            "steps": self._kept["steps"],
            "log_beta1": math.log(beta1) if beta1 else -math.inf,
            "log_beta2": math.log(beta2) if beta2 else -math.inf,
            **(self._peers.members if self._peers else ALONE),
        }
        moments = {
            "weights": self.flat,
            "means": self._kept["means"],
            "squares": self._kept["squares"],
            "rate1": 1 - beta1,
            "rate2": 1 - beta2,
            "beta2": beta2,
            "epsilon": eps,
        }
        factors, counter = self.flat.new_zeros(_FACTORS), torch.zeros_like(self._kept["steps"], dtype=torch.int32)
        collect.fill(**sums, factors=factors, block_squares=self.flat.new_zeros(blocks), arrived=counter)
        self._collect: Final = CachedLaunch(collect)
        self._adam: Final = CachedLaunch(adam.fill(**message, **moments, factors=factors))
        self.members: Final = {**sums, **moments, "arrivals": counter.clone()}

    def keeps(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter lies in this buffer."""
        same_device = parameter.device == self.flat.device
        return same_device and parameter.untyped_storage().data_ptr() == self.flat.untyped_storage().data_ptr()

    @torch.no_grad()
    def gather(self, grads: Sequence[Tensor]) -> None:
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
        self._collect.bound((how,), blocks_of(len(self.message)), lambda: how.members)()
        self._adam.bound((), blocks_of(self.flat.numel()), dict)()

    def state(self) -> dict[str, Tensor]:
        """Copies of what the next step depends on beside the parameters."""
        return {name: tensor.clone() for name, tensor in self._kept.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what ``state`` returned; the memory stays where it is."""
        for name in state:
            if name not in self._kept:
                raise ValueError(f"an optimiser's state has no {name!r}{did_you_mean(name, self._kept)}")
        for name, tensor in self._kept.items():
            if name not in state or state[name].shape != tensor.shape:
                given = list(state[name].shape) if name in state else "missing"
                raise ValueError(f"{name} of the optimiser's state is {given}; give {list(tensor.shape)}")
        for name, tensor in self._kept.items():
            tensor.copy_(state[name])


def flattened(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Moves parameters into one buffer, of which they become views."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return flat
