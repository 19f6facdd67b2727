"""Observations brought to mean 0 and deviation 1."""

import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces

from gpu_envs.backend.structs import Struct
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Begun, ObservationWrapper, Results, TorchWrapper
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
    """Normalises observations, feature by feature, by their running mean and variance.

    As Gymnasium's, with these differences: it works in all auto-reset modes, with partial resets too; the statistics
    are in float64; ``clip`` bounds what comes out. The statistics are of the observations that steps and resets
    return: after a reset by mask of those that began anew, and not of replicas that wait for one.
    ``infos["final_obs"]`` is normalised by the same statistics, and not counted: it is never acted on. Observations
    are in a Box of float32.

    Attributes:
        obs_rms: The statistics. To evaluate with those of training, assign them (``evaluation.obs_rms =
            training.obs_rms``: what training goes on to learn is shared), or copy them with ``load_state_dict``.
        update_running_mean: Set it to False to freeze them. A CUDA graph keeps what this was when it was captured.
    """

    _applied = ("mean", "var")

    def __init__(self, env: VectorEnv | TorchWrapper, epsilon: float = 1e-8, *, clip: float | None = None) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            epsilon: Added to the variance.
            clip: What comes out lies between minus this and this; None: anywhere.
        """
        super().__init__(env, epsilon)
        shape = self._box(env.single_observation_space, "observations", ("float32",)).shape
        if clip is not None and not clip > 0:
            raise ValueError(f"clip is {clip!r}; give a number above 0, or None")
        limit = math.inf if clip is None else float(clip)
        self._observe_in(spaces.Box(-limit, limit, shape, np.float32))
        rows = self.num_envs
        self._ended: Final = self._empty(rows, dtype=torch.uint8) if self._mode == "Disabled" else None
        self._written = self._empty(rows, *shape)
        self._written_final = self._empty(rows if self._same_step else 0, *shape)
        measure, blocks = self._load(HEADERS, CALLS, shape)
        self._measure: Final = measure.fill(ended=self._ended).bind(blocks)
        self._normalise: Final = self._applying.fill(limit=limit).bind(blocks)

    @property
    def obs_rms(self) -> RunningMeanStd:
        """The statistics."""
        return self._rms

    @obs_rms.setter
    def obs_rms(self, statistics: RunningMeanStd) -> None:
        self._adopt(self._check_shared("obs_rms", statistics, self._rms))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        if self._ended is not None:
            self._ended.zero_() if mask is None else self._ended.masked_fill_(mask, 0)
        self._learn(observations, mask)
        target = self._place(None, "observations", self._written)
        self._normalise(observations.data_ptr(), target.data_ptr(), None, None, 0, None, 0, None, None, None)
        return target, infos

    def _write(self, results: Results, target: torch.Tensor, final: tuple[int | None, ...]) -> None:
        observations, _, terminations, truncations, _ = results
        self._learn(observations, None)
        flags: tuple[int | None, ...] = (None, None, None)
        if self._ended is not None:
            flags = (self._ended.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        self._normalise(observations.data_ptr(), target.data_ptr(), *final, *flags)

    def _learn(self, observations: torch.Tensor, mask: torch.Tensor | None) -> None:
        if self.update_running_mean:
            self._measure(observations.data_ptr(), None if mask is None else mask.data_ptr())
            self._merge()
