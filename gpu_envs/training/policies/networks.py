"""How a policy's module is run: acting, valuing, and the gradient of a minibatch's loss."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import SUMS, LossSettings, Ops, Samples
from gpu_envs.training.operations.optimiser import Adam, Step
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Parts, Rows, chosen_rows, of_living, raise_to_largest, whole
from gpu_envs.training.policies.policy import PartedLinear, Policy, inwards
from gpu_envs.training.process.memory import is_shortage

TOTALS = len(SUMS)
"""Sums over the samples of a minibatch."""

CHUNK_BYTES = 4 * 2**30
"""A pass through a module keeps about so much for the way back; larger minibatches go in pieces."""


def most_rows(units: int) -> int:
    """How many rows go at a time through a module with so many units in all its layers."""
    return max(1, CHUNK_BYTES // (12 * units))


class Networks(ABC):
    """A policy's module on its device."""

    acts_with_value: bool
    """Acting gives the values of the same observations, at no or little cost."""
    notes_largest = False
    """Acting with values notes the largest observation, too."""
    optimiser: Adam | None
    """Who takes the steps; None: they do not learn."""
    epsilon: torch.Tensor | None = None
    """How likely an element of an action is a random choice, ``[1]``; None: outputs say how likely each choice is."""

    @abstractmethod
    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Chooses actions for rows of observations.

        Args:
            observations: ``[rows, features]``.
            actions: Receives what the loss will ask about, ``[rows, width]``.
            log_probs: Receives the logarithms of their probabilities.
            values: Receives the values, where ``acts_with_value``; None: not wanted.
            acted: Receives the environment's actions, where those are others (a box).
            stream: Key and counter of the random numbers, on the device.
            turn: Counts from the counter on.
            greedy: Take the likeliest action.
            action_mask: ``[rows, choices]``, zero where a choice is forbidden; None: everything is possible.
            first_row: The number of the first row, of which its random numbers are.
            largest: As of ``values``, for networks with ``notes_largest``.
            alive: As of ``values``.
        """

    @abstractmethod
    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes the values of observations.

        Args:
            observations: ``[rows, features]``.
            values: ``[rows]``, or of each of ``places``.
            places: Which rows are valued, whole groups of them; below zero: none, and the value may be anything.
            largest: ``[1]``, raised to the largest magnitude in rows of agents in the game, above which is NaN.
            alive: Whose rows those are, ``[rows]``; None: all.
            action_mask: As for ``act``, without ``places``.
        """

    @abstractmethod
    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        """Leaves the gradient of a minibatch's summed loss with the optimiser.

        Args:
            observations: Of all samples, ``[samples, features]``; of those in parts minibatches are whole groups.
            batch: What the loss needs of all samples.
            indices: The minibatch's samples; None: all.
            settings: The loss.
            scalars: Its changing numbers, on the device.
            totals: Receives the sums over the minibatch.
        """

    def learn(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, how: Step,
    ) -> None:  # fmt: skip
        """Takes a step along the gradient of a minibatch's loss, which it leaves with the optimiser.

        Args:
            observations: As for ``gradient``, like all up to ``scalars``.
            batch: What the loss needs of all samples.
            indices: The minibatch's samples; None: all.
            settings: The loss.
            scalars: Its changing numbers, on the device.
            how: The step.
        """
        assert self.optimiser is not None
        self.gradient(observations, batch, indices, settings, scalars, self.optimiser.totals)
        self.optimiser.step(how)


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
    """Any module, run by torch.

    The module is in evaluation mode where it acts and values, and in training mode where it learns, as dropout and
    batch normalisation want it: playing changes none of its buffers. The ratios of PPO then compare probabilities of
    the one mode with those of the other.
    """

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, optimiser: Adam | None, scale: ObservationScale | None,
        precision: str, device: str,
    ) -> None:  # fmt: skip
        """Without an optimiser of its parameters, the module does not learn."""
        self.module, self.head, self.optimiser = module, head, optimiser
        self.acts_with_value = not isinstance(module, Policy)
        self.scale = scale
        self._ops = ops
        self._precision = precision
        self._kind = device.partition(":")[0]
        self._takes_parts = any(isinstance(part, PartedLinear) for part in module.modules())
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

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

    def _scaled(self, observations: Rows) -> Any:
        """What the module is given."""
        scaled = observations if self.scale is None else self.scale(observations)
        return scaled if self._takes_parts else whole(scaled)

    def _learning(self, mode: bool) -> None:
        """Changes the module's mode; nearly always it is in it already, and asking costs nothing."""
        if self.module.training is not mode:
            self.module.train(mode)

    def _casts(self) -> Any:
        if self._precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self._kind, torch.bfloat16, cache_enabled=False)


@final
class TorchPolicy(TorchNetworks):
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
            if isinstance(self.module, Policy) and values is None:
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
        found = self.module.value(observations) if isinstance(self.module, Policy) else self.module(observations)[1]
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


def _each(rows: Rows) -> int:
    """How many rows belong together."""
    return rows.each if isinstance(rows, Parts) else 1


def sliced(batch: Samples, piece: slice) -> Samples:
    """Some of the samples, as views."""
    pieces: dict[str, Any] = {name: part if part is None else part[piece] for name, part in vars(batch).items()}
    return Samples(**pieces)


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


def units_of(parameters: Iterable[nn.Parameter]) -> int:
    """The outputs of all layers, by their weights."""
    return sum(parameter.shape[0] for parameter in parameters if parameter.dim() == 2) or 256


def check_module(module: nn.Module, features: int, head: Head, name: str, device: str, *, of_choices: bool) -> None:
    """Refuses a module that cannot learn, or whose outputs do not have the shapes that its agents ask for.

    Args:
        module: What is to be the policy's.
        features: Of its observations.
        head: Of its actions.
        name: The policy's.
        device: Where the module is.
        of_choices: It is to value choices, and not to give a distribution and the value.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"the policy {name!r} has no parameters that require a gradient: nothing to train. Give a float32 module "
            f"of {features} features that has some, or leave the module out"
        )
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32, for "
                f"observations of {features} features: give module.float() (precision='bf16' computes in bfloat16)"
            )
    outputs = _probed(module, features, name, device)
    wanted = ((2, head.parameters),) if of_choices else ((2, head.parameters), (2,))
    if of_choices and isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    shapes = tuple(tuple(part.shape) for part in outputs) if isinstance(outputs, tuple) else ()
    if shapes != wanted:
        parameters = f"a tuple of the distribution's parameters {wanted[0]} and the values {wanted[-1]}"
        raise ValueError(
            f"the policy {name!r} maps observations [2, {features}] to "
            f"{' and '.join(map(str, shapes)) or type(outputs).__name__}; expected "
            f"{f'the values of choices {wanted[0]}' if of_choices else parameters}"
        )
    if not any(part.requires_grad for part in outputs):
        raise ValueError(
            f"the outputs of the policy {name!r} depend on none of the parameters that it could learn, given float32 "
            f"observations of {features} features; does its forward turn gradients off?"
        )


def _probed(module: nn.Module, features: int, name: str, device: str) -> Any:
    """The outputs for two observations; the module's modes and buffers stay as they are."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            return module(torch.zeros(2, features, device=device))
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RuntimeError) and is_shortage(error):
            raise
        raise ValueError(
            f"the policy {name!r} cannot take float32 observations of {features} features, [2, {features}]: {error}"
        ) from error
    finally:
        for part, mode in modes:
            part.training = mode
