"""Runs policies' modules with torch: any module, setting and algorithm."""

import contextlib
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from gpu_envs.training.algorithms import A2C, PPO, PQN, Algorithm, OnPolicy
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.engines import gru_kernels
from gpu_envs.training.engines.base import (
    DEFAULT_MODULES,
    POLICY_LOSS_SETTINGS,
    STEP_KERNELS,
    TOTALS,
    ActRequest,
    Engine,
    Minibatch,
    Networks,
    PolicyNetworks,
    ValueRequest,
    make_optimiser,
    trainable,
    unsupported_loss,
)
from gpu_envs.training.engines.ops import SUMS, Ops, Samples
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Case, PolicyModule, SplitLinear, drop_outward_gradient
from gpu_envs.training.observations import (
    Rows,
    Scale,
    SplitRows,
    join_rows,
    select_rows,
    update_max_magnitude,
    zero_inactive,
)
from gpu_envs.training.process.copies import over_copies
from gpu_envs.training.process.device import warm_up_autograd
from gpu_envs.training.process.group import Group
from gpu_envs.training.recurrent import Recurrence, RecurrentModule, RecurrentPolicy

FORBIDDEN = -1e9
"""The logit of a masked choice: its probability is zero, its log-probability finite."""

CHUNK_BYTES = 4 * 2**30
"""Approximate maximum of the activations that autograd saves; larger minibatches are split."""

Outputs: TypeAlias = tuple[Tensor, ...]
"""A module's outputs, or their gradients."""

SAMPLER = "kernel_sample of common/sampler.cuh"
CHOOSER = f"kernel_epsilon_greedy of off_policy/pqn.cuh, and {SAMPLER}"


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Sets torch's precision of float32 matrix products in a ``with`` block, and restores it afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TorchNetworks(Networks):
    """Runs any module with torch; ``scale`` normalises its observations."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale) -> None:
        self.module, self.head, self.scale = module, case.head, scale
        self._ops = Ops(case.head, case.device, case.threads)
        self._precision = case.network.precision
        self._kind = case.device.partition(":")[0]
        self._takes_parts = any(isinstance(part, SplitLinear) for part in module.modules())
        self._default = isinstance(module, DEFAULT_MODULES)
        self._parameters = trainable(module)

    def _scaled(self, observations: Rows) -> Any:
        """Returns the module's input: normalised observations; a copy for users' modules, which may modify it."""
        scaled = observations if self.scale is None else self.scale(observations)
        if self._takes_parts:
            return scaled
        rows = join_rows(scaled)
        return self._input_rows(rows) if rows is observations else rows

    def _input_rows(self, rows: Tensor) -> Tensor:
        """Returns rows for one call of the module: a copy for users' modules, which may modify them in place."""
        return rows if self._default else rows.clone()

    def _sample(self, parameters: Tensor, request: ActRequest) -> None:
        """Draws actions and log-probabilities of a distribution into the tensors of a request."""
        names = ("stream", "turn", "acted", "greedy", "first_row", "action_mask")
        arguments: dict[str, Any] = {name: getattr(request, name) for name in names}
        self._ops.sample(plain(parameters), request.actions, request.log_probs, **arguments)

    @contextlib.contextmanager
    def _computing(self, *, learning: bool, grad: bool) -> Iterator[None]:
        """Sets the run's precision, torch's gradients on or off, and the module's mode, for a ``with`` block."""
        if self.module.training is not learning:  # train() is slow, as it visits all submodules
            self.module.train(learning)
        casts: Any = contextlib.nullcontext()
        if self._precision == "bf16":
            casts = torch.autocast(self._kind, torch.bfloat16, cache_enabled=False)
        with torch.set_grad_enabled(grad), matmul_precision(self._precision), casts:
            yield


class TorchPolicyNetworks(TorchNetworks, PolicyNetworks):
    """Runs a module that learns on-policy.

    The module is in evaluation mode to act and to compute values, and in training mode to learn, which matters for
    dropout and batch normalisation. PPO's ratios compare probabilities of both modes.
    """

    def __init__(self, case: Case, module: nn.Module, scale: Scale, optimiser: Adam | None = None) -> None:
        """``optimiser``: has the module's parameters; None: the module does not learn."""
        super().__init__(case, module, scale)
        self.optimiser = optimiser
        self._central = case.central
        self.acts_with_value = not isinstance(module, PolicyModule)
        self._log_std = getattr(module, "log_std", None) if self._default else None
        self._loss_in_torch = bool(loss_fallback_reason(case.algorithm))

    @abstractmethod
    def _values_of(self, observations: Any, action_mask: Tensor | None, recurrence: Recurrence | None) -> Tensor:
        """Returns the values, ``[rows]``, from the module's input."""

    @abstractmethod
    def _outputs_of(self, observations: Any, piece: Minibatch) -> Outputs:
        """The module's outputs that enter the loss, from its input and the minibatch that this is of."""

    @abstractmethod
    def _run_loss_kernel(self, outputs: Outputs, minibatch: Minibatch, sample_sums: Tensor) -> Outputs:
        """Returns the summed loss's gradients with respect to the outputs, and writes ``SUMS`` per sample."""

    @abstractmethod
    def _losses(self, outputs: Outputs, batch: Samples, scalars: Tensor) -> dict[str, Tensor]:
        """Returns tensors per sample: the algorithm's ``loss`` in torch operations, and its terms named in ``SUMS``."""

    def values(self, request: ValueRequest) -> None:
        observations = request.observations
        if request.largest is not None:
            update_max_magnitude(request.largest, observations, request.alive)
        if request.indices is not None:
            observations = select_rows(observations, request.indices.clamp(min=0))
        size = self._chunk(observations.shape[0], observations)
        to_input = self._scaled if self._central is None else self._critic_input
        with self._computing(learning=False, grad=False):
            for first in range(0, observations.shape[0], size):
                piece = slice(first, first + size)
                mask = None if request.action_mask is None else request.action_mask[piece]
                recurrence = request.recurrence and Recurrence(*(tensor[piece] for tensor in request.recurrence))
                request.values[piece].copy_(self._values_of(to_input(observations[piece]), mask, recurrence))

    def _critic_input(self, rows: Rows) -> Tensor:
        """Returns a central critic's input, a row for each group of agents; inactive agents' numbers are zeros."""
        assert isinstance(rows, SplitRows)
        scaled = rows.shared if self.critic_scale is None else self.critic_scale(rows.shared)
        return self._input_rows(join_rows(scaled))

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        assert self.optimiser is not None
        gradients: Outputs = ()
        count = minibatch.sequences
        seen = minibatch.critic_observations
        size = self._chunk(count, minibatch.observations if seen is None else seen, minibatch.count // count)
        for first in range(0, count, size):
            piece = minibatch if size >= count else minibatch.sliced(slice(first, first + size))
            observations = chosen_observations(piece)
            with self._computing(learning=True, grad=True):
                outputs = tuple(output.float() for output in self._outputs_of(self._scaled(observations), piece))
            sums = outputs[0].new_empty((TOTALS, outputs[0].shape[0]))
            run = self._differentiate_loss if self._loss_in_torch else self._run_loss_kernel
            grad_outputs = run(tuple(map(plain, outputs)), piece, sums)
            # the actor or the critic may have no trainable parameters
            with matmul_precision(self._precision):
                grads = gradients_of(outputs, grad_outputs, self._parameters)
            if not gradients:
                torch.sum(sums, 1, out=totals)
                gradients = grads
            else:
                totals.add_(sums.sum(1))
                gradients = tuple(map(torch.add, gradients, grads))
        named = zip(self._parameters, gradients, strict=True)
        self.optimiser.gather([drop_outward_gradient(p, g) if p is self._log_std else g for p, g in named])

    def _differentiate_loss(self, outputs: Outputs, minibatch: Minibatch, sums: Tensor) -> Outputs:
        """Returns the summed loss's gradients with respect to the outputs, by autograd; writes ``SUMS`` per sample."""
        batch = _chosen_samples(minibatch)
        with torch.enable_grad():
            outputs = leaves(outputs)
            losses = self._losses(outputs, batch, minibatch.scalars)
            loss = _mask_inactive(losses.pop("loss"), batch.alive)
        sums.zero_()
        for name, values in losses.items():
            sums[SUMS.index(name)] = _mask_inactive(values.detach(), batch.alive)
        sums[SUMS.index("alive")] = 1.0 if batch.alive is None else batch.alive.float()
        return gradients_of((loss,), (torch.ones_like(loss),), outputs)

    def _chunk(self, count: int, observations: Rows, length: int = 1) -> int:
        """Returns how many of ``count`` sequences the module runs at once: groups of rows, of about ``CHUNK_BYTES``."""
        units = sum(parameter.shape[0] for parameter in self._parameters if parameter.dim() == 2) or 256
        pieces = -(-count // max(1, CHUNK_BYTES // (12 * units * length)))
        each = observations.group_size if isinstance(observations, SplitRows) else 1
        return each * -(-count // (each * pieces))


@final
class TorchPolicy(TorchPolicyNetworks):
    """Runs a module whose outputs are the parameters of a distribution over actions, and the value."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, optimiser: Adam | None = None) -> None:
        super().__init__(case, module, scale, optimiser)
        assert isinstance(case.algorithm, PolicyGradient)
        self._algorithm: PolicyGradient = case.algorithm
        if isinstance(module, RecurrentModule):
            self.state_size = module.initial_state(1).shape[1]
        if optimiser is not None:
            self._ops.begin("sample", "loss")

    def act(self, request: ActRequest) -> None:
        assert request.largest is request.alive is None
        with self._computing(learning=False, grad=False):
            if isinstance(self.module, PolicyModule) and request.values is None:
                parameters = self.module.distribution(self._scaled(request.observations))
            else:
                parameters, values, *state = self._run(self._scaled(request.observations), request.recurrence)
                if request.values is not None:
                    request.values.copy_(values)
                if request.recurrence is not None:
                    request.recurrence.state.copy_(state[0])
        self._sample(parameters, request)

    def _run(self, observations: Any, recurrence: Recurrence | None) -> Outputs:
        """Returns the distributions' parameters, the values and, with memory, the state, from the module's input."""
        if isinstance(self.module, RecurrentModule):
            assert recurrence is not None
            return recurrence.run(self.module, observations)
        return tuple(self.module(observations))

    def _values_of(self, observations: Any, action_mask: Tensor | None, recurrence: Recurrence | None) -> Tensor:
        del action_mask  # values do not depend on it
        if isinstance(self.module, PolicyModule):
            return self.module.value(observations).flatten()  # of a central critic by group and agent
        return self._run(observations, recurrence)[1]

    def _outputs_of(self, observations: Any, piece: Minibatch) -> Outputs:
        if piece.critic_observations is None:
            return self._run(observations, piece.recurrence)[:2]
        assert isinstance(self.module, PolicyModule)
        rows, indices = piece.critic_observations, piece.indices
        seen = self._critic_input(rows if indices is None else select_rows(rows, indices))
        return self.module.distribution(observations), self._values_of(seen, None, None)

    def _run_loss_kernel(self, outputs: Outputs, minibatch: Minibatch, sample_sums: Tensor) -> Outputs:
        parameters, values = outputs
        gradients = (torch.empty_like(parameters), torch.empty_like(values))
        batch, indices = minibatch.samples, minibatch.indices
        self._ops.loss(parameters, values, batch, indices, self._algorithm, minibatch.scalars, *gradients, sample_sums)
        return gradients

    def _losses(self, outputs: Outputs, batch: Samples, scalars: Tensor) -> dict[str, Tensor]:
        (parameters, values), algorithm = outputs, self._algorithm
        log_probs, entropies = _log_probs_and_entropies(self.head, parameters, batch.actions, batch.action_mask)
        mean, inverse_std, entropy_weight, _ = scalars
        policy_loss = algorithm.policy_loss(log_probs, batch.log_probs, (batch.advantages - mean) * inverse_std)
        value_loss = algorithm.value_loss(values, batch.values, batch.returns)
        log_ratio = log_probs - batch.log_probs
        change = log_ratio.expm1()
        losses = {
            "loss": algorithm.loss(policy_loss, value_loss, entropies, entropy_weight),
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropies,
            "kl": change - log_ratio,
        }
        if algorithm.clip_range is not None:
            losses["clipped"] = (change.abs() > algorithm.clip_range).float()
        return losses


class TorchQValues(TorchPolicyNetworks):
    """Runs a module whose outputs are Q values, ``[rows, head.parameters]``; an action's is the mean over elements."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, optimiser: Adam | None = None) -> None:
        super().__init__(case, module, scale, optimiser)
        assert isinstance(case.algorithm, PQN)
        self._algorithm: PQN = case.algorithm
        self.epsilon: Tensor = torch.zeros(1, device=case.device)
        self._ops.begin("greedy_values")

    def act(self, request: ActRequest) -> None:
        assert request.largest is request.alive is request.acted is None
        with self._computing(learning=False, grad=False):
            q_values = plain(self._q_values(self._scaled(request.observations)))
        mask = request.action_mask
        if request.values is not None:
            request.values.copy_(self._ops.greedy_values(q_values, mask))
        logits = q_values if request.greedy else self._ops.epsilon_greedy_logits(q_values, mask, self.epsilon)
        self._sample(logits, request)

    def _q_values(self, observations: Any) -> Tensor:
        """Returns the Q values of the choices, ``[rows, head.parameters]``, from the module's input."""
        q_values: Tensor = self.module(observations)
        return q_values

    def _values_of(self, observations: Any, action_mask: Tensor | None, recurrence: Recurrence | None) -> Tensor:
        del recurrence
        return self._ops.greedy_values(plain(self._q_values(observations)), action_mask)

    def _outputs_of(self, observations: Any, piece: Minibatch) -> Outputs:
        del piece
        return (self._q_values(observations),)

    def _run_loss_kernel(self, outputs: Outputs, minibatch: Minibatch, sample_sums: Tensor) -> Outputs:
        (q_values,) = outputs
        gradient = torch.empty_like(q_values)
        self._ops.q_loss(q_values, minibatch.samples, minibatch.indices, gradient, sample_sums)
        return (gradient,)

    def _losses(self, outputs: Outputs, batch: Samples, scalars: Tensor) -> dict[str, Tensor]:
        del scalars  # only policy gradients use them
        q_values = torch.split(outputs[0], [*self.head.sizes], 1)
        loss = self._algorithm.loss(_select_choices(self.head, q_values, batch.actions).mean(0), batch.returns)
        return {"loss": loss, "value_loss": loss}


def _chosen_samples(minibatch: Minibatch) -> Samples:
    """Returns the samples at a minibatch's ``indices``, with zeros for inactive agents, whose numbers may be NaN."""
    arrays: dict[str, Any] = vars(minibatch.samples)
    if (indices := minibatch.indices) is not None:
        arrays = {name: None if array is None else array.index_select(0, indices) for name, array in arrays.items()}
    alive, unchanged = arrays["alive"], ("alive", "action_mask")
    return Samples(**{n: array if n in unchanged else _mask_inactive(array, alive) for n, array in arrays.items()})


def _mask_inactive(array: Tensor, alive: Tensor | None) -> Tensor:
    """Returns an array with zeros in the rows of inactive agents (not in place); None: all are active."""
    if alive is None:
        return array
    return torch.where((alive != 0).view(-1, *[1] * (array.dim() - 1)), array, 0)  # 0, not 0.0, to keep integers


def _log_probs_and_entropies(
    head: Head, parameters: Tensor, actions: Tensor, action_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each row's action, and the entropy of its distribution, ``[rows]`` each."""
    if head.kind == "box":
        mean, log_std = parameters.chunk(2, 1)
        distance = (actions - mean) * (-log_std).exp()
        half_log = 0.5 * math.log(2.0 * math.pi)
        return (-0.5 * distance.square() - log_std - half_log).sum(1), (log_std + 0.5 + half_log).sum(1)
    if action_mask is not None:
        parameters = torch.where(action_mask != 0, parameters, FORBIDDEN)
    log_shares = [logits.log_softmax(1) for logits in torch.split(parameters, [*head.sizes], 1)]
    entropies = torch.stack([-(log_p.exp() * log_p).sum(1) for log_p in log_shares]).sum(0)
    return _select_choices(head, log_shares, actions).sum(0), entropies


def _select_choices(head: Head, numbers: Sequence[Tensor], actions: Tensor) -> Tensor:
    """Returns ``[W, B]``: of element d's choices, ``numbers[d]`` ``[B, choices]``, the number of the chosen one."""
    choices = [
        (actions[:, d] - start).long().clamp(0, size - 1).unsqueeze(1)
        for d, (start, size) in enumerate(zip(head.starts, head.sizes, strict=True))
    ]
    return torch.cat([each.gather(1, choice) for each, choice in zip(numbers, choices, strict=True)], 1).T


def loss_fallback_reason(algorithm: Algorithm) -> str:
    """Why no kernel computes an algorithm's loss from a module's outputs; empty if one does."""
    supported = (PQN,) if isinstance(algorithm, PQN) else (PPO, A2C)
    return unsupported_loss(algorithm, supported, POLICY_LOSS_SETTINGS)


@final
class TorchEngine(Engine):
    """Runs any module, setting and on-policy algorithm; a kernel computes the loss, if it supports it."""

    name = "torch"
    of_populations = True
    learns = OnPolicy
    device = ""

    def fallback_reason(self, case: Case) -> str:
        del case
        return ""

    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        acting, values, loss = f"torch, and {SAMPLER}", "torch", "kernel_loss of common/policy_loss.cuh"
        gradient = "torch"
        if case.network.memory is not None and not gru_kernels.missing_support(case):
            forward = f"kernel_forward of {gru_kernels.HEADER}"
            acting, values = f"{forward}, {acting}", f"{forward}, and torch"
            gradient = f"{forward}, kernel_backward, torch"
        if isinstance(case.algorithm, PQN):
            acting, values = f"torch, {CHOOSER}", "torch, and kernel_greedy_values of off_policy/pqn.cuh"
            loss = "kernel_q_loss of off_policy/pqn.cuh for the loss"
        if reason := loss_fallback_reason(case.algorithm):
            loss = f"the loss too: {reason}"
        return ("acting", acting), ("values", values), ("gradient", f"{gradient}, and {loss}"), STEP_KERNELS

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> TorchPolicyNetworks:
        optimiser = None if group is None else make_optimiser(case, module, group)
        if optimiser is not None and case.device != "cpu":
            warm_up_autograd(case.device)
        if isinstance(module, RecurrentPolicy):  # policies that only act use torch
            runs_kernels = optimiser is not None and case.default and not gru_kernels.missing_support(case)
            module.set_kernels(gru_kernels.GruKernels(case) if runs_kernels else None)
        kind = TorchQValues if isinstance(case.algorithm, PQN) else TorchPolicy
        return kind(case, module, scale, optimiser)


def chosen_observations(minibatch: Minibatch) -> Rows:
    """Returns the observations at a minibatch's ``indices``, with zeros for inactive agents, whose rows may be NaN."""
    rows, alive, indices = minibatch.observations, minibatch.samples.alive, minibatch.indices
    if indices is not None:
        rows = select_rows(rows, indices)
        alive = None if alive is None else alive.index_select(0, indices)
    return rows if alive is None else zero_inactive(rows, alive)


def plain(tensor: Tensor) -> Tensor:
    """Returns a tensor as contiguous float32 without a gradient, as kernels need it."""
    return tensor.detach().float().contiguous()


@over_copies
def leaves(tensors: Outputs) -> Outputs:
    """Returns tensors that autograd differentiates with respect to."""
    return tuple(tensor.detach().requires_grad_() for tensor in tensors)


@over_copies
def gradients_of(outputs: Outputs, upstream: Outputs, parameters: Sequence[Tensor]) -> Outputs:
    """Returns the gradients of parameters from the gradients of outputs; some outputs may not depend on parameters."""
    pairs = [(output, gradient) for output, gradient in zip(outputs, upstream, strict=True) if output.requires_grad]
    learning, gradients = zip(*pairs, strict=True)
    with_gradients: Any = _WithGradients.apply  # untyped
    return torch.autograd.grad(with_gradients(gradients, *learning), parameters, materialize_grads=True)


@final
class _WithGradients(torch.autograd.Function):
    """A scalar function of several tensors with given gradients.

    torch.autograd.grad accepts gradients directly, but imports SymPy, 0.5 s, to compare shapes.
    """

    @staticmethod
    def forward(ctx: Any, gradients: tuple[Tensor, ...], *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return tensors[0].new_empty(())  # its value is not used

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        del upstream
        return None, *ctx.gradients
