"""Base classes of the algorithms, with their shared settings and losses."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import MAX_COUNT, MAX_STEPS, Settings, setting

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any  # settings are read without importing torch, which takes seconds

LOG_STD_RANGE = (-5.0, 2.0)
"""Limits of a Gaussian policy's log standard deviation, in units where the action bounds are -1 and 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(Settings):
    """Settings that all algorithms have."""

    name: ClassVar[str]
    """The algorithm's name on the command line."""
    actions: ClassVar[tuple[str, ...]]
    """Supported kinds of actions: ``discrete``, ``box``."""

    learning_rate: Schedule | str | float = setting(Schedule.of(1e-3), minimum=0.0, resume=True)
    """Learning rate of Adam: a number, or a schedule of progress:value points, such as 0:0.001,1:0."""
    gamma: float = setting(0.99, minimum=0.0, maximum=1.0)
    """Discount factor."""
    max_grad_norm: float | None = setting(0.5, minimum=0.0, maximum=1e9, exclusive_minimum=True)
    """Maximum norm of the gradient, which is scaled down if it is larger; None: no limit."""

    @property
    def passes(self) -> tuple[int, int]:
        """Epochs per update, and minibatches per epoch."""
        return 1, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """Algorithms that learn from the last rollout: its actions, rewards, values, advantages and returns.

    Advantages A are GAE(lambda) estimates with the values V. Returns, A + V, are therefore lambda returns; with the
    maximum Q value as V they are the returns of Q(lambda).
    """

    gae_lambda: float = setting(0.95, minimum=0.0, maximum=1.0)
    """Lambda of generalised advantage estimation (Schulman et al. 2016) and of Q(lambda)."""
    normalise_rewards: bool = setting(False)
    """Whether rewards are divided by the running standard deviation of the discounted return."""

    @property
    def kl_limit(self) -> float | None:
        """KL divergence from the policy of the rollout at which an update stops; None: no limit."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Minibatched(OnPolicy):
    """Settings of algorithms that learn from a rollout in several epochs of minibatches."""

    epochs: int = setting(4, minimum=1, maximum=MAX_COUNT)
    """Passes over the rollout in an update."""
    minibatches: int = setting(4, minimum=1, maximum=MAX_COUNT)
    """Minibatches into which the rollout is split at random in each epoch."""

    @property
    def passes(self) -> tuple[int, int]:
        return self.epochs, self.minibatches


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient(OnPolicy, abc.ABC):
    """Actor-critic algorithms that sample actions from a learnt distribution.

    The loss of a sample is policy loss + ``value_weight`` * value loss - ``entropy_weight`` * entropy.
    """

    actions: ClassVar[tuple[str, ...]] = ("discrete", "box")

    value_clip: float | None = setting(None, minimum=0.0, maximum=1e9, exclusive_minimum=True)
    """Clip range of the value loss: largest change of the critic's output in an update; None: no limit."""
    value_weight: float = setting(0.5, minimum=0.0, maximum=1e6)
    """Weight of the value loss."""
    entropy_weight: Schedule | str | float = setting(Schedule.of(0.0), resume=True)
    """Weight of the entropy bonus: a number, or a schedule of progress:value points."""
    normalise_advantages: bool = setting(True)
    """Whether the advantages of a rollout are normalised to mean 0 and standard deviation 1."""
    normalise_values: bool = setting(False)
    """Whether the critic learns returns minus their running mean, divided by their running standard deviation."""
    sequence_length: int | None = setting(None, automatic=True, minimum=1, maximum=MAX_COUNT)
    """Steps of backpropagation through time of a policy with memory, a divisor of the horizon; None: the horizon."""

    @property
    def clip_range(self) -> float | None:
        """Distance of the probability ratio from 1 beyond which a sample counts as clipped; None: no clipping."""
        return None

    @abc.abstractmethod
    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return the policy loss of each sample; ``old_log_probs`` are from the rollout."""

    def value_loss(self, values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
        """Return (V - R)^2 / 2 of each sample, or with ``value_clip`` max((V - R)^2, (clip(V) - R)^2) / 2."""
        loss = 0.5 * (values - returns).square()
        if self.value_clip is None:
            return loss
        clipped = old_values + (values - old_values).clamp(-self.value_clip, self.value_clip)
        return loss.maximum(0.5 * (clipped - returns).square())

    def loss(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, entropy_weight: Tensor | float) -> Tensor:
        """Return the total loss of each sample."""
        return policy_loss + self.value_weight * value_loss - entropy_weight * entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm, abc.ABC):
    """Algorithms that learn from a replay buffer, for continuous actions scaled to -1 to 1.

    Shapes: B is the batch size, C the number of critics, W the number of elements of an action.
    """

    actions: ClassVar[tuple[str, ...]] = ("box",)
    critics: ClassVar[int] = 2
    """Number of critics."""
    stochastic: ClassVar[bool] = False
    """Whether the actor outputs a mean and a log standard deviation for each element, or only the element."""

    buffer_size: int = setting(1024, minimum=2, maximum=MAX_COUNT)
    """Size of the replay buffer, in steps of each replica."""
    learning_starts: int = setting(32_768, minimum=0, maximum=MAX_STEPS)
    """Steps with random actions before the first update, summed over the replicas of a GPU."""
    batch_size: int = setting(4096, minimum=1, maximum=MAX_COUNT)
    """Batch size: transitions in a gradient step, per GPU."""
    gradient_steps: int = setting(32, minimum=1, maximum=MAX_COUNT)
    """Gradient steps after each horizon."""
    n_step: int = setting(1, minimum=1, maximum=MAX_COUNT)
    """Number of rewards that a return sums before it bootstraps from the critics."""
    tau: float = setting(0.005, minimum=0.0, maximum=1.0, exclusive_minimum=True)
    """Polyak coefficient: weight of the learnt networks in the update of the target networks, per gradient step."""
    exploration: str = setting("white", choices=("white", "ou"))
    """Exploration noise: white (independent at each step) or ou (an Ornstein-Uhlenbeck process)."""

    @property
    def actor_interval(self) -> int:
        """Critic updates per actor update."""
        return 1

    @abc.abstractmethod
    def explore(self, outputs: Tensor, normal: Tensor) -> Tensor:
        """Return the training actions, ``[B, W]``, from actor outputs and standard normal samples ``[B, W]``."""

    @abc.abstractmethod
    def policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the actions of the actor loss, ``[B, W]``, and their log-probabilities ``[B]`` if stochastic."""

    def target_policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the next states' actions, ``[B, W]``, for TD targets, and their log-probabilities if stochastic.

        ``outputs`` are the target actor's, or the actor's if the actor is stochastic.
        """
        return self.policy(outputs, normal)

    def td_target(self, returns: Tensor, discounts: Tensor, next_q: Tensor, bonus: Tensor | float) -> Tensor:
        """Return the TD target of all critics, ``[B]``: y = R + gamma^n (min_i Q_i'(s', a') + bonus).

        ``discounts`` is gamma^n, and zero after a termination; ``next_q`` is ``[C, B]``.
        """
        return returns + discounts * (next_q.amin(0) + bonus)

    def critic_loss(self, q_values: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each critic and row, ``[C, B]``: (Q_i(s, a) - y)^2 / 2."""
        return 0.5 * (q_values - target).square()

    @abc.abstractmethod
    def actor_loss(self, q_values: Tensor, bonus: Tensor | float) -> Tensor:
        """Return the actor loss of each row, ``[B]``, from the Q values of the actor's actions, ``[C, B]``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deterministic(OffPolicy, abc.ABC):
    """TD3 and DDPG: the action is tanh of the actor's output, plus exploration noise in training."""

    noise: float = setting(0.1, minimum=0.0, maximum=10.0)
    """Standard deviation of the exploration noise, in units where the action bounds are -1 and 1."""

    def explore(self, outputs: Tensor, normal: Tensor) -> Tensor:
        """Return clip(tanh(outputs) + noise, -1, 1)."""
        return (outputs.tanh() + self.noise * normal).clamp(-1.0, 1.0)

    def policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        del normal
        return outputs.tanh(), None

    def actor_loss(self, q_values: Tensor, bonus: Tensor | float) -> Tensor:
        """Return -Q_1(s, a)."""
        del bonus
        return -q_values[0]
