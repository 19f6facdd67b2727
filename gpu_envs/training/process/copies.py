"""A copy of a run's memory for each of several runs, on which torch and kernels work at once."""

import ctypes
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast, final

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_envs.backend.several import SeveralRuns, copies_of, launching_for
from gpu_envs.training.process.device import USABLE_FRACTION, ShortageError, available_memory

_ALIGNMENT = 512
"""Alignment of each array, in bytes, as torch's on a GPU."""


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to the tensors in its lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(function, item) for item in value)
    if isinstance(value, Mapping):
        return {name: mapped(function, item) for name, item in value.items()}
    return value


@final
class _Placement(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Places the memory of each new tensor of a device one after the other; without memory, adds up the sizes."""

    def __init__(self, device: torch.device, memory: Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = 0
        self._device, self._memory = device, memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        old: set[int] = set()

        def note(tensor: Tensor) -> Tensor:
            old.add(tensor.untyped_storage().data_ptr())
            return tensor

        if func is not torch.ops.aten.lift_fresh.default:
            mapped(note, [args, kwargs])
        return mapped(lambda tensor: self._place(tensor, old), result)

    def _place(self, tensor: Tensor, old: set[int]) -> Tensor:
        size, address = tensor.untyped_storage().nbytes(), tensor.untyped_storage().data_ptr()
        if tensor.device != self._device or size == 0 or address in old:
            return tensor
        first = self.used
        self.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return tensor
        if self.used > len(self._memory):
            raise RuntimeError("a run needs more memory than the first time")
        memory = _tensor_at(self._memory.data_ptr() + first, size, self._device).view(tensor.dtype)
        placed = memory.as_strided(tensor.shape, tensor.stride())
        return placed.copy_(tensor)


def _tensor_at(address: int, size: int, device: torch.device) -> Tensor:
    """Return a tensor of ``size`` bytes with its own storage, at an address."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)

    class Memory:
        __cuda_array_interface__: Final = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}

    return torch.as_tensor(Memory(), device=device)


@final
class _Lifting(TorchFunctionMode):
    """Lets torch's functions work on the copies of tensors instead of the first ones."""

    def __init__(self, copies: "RunCopies", level: int) -> None:
        super().__init__()
        self._copies, self._level = copies, level

    def _lift(self, tensor: Tensor) -> Tensor:
        functorch: Any = torch._C._functorch
        if functorch.maybe_get_level(tensor) not in (-1, self._level):
            raise NotImplementedError("a module calls torch.func or torch.vmap")
        return self._copies.lift(tensor, self._level)

    def _wrap(self, copies: Tensor) -> Tensor:
        functorch: Any = torch._C._functorch
        wrapped: Tensor = functorch._add_batch_dim(copies, 0, self._level)
        return wrapped

    def _copies_of(self, tensor: Tensor) -> Tensor:
        copies = copies_of(self._lift(tensor))
        return tensor if copies is None else copies

    def _sum(self, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        tensor, *rest = args or [kwargs.pop("input")]
        copies = copies_of(tensor)
        if copies is None:
            return func(tensor, *rest, **kwargs)
        return self._wrap(torch.stack([func(copy, *rest, **kwargs) for copy in copies]))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _OVER_COPIES:
            with temporarily_clear_interpreter_stack():
                results = _OVER_COPIES[func](*mapped(self._copies_of, args))
            return mapped(self._wrap, results)
        if func is torch.Tensor.data_ptr:
            with torch._C.DisableTorchFunction():
                return self._copies.runs.first_address(args[0])
        if func in _OF_THE_FIRST:
            return func(*args, **(kwargs or {}))
        lifted, options = mapped(self._lift, args), mapped(self._lift, kwargs or {})
        out = options.pop("out", None)  # which torch.vmap does not support
        if func in _NORMS:
            result = _normalised(func, *lifted, **options)
        elif func in _SUMS:
            result = self._sum(func, *lifted, **options)
        else:
            result = func(*lifted, **options)
        if isinstance(out, tuple):
            return tuple(tensor.copy_(part) for tensor, part in zip(out, result, strict=True))
        return result if out is None else out.copy_(result)


def _normalised(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Call a function that changes running statistics with contiguous ones, as it would change copies of others."""
    bound = inspect.signature(func).bind(*args, **kwargs)
    names = [name for name in ("running_mean", "running_var") if bound.arguments.get(name) is not None]
    statistics = {name: bound.arguments[name] for name in names}
    bound.arguments.update({name: tensor.clone() for name, tensor in statistics.items()})
    result = func(*bound.args, **bound.kwargs)
    with torch.no_grad():
        for name, tensor in statistics.items():
            tensor.copy_(bound.arguments[name])
    return result


_SUMS = {torch.sum, torch.Tensor.sum}
"""Functions that are called for one run after the other, as the order of their additions may depend on the shape."""

_NORMS = {torch.nn.functional.batch_norm, torch.nn.functional.instance_norm}
"""Functions that change running statistics."""

_OF_THE_FIRST = {torch.Tensor.is_contiguous, torch.Tensor.storage_offset, torch.Tensor.untyped_storage}
"""Functions of a tensor itself."""


_OVER_COPIES: dict[Any, Callable[..., Any]] = {}
"""The functions that ``over_copies`` got, by the functions that it returned."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def over_copies(function: _Function) -> _Function:
    """Decorate a function of tensors: for several runs, it gets and returns tensors with a first dimension of runs."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if has_torch_function(args):
            return handle_torch_function(call, args, *args)
        return function(*args)

    _OVER_COPIES[call] = function
    return cast(_Function, call)


@final
class RunCopies:
    """The memory of several runs: one copy for each, in the layout of the first run, which alone has tensor objects.

    Attributes:
        memory: ``[runs, bytes]`` on the device.
        fitting: Maximum number of runs that fit into the device's free memory.
        runs: The launches of kernels for all runs.
    """

    def __init__(self, count: int, device: str, make: Callable[[], Any]) -> None:
        """Allocate ``count`` copies of the memory of a run that ``make`` makes; ShortageError if they do not fit."""
        self._device = torch.device(device)
        self._flags = torch.ones(count + 1, dtype=torch.uint8, device=device)
        one = SeveralRuns(count, 0, 0)
        one.flags = self._flags.data_ptr()
        with _Placement(self._device, None) as sizes, launching_for(one):
            make()
        each = max(sizes.used, _ALIGNMENT)
        # twice, for copies while graphs are captured, and of runs that end before others
        self.fitting: Final = int(available_memory(device) * USABLE_FRACTION) // (2 * each)
        if count > self.fitting:
            raise ShortageError(
                f"{count:,} runs of {each / 2**20:,.1f} MiB do not fit on {device}: give {self.fitting:,} or fewer"
            )
        self.memory: Final = torch.zeros(count, each, dtype=torch.uint8, device=device)
        self.runs: Final = SeveralRuns(count, self.memory.data_ptr(), self.memory.shape[1])
        self.runs.flags = self._flags.data_ptr()
        self._leaves: dict[int, Tensor] = {}

    def exclude(self, number: int) -> None:
        """Leave a run out of later launches."""
        self.runs.active[number] = False
        self._flags[number] = 0

    def make(self, make: Callable[[], Any]) -> Any:
        """Return the first run, which ``make`` makes in its memory."""
        with _Placement(self._device, self.memory[0]), launching_for(self.runs):
            return make()

    @contextmanager
    def of_all_runs(self) -> Iterator[None]:
        """Let torch's functions and launches that get tensors of the first run work on the copies of all runs."""
        functorch: Any = torch._C._functorch
        self.runs.count = self.runs.all
        level = functorch._vmap_increment_nesting(self.runs.all, "different")
        try:
            with _Lifting(self, level), launching_for(self.runs):
                yield
        finally:
            functorch._vmap_decrement_nesting()
            self.runs.count = 1
            self.runs.distances.clear()

    def stacked(self, tensor: Tensor) -> Tensor:
        """Return the copies of a tensor of the first run, ``[runs, ...]``."""
        return self._stacked(tensor, self.memory)

    def _stacked(self, tensor: Tensor, memory: Tensor) -> Tensor:
        start = tensor.data_ptr() - memory.data_ptr()
        if not 0 <= start < memory.shape[1]:
            raise ValueError("the tensor does not belong to the first run")
        size = tensor.element_size()
        numbers = memory.view(tensor.dtype)
        shape, strides = (len(memory), *tensor.shape), (numbers.shape[1], *tensor.stride())
        return numbers.as_strided(shape, strides, start // size)

    def lift(self, tensor: Tensor, level: int) -> Tensor:
        """Return the copies of a tensor of the first run as one for ``torch.vmap``; other tensors as they are."""
        functorch: Any = torch._C._functorch
        with torch._C.DisableTorchFunction():
            if functorch.is_batchedtensor(tensor) or tensor.device != self._device:
                return tensor
            if not 0 <= tensor.data_ptr() - self.memory.data_ptr() < self.memory.shape[1]:
                return tensor
            leaf = self._leaf(tensor)
            lifted: Tensor = functorch._add_batch_dim(self.stacked(tensor) if leaf is None else leaf, 0, level)
            return lifted

    def _leaf(self, tensor: Tensor) -> Tensor | None:
        """Return the copies of a parameter, always the same for autograd to find them; None for other tensors."""
        if not (tensor.requires_grad and tensor.is_leaf):
            return None
        address = tensor.data_ptr()
        if address not in self._leaves:
            # as another tensor at the address: autograd would take changes of any array in the memory for changes of it
            memory = _tensor_at(self.memory.data_ptr(), self.memory.nbytes, self._device).view(self.memory.shape)
            with temporarily_clear_interpreter_stack():
                self._leaves[address] = self._stacked(tensor, memory).requires_grad_()
        return self._leaves[address]
