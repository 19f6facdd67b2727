"""Rewards divided by the deviation of the discounted return."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from gymnasium.error import InvalidBound

from gpu_envs.codegen.structs import Struct
from gpu_envs.resets import Seeds
from gpu_envs.results import Step
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Results, TorchWrapper, without
from gpu_envs.wrappers.launches import ROWS, Launches, blocks_of, program, rows_of_block
from gpu_envs.wrappers.moments import MERGE_CALL, PARTS, Normalizer, RunningMeanStd

ACCUMULATE_CALL = Struct.of(
    "AccumulateCall",
    "float",
    *ROWS,
    ("float", "gamma"),
    ("float*", "discounted"),
    ("u8*", "ended"),
    ("const Reward*", "rewards"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    *PARTS,
)

SCALE_CALL = Struct.of(
    "ScaleCall",
    "float",
    *ROWS,
    ("const double*", "var"),
    ("double", "epsilon"),
    ("const Reward*", "rewards"),
    ("Reward*", "scaled"),
)

HEADERS = ("wrappers_moments.cuh", "wrappers_rewards.cuh")
CALLS = {"accumulate": ACCUMULATE_CALL, "merge": MERGE_CALL, "scale": SCALE_CALL}

REWARD_TYPES = {"float32": "float", "float64": "double"}


def reward_type(precision: str) -> str:
    """The C++ type of rewards, for kernels that read them."""
    return f"using Reward = {REWARD_TYPES[precision]};"


@final
class NormalizeReward(Normalizer):
    """Divides rewards by the deviation of the discounted return so far: ``discounted = gamma discounted + reward``.

    As Gymnasium's, to the letter: in the step that terminates the discounted return is the reward alone; in NextStep
    and Disabled the next episode goes on from it, and the step that begins an episode is not counted; in SameStep the
    next episode begins at zero. With one difference: a reset by mask sets back the replicas that it resets, and leaves
    the others alone. Rewards stay in the environment's precision.

    Attributes:
        return_rms: The statistics of the discounted return. To evaluate with those of training, assign them
            (``evaluation.return_rms = training.return_rms``), or copy them with ``load_state_dict``.
        update_running_mean: Set it to False to freeze them.
        accumulated_reward: The discounted return of each replica so far: live.
    """

    def __init__(self, env: VectorEnv | TorchWrapper, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            gamma: The discount.
            epsilon: Added to the variance.
        """
        super().__init__(env, epsilon)
        if not 0 <= gamma <= 1:
            raise InvalidBound(f"gamma is {gamma}; give 0 to 1")
        self._gamma: Final = float(gamma)
        rows, precision = self.num_envs, self._simulator.precision
        each = rows_of_block(rows)
        launches = Launches(self._backend, program(HEADERS, CALLS, self._mode, 1, each, reward_type(precision)))
        parts = self._partial_sums(1)
        both, blocks = {"rows": rows, "rows_of_block": each}, blocks_of(rows, each)
        self.accumulated_reward: Final = self._empty(rows)
        self._ended: Final = None if self._same_step else self._empty(rows, dtype=torch.uint8)
        self._scaled: Final = self._empty(rows, dtype=getattr(torch, precision))
        self._rms = RunningMeanStd(device=self._torch_device)
        self._accumulate: Final = launches.of(
            "accumulate",
            blocks,
            **both,
            **parts,
            gamma=self._gamma,
            discounted=self.accumulated_reward,
            ended=self._ended,
        )
        self._merge = self._merging(launches, 1, parts, self._rms)
        self._scale: Final = launches.of("scale", blocks, **both, var=self._rms.var, epsilon=self.epsilon)

    @property
    def gamma(self) -> float:
        """The discount."""
        return self._gamma

    @property
    def return_rms(self) -> RunningMeanStd:
        """The statistics of the discounted return."""
        return self._rms

    @return_rms.setter
    def return_rms(self, statistics: RunningMeanStd) -> None:
        self._rms = self._check_shared("return_rms", statistics, self._rms)
        self._merge.set(**statistics.members())
        self._scale.set(var=statistics.var)

    @property
    def _statistics(self) -> RunningMeanStd:
        return self._rms

    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        for kept in (self.accumulated_reward, self._ended):
            if kept is not None:
                kept.zero_() if mask is None else kept.masked_fill_(mask, 0)
        return observations, infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, and scales the rewards.

        Args:
            actions: One for each replica.
            out: Tensors to write into; ``rewards`` receives what is scaled.

        Returns:
            Observations, rewards, terminations, truncations and infos.
        """
        target = self._place(out, "rewards", self._scaled)
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=without(out, "rewards"))
        self._accumulate(rewards.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        if self._updates:
            self._merge()
        self._scale(rewards.data_ptr(), target.data_ptr())
        return observations, target, terminations, truncations, infos
