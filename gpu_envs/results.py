"""What stepping gives back, and memory of the user's own to step into."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from gpu_envs.arrays import Array, library_of


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Arrays that one step writes straight into, any of them: torch, CuPy or NumPy, on the environment's device.

    A row of a larger array will do: ``storage[t]`` of ``[T, num_envs, ...]``, whatever its alignment.
    """

    observations: Array = None
    """``[num_envs, *observation]``, float32."""
    rewards: Array = None
    """``[num_envs]``, of the environment's precision."""
    terminations: Array = None
    """``[num_envs]``, bool."""
    truncations: Array = None
    """``[num_envs]``, bool."""
    final_obs: Array = None
    """``[num_envs, *observation]``, float32; rows are written where an episode ended (SameStep)."""
    episode_return: Array = None
    """``[num_envs]``, of the environment's precision; written where an episode ended."""
    episode_length: Array = None
    """``[num_envs]``, int32; written where an episode ended."""


class Rollout(NamedTuple):
    """What many steps in one launch give back."""

    observations: Array
    """Per step ``[steps, num_envs, *observation]``; otherwise the last, ``[num_envs, *observation]``."""
    rewards: Array
    """Per step ``[steps, num_envs]``; otherwise their sums, ``[num_envs]``."""
    terminations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    truncations: Array
    """Per step ``[steps, num_envs]`` bools; otherwise their counts, ``[num_envs]`` int32."""
    actions: Array
    """Per step, where they were drawn: ``[steps, num_envs, ...]``; otherwise None."""
    episodes: Array
    """How many episodes ended, ``[num_envs]`` int32."""
    episode_returns: Array
    """The sum of their returns, ``[num_envs]``."""
    episode_lengths: Array
    """The sum of their lengths, ``[num_envs]`` int32."""


@final
class OutReader:
    """Turns a ``Step`` of the user's arrays into addresses, after a look at each."""

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], str]], device: str) -> None:
        """Keeps what each array must be."""
        self._shapes = shapes
        self._device = device

    def read(self, out: Step) -> list[tuple[str, int]]:
        """Returns name and address of each array given, or raises what is wrong with one."""
        found = []
        if out.final_obs is not None and "final_obs" not in self._shapes:
            raise ValueError("out.final_obs is written in autoreset_mode='SameStep' only")
        for name, (shape, dtype) in self._shapes.items():
            array = getattr(out, name)
            if array is not None:
                found.append((name, self._address(name, array, shape, dtype)))
        return found

    def _address(self, name: str, array: Any, shape: tuple[int, ...], dtype: str) -> int:
        library = library_of(array)
        if library == "torch":
            device = "cpu" if array.device.type == "cpu" else f"cuda:{array.device.index}"
            contiguous, given = array.is_contiguous(), str(array.dtype).rpartition(".")[2]
        elif library == "cupy":
            device, contiguous, given = f"cuda:{array.device.id}", array.flags.c_contiguous, array.dtype.name
        elif library == "numpy":
            device, contiguous, given = "cpu", array.flags.c_contiguous and array.flags.writeable, array.dtype.name
        else:
            raise TypeError(f"out.{name} is {type(array).__name__}; give an array of torch, CuPy or NumPy")
        if device != self._device:
            raise ValueError(f"out.{name} is on {device}; this environment is on {self._device}")
        if tuple(array.shape) != shape:
            raise ValueError(f"out.{name} has shape {tuple(array.shape)}; expected {shape}")
        if given != dtype:
            raise TypeError(f"out.{name} has dtype {given}; expected {dtype}")
        if not contiguous:
            raise ValueError(f"out.{name} must be contiguous and writable")
        if library == "torch":
            return int(array.data_ptr())
        return int(array.data.ptr) if library == "cupy" else int(array.__array_interface__["data"][0])
