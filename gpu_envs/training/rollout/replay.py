"""The replay buffer, on the device: kernels insert a horizon of transitions, and draw batches of them."""

from collections.abc import Callable, Mapping
from typing import Final, final

import torch
from torch import Tensor

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import CachedLaunch
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.engines.kernels import load_filled
from gpu_envs.training.engines.off_policy import Transitions

_CALLS = {
    "insert": Struct.of(
        "InsertCall",
        "float",
        *(("Index", name) for name in ("rows", "steps", "slots", "places", "limit")),
        ("const Index*", "position", (1,)),
        ("const float*", "observations", ("steps_and_one", "rows", "features")),
        ("const float*", "actions", ("steps", "rows", "width")),
        ("const float*", "rewards", ("steps", "rows")),
        *(("const u8*", name, ("steps", "rows")) for name in ("terminations", "truncations")),
        ("const u8*?", "alive", ("steps", "rows")),
        ("const float*?", "final_obs", ("steps", "rows", "features")),
        ("float*", "ring", ("rows", "slots", "stride")),
        ("float*", "lasts", ("rows", "places", "features")),
    ),
    "draw": Struct.of(
        "DrawCall",
        "float",
        *(("Index", name) for name in ("count", "first", "rows", "slots", "places", "limit")),
        ("int", "n_step"),
        ("float", "gamma"),
        ("const Index*", "position", (1,)),
        ("const u64*", "stream", (2,)),
        ("u64", "turn"),
        ("const float*", "ring", ("rows", "slots", "stride")),
        ("const float*", "lasts", ("rows", "places", "features")),
        ("float*", "observations", ("count", "features")),
        ("float*", "actions", ("count", "width")),
        *(("float*", name, ("count",)) for name in ("returns", "discounts")),
        ("float*", "next_observations", ("count", "features")),
        ("u8*", "valid", ("count",)),
    ),
}


def program(features: int, width: int) -> Program:
    """Return the program for observations of ``features`` and actions of ``width`` numbers."""
    stride = stride_of(features, width)
    lengths = f"constexpr int FEATURES = {features}, WIDTH = {width}, STRIDE = {stride};"
    sizes = {"features": features, "width": width, "stride": stride}
    settings = KernelSettings(prologue=lengths, sizes=sizes, weight=4)
    return program_of(("training/common/replay.cuh",), _CALLS, settings)


def stride_of(features: int, width: int) -> int:
    """Return the 32-bit words of a slot, a multiple of 4: observation, action, reward, and how the step ended."""
    return -(-(features + width + 2) // 4) * 4


def final_obs_capacity(slots: int, limit: int | None) -> int:
    """Return the number of final observations of truncated episodes that the buffer holds for each row."""
    return 1 if limit is None else slots // limit + 2


@final
class Replay:
    """A ring buffer of the last ``slots`` - 1 transitions of each row of agents.

    Attributes:
        position: int64 [1] on the device: number of steps inserted so far.
        ring: [rows, slots, stride]: the transitions.
        lasts: [rows, places, features]: final observations of truncated episodes.
    """

    def __init__(
        self,
        rows: int,
        slots: int,
        features: int,
        width: int,
        device: str,
        threads: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Allocate an empty buffer.

        Args:
            rows: Number of agents of all replicas.
            slots: Steps per row; one slot is always free.
            features: Length of an observation.
            width: Number of elements of an action.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: Maximum number of CPU threads; None: one per core.
            limit: Number of steps after which episodes are truncated; None: never.
        """
        if slots < 2 or rows < 1:
            raise ValueError(f"the buffer has {rows} rows of {slots} slots; give at least one row and two slots")
        if max(rows, slots) >= 2**32:
            raise ValueError(
                f"the buffer has {rows} rows of {slots} slots; give fewer than 2^32 of each: 32-bit indices"
            )
        backend = open_backend(resolve_device(device), threads)
        self.rows, self.slots, self.width = rows, slots, width
        places = final_obs_capacity(slots, limit)
        self.ring: Final = torch.zeros((rows, slots, stride_of(features, width)), device=backend.device)
        self.lasts: Final = torch.zeros((rows, places, features), device=backend.device)
        self.position: Final = torch.zeros(1, dtype=torch.int64, device=backend.device)
        programs = [program(features, width)]
        sizes = {"rows": rows, "slots": slots, "places": places, "limit": limit or 1}
        self._insert, draw = load_filled(backend, programs, **sizes, **self._tensors).values()
        self._draw: Final = CachedLaunch(draw)

    def insert(self, steps: int, **arrays: Tensor | None) -> None:
        """Insert the steps of a horizon in place of the oldest steps.

        Args:
            steps: Number of steps.
            arrays: Members of ``InsertCall``: ``observations`` before each step and after the last, ``actions`` in
                units where the bounds are -1 and 1, ``rewards``, ``terminations``, ``truncations``, whether agents are
                ``alive`` (None: all are), and ``final_obs`` of truncated episodes (None: none are truncated).
        """
        if steps >= self.slots:
            raise ValueError(f"there are {steps} steps to insert into {self.slots} slots; give fewer steps than slots")
        self._insert.launch(self.rows * (steps + 1), steps=steps, steps_and_one=steps + 1, **arrays)
        self.position.add_(steps)

    def draw(self, into: Transitions, stream: Tensor, turn: int, *, n_step: int, gamma: float, first: int = 0) -> None:
        """Draw a batch of transitions, or n-step returns, uniformly and with replacement, into ``into``.

        Args:
            into: Receives the transitions; its size is the batch size.
            stream: int64 [2] on the device: the key and the counter of the random numbers.
            turn: Added to the counter; use a different one for each batch until the counter changes.
            n_step: Number of rewards in a return.
            gamma: Discount factor.
            first: Index of the first sample among the batches of all processes; random numbers depend on it.
        """
        count = len(into.returns)
        self._draw.bound(
            (into, stream, n_step, gamma, first),
            count,
            lambda: {"count": count, "stream": stream, "n_step": n_step, "gamma": gamma, "first": first, **vars(into)},
        )(turn)

    def state(self, *, copy_buffers: bool = True) -> dict[str, Tensor]:
        """Return copies on the host (the device may lack memory); ``copy_buffers=False``: the tensors themselves."""
        if not copy_buffers:
            return self._tensors | {"position": self.position.clone()}
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._tensors.items()}

    def load(self, state: Mapping[str, Tensor] | Callable[[Mapping[str, Tensor]], None] | None) -> None:
        """Restore a result of ``state``, or call a function that fills the tensors; None empties the buffer."""
        if state is None:
            self.position.zero_()
        elif callable(state):
            state(self._tensors)
        else:
            for name, tensor in state.items():
                self._tensors[name].copy_(tensor)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return {"ring": self.ring, "lasts": self.lasts, "position": self.position}
