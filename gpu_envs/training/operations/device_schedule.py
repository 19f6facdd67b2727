"""Schedules that a device follows by itself."""

from typing import final

import torch

from gpu_envs.training.schedule import Schedule


@final
class DeviceSchedule:
    """A schedule as a function of a tensor: its points, and the slopes between them, are on the device."""

    def __init__(self, schedule: Schedule | str | float, device: str) -> None:
        """Copies the points."""
        at, values = torch.tensor(Schedule.of(schedule).points, dtype=torch.float64).T
        self._first = values[:1].to(device)
        self._low, self._high = at[:-1].to(device), at[1:].to(device)
        self._least, self._most = values.min().to(device), values.max().to(device)
        self._slopes = ((values[1:] - values[:-1]) / (at[1:] - at[:-1])).to(device)

    def at(self, done: torch.Tensor) -> torch.Tensor:
        """The value when so much of the training is done, float32 ``[1]``; ``done`` is float64 ``[1]``."""
        climbed = (torch.clamp(done, self._low, self._high) - self._low) * self._slopes
        value: torch.Tensor = self._first + climbed.sum()
        return torch.clamp(value, self._least, self._most).to(torch.float32)
