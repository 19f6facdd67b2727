"""Observations brought to mean 0 and deviation 1."""

import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from gymnasium import spaces

from gpu_envs.codegen.structs import Struct
from gpu_envs.resets import Seeds
from gpu_envs.results import Step
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Results, TorchWrapper, without
from gpu_envs.wrappers.launches import ROWS, Launches, blocks_of, groups_of, program, rows_of_block
from gpu_envs.wrappers.moments import MERGE_CALL, PARTS, Normalizer, RunningMeanStd

MEASURE_CALL = Struct.of(
    "MeasureCall",
    "float",
    *ROWS,
    ("const float*", "observations"),
    ("const u8*", "only"),
    ("const u8*", "ended"),
    *PARTS,
)

NORMALISE_CALL = Struct.of(
    "NormaliseCall",
    "float",
    *ROWS,
    ("const double*", "mean"),
    ("const double*", "var"),
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

HEADERS = ("wrappers_moments.cuh", "wrappers_observations.cuh")
CALLS = {"measure": MEASURE_CALL, "merge": MERGE_CALL, "normalise": NORMALISE_CALL}


@final
class NormalizeObservation(Normalizer):
    """Normalises observations, feature by feature, by their running mean and variance.

    As Gymnasium's, with these differences: it works in all auto-reset modes, with partial resets too; the statistics
    are in float64; ``clip`` bounds what comes out. The statistics are of the observations that steps and resets
    return: after a reset by mask of those that began anew, and not of replicas that wait for one.
    ``infos["final_obs"]`` is normalised by the same statistics, and not counted: it is never acted on. Observations
    are in a Box of float32.

    Attributes:
        obs_rms: The statistics. To evaluate with those of training, assign them (``evaluation.obs_rms =
            training.obs_rms``: what training goes on to learn is shared), or copy them with ``load_state_dict``.
        update_running_mean: Set it to False to freeze them.
    """

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
        rows, features = self.num_envs, math.prod(shape)
        each = rows_of_block(rows)
        launches = Launches(self._backend, program(HEADERS, CALLS, self._mode, features, each * features))
        blocks = blocks_of(rows, each) * groups_of(features)
        parts = self._partial_sums(features)
        both = {"rows": rows, "rows_of_block": each}
        self._ended: Final = self._empty(rows, dtype=torch.uint8) if self._mode == "Disabled" else None
        self._normalised: Final = self._empty(rows, *shape)
        self._normalised_final: Final = self._empty(rows if self._same_step else 0, *shape)
        self._rms = RunningMeanStd(shape=shape, device=self._torch_device)
        self._measure: Final = launches.of("measure", blocks, **both, **parts, ended=self._ended)
        self._merge = self._merging(launches, features, parts, self._rms)
        self._normalise: Final = launches.of(
            "normalise", blocks, **both, mean=self._rms.mean, var=self._rms.var, epsilon=self.epsilon, limit=limit
        )

    @property
    def obs_rms(self) -> RunningMeanStd:
        """The statistics."""
        return self._rms

    @obs_rms.setter
    def obs_rms(self, statistics: RunningMeanStd) -> None:
        self._rms = self._check_shared("obs_rms", statistics, self._rms)
        self._merge.set(**statistics.members())
        self._normalise.set(mean=statistics.mean, var=statistics.var)

    @property
    def _statistics(self) -> RunningMeanStd:
        return self._rms

    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        if self._ended is not None:
            self._ended.zero_() if mask is None else self._ended.masked_fill_(mask, 0)
        self._learn(observations, mask)
        target = self._place(None, "observations", self._normalised)
        self._normalise(observations.data_ptr(), target.data_ptr(), None, None, 0, None, 0, None, None, None)
        return target, infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, and normalises what is observed.

        Args:
            actions: One for each replica.
            out: Tensors to write into; ``observations`` and ``final_obs`` receive what is normalised.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        target = self._place(out, "observations", self._normalised)
        if self._same_step:
            final_target = self._place(out, "final_obs", self._normalised_final)
            inner = without(out, "observations", "final_obs")
        else:
            inner = without(out, "observations")
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=inner)
        self._learn(observations, None)
        ends: tuple[int | None, ...] = (None, None, 0, None, 0)
        flags: tuple[int | None, ...] = (None, None, None)
        if self._same_step:
            fill = self._fresh and (out is None or out.final_obs is None)
            raw = infos["final_obs"]  # rows of a record of the simulator's: they need not touch
            ends = (infos["_final_obs"].data_ptr(), raw.data_ptr(), raw.stride(0), final_target.data_ptr(), int(fill))
        elif self._ended is not None:
            flags = (self._ended.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        self._normalise(observations.data_ptr(), target.data_ptr(), *ends, *flags)
        if self._same_step:
            infos["final_obs"] = final_target
        return target, rewards, terminations, truncations, infos

    def _learn(self, observations: torch.Tensor, mask: torch.Tensor | None) -> None:
        if self._updates:
            self._measure(observations.data_ptr(), None if mask is None else mask.data_ptr())
            self._merge()
