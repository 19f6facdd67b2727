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

from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.observed import ELEMENT_TYPES
from gpu_envs.engine.results import Step
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Begun, ObservationWrapper, Results, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, blocks_of, program

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
ELEMENTS_OF_BLOCK = 2048
"""A block stacks about so many numbers."""


@final
class FrameStackObservation(ObservationWrapper):
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
        prologue, types = f"constexpr int STACK = {self.stack_size};", {"Frame": ELEMENT_TYPES[space.dtype.name]}
        (stack,) = load_kernels(self._backend, program(HEADERS, CALLS, self._mode, features, elements, prologue, types))
        self._written = self._empty(rows, self.stack_size, *space.shape, dtype=dtype)
        ending = rows if self._same_step else 0
        self._written_final = self._empty(ending, self.stack_size, *space.shape, dtype=dtype)
        stack.fill(
            rows=rows,
            rows_of_block=each,
            stack=self.stack_size,
            padding=padding,
            frames=self._empty(rows, self.stack_size, features, dtype=dtype),
            slots=self._empty(rows, dtype=torch.int32),
            depths=self._empty(rows, dtype=torch.int32),
            ended=None if self._same_step else self._empty(rows, dtype=torch.uint8),
        )
        self._stack: Final = stack.bind(blocks_of(rows, each))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        target = self._place(None, "observations", self._written)
        only = None if mask is None else mask.data_ptr()
        self._stack(1, only, observations.data_ptr(), target.data_ptr(), None, None, None, 0, None, 0)
        return target, infos

    def _write(self, results: Results, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        observations, _, terminations, truncations, _ = results
        flags = terminations.data_ptr(), truncations.data_ptr()
        self._stack(0, None, observations.data_ptr(), target.data_ptr(), *flags, *final[1:])

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
        return torch.from_numpy(padding.flatten()).to(self._torch_device)


@final
class FlattenObservation(TorchWrapper):
    """Gives each observation as a row of numbers, ``[num_envs, features]``. As Gymnasium's, of a Box of any dtype.

    The rows are views of the environment's memory: nothing is copied. A Dict is refused: it has no such views.
    """

    def __init__(self, env: VectorEnv | TorchWrapper) -> None:
        """Takes an environment made with ``output="torch"``, or wrapped already."""
        super().__init__(env)
        space = self._box(env.single_observation_space, "observations")
        self._dtype: Final[torch.dtype] = getattr(torch, space.dtype.name)
        self._shape: Final = (self.num_envs, *space.shape)
        self._flat: Final = (self.num_envs, math.prod(space.shape))
        self._observe_in(spaces.flatten_space(space))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        observations, infos = self._env.reset(seed=seed, options=options)
        return observations.view(self._flat), infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once; ``out.observations`` and ``out.final_obs`` are ``[num_envs, features]``."""
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
