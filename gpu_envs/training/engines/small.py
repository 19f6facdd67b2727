"""Small networks: the default policy in a kernel or two for each call, on a GPU."""

import dataclasses
import functools
from typing import Any, Final, final

import torch
from torch import nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.backend.program import Program
from gpu_envs.training.algorithms import A2C, PPO
from gpu_envs.training.algorithms.base import LOG_STD_RANGE, PolicyGradient
from gpu_envs.training.engines.base import (
    PERCEPTRON_SETTINGS,
    POLICY_LOSS_SETTINGS,
    ActRequest,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    ValueRequest,
    make_optimiser,
)
from gpu_envs.training.observations import OBSERVATION_LIMIT, Rows, Scale
from gpu_envs.training.operations.fused_programs import ACT_ROWS, ARITHMETIC, Network, Places, blocks_for
from gpu_envs.training.operations.fused_step import STEP_BLOCKS, STRIPS_OF_BLOCK, columns_at_a_time, reduce_program
from gpu_envs.training.operations.ops import SUMS, loss_members
from gpu_envs.training.operations.optimiser import Adam, Step
from gpu_envs.training.policies.case import Case
from gpu_envs.training.process.group import Group

ACTIVATIONS = ("tanh", "relu")
WIDTHS = (32, 64)
"""Of a hidden layer."""
MOST_FEATURES = 64
MOST_PARAMETERS = 32
_LINEAR = (0, 2, 4)
"""Which modules of actor and critic are linear layers."""


@final
class SmallEngine(KernelEngine):
    """Actor and critic of two narrow hidden layers each."""

    name = "small"
    learns = PolicyGradient
    algorithms = (PPO, A2C)
    settings = (*POLICY_LOSS_SETTINGS, *PERCEPTRON_SETTINGS)
    kernels = (
        ("acting", "kernel_act of small/act.cuh"),
        ("values", "kernel_values of small/act.cuh"),
        ("gradient", "kernel_update of small/update.cuh"),
        ("step", "kernel_step of small/step.cuh, which adds up the gradient"),
    )

    def exceeded(self, case: Case) -> str:
        net = case.network
        if case.masked:
            return "the environment has action masks"
        if len(net.hidden) != 2 or any(width not in WIDTHS for width in net.hidden):
            return f"hidden layers are {net.hidden}, not two of {' or '.join(map(str, WIDTHS))}"
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {' or '.join(ACTIVATIONS)}"
        if net.precision not in ARITHMETIC:
            return f"the precision is {net.precision}, not {', '.join(ARITHMETIC)}"
        if case.features > MOST_FEATURES:
            return f"observations have {case.features} features, more than {MOST_FEATURES}"
        if case.head.parameters > MOST_PARAMETERS:
            return f"the distribution has {case.head.parameters} parameters, more than {MOST_PARAMETERS}"
        if not torch.cuda.is_available():
            return ""
        capability = torch.cuda.get_device_capability(torch.device(case.device).index)
        if capability < (8, 0):
            return "the device's compute capability is below 8.0"
        needed = dataclasses.replace(_network(case), hopper=capability == (9, 0)).update_bytes
        room = open_backend(resolve_device(case.device)).traits.shared_bytes
        if needed > room:
            return f"they take {needed} bytes of shared memory, and the device's blocks have {room}"
        return ""

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        optimiser = make_optimiser(case, module, group)
        starts: dict[str, int] = {}
        end = 0
        for name, parameter in module.named_parameters():
            starts[name] = end
            end += parameter.numel()
        actor, critic = (
            [starts[f"{part}.{layer}.{kind}"] for layer in _LINEAR for kind in ("weight", "bias")]
            for part in ("actor", "critic")
        )
        actor.append(starts.get("log_std", -1))
        network = dataclasses.replace(_network(case), actor=Places(*actor), critic=Places(*critic))
        scaled = None if scale is None else (scale.offset, scale.inverse)
        buffers = optimiser.flat, optimiser.gradient
        return SmallNetworks(network, case.device, *buffers, scaled, optimiser, case.samples)


def _network(case: Case) -> Network:
    net = case.network
    return Network(case.head, case.features, net.hidden, net.activation, net.precision)


@final
class SmallNetworks(PolicyNetworks):
    """Actor and critic, perceptrons of two hidden layers each in one flat buffer; gradients are the same every time."""

    acts_with_value = False

    def __init__(
        self,
        network: Network,
        device: str,
        flat: torch.Tensor,
        gradient: torch.Tensor,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
        optimiser: Adam | None = None,
        rows: int = 2**31,
    ) -> None:
        """Begins to compile the kernels.

        Args:
            network: What is compiled in.
            device: ``cuda`` or ``cuda:N``.
            flat: All parameters.
            gradient: As ``flat``: the gradient of the summed loss goes there.
            scale: Mean and inverse deviation of observations, ``[features]`` each.
            optimiser: Has ``flat`` and ``gradient``; None: these networks do not learn by themselves.
            rows: About how many an update has.
        """
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
        """The kernels that add up the partial sums of an update: alone, and with a step."""
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
            "log_std": actor.log_std,
            "log_stds": self.network.head.log_stds,
            "low": low,
            "high": high,
            "critic": critic.weight_1,
            "critic_end": critic.bias_3 + 1,
            "value_loss": self.network.parameters + SUMS.index("value_loss"),
        }

    def act(self, request: ActRequest) -> None:
        assert request.largest is request.alive is request.values is request.action_mask is None
        blocks = blocks_for(request.observations.shape[0], ACT_ROWS, self._processors)
        self._forward[0].launch(blocks, **self._common(request.observations), **request.members)

    def act_with(self, call: Any, observations: torch.Tensor) -> None:
        """Fills in an ``ActCall`` what these networks are, and where their observations begin."""
        for name, value in self._common(observations).items():
            setattr(call, name, value.data_ptr() if isinstance(value, torch.Tensor) else value)

    def values(self, request: ValueRequest) -> None:
        observations, places, rows = request.observations, request.places, len(request.values)
        if places is None and rows != observations.shape[0]:
            raise ValueError(f"there are observations of {observations.shape[0]} rows, and room for {rows} values")
        blocks = blocks_for(rows, ACT_ROWS, self._processors)
        self._forward[1].launch(blocks, **self._common(observations), **request.members)

    def gradient(self, minibatch: Minibatch, totals: torch.Tensor) -> None:
        """Goes forward and backward in one launch, and sums over blocks in another."""
        actors, critics = self._update_partials(minibatch)
        self._sums[0].launch(self._summing, actors=actors, critics=critics, gradient=self._gradient, totals=totals)

    def learn(self, minibatch: Minibatch, step: Step) -> None:
        """As ``gradient``, with the step in the other launch, unless processes' gradients are added up before it."""
        assert self.optimiser is not None
        if self.optimiser.sums_apart:
            self.gradient(minibatch, self.optimiser.totals)
            self.optimiser.step(step)
            return
        actors, critics = self._update_partials(minibatch)
        self._sums[1].launch(self._summing, actors=actors, critics=critics, **step.members)

    def _update_partials(self, minibatch: Minibatch) -> tuple[int, int]:
        """Leaves partial sums of the gradient; returns how many rows of them the actor and the critic have."""
        observations, batch = minibatch.observations, minibatch.samples
        if observations.shape[0] != len(batch.log_probs):
            raise ValueError(
                f"there are observations of {observations.shape[0]} samples, and a batch of {len(batch.log_probs)}"
            )
        actors, critics = self.network.workers(self._update_blocks, minibatch.count)
        loss = loss_members(batch, minibatch.indices, minibatch.algorithm)
        self._update.launch(
            actors + critics, **self._common(observations), **loss, scalars=minibatch.scalars, actors=actors
        )
        return actors, critics

    @property
    def _summing(self) -> int:
        """Blocks that add up the partial sums of an update."""
        return min(-(-self._partials.shape[1] // columns_at_a_time()), self._processors * STEP_BLOCKS)

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
