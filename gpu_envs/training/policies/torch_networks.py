"""Policies' modules run by torch."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import LossSettings, Ops, Samples
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policies.actor_critic import PerceptronActorCritic
from gpu_envs.training.policies.networks import TOTALS, Networks, PolicyNetworks, most_rows, sliced, units_of
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Parts, Rows, chosen_rows, of_living, raise_to_largest, whole
from gpu_envs.training.policies.policy import (
    ActionValues,
    PartedLinear,
    Perceptron,
    PolicyModule,
    SharedPerceptron,
    inwards,
)

_DEFAULT = (Perceptron, SharedPerceptron, ActionValues, PerceptronActorCritic)
"""The modules of default policies."""


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Lets matrix products use TF32 where asked, and puts the process's setting back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TorchNetworks(Networks):
    """Any module, run by torch."""

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, scale: ObservationScale | None, precision: str, device: str
    ) -> None:
        self.module, self.head, self.scale = module, head, scale
        self._ops = ops
        self._precision = precision
        self._kind = device.partition(":")[0]
        self._takes_parts = any(isinstance(part, PartedLinear) for part in module.modules())
        self._default = isinstance(module, _DEFAULT)
        self._parameters = trained(module)

    def _scaled(self, observations: Rows) -> Any:
        """What the module is given; a module of the user's may change it in place, and is given a copy."""
        scaled = observations if self.scale is None else self.scale(observations)
        if self._takes_parts:
            return scaled
        rows = whole(scaled)
        return self._own(rows) if rows is observations else rows

    def _own(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows for one call of the module: a copy for the user's, which may change them in place."""
        return rows if self._default else rows.clone()

    def _learning(self, mode: bool) -> None:
        """Changes the module's mode; nearly always it is in it already, and asking costs nothing."""
        if self.module.training is not mode:
            self.module.train(mode)

    def _casts(self) -> Any:
        if self._precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self._kind, torch.bfloat16, cache_enabled=False)


class TorchPolicyNetworks(TorchNetworks, PolicyNetworks):
    """A module that learns on-policy.

    The module is in evaluation mode where it acts and values, and in training mode where it learns, as dropout and
    batch normalisation want it: playing changes none of its buffers. The ratios of PPO then compare probabilities of
    the one mode with those of the other.
    """

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, optimiser: Adam | None, scale: ObservationScale | None,
        precision: str, device: str,
    ) -> None:  # fmt: skip
        """Without an optimiser of its parameters, the module does not learn."""
        super().__init__(module, head, ops, scale, precision, device)
        self.optimiser = optimiser
        self.acts_with_value = not isinstance(module, PolicyModule)

    @abstractmethod
    def _valued(self, observations: Any, action_mask: torch.Tensor | None) -> torch.Tensor:
        """The values of what the module is given."""

    @abstractmethod
    def _learnt(self, observations: Any) -> tuple[torch.Tensor, ...]:
        """Those outputs of the module that the loss is of."""

    @abstractmethod
    def _judged(
        self, outputs: tuple[torch.Tensor, ...], batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, sums: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """The gradient of the summed loss by each of those outputs; writes each sample's ``SUMS``."""

    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        if largest is not None:
            raise_to_largest(largest, observations, alive)
        if places is not None:
            observations = chosen_rows(observations, places.clamp(min=0))
        self._learning(False)
        step = self._chunk(observations.shape[0], _each(observations))
        with torch.no_grad(), matmul_precision(self._precision), self._casts():
            for first in range(0, observations.shape[0], step):
                some = slice(first, first + step)
                mask = None if action_mask is None else action_mask[some]
                values[some].copy_(self._valued(self._scaled(observations[some]), mask))

    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        assert self.optimiser is not None
        self._learning(True)
        count = observations.shape[0] if indices is None else indices.shape[0]
        step = self._chunk(count, _each(observations))
        sum_of_pieces: list[torch.Tensor] = []
        for first in range(0, count, step):
            piece = slice(first, min(first + step, count))
            if indices is None:
                some, part, chosen = observations[piece], sliced(batch, piece), None
            else:
                chosen, part = indices[piece], batch
                some = chosen_rows(observations, chosen)
            if part.alive is not None:
                some = of_living(some, chosen_of(part.alive, chosen))
            with torch.enable_grad(), matmul_precision(self._precision), self._casts():
                outputs = tuple(output.float() for output in self._learnt(self._scaled(some)))
            sums = outputs[0].new_empty((TOTALS, outputs[0].shape[0]))
            given = self._judged(tuple(map(plain, outputs)), part, chosen, settings, scalars, sums)
            # the actor, or the critic, may have nothing that learns
            ways = [(o, g) for o, g in zip(outputs, given, strict=True) if o.requires_grad]
            learnt, upstream = zip(*ways, strict=True)
            judged: Any = _Judged.apply  # untyped
            with matmul_precision(self._precision):
                found = torch.autograd.grad(judged(upstream, *learnt), self._parameters, allow_unused=True)
            grads = [g if g is not None else torch.zeros_like(p) for g, p in zip(found, self._parameters, strict=True)]
            if first == 0:
                torch.sum(sums, 1, out=totals)
                sum_of_pieces = grads
            else:
                totals.add_(sums.sum(1))
                sum_of_pieces = [one + other for one, other in zip(sum_of_pieces, grads, strict=True)]
        named = zip(self._parameters, sum_of_pieces, strict=True)
        self.optimiser.gather([inwards(self.module, parameter, grad) for parameter, grad in named])

    def _chunk(self, rows: int, each: int = 1) -> int:
        """How many rows go through the module at a time, in whole groups of so many each."""
        pieces = -(-rows // most_rows(units_of(self._parameters)))
        return each * -(-rows // (each * pieces))


@final
class TorchPolicy(TorchPolicyNetworks):
    """A module that gives the parameters of a distribution over actions, and the value."""

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        assert largest is None
        assert alive is None
        self._learning(False)
        with torch.no_grad(), matmul_precision(self._precision), self._casts():
            if isinstance(self.module, PolicyModule) and values is None:
                parameters = self.module.distribution(self._scaled(observations))
            else:
                parameters, found = self.module(self._scaled(observations))
                if values is not None:
                    values.copy_(found)
        self._ops.sample(
            plain(parameters), actions, log_probs, stream=stream, turn=turn, acted=acted, greedy=greedy,
            first_row=first_row, action_mask=action_mask,
        )  # fmt: skip

    def _valued(self, observations: Any, action_mask: torch.Tensor | None) -> torch.Tensor:
        del action_mask  # it does not change what they are worth
        found: torch.Tensor
        found = (
            self.module.value(observations) if isinstance(self.module, PolicyModule) else self.module(observations)[1]
        )
        return found

    def _learnt(self, observations: Any) -> tuple[torch.Tensor, ...]:
        parameters, values = self.module(observations)
        return parameters, values

    def _judged(
        self, outputs: tuple[torch.Tensor, ...], batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, sums: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        parameters, values = outputs
        given = (torch.empty_like(parameters), torch.empty_like(values))
        self._ops.loss(parameters, values, batch, indices, settings, scalars, *given, sums)
        return given


def trained(module: nn.Module) -> list[nn.Parameter]:
    """A module's parameters that learn."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _each(rows: Rows) -> int:
    """How many rows belong together."""
    return rows.each if isinstance(rows, Parts) else 1


def chosen_of(array: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    """The rows that were chosen; None: all."""
    return array if chosen is None else array.index_select(0, chosen)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as our kernels read it: contiguous float32 without a gradient."""
    return tensor.detach().float().contiguous()


@final
class _Judged(torch.autograd.Function):
    """A number by which several tensors have the gradients that are given.

    torch would take those as they are, and import SymPy first, half a second, to compare their shapes.
    """

    @staticmethod
    def forward(ctx: Any, gradients: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return tensors[0].new_empty(())  # whose value nobody reads

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        del upstream
        return None, *ctx.gradients
