"""Wrappers that clip or rescale actions."""

from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import InvalidBound
from gymnasium.wrappers.utils import rescale_box

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.results import Step
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import StepResults, TorchWrapper


class ActionWrapper(TorchWrapper):
    """Base class for wrappers that transform actions in a ``Box``."""

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Wrap an environment made with ``output="torch"``, or another wrapper, with actions in a ``Box``."""
        super().__init__(env)
        self._bounds: Final = self._check_box(env.single_action_space, "actions")
        self._shape: Final = (self.num_envs, *self._bounds.shape)
        dtypes = {torch.float32, getattr(torch, self._simulator.precision)}
        self._buffers: Final = {dtype: self._zeros(*self._shape, dtype=dtype) for dtype in dtypes}
        """Transformed actions, one buffer for each dtype that the environment accepts."""

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(self._torch_device)

    def _as_tensor(self, actions: Any) -> torch.Tensor:
        """Return actions as a tensor on the device, with a dtype that the environment accepts."""
        if isinstance(actions, torch.Tensor):
            tensor = actions.detach()
        elif library_of(actions) in {"cupy", "dlpack"}:
            tensor = torch.utils.dlpack.from_dlpack(actions)
        else:
            tensor = torch.from_numpy(np.array(actions))
        if tensor.shape != self._shape:
            raise ValueError(f"actions have shape {tuple(tensor.shape)}; give {self._shape}, one for each replica")
        if tensor.dtype == torch.bool or tensor.dtype.is_complex:
            raise TypeError(f"actions have dtype {tensor.dtype}; the action space {self._bounds} needs real numbers")
        if tensor.device != self._torch_device and tensor.device.type != "cpu":
            raise ValueError(f"actions are on {tensor.device}; give them on {self.device} or the CPU")
        return tensor.to(self._torch_device, tensor.dtype if tensor.dtype in self._buffers else torch.float32)


@final
class ClipAction(ActionWrapper):
    """Clip actions to the bounds of the environment's action space, as in Gymnasium."""

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Wrap an environment made with ``output="torch"``, or another wrapper, with actions in a ``Box``."""
        super().__init__(env)
        self._low: Final = self._on_device(self._bounds.low)
        self._high: Final = self._on_device(self._bounds.high)
        self._set_action_space(spaces.Box(-np.inf, np.inf, self._bounds.shape, self._bounds.dtype))

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once with the clipped actions."""
        tensor = self._as_tensor(actions)
        return self._env.step(torch.clamp(tensor, self._low, self._high, out=self._buffers[tensor.dtype]), out=out)


@final
class RescaleAction(ActionWrapper):
    """Rescale actions from ``[min_action, max_action]`` to the environment's bounds, as in Gymnasium."""

    def __init__(self, env: VectorEnv | TorchWrapper, min_action: Any, max_action: Any) -> None:
        """Wrap the environment.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one, with actions in a ``Box``.
            min_action: Lower bound of the new action space: a number, or an array with the shape of an action.
            max_action: Upper bound.
        """
        super().__init__(env)
        box = self._bounds
        low, high = (self._as_bound(name, bound) for name, bound in (("min", min_action), ("max", max_action)))
        space = rescale_box(box, low.astype(box.dtype), high.astype(box.dtype))[0]
        if np.any(space.low == space.high):
            raise InvalidBound(f"min_action is {min_action} and max_action {max_action}; every element must differ")
        bounded = np.isfinite(low) & np.isfinite(high)
        factor, offset = np.ones(box.shape, box.dtype), np.zeros(box.shape, box.dtype)
        wide = np.longdouble  # Gymnasium's precision: the rescaled actions have the same bits
        factor[bounded] = (high[bounded] - low[bounded]) / (wide(box.high[bounded]) - wide(box.low[bounded]))
        for bound, env_bound in ((high, box.high), (low, box.low)):
            finite = np.isfinite(bound)
            offset[finite] = bound[finite] - factor[finite] * env_bound[finite]
        self._factor: Final = self._on_device(factor)
        self._offset: Final = self._on_device(offset)
        self._set_action_space(space)

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once with the rescaled actions."""
        tensor = self._as_tensor(actions)
        rescaled = torch.sub(tensor, self._offset, out=self._buffers[tensor.dtype]).div_(self._factor)
        return self._env.step(rescaled, out=out)

    def _as_bound(self, name: str, bound: Any) -> np.ndarray:
        """Return a bound, which may be infinite, with the shape of an action; raise a ValueError for another shape."""
        array = np.asarray(to_numpy(bound))
        if array.shape not in {(), self._bounds.shape}:
            raise ValueError(
                f"{name}_action has shape {array.shape}; give a number or an array of shape {self._bounds.shape}"
            )
        return np.broadcast_to(array, self._bounds.shape).copy()
