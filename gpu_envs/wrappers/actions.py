"""Actions brought into an environment's bounds."""

from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import InvalidBound
from gymnasium.wrappers.utils import rescale_box

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.results import Step
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Results, TorchWrapper


class ActionWrapper(TorchWrapper):
    """A wrapper that changes what the environment is given, in memory of its own."""

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Takes an environment made with ``output="torch"``, or wrapped already, with actions in a ``Box``."""
        super().__init__(env)
        self._bounds: Final = self._box(env.single_action_space, "actions")
        self._shape: Final = (self.num_envs, *self._bounds.shape)
        kinds = {torch.float32, getattr(torch, self._simulator.precision)}
        self._buffers: Final = {kind: self._empty(*self._shape, dtype=kind) for kind in kinds}
        """What the environment is given, in each of the types that it reads."""

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        """Bounds or factors on the device."""
        return torch.from_numpy(np.array(values)).to(self._torch_device)

    def _read(self, actions: Any) -> torch.Tensor:
        """Actions as a tensor on the device, of a type that the environment reads."""
        if isinstance(actions, torch.Tensor):
            found = actions.detach()
        elif library_of(actions) in {"cupy", "dlpack"}:
            found = torch.utils.dlpack.from_dlpack(actions)
        else:
            found = torch.from_numpy(np.array(actions))
        if found.shape != self._shape:
            raise ValueError(f"actions have shape {tuple(found.shape)}; expected {self._shape}: one for each replica")
        if found.dtype == torch.bool or found.dtype.is_complex:
            raise TypeError(f"actions have dtype {found.dtype}; the action space {self._bounds} needs real numbers")
        if found.device != self._torch_device and found.device.type != "cpu":
            raise ValueError(f"actions are on {found.device}; this environment is on {self.device}")
        return found.to(self._torch_device, found.dtype if found.dtype in self._buffers else torch.float32)


@final
class ClipAction(ActionWrapper):
    """Clips actions to the bounds of the environment's action space, and takes any. As Gymnasium's."""

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Takes an environment made with ``output="torch"``, or wrapped already, with actions in a ``Box``."""
        super().__init__(env)
        self._low: Final = self._on_device(self._bounds.low)
        self._high: Final = self._on_device(self._bounds.high)
        self._act_in(spaces.Box(-np.inf, np.inf, self._bounds.shape, self._bounds.dtype))

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Clips the actions, and steps every replica once; arguments and results as of the environment inside."""
        read = self._read(actions)
        return self._env.step(torch.clamp(read, self._low, self._high, out=self._buffers[read.dtype]), out=out)


@final
class RescaleAction(ActionWrapper):
    """Takes actions between ``min_action`` and ``max_action``, and stretches them to the environment's bounds.

    As Gymnasium's.
    """

    def __init__(self, env: VectorEnv | TorchWrapper, min_action: Any, max_action: Any) -> None:
        """Takes the environment.

        Args:
            env: Made with ``output="torch"``, or wrapped already, with actions in a ``Box``.
            min_action: What becomes the lowest action: a number, or an array with one for each.
            max_action: What becomes the highest.
        """
        super().__init__(env)
        box = self._bounds
        low, high = (self._bound(name, bound) for name, bound in (("min", min_action), ("max", max_action)))
        space = rescale_box(box, low.astype(box.dtype), high.astype(box.dtype))[0]
        if np.any(space.low == space.high):
            raise InvalidBound(
                f"min_action is {min_action} and max_action {max_action}; they must be different everywhere"
            )
        bounded = np.isfinite(low) & np.isfinite(high)
        factor, offset = np.ones(box.shape, box.dtype), np.zeros(box.shape, box.dtype)
        wide = np.longdouble  # as Gymnasium does it, so that the same actions come out
        factor[bounded] = (high[bounded] - low[bounded]) / (wide(box.high[bounded]) - wide(box.low[bounded]))
        for bound, own in ((high, box.high), (low, box.low)):
            given = np.isfinite(bound)
            offset[given] = bound[given] - factor[given] * own[given]
        self._factor: Final = self._on_device(factor)
        self._offset: Final = self._on_device(offset)
        self._act_in(space)

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Stretches the actions, and steps every replica once; arguments and results as of the environment inside."""
        read = self._read(actions)
        given = torch.sub(read, self._offset, out=self._buffers[read.dtype])
        return self._env.step(given.div_(self._factor), out=out)

    def _bound(self, name: str, given: Any) -> np.ndarray:
        found = np.asarray(to_numpy(given))
        if found.shape not in {(), self._bounds.shape}:
            raise ValueError(f"{name}_action has shape {found.shape}; give a number, or {self._bounds.shape} of them")
        return np.broadcast_to(found, self._bounds.shape).copy()
