"""Reading of actions: arrays of any library with the right shape, copied only if a kernel cannot read them in place."""

import sys
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, library_of

_INTEGER_KINDS = {"int64": 0, "int32": 1, "uint8": 2, "bool": 2}
_REAL_KINDS = {"float32": {"float32": 3}, "float64": {"float32": 3, "float64": 4}}
"""Element types that kernels read (for reals, by precision) and their values in ``ActionKind`` of ``actions.cuh``."""

KINDS = _INTEGER_KINDS | _REAL_KINDS["float64"]
"""All element types of actions."""


class Actions(NamedTuple):
    """Actions that a kernel can read."""

    address: int
    """Address on the environment's device."""
    kind: int
    """Element type, an ``ActionKind``."""
    owner: Array
    """Array that owns the memory."""
    host: np.ndarray | None
    """The same actions on the host, to check before the step; None if they came from a GPU."""


@final
class ActionReader:
    """Checks arrays of actions and returns their addresses."""

    def __init__(
        self, space: gymnasium.Space[Any], rows: tuple[int, ...], device: str, arrays: Arrays, precision: str
    ) -> None:
        """Expect actions of shape ``[*rows, *space.shape]``; rows are ``(num_envs,)`` or ``(num_envs, agents)``."""
        self._space = space
        self._shape = (*rows, *(space.shape or ()))
        self._rows_text = "one action for each of the replicas" if len(rows) == 1 else "one for each replica and agent"
        self.discrete = isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        self._kinds = _INTEGER_KINDS if self.discrete else _REAL_KINDS[precision]
        self._numpy_kinds = {np.dtype(name): kind for name, kind in self._kinds.items()}
        self._torch_kinds: dict[Any, int] = {}
        self._device = device
        self._arrays = arrays
        self._torch_device: Any = None
        self._tensor: type[Any] | None = sys.modules["torch"].Tensor if arrays.name == "torch" else None

    def read(self, actions: Any, steps: int | None = None) -> Actions:
        """Return the actions' address and element type, or raise an error if their shape, type or device is wrong.

        Args:
            actions: An array or a sequence, ``[num_envs, ...]``.
            steps: Number of steps, for actions ``[steps, num_envs, ...]`` of several steps.
        """
        if steps is None and actions.__class__ is self._tensor:  # fast path for the most common case
            return self._read_torch(actions, self._shape)
        shape = self._shape if steps is None else (steps, *self._shape)
        library = library_of(actions)
        if library == "torch":
            return self._read_torch(actions, shape)
        if library == "cupy":
            return self._read_cupy(actions, shape)
        if library == "dlpack":
            return self._read_dlpack(actions, steps)
        return self._read_numpy(actions, shape)

    def _check_shape(self, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape == expected:
            return
        if shape == ():
            raise TypeError(f"actions must be an array of shape {expected}, {self._rows_text}; got one scalar")
        logits = isinstance(self._space, gymnasium.spaces.Discrete) and shape == (*expected, self._space.n)
        hint = ". If the last axis has the choices' logits, pass logits.argmax(-1)" if logits else ""
        raise ValueError(f"actions have shape {shape}; expected {expected}: {self._rows_text}{hint}")

    def _dtype_error(self, dtype: object) -> TypeError:
        expected = "integers (int64, int32, uint8, ...)" if self.discrete else "real numbers (float32 or float64)"
        return TypeError(f"actions have dtype {dtype}; the action space {self._space} needs {expected}")

    def _read_numpy(self, actions: Any, shape: tuple[int, ...]) -> Actions:
        """Read a NumPy array or a sequence; on CUDA copy it to the device."""
        array = actions
        if not (type(array) is np.ndarray and array.dtype in self._numpy_kinds and array.flags.c_contiguous):
            try:
                array = np.asarray(actions)
            except ValueError as error:
                raise ValueError(f"actions must be an array of shape {shape}, but NumPy says: {error}") from None
            if array.dtype.kind == "O":
                raise self._dtype_error(array.dtype)
            self._check_shape(array.shape, shape)
            array = np.ascontiguousarray(self._cast(array))
        if array.shape != shape:
            self._check_shape(np.shape(actions), shape)
        if self._device == "cpu":
            return Actions(int(array.__array_interface__["data"][0]), self._numpy_kinds[array.dtype], array, array)
        moved = self._arrays.from_numpy(array)
        return Actions(self._arrays.address(moved), self._numpy_kinds[array.dtype], moved, array)

    def _cast(self, array: Any) -> Any:
        """Convert an array of NumPy or CuPy to an element type that kernels read, or raise a TypeError."""
        if array.dtype in self._numpy_kinds:
            return array
        if array.dtype.kind not in ("biu" if self.discrete else "fiu"):
            raise self._dtype_error(array.dtype)
        if self.discrete and array.dtype == np.uint64:
            array = array.clip(None, np.iinfo(np.int64).max)  # still out of range; a cast would wrap around
        return array.astype(np.int64 if self.discrete else np.float32)

    def _read_torch(self, actions: Any, shape: tuple[int, ...]) -> Actions:
        """Read a tensor on the environment's device, or on the CPU."""
        if not self._torch_kinds:
            torch = sys.modules["torch"]
            self._torch_kinds = {getattr(torch, name): kind for name, kind in self._kinds.items()}
            self._torch_device = torch.device(self._device)
        kind = self._torch_kinds.get(actions.dtype)
        if actions.shape != shape:
            self._check_shape(tuple(actions.shape), shape)
        if actions.device != self._torch_device:
            if actions.device.type == "cpu":
                return self._read_numpy(actions.detach().numpy(), shape)
            raise ValueError(
                f"actions are on {actions.device}; this environment is on {self._device}: actions.to({self._device!r})"
            )
        if kind is None:
            torch = sys.modules["torch"]
            floating = actions.dtype.is_floating_point
            refused = floating if self.discrete else actions.dtype == torch.bool
            if refused or actions.dtype.is_complex:
                raise self._dtype_error(actions.dtype)
            if self.discrete and actions.dtype == torch.uint64:
                signed = actions.contiguous().view(torch.int64)
                actions = torch.where(signed < 0, torch.iinfo(torch.int64).max, signed)  # still out of range
            else:
                actions = actions.to(torch.int64 if self.discrete else torch.float32)
            kind = self._torch_kinds[actions.dtype]
        if not actions.is_contiguous():
            actions = actions.contiguous()
        read_on_host = self._device == "cpu" and not self._arrays.of_several_runs
        host = actions.detach().numpy() if read_on_host else None
        return Actions(actions.data_ptr(), kind, actions, host)

    def _read_cupy(self, actions: Any, shape: tuple[int, ...]) -> Actions:
        """Read a CuPy array on the environment's device."""
        if self._device != f"cuda:{actions.device.id}":
            raise ValueError(
                f"actions are on cuda:{actions.device.id}; this environment is on {self._device}: move them there"
                + (", with actions.get()" if self._device == "cpu" else "")
            )
        actions = self._cast(actions)
        if actions.shape != shape:
            self._check_shape(actions.shape, shape)
        if not actions.flags.c_contiguous:
            actions = sys.modules["cupy"].ascontiguousarray(actions)
        return Actions(int(actions.data.ptr), self._numpy_kinds[actions.dtype], actions, None)

    def _read_dlpack(self, actions: Any, steps: int | None) -> Actions:
        """Read an array of another library through DLPack, as an array of NumPy or CuPy."""
        if int(actions.__dlpack_device__()[0]) == 1:  # kDLCPU
            return self.read(np.from_dlpack(actions), steps)
        import cupy

        return self.read(cupy.from_dlpack(actions), steps)

    def first_invalid(self, host: np.ndarray) -> tuple[int, ...] | None:
        """The index in ``host`` of the first action that is out of range or NaN; None if all are valid."""
        if self.discrete:
            space: Any = self._space
            size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
            invalid = (host < space.start) | (host >= space.start + size)
        else:
            invalid = np.isnan(host)
        return tuple(int(i) for i in np.argwhere(invalid)[0]) if invalid.any() else None
