"""Advantages and returns of a horizon, and the discounted returns that rewards are normalised by."""

from typing import Final, final

import torch

from gpu_envs.codegen.structs import Struct
from gpu_envs.torch_kernels import FLAGS, Compiler, Shape, address, optional_address

ADVANTAGE_CALL = Struct.of(
    "AdvantageCall",
    "float",
    ("Index", "rows"),
    ("Index", "steps"),
    ("Index", "bootstrap_stride"),
    ("const float*", "rewards"),
    ("const float*", "values"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    ("const u8*", "alive"),
    ("const float*", "bootstrap"),
    ("const float*", "reward_scale"),
    ("float*", "advantages"),
    ("float*", "returns"),
    ("float", "gamma"),
    ("float", "gamma_lambda"),
)

DISCOUNTED_CALL = Struct.of(
    "DiscountedCall",
    "float",
    ("Index", "rows"),
    ("Index", "steps"),
    ("const float*", "rewards"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    ("const u8*", "alive"),
    ("float*", "running"),
    ("float*", "total"),
    ("float*", "squares"),
    ("float*", "count"),
    ("float", "gamma"),
)

CALLS = {"advantages": ADVANTAGE_CALL, "discounted": DISCOUNTED_CALL}

SHAPE = Shape("", weight=32)
"""A row's work is worth more the longer the horizon; this is a usual one."""


@final
class Advantages:
    """The kernels that go through a horizon, one thread a row; all arrays are [T, R]."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        """Compiles them.

        Args:
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: For the CPU: the most threads to use; None: one for each core.
        """
        self._compiler: Final = Compiler(device, threads)
        self._advantages, self._discounted = self._compiler.compile(("advantage.cuh",), CALLS, SHAPE)

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
        """
        steps, rows = _steps_and_rows(rewards)
        device, full, kind = self._compiler.device, (steps, rows), torch.float32
        per_step = bootstrap.ndim == 2
        self._advantages(
            rows,
            {
                "rows": rows,
                "steps": steps,
                "bootstrap_stride": rows if per_step else 0,
                "rewards": address("rewards", rewards, full, kind, device),
                "values": address("values", values, (steps + 1, rows), kind, device),
                "terminations": address("terminations", terminations, full, FLAGS, device),
                "truncations": address("truncations", truncations, full, FLAGS, device),
                "alive": optional_address("alive", alive, full, FLAGS, device),
                "bootstrap": address("bootstrap", bootstrap, full if per_step else (rows,), kind, device),
                "reward_scale": optional_address("reward_scale", reward_scale, (1,), kind, device),
                "advantages": address("advantages", advantages, full, kind, device),
                "returns": address("returns", returns, full, kind, device),
                "gamma": gamma,
                "gamma_lambda": gamma * lam,
            },
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
        """Follows each row's discounted return forward over the steps; it begins anew after an end.

        Args:
            rewards: [T, R].
            terminations: [T, R].
            truncations: [T, R].
            alive: [T, R]: whether the agent took part; None: all did.
            gamma: The discount.
            running: [R], read and written: the discounted return so far.
            total: [R], written: the sum over the steps of what it was.
            squares: [R], written: the sum of its squares.
            count: [R], written: of how many steps those are sums.
        """
        steps, rows = _steps_and_rows(rewards)
        device, full, kind = self._compiler.device, (steps, rows), torch.float32
        self._discounted(
            rows,
            {
                "rows": rows,
                "steps": steps,
                "rewards": address("rewards", rewards, full, kind, device),
                "terminations": address("terminations", terminations, full, FLAGS, device),
                "truncations": address("truncations", truncations, full, FLAGS, device),
                "alive": optional_address("alive", alive, full, FLAGS, device),
                "running": address("running", running, (rows,), kind, device),
                "total": address("total", total, (rows,), kind, device),
                "squares": address("squares", squares, (rows,), kind, device),
                "count": address("count", count, (rows,), kind, device),
                "gamma": gamma,
            },
        )


def _steps_and_rows(rewards: torch.Tensor) -> tuple[int, int]:
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape {list(rewards.shape)}; give [steps, rows]")
    return rewards.shape[0], rewards.shape[1]
