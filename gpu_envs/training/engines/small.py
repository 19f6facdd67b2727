"""Small networks: the default policy in one or two kernels per call, on a GPU."""

import dataclasses
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import MemberValue
from gpu_envs.backend.program import Program
from gpu_envs.backend.several import current_runs
from gpu_envs.codegen import SingleLayout
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
from gpu_envs.training.engines.kernels import ARITHMETIC, load_filled, nets_of, scale_values
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.engines.optimiser import Adam, Step
from gpu_envs.training.engines.small_programs import (
    ACT_ROWS,
    REDUCE_BLOCKS,
    SLICES,
    STRIPS_OF_BLOCK,
    SmallNetwork,
    blocks_for,
    reduce_program,
    reduce_sizes,
)
from gpu_envs.training.networks import Case, Perceptron
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

ACTIVATIONS = ("tanh", "relu")
WIDTHS = (32, 64)
"""Supported widths of a hidden layer."""
MAX_FEATURES = 64
MAX_PARAMETERS = 32

_MANY_RUNS = 32
"""From this number of runs on, one block always takes a run's optimiser step, even if it adds many partial sums."""


@final
class SmallEngine(KernelEngine):
    """Runs actors and critics of two narrow hidden layers each."""

    name = "small"
    of_populations = True
    horizon_kernel = "kernel_act_and_step of small/act_and_step.cuh"
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
        if case.features > MAX_FEATURES:
            return f"observations have {case.features} features, more than {MAX_FEATURES}"
        if case.head.parameters > MAX_PARAMETERS:
            return f"the distribution has {case.head.parameters} parameters, more than {MAX_PARAMETERS}"
        if not torch.cuda.is_available():
            return ""
        capability = torch.cuda.get_device_capability(torch.device(case.device).index)
        if capability < (8, 0):
            return "the device's compute capability is below 8.0"
        needed = dataclasses.replace(_network(case), hopper=capability == (9, 0)).update_grid.shared_bytes
        available = open_backend(resolve_device(case.device)).traits.shared_bytes
        if needed > available:
            return f"the kernels need {needed} bytes of shared memory, and the device has {available} per block"
        return ""

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        assert isinstance(module, Perceptron)
        optimiser, (nets, log_std) = make_optimiser(case, module, group), nets_of(module)
        network = dataclasses.replace(_network(case), nets=nets, log_std=log_std)
        return SmallNetworks(network, case.device, optimiser, scale, case.samples)


def _network(case: Case) -> SmallNetwork:
    net = case.network
    return SmallNetwork(case.head, case.features, net.hidden, net.activation, net.precision)


@final
class SmallNetworks(PolicyNetworks):
    """Runs an actor and a critic of two hidden layers each; gradients are deterministic."""

    acts_with_value = False

    def __init__(self, network: SmallNetwork, device: str, optimiser: Adam, scale: Scale, rows: int = 2**31) -> None:
        """Starts to compile the kernels, tuned for updates of ``rows`` rows; the optimiser has all parameters."""
        backend = open_backend(resolve_device(device))
        self._processors: Final = backend.traits.processors
        hopper = torch.cuda.get_device_capability(torch.device(device).index) == (9, 0)
        network = dataclasses.replace(network, hopper=hopper)
        groups = network.groups_for(-(-rows // max(1, self._processors // 2)))
        self.network: Final = dataclasses.replace(network, groups=groups)
        self._update_blocks: Final = max(2, self._processors * self.network.update_blocks)
        self._columns: Final = network.parameters + len(SUMS)
        self._runs: Final = runs.all if (runs := current_runs()) and runs.all > 1 else 0
        self.optimiser: Adam = optimiser
        workers = max(map(max, self.network.block_splits(self._update_blocks)))
        critic, (low, high), flat = network.nets[1], LOG_STD_RANGE, optimiser.flat
        self._inputs: Final = {"flat": flat, **scale_values(scale)}
        self._kernels: Final = load_filled(
            backend,
            [self.network.update_program(), self.network.act_program(), reduce_program(optimiser.processes)],
            **self._inputs,
            **optimiser.members,
            parameters=network.parameters,
            workers=workers,
            columns=self._columns,
            partials=flat.new_empty(workers, self._columns),
            gradient=optimiser.gradient,
            strip_squares=flat.new_zeros(optimiser.members["blocks"], STRIPS_OF_BLOCK),
            log_std=network.log_std,
            log_stds=network.head.log_stds,
            low=low,
            high=high,
            critic=critic[0].weight,
            critic_end=critic[-1].bias + 1,
            value_loss=network.parameters + SUMS.index("value_loss"),
        )

    def act(self, request: ActRequest) -> None:
        assert request.largest is request.alive is request.values is request.action_mask is None
        blocks = blocks_for(request.observations.shape[0], ACT_ROWS, self._processors)
        self._kernels["act"].launch(blocks, **request.members)

    def act_and_step_program(self, layout: SingleLayout) -> Program:
        """The program of the kernel ``act_and_step``, which runs a horizon of policy and environment in one launch."""
        return self.network.act_and_step_program(layout, self._processors)

    def act_with(self, call: Any, request: ActRequest) -> None:
        """Sets the members of ``call``, an ``ActCall``, for a kernel that acts and steps; launches nothing."""
        for name, value in (self._inputs | request.members).items():
            setattr(call, name, value.data_ptr() if isinstance(value, Tensor) else value)

    def values(self, request: ValueRequest) -> None:
        most = -(-2 * self._processors // max(2, self._runs))  # about two on a multiprocessor, of all runs
        blocks = blocks_for(len(request.values), ACT_ROWS, most)
        self._kernels["values"].launch(blocks, **request.members)

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        """Writes the gradient and ``totals`` by two launches: forward and backward passes, and sums over blocks."""
        self._run_update(minibatch, "reduce", totals=totals)

    def learn(self, minibatch: Minibatch, step: Step) -> None:
        """Takes an optimiser step in the launch that sums over blocks, unless a collective sums gradients before it.

        For several runs not all blocks are resident, so that a run's blocks cannot wait for each other: one block takes
        a run's step, or other launches if it would have to add many rows for few runs.
        """
        few = 0 < self._runs < _MANY_RUNS and max(self._rows(minibatch)) > SLICES
        if self.optimiser.sums_apart or few:
            super().learn(minibatch, step)
        else:
            self._run_update(minibatch, "step", **step.members)

    def _run_update(self, minibatch: Minibatch, last: str, **values: MemberValue) -> None:
        """Launches ``update``, which writes blocks' partial sums, and ``last`` (reduce or step), which adds them."""
        actors, critics = self._workers(minibatch)
        blocks = 2 * self._blocks_in_turn(minibatch) or actors + critics
        self._kernels["update"].launch(blocks, **minibatch.members, actors=actors, critics=critics)
        actors, critics = self._rows(minibatch)
        at_a_time = reduce_sizes()["threads" if self._runs else "columns"]
        most = 1 if self._runs and last == "step" else self._processors * REDUCE_BLOCKS
        blocks = min(most, -(-self._columns // at_a_time))
        self._kernels[last].launch(blocks, actors=actors, critics=critics, **values)

    def _workers(self, minibatch: Minibatch) -> tuple[int, int]:
        """Returns the number of parts into which an update's rows are divided, for the actor and for the critic."""
        return self.network.workers(self._update_blocks, minibatch.count)

    def _blocks_in_turn(self, minibatch: Minibatch) -> int:
        """Returns the number of blocks that take a network's parts in turn; 0: each part has a block.

        Each part has a block if all blocks of all runs fit on the device at once, or more than SLICES for each network.
        Otherwise as many blocks as fit take a network's parts: a power of two, as others would not be faster.
        """
        actors, critics = self._workers(minibatch)
        fitting = self._processors // max(1, self._runs)
        if not (self._runs and self.network.in_turn and actors) or fitting >= min(actors + critics, 2 * SLICES + 1):
            return 0
        return 1 << max(1, min(fitting // 2, actors, critics, SLICES)).bit_length() - 1

    def _rows(self, minibatch: Minibatch) -> tuple[int, int]:
        """Returns the number of rows of partial sums that an update writes, for the actor and for the critic."""
        actors, critics = self._workers(minibatch)
        blocks = self._blocks_in_turn(minibatch)
        most = actors + critics if blocks == 0 else 1 if blocks == 1 else SLICES
        return min(actors, most), min(critics, most)
