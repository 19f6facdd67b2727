"""Base classes of engines, which run the networks of policies, or say why they cannot."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, final

from torch import Tensor, nn

from gpu_envs.backend.launcher import MemberValue
from gpu_envs.training.algorithms import Algorithm
from gpu_envs.training.algorithms.base import OnPolicy
from gpu_envs.training.engines.ops import SUMS, Samples, loss_members
from gpu_envs.training.engines.optimiser import Adam, Step
from gpu_envs.training.networks import Case, Perceptron, PerceptronActorCritic, QNetwork, SharedPerceptron
from gpu_envs.training.observations import ObservationScale, Rows, Scale, SplitRows
from gpu_envs.training.process.group import Group
from gpu_envs.training.recurrent import Recurrence, RecurrentPolicy
from gpu_envs.training.settings import Settings

DEFAULT_MODULES = (Perceptron, SharedPerceptron, RecurrentPolicy, QNetwork, PerceptronActorCritic)
"""The modules that are built from settings."""

TOTALS = len(SUMS)
"""Number of sums over the samples of a minibatch."""

LEARNER_SETTINGS = (
    *("learning_rate", "gamma", "max_grad_norm", "gae_lambda", "normalise_rewards", "epochs", "minibatches"),
    *("normalise_advantages", "normalise_values", "target_kl", "epsilon"),
)
"""Settings of on-policy algorithms outside of networks and losses: every engine supports them."""

POLICY_LOSS_SETTINGS = (*LEARNER_SETTINGS, "clip", "value_clip", "value_weight", "entropy_weight")
"""Settings of algorithms that the kernels of ``policy_loss.cuh`` support."""

PERCEPTRON_SETTINGS = (
    *("hidden", "activation", "initial_std", "normalise_observations", "precision", "fused"),
    *("critic", "critic_observes"),  # which ``KernelEngine.central_critics`` is about
)
"""Settings of networks that the kernels of perceptrons support."""

STEP_KERNELS = ("step", "kernel_collect and kernel_adam of common/optimise.cuh")
"""The entry of ``Engine.describe`` for engines that use the common optimiser kernels."""


@final
@dataclasses.dataclass(slots=True)
class ActRequest:
    """Observations to act on, and tensors for the actions."""

    observations: Rows
    """``[rows, features]``."""
    actions: Tensor
    """Receives the actions, ``[rows, width]``; of a box, in units where its bounds are -1 and 1."""
    log_probs: Tensor
    """Receives their log-probabilities, ``[rows]``."""
    stream: Tensor
    """Key and counter of the random numbers, on the device."""
    turn: int
    """Added to the counter; different for each draw."""
    values: Tensor | None = None
    """Receives the values, ``[rows]``, from networks that ``acts_with_value``; None: not needed."""
    acted: Tensor | None = None
    """Receives the environment's actions of a box; None for discrete actions, which are the same."""
    greedy: bool = False
    """Whether to take the most likely action."""
    action_mask: Tensor | None = None
    """``[rows, choices]``, zero where a choice is forbidden; None: all are allowed."""
    first_row: int = 0
    """Number of the first row; random numbers depend on row numbers."""
    largest: Tensor | None = None
    """As in ``ValueRequest``, for networks with ``notes_largest``."""
    alive: Tensor | None = None
    """As in ``ValueRequest``."""
    recurrence: Recurrence | None = None
    """Of a module with memory, whose ``state`` receives the state after the step; None: it has none."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """The launch arguments, by name, that all kernels for acting have; split rows are not allowed."""
        observations = rows_tensor(self.observations)
        names = ("first_row", "stream", "turn", "actions", "acted", "log_probs")
        members = {name: getattr(self, name) for name in names}
        return {**members, "rows": len(observations), "observations": observations, "greedy": int(self.greedy)}

    def sliced(self, rows: slice, first_row: int) -> "ActRequest":
        """Returns a request for a slice of the rows, whose first one has the number ``first_row``."""
        by_row = ("observations", "actions", "log_probs", "values", "acted", "action_mask", "alive")
        slices: dict[str, Any] = {n: t if (t := getattr(self, n)) is None else t[rows] for n in by_row}
        if self.recurrence is not None:
            slices["recurrence"] = Recurrence(self.recurrence.state[rows], self.recurrence.starts[rows])
        return dataclasses.replace(self, first_row=first_row, **slices)


@final
@dataclasses.dataclass(slots=True)
class ValueRequest:
    """Observations, and a tensor for their values."""

    observations: Rows
    """``[rows, features]``."""
    values: Tensor
    """Receives the values, of each row or of each of ``indices``."""
    indices: Tensor | None = None
    """Rows to value, complete groups of them; a negative index leaves its value undefined. None: all rows."""
    largest: Tensor | None = None
    """``[1]``, raised to the largest magnitude in rows of active agents; NaN counts as the largest."""
    alive: Tensor | None = None
    """Whether the agent of each row is active; None: all are."""
    action_mask: Tensor | None = None
    """As in ``ActRequest``; only without ``indices``."""
    recurrence: Recurrence | None = None
    """Of a module with memory, a row for each value; ``state`` stays as it is. None: the module has no memory."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """The launch arguments, by name, that all kernels for values have; split rows are not allowed."""
        observations, rows = rows_tensor(self.observations), len(self.values)
        if self.indices is None and rows != len(observations):
            raise ValueError(
                f"values have {rows} rows and observations {len(observations)}; give as many values as rows"
            )
        members = {name: getattr(self, name) for name in ("values", "indices", "largest", "alive")}
        return {**members, "rows": rows, "samples": len(observations), "observations": observations}


@final
@dataclasses.dataclass(slots=True)
class Minibatch:
    """The samples of one update."""

    observations: Rows
    """All samples' observations, ``[samples, features]``; of split rows, a minibatch has complete groups."""
    samples: Samples
    """Actions, advantages and so on, of all samples of the horizon."""
    indices: Tensor | None
    """Indices of the minibatch's samples; None: all."""
    algorithm: OnPolicy
    """The algorithm with the loss."""
    scalars: Tensor
    """``[4]`` on the device: mean and inverse standard deviation of advantages, entropy weight, clip range."""
    recurrence: Recurrence | None = None
    """Of a module with memory: the minibatch has equally long sequences, the first steps of all before the second."""
    critic_observations: SplitRows | None = None
    """What a central critic sees, of all samples; a minibatch has full groups. None: it sees ``observations``."""

    @property
    def count(self) -> int:
        """The number of samples in the minibatch."""
        return self.observations.shape[0] if self.indices is None else len(self.indices)

    @property
    def members(self) -> dict[str, MemberValue]:
        """The launch arguments, by name, that all kernels for learning have; split rows are not allowed."""
        observations, samples = rows_tensor(self.observations), len(self.samples.log_probs)
        if len(observations) != samples:
            raise ValueError(
                f"there are {len(observations)} observations for {samples} samples; give one for each sample"
            )
        loss = loss_members(self.samples, self.indices, self.algorithm)
        return {"observations": observations, **loss, "scalars": self.scalars}

    @property
    def sequences(self) -> int:
        """The number of sequences; without memory of samples."""
        return self.count if self.recurrence is None else len(self.recurrence.state)

    def sliced(self, piece: slice) -> "Minibatch":
        """Returns a minibatch of a slice of the sequences; of split rows, the slice must have complete groups."""
        if self.recurrence is not None and self.indices is not None:
            state, starts = self.recurrence
            indices, starts = (t.view(-1, len(state))[:, piece].flatten() for t in (self.indices, starts))
            return dataclasses.replace(self, indices=indices, recurrence=Recurrence(state[piece], starts))
        if self.indices is not None:
            return dataclasses.replace(self, indices=self.indices[piece])
        parts: dict[str, Any] = {n: t if t is None else t[piece] for n, t in vars(self.samples).items()}
        rows, seen = self.observations[piece], self.critic_observations
        return dataclasses.replace(
            self, observations=rows, samples=Samples(**parts), critic_observations=None if seen is None else seen[piece]
        )


def rows_tensor(observations: Rows) -> Tensor:
    """Returns observations that are not split rows, for kernels; a ValueError from 2^31 rows."""
    assert isinstance(observations, Tensor)  # kernel engines refuse cases with split rows
    if len(observations) >= 2**31:
        raise ValueError(f"observations have {len(observations)} rows; give fewer than 2^31")
    return observations


class Networks(ABC):
    """A policy's module on its device, which acts."""

    state_size: int = 0
    """Numbers that a module with memory keeps for each row; 0: it has no memory."""

    epsilon: Tensor | None = None
    """Probability of a random choice for each element of an action, ``[1]``; None: the policy is a distribution."""

    @abstractmethod
    def act(self, request: ActRequest) -> None:
        """Writes actions for rows of observations to the request's tensors; optionally log-probabilities and values."""


class PolicyNetworks(Networks):
    """The module of a policy that learns on-policy."""

    acts_with_value: bool
    """Whether acting can write the values of the same observations, at little or no cost."""
    notes_largest: bool = False
    """Whether acting with values updates the largest observation, too."""
    optimiser: Adam | None
    """The optimiser of the module's parameters; None: the module does not learn."""
    critic_scale: ObservationScale | None = None
    """Normalisation of the rows of a central critic; None: no normalisation."""

    @abstractmethod
    def values(self, request: ValueRequest) -> None:
        """Writes the values of observations."""

    @abstractmethod
    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        """Writes the gradient of a minibatch's summed loss to the optimiser, and its ``SUMS`` to ``totals``."""

    def learn(self, minibatch: Minibatch, step: Step) -> None:
        """Computes the gradient of a minibatch's loss, and takes the optimiser step."""
        assert self.optimiser is not None
        self.gradient(minibatch, self.optimiser.totals)
        self.optimiser.step(step)


class Engine(ABC):
    """Runs the networks of some policies."""

    name: ClassVar[str]
    learns: ClassVar[type[Algorithm]]
    """Base class of the algorithms that the engine may run."""
    device: ClassVar[str]
    """Device type, ``cuda`` or ``cpu``; empty: both."""
    of_populations: ClassVar[bool] = False
    """Whether it computes the networks of many runs at once."""
    horizon_kernel: ClassVar[str] = ""
    """The kernel that acts and steps for a full horizon, in environments that it supports; empty: none."""

    @abstractmethod
    def fallback_reason(self, case: Case) -> str:
        """Returns in words why this engine cannot run a case; empty if it can."""

    @abstractmethod
    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        """Returns pairs (task, kernels or torch) to print, for a case without ``fallback_reason``."""

    @abstractmethod
    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> Any:
        """Makes the networks that run a policy's module: ``PolicyNetworks``, or off-policy a ``TorchActor``.

        Args:
            case: A case without ``fallback_reason``.
            module: The policy's module, on the device.
            scale: Normalises observations; None: no normalisation.
            group: The processes that sum their gradients; None: torch's engines make networks that only act.
        """


class KernelEngine(Engine):
    """Runs networks in kernels that support a subset of the settings."""

    device = "cuda"
    algorithms: ClassVar[tuple[type[Algorithm], ...]]
    """Algorithms with a loss kernel; subclasses are not included, as they may change the loss."""
    settings: ClassVar[tuple[str, ...]]
    """Supported settings of algorithm and network; all others must have their defaults."""
    kernels: ClassVar[tuple[tuple[str, str], ...]]
    """The return value of ``describe``."""
    central_critics: ClassVar[bool] = False
    """Whether critics may see more than actors."""

    @final
    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        del case
        return self.kernels

    @final
    def fallback_reason(self, case: Case) -> str:
        reason = unsupported_loss(case.algorithm, self.algorithms, self.settings)
        if case.central is not None and not self.central_critics:
            reason = reason or "the critic sees more than the actor, which these kernels do not support"
        return reason or unsupported_setting(case.network, self.settings) or self.exceeded(case)

    @abstractmethod
    def exceeded(self, case: Case) -> str:
        """Returns the first limit of the engine that a policy's case exceeds, as a sentence; empty: none."""


def unsupported_loss(algorithm: Algorithm, supported: Collection[type[Algorithm]], settings: Collection[str]) -> str:
    """Returns why kernels for some algorithms and settings cannot compute an algorithm's loss; empty if they can."""
    if type(algorithm) in supported:
        return unsupported_setting(algorithm, settings)
    names = [cls.name for cls in supported]
    other = type(algorithm).__name__ if algorithm.name in names else algorithm.name
    return f"the kernels compute the loss of {' and '.join(names)}, not of {other}"


def unsupported_setting(part: Settings, supported: Collection[str]) -> str:
    """Returns a sentence on the first unsupported setting that differs from its default; empty: none."""
    fields: Any = part  # a dataclass
    for field in dataclasses.fields(fields):
        value = getattr(part, field.name)
        if field.name not in supported and value != field.default:
            return f"{field.name} is {value}, which these kernels do not support"
    return ""


def make_optimiser(case: Case, module: nn.Module, group: Group | None) -> Adam:
    """Makes the optimiser of a module's trainable parameters, which become views of its buffer."""
    return Adam(trainable(module), device=case.device, threads=case.threads, group=group)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """A module's parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
