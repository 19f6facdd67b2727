"""A wrapper that normalizes observations."""

import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces

from gpu_envs.backend.structs import Struct
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import ObservationWrapper, ResetResults, StepResults, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS
from gpu_envs.wrappers.moments import MERGE_CALL, PARTS, Normalizer, RunningMeanStd

MEASURE_CALL = Struct.of(
    "MeasureCall",
    "float",
    *ROWS,
    ("const float*", "observations"),
    ("const u8*", "only"),
    ("const u8*?", "ended", ("rows",)),
    *PARTS,
)

NORMALISE_CALL = Struct.of(
    "NormaliseCall",
    "float",
    *ROWS,
    ("const double*", "mean", ("features",)),
    ("const double*", "var", ("features",)),
    ("double", "epsilon"),
    ("float", "limit"),
    ("const float*", "observations"),
    ("float*", "normalised"),
    ("const u8*", "finished"),
    ("const float*", "final_obs"),
    ("Index", "final_stride"),
    ("float*", "normalised_final"),
    ("int", "fill"),
    ("u8*", "ended"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
)

HEADERS = ("wrappers/moments.cuh", "wrappers/observations.cuh")
CALLS = {"measure": MEASURE_CALL, "merge": MERGE_CALL, "normalise": NORMALISE_CALL}


@final
class NormalizeObservation(Normalizer, ObservationWrapper):
    """Normalize each feature of the observations by its running mean and variance.

    Differences from Gymnasium: it supports all auto-reset modes and partial resets; statistics are float64; ``clip``
    limits the results. The statistics count the observations that ``step`` and ``reset`` return: after a partial reset
    only the reset replicas, and never replicas that wait for a reset. ``infos["final_obs"]`` is normalized but not
    counted, since no action follows it. The observation space must be a Box of float32.

    Attributes:
        obs_rms: Running statistics. To evaluate with the statistics of training, share them (``evaluation.obs_rms =
            training.obs_rms``) or copy them with ``load_state_dict``.
        update_running_mean: Whether steps update the statistics. A captured CUDA graph keeps the value at its capture.

    Example:
        >>> from gpu_envs.wrappers import NormalizeObservation
        >>> env = NormalizeObservation(gpu_envs.make("Pendulum-v1", num_envs=4096, output="torch"))
        >>> observations, infos = env.reset(seed=0)
        >>> print(f"{observations.std():.2f}")
        1.00
    """

    _applied = ("mean", "var")

    def __init__(self, env: VectorEnv | TorchWrapper, epsilon: float = 1e-8, *, clip: float | None = None) -> None:
        """Wrap the environment and compile the kernels.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            epsilon: Number added to the variance.
            clip: Largest absolute value of a normalized observation; None for no limit.
        """
        super().__init__(env, epsilon)
        shape = self._check_box(env.single_observation_space, "observations", ("float32",)).shape
        if clip is not None and not clip > 0:
            raise ValueError(f"clip is {clip!r}; give a number above 0, or None")
        limit = math.inf if clip is None else float(clip)
        self._set_observation_space(spaces.Box(-limit, limit, shape, np.float32))
        rows = self.num_envs
        self._ended: Final = self._zeros(rows, dtype=torch.uint8) if self._mode == "Disabled" else None
        self._observations = self._zeros(rows, *shape)
        self._final_observations = self._zeros(rows if self._same_step else 0, *shape)
        measure, blocks = self._load_kernels(HEADERS, CALLS, shape)
        self._measure: Final = measure.fill(ended=self._ended).bind(blocks)
        self._normalise: Final = self._applying.fill(limit=limit).bind(blocks)

    @property
    def obs_rms(self) -> RunningMeanStd:
        """Running statistics of the observations."""
        return self._rms

    @obs_rms.setter
    def obs_rms(self, statistics: RunningMeanStd) -> None:
        self._replace_statistics("obs_rms", statistics)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset replicas, count the observations of the reset ones, and return normalized observations of all."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._reset_mask(options)
        if self._ended is not None:
            self._ended.zero_() if mask is None else self._ended.masked_fill_(mask, 0)
        self._update_statistics(observations, mask)
        target = self._target(None, "observations", self._observations)
        self._normalise(observations.data_ptr(), target.data_ptr(), None, None, 0, None, 0, None, None, None)
        return target, infos

    def _transform(self, results: StepResults, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        observations, _, terminations, truncations, _ = results
        self._update_statistics(observations, None)
        flags: tuple[int | None, ...] = (None, None, None)
        if self._ended is not None:
            flags = (self._ended.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        self._normalise(observations.data_ptr(), target.data_ptr(), *final, *flags)

    def _update_statistics(self, observations: torch.Tensor, mask: torch.Tensor | None) -> None:
        if self.update_running_mean:
            self._measure(observations.data_ptr(), None if mask is None else mask.data_ptr())
            self._merge()
