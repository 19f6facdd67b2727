"""Compiles a header into launches on tensors: tensors and numbers go into a struct, and the kernel runs on it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch

from gpu_envs.arrays import TorchArrays
from gpu_envs.backend import Backend, open_backend, resolve_device
from gpu_envs.backend.base import Kernels, Launch
from gpu_envs.codegen.structs import Struct
from gpu_envs.programs import Shape, program_of

__all__ = ["FLAGS", "Compiler", "Kernel", "Shape", "address", "optional_address", "program_of"]

_MOST_LAUNCHES = 64
"""Counts whose prepared launches are kept; a training run has a handful."""


@final
class Kernel:
    """A compiled kernel and the struct that it takes."""

    def __init__(self, kernels: Kernels, name: str, call: Any, stream: TorchArrays) -> None:
        """Keeps what a launch needs; ``call`` is the struct, an instance of the program's class for this kernel."""
        self._kernels = kernels
        self._name = name
        self._call = call
        self._members = frozenset(member for member, _ in call._fields_)
        self._stream = stream
        self._launches: dict[int, Launch] = {}

    def __call__(self, count: int, members: Mapping[str, int | float | None]) -> None:
        """Launches over ``count`` elements on torch's current stream.

        Args:
            count: How many threads; none at all for 0.
            members: Every member of the struct: a number, or an address (None: a null pointer).
        """
        if members.keys() != self._members:
            raise ValueError(
                f"kernel {self._name} takes {', '.join(sorted(self._members))}; given {', '.join(sorted(members))}"
            )
        if count == 0:
            return
        for name, value in members.items():
            setattr(self._call, name, value)
        launch = self._launches.get(count)
        if launch is None:
            if len(self._launches) == _MOST_LAUNCHES:
                self._launches.clear()
            launch = self._launches[count] = self._kernels.bind(self._name, self._call, count)
        launch(self._stream.stream())


@final
class Compiler:
    """Compiles kernels for one device."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        """Opens the device.

        Args:
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: For the CPU: the most threads to use; None: one for each core.
        """
        self.device: Final = torch.device(resolve_device(device))
        self._backend: Final[Backend] = open_backend(str(self.device), threads)
        self._arrays: Final = TorchArrays(str(self.device))

    def compile(self, headers: Sequence[str], calls: Mapping[str, Struct], shape: Shape | None = None) -> list[Kernel]:
        """Compiles the kernels of one header.

        Args:
            headers: Of ``gpu_envs/kernels``, without the dialect and what all share; the last one has the kernels.
            calls: The struct of each kernel, by the kernel's name.
            shape: What is compiled in.

        Returns:
            The kernels, in the order of ``calls``.
        """
        program = program_of(headers, calls, shape)
        kernels = self._backend.load(program)
        return [Kernel(kernels, name, program.calls[name](), self._arrays) for name in calls]


FLAGS = (torch.bool, torch.uint8)
"""What may say whether: a byte that is zero or is not."""


def address(
    name: str, tensor: torch.Tensor, shape: Sequence[int], dtypes: torch.dtype | Sequence[torch.dtype], device: Any
) -> int:
    """Where a tensor's memory begins, once it is what a kernel takes it for.

    Args:
        name: For the message.
        tensor: What the caller gave.
        shape: Its shape, or one with as many elements in the same order: ``[1]`` and ``[]`` are the same.
        dtypes: What its elements may be.
        device: Where it must be.
    """
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if (
        tensor.dtype in allowed
        and tensor.device == device
        and tensor.is_contiguous()
        and (tensor.shape == tuple(shape) or (tensor.numel() == 1 and math.prod(shape) == 1))
    ):
        return int(tensor.data_ptr())
    wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
    layout = "" if tensor.is_contiguous() else ", not contiguous"
    raise ValueError(
        f"{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}{layout}; "
        f"give contiguous {wanted} {list(shape)} on {device}"
    )


def optional_address(
    name: str,
    tensor: torch.Tensor | None,
    shape: Sequence[int],
    dtypes: torch.dtype | Sequence[torch.dtype],
    device: Any,
) -> int | None:
    """The same of a tensor that need not be there; then None, a null pointer."""
    return None if tensor is None else address(name, tensor, shape, dtypes, device)
