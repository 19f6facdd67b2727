"""Wrappers that stack or flatten observations."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import create_zero_array

from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.observations import ELEMENT_TYPES
from gpu_envs.engine.results import Step
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import ObservationWrapper, ResetResults, StepResults, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, num_blocks, program

STACK_CALL = Struct.of(
    "StackCall",
    "float",
    *ROWS,
    ("const Frame*?", "padding", ("features",)),
    ("Frame*", "frames", ("rows", "stack", "features")),
    ("int*", "slots", ("rows",)),
    ("int*", "depths", ("rows",)),
    ("u8*?", "ended", ("rows",)),
    ("int", "resets"),
    ("const u8*", "mask"),
    ("const Frame*", "observations"),
    ("Frame*", "stacked"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    ("const Frame*", "final_obs"),
    ("Index", "final_stride"),
    ("Frame*", "stacked_final"),
    ("int", "fill"),
)

HEADERS = ("wrappers/frames.cuh",)
CALLS = {"stack": STACK_CALL}
ELEMENTS_PER_BLOCK = 2048
"""Number of elements that a block copies, about."""


@final
class FrameStackObservation(ObservationWrapper):
    """Stack the last observations of each replica, ``[num_envs, stack_size, ...]``, oldest first.

    Gymnasium has this wrapper for single environments only. The observation space must be a Box of float32, uint8 or
    int32. Each episode starts with a new stack: in SameStep mode in the step that ends the last episode, whose final
    stack is ``infos["final_obs"]``; in NextStep mode in the step that resets; in Disabled mode at the partial reset. A
    replica that waits for a reset keeps its stack.

    Attributes:
        stack_size: Number of observations in a stack.
        padding_type: Padding before an episode's first observation: ``reset``, ``zero`` or ``_custom``.
    """

    def __init__(
        self, env: VectorEnv | TorchWrapper, stack_size: int, *, padding_type: str | np.ndarray = "reset"
    ) -> None:
        """Wrap the environment and compile the kernel.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            stack_size: Number of observations in a stack.
            padding_type: Padding before an episode's first observation: ``reset`` repeats that observation, ``zero``
                pads with zeros, and an array is used as the observation to pad with.
        """
        super().__init__(env)
        space = self._check_box(env.single_observation_space, "observations", ELEMENT_TYPES)
        dtype = getattr(torch, space.dtype.name)
        if isinstance(stack_size, bool) or not isinstance(stack_size, int | np.integer):
            raise TypeError(f"stack_size is {stack_size!r}; give an integer of 1 or more")
        if stack_size < 1:
            raise ValueError(f"stack_size is {stack_size}; give an integer of 1 or more")
        self.stack_size: Final = int(stack_size)
        self.padding_type: Final = padding_type if isinstance(padding_type, str) else "_custom"
        padding = self._padding(space, padding_type)
        self._set_observation_space(batch_space(space, self.stack_size))
        rows, features = self.num_envs, math.prod(space.shape)
        per_block = max(1, ELEMENTS_PER_BLOCK // (self.stack_size * features))
        elements = per_block * self.stack_size * features
        prologue, types = f"constexpr int STACK = {self.stack_size};", {"Frame": ELEMENT_TYPES[space.dtype.name]}
        (stack,) = load_kernels(self._backend, program(HEADERS, CALLS, self._mode, features, elements, prologue, types))
        self._observations = self._zeros(rows, self.stack_size, *space.shape, dtype=dtype)
        final_rows = rows if self._same_step else 0
        self._final_observations = self._zeros(final_rows, self.stack_size, *space.shape, dtype=dtype)
        stack.fill(
            rows=rows,
            rows_of_block=per_block,
            stack=self.stack_size,
            padding=padding,
            frames=self._zeros(rows, self.stack_size, features, dtype=dtype),
            slots=self._zeros(rows, dtype=torch.int32),
            depths=self._zeros(rows, dtype=torch.int32),
            ended=None if self._same_step else self._zeros(rows, dtype=torch.uint8),
        )
        self._stack: Final = stack.bind(num_blocks(rows, per_block))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset replicas; return the stacks of all replicas, with new stacks in the reset ones."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._reset_mask(options)
        target = self._target(None, "observations", self._observations)
        mask_address = None if mask is None else mask.data_ptr()
        self._stack(1, mask_address, observations.data_ptr(), target.data_ptr(), None, None, None, 0, None, 0)
        return target, infos

    def _transform(self, results: StepResults, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        observations, _, terminations, truncations, _ = results
        flags = terminations.data_ptr(), truncations.data_ptr()
        self._stack(0, None, observations.data_ptr(), target.data_ptr(), *flags, *final[1:])

    def _padding(self, space: spaces.Box, padding_type: Any) -> torch.Tensor | None:
        """Return the observation to pad with, on the device; None to repeat the first observation."""
        if isinstance(padding_type, str):
            if padding_type == "reset":
                return None
            if padding_type != "zero":
                raise ValueError(
                    f"padding_type is {padding_type!r}{did_you_mean(padding_type, ('reset', 'zero'))} "
                    "Give 'reset', 'zero' or an observation"
                )
            padding_type = create_zero_array(space)
        padding = np.asarray(padding_type, space.dtype)
        if padding not in space:
            raise ValueError(f"padding_type is {padding_type!r}; give 'reset', 'zero' or an observation in {space}")
        return torch.from_numpy(padding.flatten()).to(self._torch_device)


@final
class FlattenObservation(TorchWrapper):
    """Flatten each observation, ``[num_envs, features]``, as in Gymnasium, for a Box of any dtype.

    Results are views of the environment's tensors, not copies. A Dict is refused: it would need copies.
    """

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Wrap an environment made with ``output="torch"``, or another wrapper."""
        super().__init__(env)
        space = self._check_box(env.single_observation_space, "observations")
        self._dtype: Final[torch.dtype] = getattr(torch, space.dtype.name)
        self._shape: Final = (self.num_envs, *space.shape)
        self._flat_shape: Final = (self.num_envs, math.prod(space.shape))
        self._set_observation_space(spaces.flatten_space(space))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        observations, infos = self._env.reset(seed=seed, options=options)
        return observations.view(self._flat_shape), infos

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once; ``out.observations`` and ``out.final_obs`` are ``[num_envs, features]``."""
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=self._unflatten(out))
        if self._same_step:
            infos["final_obs"] = infos["final_obs"].view(self._flat_shape)
        return observations.view(self._flat_shape), rewards, terminations, truncations, infos

    def _unflatten(self, out: Step | None) -> Step | None:
        """Return ``out`` with its flat observations as views in the shape of the wrapped environment."""
        if out is None:
            return None
        names = "observations", "final_obs"
        flat = {name: self._out_tensor(out, name, self._flat_shape, self._dtype) for name in names}
        return dataclasses.replace(
            out, **{name: None if tensor is None else tensor.view(self._shape) for name, tensor in flat.items()}
        )
