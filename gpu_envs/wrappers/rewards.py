"""A wrapper that normalizes rewards."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from gymnasium.error import InvalidBound

from gpu_envs.backend.structs import Struct
from gpu_envs.engine.results import Step
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import ResetResults, StepResults, TorchWrapper, without
from gpu_envs.wrappers.blocks import ROWS
from gpu_envs.wrappers.moments import MERGE_CALL, PARTS, Normalizer, RunningMeanStd

ACCUMULATE_CALL = Struct.of(
    "AccumulateCall",
    "float",
    *ROWS,
    ("float", "gamma"),
    ("float*", "discounted", ("rows",)),
    ("u8*?", "ended", ("rows",)),
    ("const Reward*", "rewards"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    *PARTS,
)

SCALE_CALL = Struct.of(
    "ScaleCall",
    "float",
    *ROWS,
    ("const double*", "var", ("features",)),
    ("double", "epsilon"),
    ("const Reward*", "rewards"),
    ("Reward*", "scaled"),
)

HEADERS = ("wrappers/moments.cuh", "wrappers/rewards.cuh")
CALLS = {"accumulate": ACCUMULATE_CALL, "merge": MERGE_CALL, "scale": SCALE_CALL}

REWARD_TYPES = {"float32": "float", "float64": "double"}


@final
class NormalizeReward(Normalizer):
    """Divide rewards by the standard deviation of the discounted return: ``discounted = gamma * discounted + reward``.

    As in Gymnasium, a step that terminates sets the discounted return to its reward. In NextStep and Disabled mode the
    next episode continues from that value, and the step that starts an episode is not counted; in SameStep mode the
    next episode starts at zero. Difference from Gymnasium: a partial reset clears the reset replicas only. Rewards keep
    the environment's precision.

    Attributes:
        return_rms: Running statistics of the discounted return. To evaluate with the statistics of training, share them
            (``evaluation.return_rms = training.return_rms``) or copy them with ``load_state_dict``.
        update_running_mean: Whether steps update the statistics. A captured CUDA graph keeps the value at its capture.
        accumulated_reward: Discounted return of each replica, updated in place.
    """

    _applied = ("var",)

    def __init__(self, env: VectorEnv | TorchWrapper, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        """Wrap the environment and compile the kernels.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            gamma: Discount factor.
            epsilon: Number added to the variance.
        """
        super().__init__(env, epsilon)
        if not 0 <= gamma <= 1:
            raise InvalidBound(f"gamma is {gamma}; give a number from 0 to 1")
        self._gamma: Final = float(gamma)
        rows, precision = self.num_envs, self._simulator.precision
        self.accumulated_reward: Final = self._zeros(rows)
        self._ended: Final = None if self._same_step else self._zeros(rows, dtype=torch.uint8)
        self._scaled: Final = self._zeros(rows, dtype=getattr(torch, precision))
        accumulate, blocks = self._load_kernels(HEADERS, CALLS, (), {"Reward": REWARD_TYPES[precision]})
        accumulate.fill(gamma=self._gamma, discounted=self.accumulated_reward, ended=self._ended)
        self._accumulate: Final = accumulate.bind(blocks)
        self._scale: Final = self._applying.bind(blocks)

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return self._gamma

    @property
    def return_rms(self) -> RunningMeanStd:
        """Running statistics of the discounted return."""
        return self._rms

    @return_rms.setter
    def return_rms(self, statistics: RunningMeanStd) -> None:
        self._replace_statistics("return_rms", statistics)

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset replicas, and clear their discounted returns; observations are unchanged."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._reset_mask(options)
        for buffer in (self.accumulated_reward, self._ended):
            if buffer is not None:
                buffer.zero_() if mask is None else buffer.masked_fill_(mask, 0)
        return observations, infos

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once, and return scaled rewards, written to ``out.rewards`` if given."""
        target = self._target(out, "rewards", self._scaled)
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=without(out, "rewards"))
        self._accumulate(rewards.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        if self.update_running_mean:
            self._merge()
        self._scale(rewards.data_ptr(), target.data_ptr())
        return observations, target, terminations, truncations, infos
