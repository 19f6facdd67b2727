"""What a policy that learns keeps of a horizon, beside what the environment writes."""

from typing import final

import torch

from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.operations.advantage import MOMENTS
from gpu_envs.training.operations.heads import Head


@final
class SampleStorage:
    """The arrays of a learner that grow with the horizon or the replicas.

    Attributes:
        indices: The random order of the samples; None: they are taken as they come.
        acted: The environment's actions, where those are others than the policy's (a box).
        moments: What is kept of each row's advantages and returns.
        places: Where each row's last observation is, if its episode was truncated.
        last_values: What those are worth.
        sums: Where rewards are normalised: of each row, what the scale learns from.
    """

    def __init__(self, algorithm: OnPolicy, horizon: int, rows: int, head: Head, device: str) -> None:
        """Allocates; on torch's device ``meta`` there are the sizes alone."""

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        box = head.kind == "box"
        epochs, minibatches = algorithm.passes
        self.actions = made(horizon, rows, head.width, dtype=torch.float32 if box else torch.int32)
        self.log_probs = made(horizon, rows)
        self.values = made(horizon + 1, rows)
        self.advantages = made(horizon, rows)
        self.returns = made(horizon, rows)
        self.acted = made(rows, head.width) if box else None
        self.moments = made(MOMENTS, rows)
        self.places, self.last_values = made(rows, dtype=torch.int64), made(rows)
        self.sums = (made(rows), made(rows), made(rows)) if algorithm.normalise_rewards else None
        self.indices = made(horizon * rows, dtype=torch.int32) if epochs * minibatches > 1 else None
