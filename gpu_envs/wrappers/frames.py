"""The last observations of each replica together, and observations as rows of numbers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import create_zero_array

from gpu_envs.codegen.observed import ELEMENT_TYPES
from gpu_envs.codegen.structs import Struct
from gpu_envs.errors import did_you_mean
from gpu_envs.resets import Seeds
from gpu_envs.results import Step
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Results, TorchWrapper, without
from gpu_envs.wrappers.launches import ROWS, Launches, blocks_of, program

STACK_CALL = Struct.of(
    "StackCall",
    "float",
    *ROWS,
    ("const Frame*", "padding"),
    ("Frame*", "frames"),
    ("int*", "slots"),
    ("int*", "depths"),
    ("u8*", "ended"),
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

HEADERS = ("wrappers_frames.cuh",)
CALLS = {"stack": STACK_CALL}
ELEMENTS_OF_BLOCK = 2048
"""A block stacks about so many numbers."""


def stack_shape(stack_size: int, dtype: str = "float32") -> str:
    """What is compiled in."""
    return f"constexpr int STACK = {stack_size};\nusing Frame = {ELEMENT_TYPES[dtype]};"


@final
class FrameStackObservation(TorchWrapper):
    """Gives the last observations of each replica, ``[num_envs, stack_size, ...]``, from the oldest to the newest.

    As Gymnasium's for a single environment, which has none for vectors; observations are in a Box of float32, uint8 or
    int32. The stack begins anew with each episode: in
    SameStep at once, and ``infos["final_obs"]`` has the finished episode's own frames up to its last; in NextStep with
    the step that restarts; in Disabled with the reset by mask, and a replica that waits for it keeps its stack.

    Attributes:
        stack_size: How many observations.
        padding_type: What stands for those before an episode's first: ``reset``, ``zero`` or ``_custom``.
    """

    def __init__(
        self, env: VectorEnv | TorchWrapper, stack_size: int, *, padding_type: str | np.ndarray = "reset"
    ) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            stack_size: How many observations.
            padding_type: What stands for those before an episode's first: ``reset``, that first one; ``zero``; or an
                observation.
        """
        super().__init__(env)
        space = self._box(env.single_observation_space, "observations", ELEMENT_TYPES)
        dtype = getattr(torch, space.dtype.name)
        if isinstance(stack_size, bool) or not isinstance(stack_size, int | np.integer):
            raise TypeError(f"stack_size is {stack_size!r}; give a whole number from 1 up")
        if stack_size < 1:
            raise ValueError(f"stack_size is {stack_size}; give a whole number from 1 up")
        self.stack_size: Final = int(stack_size)
        self.padding_type: Final = padding_type if isinstance(padding_type, str) else "_custom"
        padding = self._padding(space, padding_type)
        self._observe_in(batch_space(space, self.stack_size))
        rows, features = self.num_envs, math.prod(space.shape)
        each = max(1, ELEMENTS_OF_BLOCK // (self.stack_size * features))
        elements = each * self.stack_size * features
        made = program(HEADERS, CALLS, self._mode, features, elements, stack_shape(self.stack_size, space.dtype.name))
        self._stacked: Final = self._empty(rows, self.stack_size, *space.shape, dtype=dtype)
        ending = rows if self._same_step else 0
        self._stacked_final: Final = self._empty(ending, self.stack_size, *space.shape, dtype=dtype)
        self._stack: Final = Launches(self._backend, made).of(
            "stack",
            blocks_of(rows, each),
            rows=rows,
            rows_of_block=each,
            padding=padding,
            frames=self._empty(rows, self.stack_size, features, dtype=dtype),
            slots=self._empty(rows, dtype=torch.int32),
            depths=self._empty(rows, dtype=torch.int32),
            ended=None if self._same_step else self._empty(rows, dtype=torch.uint8),
        )

    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        target = self._place(None, "observations", self._stacked)
        only = None if mask is None else mask.data_ptr()
        self._stack(1, only, observations.data_ptr(), target.data_ptr(), None, None, None, 0, None, 0)
        return target, infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, and stacks what is observed.

        Args:
            actions: One for each replica.
            out: Tensors to write into; ``observations`` and ``final_obs`` receive the stacks.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        target = self._place(out, "observations", self._stacked)
        if self._same_step:
            final_target = self._place(out, "final_obs", self._stacked_final)
            inner = without(out, "observations", "final_obs")
        else:
            inner = without(out, "observations")
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=inner)
        ends: tuple[int | None, ...] = (None, 0, None, 0)
        if self._same_step:
            fill = self._fresh and (out is None or out.final_obs is None)
            raw = infos["final_obs"]  # rows of a record of the simulator's: they need not touch
            ends = (raw.data_ptr(), raw.stride(0), final_target.data_ptr(), int(fill))
        flags = (terminations.data_ptr(), truncations.data_ptr())
        self._stack(0, None, observations.data_ptr(), target.data_ptr(), *flags, *ends)
        if self._same_step:
            infos["final_obs"] = final_target
        return target, rewards, terminations, truncations, infos

    def _padding(self, space: spaces.Box, given: Any) -> torch.Tensor | None:
        """What stands for frames before the first, on the device; None: the first."""
        if isinstance(given, str):
            if given == "reset":
                return None
            if given != "zero":
                raise ValueError(
                    f"padding_type is {given!r}{did_you_mean(given, ('reset', 'zero'))} "
                    "Give 'reset', 'zero' or an observation"
                )
            given = create_zero_array(space)
        padding = np.asarray(given, space.dtype)
        if padding not in space:
            raise ValueError(f"padding_type is {given!r}, which is no observation of {space}")
        return torch.from_numpy(padding.copy()).to(self._torch_device).contiguous()


@final
class FlattenObservation(TorchWrapper):
    """Gives each observation as a row of numbers, ``[num_envs, features]``. As Gymnasium's, of a Box of any dtype.

    The rows are views of the environment's memory: nothing is copied. A Dict is refused: it has no such views.
    """

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Takes the environment.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
        """
        super().__init__(env)
        space = self._box(env.single_observation_space, "observations")
        self._dtype: Final[torch.dtype] = getattr(torch, space.dtype.name)
        self._shape: Final = (self.num_envs, *space.shape)
        self._flat: Final = (self.num_envs, math.prod(space.shape))
        self._observe_in(spaces.flatten_space(space))

    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return observations.view(self._flat), infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once.

        Args:
            actions: One for each replica.
            out: Tensors to write into; ``observations`` and ``final_obs`` are ``[num_envs, features]``.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=self._unflat(out))
        if self._same_step:
            infos["final_obs"] = infos["final_obs"].view(self._flat)
        return observations.view(self._flat), rewards, terminations, truncations, infos

    def _unflat(self, out: Step | None) -> Step | None:
        """The same memory in the shapes of the environment inside."""
        if out is None:
            return None
        rows = {name: self._given(out, name, self._flat, self._dtype) for name in ("observations", "final_obs")}
        return dataclasses.replace(
            out, **{name: None if given is None else given.view(self._shape) for name, given in rows.items()}
        )
