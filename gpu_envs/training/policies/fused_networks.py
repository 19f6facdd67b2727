"""The default policy run by kernels of our own, in a launch or two each, where it is small and the device is a GPU."""

import dataclasses
import functools
from typing import Any, Final, final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.backend.program import Program
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.operations.fused_programs import ACT_ROWS, ARITHMETIC, Network, blocks_for
from gpu_envs.training.operations.fused_step import (
    STEP_BLOCKS,
    STRIPS_OF_BLOCK,
    reduce_program,
    strips,
    strips_at_a_time,
)
from gpu_envs.training.operations.heads import log_stds
from gpu_envs.training.operations.ops import OBSERVATION_LIMIT, SUMS, LossSettings, Samples, loss_members
from gpu_envs.training.operations.optimiser import Adam, Step
from gpu_envs.training.policies.networks import PolicyNetworks
from gpu_envs.training.policies.parts import Rows

ACTIVATIONS = ("tanh", "relu")
WIDTHS = (32, 64)
"""Of a hidden layer."""
MOST_FEATURES = 64
MOST_PARAMETERS = 32


def why_unfused(network: Network, device: str) -> str:
    """Why the kernels cannot run such networks; empty where they can."""
    if not device.startswith("cuda"):
        return f"the device is {device}, and only CUDA has these kernels"
    if len(network.hidden) != 2 or any(width not in WIDTHS for width in network.hidden):
        return f"hidden layers are {network.hidden}, not two of {' or '.join(map(str, WIDTHS))}"
    if network.activation not in ACTIVATIONS:
        return f"the activation is {network.activation}, not {' or '.join(ACTIVATIONS)}"
    if network.precision not in ARITHMETIC:
        return f"the precision is {network.precision}, not {', '.join(ARITHMETIC)}"
    if network.features > MOST_FEATURES:
        return f"observations have {network.features} features, more than {MOST_FEATURES}"
    if network.head.parameters > MOST_PARAMETERS:
        return f"the distribution has {network.head.parameters} parameters, more than {MOST_PARAMETERS}"
    if not torch.cuda.is_available():
        return ""
    if torch.cuda.get_device_capability(torch.device(device).index) < (8, 0):
        return "the device's compute capability is below 8.0"
    room = open_backend(resolve_device(device)).traits.shared_bytes
    if network.update_bytes > room:
        return f"they take {network.update_bytes} bytes of shared memory, and the device's blocks have {room}"
    return ""


@final
class FusedNetworks(PolicyNetworks):
    """Actor and critic, perceptrons of two hidden layers each in one flat buffer; gradients are the same every time."""

    acts_with_value = False

    def __init__(
        self, network: Network, device: str, flat: torch.Tensor, gradient: torch.Tensor,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None, optimiser: Adam | None = None, rows: int = 2**31,
    ) -> None:  # fmt: skip
        """Checks that they fit, and begins to compile the kernels.

        Args:
            network: What is compiled in.
            device: ``cuda`` or ``cuda:N``.
            flat: All parameters.
            gradient: As ``flat``: the gradient of the summed loss goes there.
            scale: Mean and inverse deviation of observations, ``[features]`` each.
            optimiser: Has ``flat`` and ``gradient``; None: these networks do not learn by themselves.
            rows: About how many an update has.
        """
        reason = why_unfused(network, device)
        if reason:
            raise ValueError(f"these networks cannot be fused: {reason}; run them with torch")
        hopper = torch.cuda.get_device_capability(torch.device(device).index) == (9, 0)
        self._flat, self._gradient, self._scale, self.optimiser = flat, gradient, scale, optimiser
        self._backend: Final = open_backend(resolve_device(device))
        self._processors: Final = self._backend.traits.processors
        network = dataclasses.replace(network, hopper=hopper)
        groups = network.groups_for(-(-rows // max(1, self._processors // 2)))
        self.network: Final = dataclasses.replace(network, groups=groups)
        self._update_blocks: Final = max(2, self._processors * self.network.update_blocks)
        workers, columns = max(map(max, self.network.ways(self._update_blocks))), self.network.parameters + len(SUMS)
        self._partials: Final = torch.empty(workers, columns, device=self._backend.device)
        for program in (self.network.update_program(), self.network.act_program(), self._step_program):
            self._backend.begin(program)

    @property
    def _step_program(self) -> Program:
        return reduce_program(1 if self.optimiser is None else self.optimiser.processes)

    @functools.cached_property
    def _forward(self) -> list[Kernel]:
        return load_kernels(self._backend, self.network.act_program())

    @functools.cached_property
    def _update(self) -> Kernel:
        (update,) = load_kernels(self._backend, self.network.update_program())
        return update.fill(**self._sizes, partials=self._partials)

    @functools.cached_property
    def _sums(self) -> list[Kernel]:
        """Adding up what the blocks of an update found: alone, and with a step."""
        kernels = load_kernels(self._backend, self._step_program)
        for kernel in kernels:
            kernel.fill(**self._sizes, **self._columns, partials=self._partials, flat=self._flat)
        if self.optimiser is not None:
            members = self.optimiser.members
            squares = self._flat.new_zeros(members["blocks"], STRIPS_OF_BLOCK)
            kernels[1].fill(**members, strip_squares=squares)
        return kernels

    @property
    def _sizes(self) -> dict[str, MemberValue]:
        workers, columns = self._partials.shape
        return {"workers": workers, "columns": columns, "parameters": self.network.parameters}

    @property
    def _columns(self) -> dict[str, MemberValue]:
        """What the columns of the partial sums are."""
        actor, critic, (low, high) = self.network.actor, self.network.critic, LOG_STD_RANGE
        return {
            "log_std": actor.log_std, "log_stds": log_stds(self.network.head), "low": low, "high": high,
            "critic": critic.weight_1, "critic_end": critic.bias_3 + 1,
            "value_loss": self.network.parameters + SUMS.index("value_loss"),
        }  # fmt: skip

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        assert largest is None
        assert alive is None
        assert values is None
        assert action_mask is None
        rows = observations.shape[0]
        self._forward[0].launch(
            blocks_for(rows, ACT_ROWS, self._processors), **self._common(observations), rows=rows, stream=stream,
            first_row=first_row, turn=turn, actions=actions, acted=acted, log_probs=log_probs, greedy=int(greedy),
        )  # fmt: skip

    def act_with(self, call: Any, observations: torch.Tensor) -> None:
        """Fills in an ``ActCall`` what these networks are, and where their observations begin."""
        for name, value in self._common(observations).items():
            setattr(call, name, value.data_ptr() if isinstance(value, torch.Tensor) else value)

    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        del action_mask  # it does not change what they are worth
        rows = len(values)
        if places is None and rows != observations.shape[0]:
            raise ValueError(f"there are observations of {observations.shape[0]} rows, and room for {rows} values")
        self._forward[1].launch(
            blocks_for(rows, ACT_ROWS, self._processors), **self._common(observations), rows=rows,
            samples=observations.shape[0], values=values, places=places, largest=largest, alive=alive,
        )  # fmt: skip

    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        """Goes forth and back in one launch, and sums over blocks in another."""
        actors, critics = self._found(observations, batch, indices, settings, scalars)
        self._sums[0].launch(
            self._summing, actors=actors, critics=critics, gradient=self._gradient, totals=totals,
        )  # fmt: skip

    def learn(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, how: Step,
    ) -> None:  # fmt: skip
        """As ``gradient``, with the step in the other launch, unless processes' gradients are added up before it."""
        assert self.optimiser is not None
        if self.optimiser.sums_apart:
            self.gradient(observations, batch, indices, settings, scalars, self.optimiser.totals)
            self.optimiser.step(how)
            return
        actors, critics = self._found(observations, batch, indices, settings, scalars)
        self._sums[1].launch(self._summing, actors=actors, critics=critics, **how.members)

    def _found(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor,
    ) -> tuple[int, int]:  # fmt: skip
        """Leaves partial sums of the gradient; returns how many rows of them the actor and the critic have."""
        samples = observations.shape[0]
        if samples != len(batch.log_probs):
            raise ValueError(f"there are observations of {samples} samples, and a batch of {len(batch.log_probs)}")
        actors, critics = self.network.workers(self._update_blocks, samples if indices is None else len(indices))
        loss = loss_members(batch, indices, settings)
        self._update.launch(actors + critics, **self._common(observations), **loss, scalars=scalars, actors=actors)
        return actors, critics

    @property
    def _summing(self) -> int:
        """Blocks that add up what those of an update found."""
        return min(-(-strips(self._partials.shape[1]) // strips_at_a_time()), self._processors * STEP_BLOCKS)

    def _common(self, observations: Rows) -> dict[str, MemberValue]:
        assert isinstance(observations, torch.Tensor)  # few features are not kept in parts
        if len(observations) >= 2**31:
            raise ValueError(f"there are {len(observations)} rows of observations; give fewer than 2^31")
        mean, inverse = self._scale or (None, None)
        return {
            "flat": self._flat,
            "observations": observations,
            "mean": mean,
            "inverse": inverse,
            "limit": OBSERVATION_LIMIT,
        }
