"""Heads of policies, and small networks of all kinds that the kernels support."""

import dataclasses
import types
from typing import Any

import torch

from gpu_envs.training.engines.kernels import Linear
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.small import SmallNetworks
from gpu_envs.training.engines.small_programs import SmallNetwork
from gpu_envs.training.heads import Head


def discrete(*sizes: int) -> Head:
    """A discrete head with the given number of choices per element; element d starts at d."""
    return Head("discrete", sizes, tuple(range(len(sizes))), (), (), scalar=len(sizes) == 1)


def box(count: int) -> Head:
    """A box of ``count`` elements from -2 to 1."""
    return Head("box", (count,), (), (-2.0,) * count, (1.0,) * count, scalar=False)


def scale_of(parts: Any) -> Any:
    """A scale with a mean and an inverse standard deviation, or None."""
    return parts and types.SimpleNamespace(offset=parts[0], inverse=parts[1])


@dataclasses.dataclass(frozen=True)
class NetworkCase:
    head: Head
    features: int
    hidden: tuple[int, int] = (64, 64)
    activation: str = "tanh"

    @property
    def means(self) -> int:
        return self.head.parameters - self.head.log_stds

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        first, second = self.hidden
        return {
            part: [(first, self.features), (first,), (second, first), (second,), (outputs, second), (outputs,)]
            for part, outputs in (("actor", self.means), ("critic", 1))
        }

    def network(self, precision: str) -> SmallNetwork:
        """The network, with parameters in the order log standard deviations, actor, critic."""
        at, nets = self.head.log_stds, []
        for shapes in self.shapes().values():
            layers = []
            for rows, columns in shapes[::2]:
                layers.append(Linear(at, at + rows * columns, rows, columns))
                at += rows * (columns + 1)
            nets.append(tuple(layers))
        log_std = 0 if self.head.log_stds else -1
        return SmallNetwork(self.head, self.features, self.hidden, self.activation, precision, tuple(nets), log_std)

    def fused(self, precision: str, flat: Any, scale: Any = None, few: bool = False, rows: int = 2**31) -> Any:
        """The kernels, tuned for ``rows`` rows; ``few``: with few blocks, so that each has many tiles."""
        adam = Adam([torch.nn.Parameter(flat.clone())], device="cuda")
        fused: Any = SmallNetworks(self.network(precision), "cuda", adam, scale_of(scale), rows)
        if few:
            fused._processors, fused._update_blocks = 2, 4  # noqa: SLF001 - as on a GPU with few processors
        return fused


CASES = {
    "CartPole": NetworkCase(discrete(2), 4),
    "Pendulum": NetworkCase(box(1), 3),
    "Acrobot": NetworkCase(discrete(3), 6),
    "MountainCar": NetworkCase(discrete(3), 2),
    "several": NetworkCase(discrete(3, 5, 2), 17, activation="relu"),
    "narrow": NetworkCase(box(3), 9, hidden=(32, 64)),
    "narrower": NetworkCase(discrete(4), 16, hidden=(64, 32)),
    "wide": NetworkCase(discrete(11, 11), 64),
    "short": NetworkCase(discrete(3, 3), 15),
}
