"""Advantages and returns of a horizon, and the discounted returns that rewards are normalised by."""

from typing import final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

_EACH = ("steps", "rows")

MOMENTS = 7
"""Numbers that are kept of each row's advantages and returns; the first is how many there were."""

MOMENTS_IN_CPP = f"constexpr int MOMENTS = {MOMENTS};"

ADVANTAGE_CALL = Struct.of(
    "AdvantageCall",
    "float",
    ("Index", "rows"),
    ("Index", "steps"),
    ("Index", "bootstrap_stride"),
    ("const float*", "rewards", _EACH),
    ("const float*", "values", ("states", "rows")),
    ("const u8*", "terminations", _EACH),
    ("const u8*", "truncations", _EACH),
    ("const u8*?", "alive", _EACH),
    ("const float*", "bootstrap", ("bootstrap_steps", "rows")),
    ("const float*?", "reward_scale", (1,)),
    ("float*", "advantages", _EACH),
    ("float*", "returns", _EACH),
    ("float*?", "moments", (MOMENTS, "rows")),
    ("float", "gamma"),
    ("float", "gamma_lambda"),
)

PLACES_CALL = Struct.of(
    "PlacesCall",
    "float",
    ("Index", "rows"),
    ("Index", "steps"),
    ("int", "each"),
    ("const u8*", "terminations", _EACH),
    ("const u8*", "truncations", _EACH),
    ("Index*", "places", ("rows",)),
)

DISCOUNTED_CALL = Struct.of(
    "DiscountedCall",
    "float",
    ("Index", "rows"),
    ("Index", "steps"),
    ("const float*", "rewards", _EACH),
    ("const u8*", "terminations", _EACH),
    ("const u8*", "truncations", _EACH),
    ("const u8*?", "alive", _EACH),
    ("float*", "running", ("rows",)),
    ("float*", "total", ("rows",)),
    ("float*", "squares", ("rows",)),
    ("float*", "count", ("rows",)),
    ("float", "gamma"),
)


def program() -> Program:
    """The source. A row's work is worth more the longer the horizon; the weight is that of a usual one."""
    calls = {"advantages": ADVANTAGE_CALL, "places": PLACES_CALL, "discounted": DISCOUNTED_CALL}
    parts = ("training/common/moments.cuh", "training/common/advantage.cuh")
    return program_of(parts, calls, KernelSettings(prologue=MOMENTS_IN_CPP, weight=32))


@final
class Advantages:
    """The kernels that go through a horizon, one thread a row; all arrays are [T, R]."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        kernels = load_kernels(open_backend(resolve_device(device), threads), program())
        self._advantages, self._places, self._discounted = kernels

    def compute(
        self,
        rewards: torch.Tensor,
        values: torch.Tensor,
        terminations: torch.Tensor,
        truncations: torch.Tensor,
        alive: torch.Tensor | None,
        bootstrap: torch.Tensor,
        gamma: float,
        lam: float,
        advantages: torch.Tensor,
        returns: torch.Tensor,
        reward_scale: torch.Tensor | None = None,
        moments: torch.Tensor | None = None,
    ) -> None:
        """Estimates advantages backward over the steps (GAE).

        Args:
            rewards: [T, R].
            values: [T + 1, R]: of the observations that were acted on, and of the one after the last step.
            terminations: [T, R]: nothing follows.
            truncations: [T, R]: what would have followed is worth ``bootstrap``.
            alive: [T, R]: whether the agent took part; None: all did. Where not, the advantage is zero, and the return
                the value.
            bootstrap: [R] or [T, R]: values of the final observations, read where truncated and not terminated.
            gamma: The discount.
            lam: The mixture of long and short estimates.
            advantages: [T, R], written.
            returns: [T, R], written: advantages plus values.
            reward_scale: [1] on the device; rewards are multiplied by it. None: they are not.
            moments: [7, R], written: of each row, for ``Measure``; None: not wanted.
        """
        steps, rows = _steps_and_rows(rewards)
        each_step = bootstrap.ndim == 2
        self._advantages.launch(
            rows,
            rows=rows,
            steps=steps,
            states=steps + 1,
            rewards=rewards,
            values=values,
            terminations=terminations,
            truncations=truncations,
            alive=alive,
            bootstrap=bootstrap,
            bootstrap_steps=steps if each_step else None,
            bootstrap_stride=rows if each_step else 0,
            reward_scale=reward_scale,
            advantages=advantages,
            returns=returns,
            moments=moments,
            gamma=gamma,
            gamma_lambda=gamma * lam,
        )

    def places(
        self, terminations: torch.Tensor, truncations: torch.Tensor, places: torch.Tensor, *, each: int = 1
    ) -> None:
        """Finds where the final observations are of episodes that are truncated, one at most of each row.

        Args:
            terminations: [T, R]: nothing follows.
            truncations: [T, R].
            places: int64 [R], written: step * R + row, where the row's episode is truncated and not terminated; below
                zero where it is not.
            each: So many rows, one after another, are those of a group, which is truncated together.
        """
        steps, rows = _steps_and_rows(truncations)
        self._places.launch(
            rows // each,
            rows=rows,
            steps=steps,
            each=each,
            terminations=terminations,
            truncations=truncations,
            places=places,
        )

    def discounted(
        self,
        rewards: torch.Tensor,
        terminations: torch.Tensor,
        truncations: torch.Tensor,
        alive: torch.Tensor | None,
        gamma: float,
        running: torch.Tensor,
        total: torch.Tensor,
        squares: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """Follows each row's discounted return, ``running``, forward over the steps; it begins anew after an end.

        Writes for each row the sum over the steps of what it was, the sum of its squares, and of how many steps those
        are sums: without those in which the agent did not take part.
        """
        steps, rows = _steps_and_rows(rewards)
        self._discounted.launch(
            rows,
            rows=rows,
            steps=steps,
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            alive=alive,
            running=running,
            total=total,
            squares=squares,
            count=count,
            gamma=gamma,
        )


def _steps_and_rows(rewards: torch.Tensor) -> tuple[int, int]:
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape {list(rewards.shape)}; give [steps, rows]")
    return rewards.shape[0], rewards.shape[1]
