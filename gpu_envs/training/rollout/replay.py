"""A replay buffer on the device: transitions go in by horizons, and are drawn in a kernel."""

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
        ("Index", "rows"),
        ("Index", "steps"),
        ("Index", "slots"),
        ("Index", "places"),
        ("Index", "limit"),
        ("const Index*", "position", (1,)),
        ("const float*", "observations", ("steps_and_one", "rows", "features")),
        ("const float*", "actions", ("steps", "rows", "width")),
        ("const float*", "rewards", ("steps", "rows")),
        ("const u8*", "terminations", ("steps", "rows")),
        ("const u8*", "truncations", ("steps", "rows")),
        ("const u8*?", "alive", ("steps", "rows")),
        ("const float*?", "final_obs", ("steps", "rows", "features")),
        ("float*", "ring", ("rows", "slots", "stride")),
        ("float*", "lasts", ("rows", "places", "features")),
    ),
    "draw": Struct.of(
        "DrawCall",
        "float",
        ("Index", "count"),
        ("Index", "first"),
        ("Index", "rows"),
        ("Index", "slots"),
        ("Index", "places"),
        ("Index", "limit"),
        ("int", "n_step"),
        ("float", "gamma"),
        ("const Index*", "position", (1,)),
        ("const u64*", "stream", (2,)),
        ("u64", "turn"),
        ("const float*", "ring", ("rows", "slots", "stride")),
        ("const float*", "lasts", ("rows", "places", "features")),
        ("float*", "observations", ("count", "features")),
        ("float*", "actions", ("count", "width")),
        ("float*", "returns", ("count",)),
        ("float*", "discounts", ("count",)),
        ("float*", "next_observations", ("count", "features")),
        ("u8*", "valid", ("count",)),
    ),
}


def program(features: int, width: int) -> Program:
    """The source, for observations and actions of such lengths."""
    stride = stride_of(features, width)
    lengths = f"constexpr int FEATURES = {features}, WIDTH = {width}, STRIDE = {stride};"
    sizes = {"features": features, "width": width, "stride": stride}
    settings = KernelSettings(prologue=lengths, sizes=sizes, weight=4)
    return program_of(("training/common/replay.cuh",), _CALLS, settings)


def stride_of(features: int, width: int) -> int:
    """The words of a slot, whole vectors of four: observation, action, the reward, and what became of it."""
    return -(-(features + width + 2) // 4) * 4


def final_obs_capacity(slots: int, limit: int | None) -> int:
    """How many last observations of truncated episodes are kept of a row."""
    return 1 if limit is None else slots // limit + 2


@final
class Replay:
    """The last transitions of rows of agents, ``slots`` - 1 of each.

    Attributes:
        position: int64 [1] on the device: the steps taken in so far.
        ring: [rows, slots, words].
        lasts: [rows, places, features]: the last observations of truncated episodes.
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
        """Allocates for observations and actions of such lengths.

        Args:
            rows: Agents of all replicas.
            slots: Steps of each that are kept, and one.
            features: Numbers of an observation.
            width: Elements of an action.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: Threads on the CPU, at most; None: one for each core.
            limit: The step at which episodes are truncated; None: never.
        """
        if slots < 2 or rows < 1:
            raise ValueError(f"there are {rows} rows of {slots} slots; give one row or more, and two slots or more")
        if max(rows, slots) >= 2**32:
            raise ValueError(f"there are {rows} rows of {slots} slots; numbers of 32 bits are drawn: give fewer")
        backend = open_backend(resolve_device(device), threads)
        self.rows, self.slots, self.width = rows, slots, width
        places = final_obs_capacity(slots, limit)
        self.ring: Final = torch.zeros((rows, slots, stride_of(features, width)), device=backend.device)
        self.lasts: Final = torch.zeros((rows, places, features), device=backend.device)
        self.position: Final = torch.zeros(1, dtype=torch.int64, device=backend.device)
        programs = [program(features, width)]
        given = {"rows": rows, "slots": slots, "places": places, "limit": limit or 1}
        self._insert, draw = load_filled(backend, programs, **given, **self._kept).values()
        self._draw: Final = CachedLaunch(draw)

    def insert(self, steps: int, **arrays: Tensor | None) -> None:
        """Takes in the steps of a horizon, over the oldest ones.

        Args:
            steps: How many.
            arrays: Those of ``InsertCall``: ``observations`` before each step and after the last, ``actions`` in units
                in which the bounds are -1 and 1, ``rewards``, ``terminations``, ``truncations``, which agents were
                ``alive`` (None: all), and ``final_obs`` of truncated episodes (None: there are none).
        """
        if steps >= self.slots:
            raise ValueError(f"there are {steps} steps for {self.slots} slots; give fewer than there are slots")
        self._insert.launch(self.rows * (steps + 1), steps=steps, steps_and_one=steps + 1, **arrays)
        self.position.add_(steps)

    def draw(self, into: Transitions, stream: Tensor, turn: int, *, n_step: int, gamma: float, first: int = 0) -> None:
        """Draws as many transitions as there is room for, each as likely as any other; a function of key and turn.

        Args:
            into: Receives them.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the draws since the counter changed.
            n_step: So many steps' rewards are summed.
            gamma: The discount of a step.
            first: The number of the first sample, of which its random numbers are.
        """
        count = len(into.returns)
        self._draw.bound(
            (into, stream, n_step, gamma, first),
            count,
            lambda: {"count": count, "stream": stream, "n_step": n_step, "gamma": gamma, "first": first, **vars(into)},
        )(turn)

    def state(self, *, copy_buffers: bool = True) -> dict[str, Tensor]:
        """Returns copies on the host, since there may be no room for two; or the buffer itself, and where it stands."""
        if not copy_buffers:
            return self._kept | {"position": self.position.clone()}
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._kept.items()}

    def load(self, state: Mapping[str, Tensor] | Callable[[Mapping[str, Tensor]], None] | None) -> None:
        """Takes over what ``state`` gave, or what a function reads into the tensors; None: empties the buffer."""
        if state is None:
            self.position.zero_()
        elif callable(state):
            state(self._kept)
        else:
            for name, tensor in state.items():
                self._kept[name].copy_(tensor)

    @property
    def _kept(self) -> dict[str, Tensor]:
        return {"ring": self.ring, "lasts": self.lasts, "position": self.position}
