"""What an engine is: it runs the networks of policies, where it can, and says why where it cannot."""

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
from gpu_envs.training.networks import QNetwork, Case, Perceptron, PerceptronActorCritic, SharedPerceptron
from gpu_envs.training.observations import Rows, Scale
from gpu_envs.training.process.group import Group
from gpu_envs.training.settings import Settings

DEFAULT_MODULES = (Perceptron, SharedPerceptron, QNetwork, PerceptronActorCritic)
"""The modules that settings describe."""

TOTALS = len(SUMS)
"""Sums over the samples of a minibatch."""

LEARNER_SETTINGS = (
    *("learning_rate", "gamma", "max_grad_norm", "gae_lambda", "normalise_rewards", "epochs", "minibatches"),
    *("normalise_advantages", "target_kl", "epsilon"),
)
"""Settings of on-policy algorithms that apply outside of networks and losses, whatever the engine."""

POLICY_LOSS_SETTINGS = (*LEARNER_SETTINGS, "clip", "value_clip", "value_weight", "entropy_weight")
"""Settings of algorithms that the kernels of ``policy_loss.cuh`` know."""

PERCEPTRON_SETTINGS = ("hidden", "activation", "initial_std", "normalise_observations", "precision", "fused")
"""Settings of networks that the kernels of perceptrons know."""

STEP_KERNELS = ("step", "kernel_collect and kernel_adam of common/optimise.cuh")
"""What takes a step along a gradient, unless an engine's own kernels do: a line of ``Engine.describe``."""


@final
@dataclasses.dataclass(slots=True)
class ActRequest:
    """What networks act on, and where the actions go."""

    observations: Rows
    """``[rows, features]``."""
    actions: Tensor
    """Receives the actions that the loss is of, ``[rows, width]``."""
    log_probs: Tensor
    """Receives their log-probabilities, ``[rows]``."""
    stream: Tensor
    """Key and counter of the random numbers, on the device."""
    turn: int
    """Is added to the counter."""
    values: Tensor | None = None
    """Receives the values, ``[rows]``, of networks that ``act_with_value``; None: not wanted."""
    acted: Tensor | None = None
    """Receives the environment's actions, where those differ (a box)."""
    greedy: bool = False
    """Whether to take the likeliest action."""
    action_mask: Tensor | None = None
    """``[rows, choices]``, zero where a choice is forbidden; None: all are allowed."""
    first_row: int = 0
    """Number of the first row, on which its random numbers depend."""
    largest: Tensor | None = None
    """As of ``ValueRequest``, for networks that have ``notes_largest``."""
    alive: Tensor | None = None
    """As of ``ValueRequest``."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """Arguments of every kernel that acts."""
        observations = whole_rows(self.observations)
        names = ("first_row", "stream", "turn", "actions", "acted", "log_probs")
        members = {name: getattr(self, name) for name in names}
        return {**members, "rows": len(observations), "observations": observations, "greedy": int(self.greedy)}

    def sliced(self, rows: slice, first_row: int) -> "ActRequest":
        """The request for some of the rows."""
        by_row = ("observations", "actions", "log_probs", "values", "acted", "action_mask", "alive")
        some: dict[str, Any] = {n: t if (t := getattr(self, n)) is None else t[rows] for n in by_row}
        return dataclasses.replace(self, first_row=first_row, **some)


@final
@dataclasses.dataclass(slots=True)
class ValueRequest:
    """Observations, and where their values go."""

    observations: Rows
    """``[rows, features]``."""
    values: Tensor
    """Receives the values, of each row or of each of ``indices``."""
    indices: Tensor | None = None
    """Rows to value, complete groups of them; a negative index leaves its value undefined. None: all rows."""
    largest: Tensor | None = None
    """``[1]``, raised to the largest magnitude in rows of active agents; NaN counts as larger than all."""
    alive: Tensor | None = None
    """Whether the agent of each row is active; None: all are."""
    action_mask: Tensor | None = None
    """As in ``ActRequest``; only without ``indices``."""

    @property
    def members(self) -> dict[str, MemberValue]:
        """Arguments of every kernel that gives values."""
        observations, rows = whole_rows(self.observations), len(self.values)
        if self.indices is None and rows != len(observations):
            raise ValueError(f"there are observations of {len(observations)} rows, and room for {rows} values")
        members = {name: getattr(self, name) for name in ("values", "indices", "largest", "alive")}
        return {**members, "rows": rows, "samples": len(observations), "observations": observations}


@final
@dataclasses.dataclass(slots=True)
class Minibatch:
    """Samples to learn from."""

    observations: Rows
    """Of all samples of the horizon, ``[samples, features]``; of those in parts minibatches are whole groups."""
    samples: Samples
    """All else that is known of them."""
    indices: Tensor | None
    """The samples of the minibatch; None: all."""
    algorithm: OnPolicy
    """Whose loss it is."""
    scalars: Tensor
    """Mean and inverse standard deviation of advantages, the entropy's weight and the clip range, on the device."""

    @property
    def count(self) -> int:
        """The number of samples in the minibatch."""
        return self.observations.shape[0] if self.indices is None else len(self.indices)

    @property
    def members(self) -> dict[str, MemberValue]:
        """Arguments of every kernel that learns."""
        observations, samples = whole_rows(self.observations), len(self.samples.log_probs)
        if len(observations) != samples:
            raise ValueError(f"there are observations of {len(observations)} samples, and a batch of {samples}")
        loss = loss_members(self.samples, self.indices, self.algorithm)
        return {"observations": observations, **loss, "scalars": self.scalars}

    def sliced(self, piece: slice) -> "Minibatch":
        """Some of its samples."""
        if self.indices is not None:
            return dataclasses.replace(self, indices=self.indices[piece])
        parts: dict[str, Any] = {n: t if t is None else t[piece] for n, t in vars(self.samples).items()}
        return dataclasses.replace(self, observations=self.observations[piece], samples=Samples(**parts))


def whole_rows(observations: Rows) -> Tensor:
    """Observations as kernels take them; engines of kernels refuse those in parts."""
    assert isinstance(observations, Tensor)
    if len(observations) >= 2**31:
        raise ValueError(f"there are {len(observations)} rows of observations; give fewer than 2^31")
    return observations


class Networks(ABC):
    """A policy's module on its device, as it acts."""

    epsilon: Tensor | None = None
    """Probability of a random choice for each element of an action, ``[1]``; None: outputs are a distribution."""

    @abstractmethod
    def act(self, request: ActRequest) -> None:
        """Chooses actions for rows of observations."""


class PolicyNetworks(Networks):
    """The module of a policy that learns on-policy."""

    acts_with_value: bool
    """Whether acting gives the values of the same observations, at no or little cost."""
    notes_largest: bool = False
    """Whether acting with values notes the largest observation, too."""
    optimiser: Adam | None
    """Takes the steps; None: the module does not learn."""

    @abstractmethod
    def values(self, request: ValueRequest) -> None:
        """Writes the values of observations."""

    @abstractmethod
    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        """Leaves the gradient of a minibatch's summed loss with the optimiser, and its ``SUMS`` in ``totals``."""

    def learn(self, minibatch: Minibatch, step: Step) -> None:
        """Takes a step along the gradient of a minibatch's loss, which stays with the optimiser."""
        assert self.optimiser is not None
        self.gradient(minibatch, self.optimiser.totals)
        self.optimiser.step(step)


class Engine(ABC):
    """Runs the networks of some policies."""

    name: ClassVar[str]
    learns: ClassVar[type[Algorithm]]
    """Base class of the algorithms whose policies it can run."""
    device: ClassVar[str]
    """Kind of device that it is for, ``cuda`` or ``cpu``; empty: both."""

    @abstractmethod
    def fallback_reason(self, case: Case) -> str:
        """Why a slower engine has to run a case; empty where this one can."""

    @abstractmethod
    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        """What computes what: lines for people. Headers are in ``kernels/training/``."""

    @abstractmethod
    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> Any:
        """Networks that run the module: ``PolicyNetworks`` of on-policy algorithms, ``Actor`` of off-policy ones.

        Args:
            case: Which ``fallback_reason`` accepts.
            module: On the device.
            scale: Of observations; None: they are taken as they are.
            group: The processes whose gradients are added up; None: the networks only act, which torch's engines run.
        """


class KernelEngine(Engine):
    """Runs networks in kernels, which know some settings and no others."""

    device = "cuda"
    algorithms: ClassVar[tuple[type[Algorithm], ...]]
    """The algorithms whose losses the kernels know; classes that inherit from them may have other losses."""
    settings: ClassVar[tuple[str, ...]]
    """Settings of algorithm and network that they know; those that they do not know must have their defaults."""
    kernels: ClassVar[tuple[tuple[str, str], ...]]
    """What ``describe`` says."""

    @final
    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        del case
        return self.kernels

    @final
    def fallback_reason(self, case: Case) -> str:
        reason = unknown(case.algorithm, self.algorithms, self.settings)
        return reason or unknown_setting(case.network, self.settings) or self.exceeded(case)

    @abstractmethod
    def exceeded(self, case: Case) -> str:
        """Which of its limits a case exceeds; empty: none."""


def unknown(algorithm: Algorithm, known: Collection[type[Algorithm]], settings: Collection[str]) -> str:
    """Why kernels of some algorithms' losses cannot compute another's; empty where they can."""
    if type(algorithm) in known:
        return unknown_setting(algorithm, settings)
    names = [cls.name for cls in known]
    other = type(algorithm).__name__ if algorithm.name in names else algorithm.name
    return f"the kernels have the loss of {' and '.join(names)}, and not that of {other}"


def unknown_setting(part: Settings, known: Collection[str]) -> str:
    """Names a setting that is not known and has another value than the default; empty: there is none."""
    fields: Any = part  # a dataclass
    for field in dataclasses.fields(fields):
        value = getattr(part, field.name)
        if field.name not in known and value != field.default:
            return f"{field.name} is {value}, which these kernels do not know"
    return ""


def make_optimiser(case: Case, module: nn.Module, group: Group | None) -> Adam:
    """The optimiser of all parameters that learn."""
    return Adam(trained(module), device=case.device, threads=case.threads, group=group)


def trained(module: nn.Module) -> list[nn.Parameter]:
    """A module's parameters that learn."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
