"""Rewards divided by the deviation of the discounted return."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from gymnasium.error import InvalidBound

from gpu_envs.backend.structs import Struct
from gpu_envs.engine.results import Step
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Begun, Results, TorchWrapper, without
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
    """Divides rewards by the deviation of the discounted return so far: ``discounted = gamma discounted + reward``.

    As Gymnasium's, to the letter: in the step that terminates the discounted return is the reward alone; in NextStep
    and Disabled the next episode goes on from it, and the step that begins an episode is not counted; in SameStep the
    next episode begins at zero. With one difference: a reset by mask sets back the replicas that it resets, and leaves
    the others alone. Rewards stay in the environment's precision.

    Attributes:
        return_rms: The statistics of the discounted return. To evaluate with those of training, assign them
            (``evaluation.return_rms = training.return_rms``), or copy them with ``load_state_dict``.
        update_running_mean: Set it to False to freeze them. A CUDA graph keeps what this was when it was captured.
        accumulated_reward: The discounted return of each replica so far: live.
    """

    _applied = ("var",)

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
        self.accumulated_reward: Final = self._empty(rows)
        self._ended: Final = None if self._same_step else self._empty(rows, dtype=torch.uint8)
        self._scaled: Final = self._empty(rows, dtype=getattr(torch, precision))
        accumulate, blocks = self._load(HEADERS, CALLS, (), {"Reward": REWARD_TYPES[precision]})
        accumulate.fill(gamma=self._gamma, discounted=self.accumulated_reward, ended=self._ended)
        self._accumulate: Final = accumulate.bind(blocks)
        self._scale: Final = self._applying.bind(blocks)

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
        self._adopt(self._check_shared("return_rms", statistics, self._rms))

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        for kept in (self.accumulated_reward, self._ended):
            if kept is not None:
                kept.zero_() if mask is None else kept.masked_fill_(mask, 0)
        return observations, infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once; ``out.rewards`` receives what is scaled."""
        target = self._place(out, "rewards", self._scaled)
        observations, rewards, terminations, truncations, infos = self._env.step(actions, out=without(out, "rewards"))
        self._accumulate(rewards.data_ptr(), terminations.data_ptr(), truncations.data_ptr())
        if self.update_running_mean:
            self._merge()
        self._scale(rewards.data_ptr(), target.data_ptr())
        return observations, target, terminations, truncations, infos
