"""Base classes of the algorithms: shared settings and losses."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import MOST, MOST_STEPS, Settings, setting

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any  # torch need not be there where settings are read

LOG_STD_RANGE = (-5.0, 2.0)
"""Limits of the log standard deviation of a Gaussian policy, where the action bounds are -1 and 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(Settings):
    """The settings of every algorithm."""

    name: ClassVar[str]
    """Its name on the command line."""
    actions: ClassVar[tuple[str, ...]]
    """The kinds of actions that it learns: ``discrete``, ``box``."""

    learning_rate: Schedule | str | float = setting(Schedule.of(1e-3), least=0.0, resume=True)
    """Learning rate of Adam: a number, or a schedule of points of progress and value, such as 0:0.001,1:0."""
    gamma: float = setting(0.99, least=0.0, most=1.0)
    """Discount factor."""
    max_grad_norm: float | None = setting(0.5, least=0.0, most=1e9, above=True)
    """Largest norm of the gradient; None: no limit."""

    @property
    def passes(self) -> tuple[int, int]:
        """Epochs and minibatches of an update."""
        return 1, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """Algorithms that learn from the horizon just played: its actions, rewards, values, advantages and returns.

    Advantages are those of GAE(lambda) with the values V; so returns, A + V, are lambda returns, and those of Q(lambda)
    where V is the largest of the Q values.
    """

    gae_lambda: float = setting(0.95, least=0.0, most=1.0)
    """Weight of long advantages against short ones (Schulman et al. 2016); of returns in Q(lambda)."""
    normalise_rewards: bool = setting(False)
    """Divide rewards by the running standard deviation of the discounted return."""

    @property
    def kl_limit(self) -> float | None:
        """KL divergence from the acting policy at which an update stops; None: no limit."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Minibatched(OnPolicy):
    """The settings of algorithms that go through a horizon several times, in parts."""

    epochs: int = setting(4, least=1, most=MOST)
    """Passes of an update over the horizon."""
    minibatches: int = setting(4, least=1, most=MOST)
    """Random parts into which the horizon is split in each epoch."""

    @property
    def passes(self) -> tuple[int, int]:
        return self.epochs, self.minibatches


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient(OnPolicy, abc.ABC):
    """Algorithms that sample actions from a distribution, and learn that and a value.

    The loss of a sample is that of the policy, plus the value's, minus the entropy bonus.
    """

    actions: ClassVar[tuple[str, ...]] = ("discrete", "box")

    value_clip: float | None = setting(None, least=0.0, most=1e9, above=True)
    """Largest change of a value in an update; None: no limit."""
    value_weight: float = setting(0.5, least=0.0, most=1e6)
    """Weight of the value loss."""
    entropy_weight: Schedule | str | float = setting(Schedule.of(0.0), resume=True)
    """Weight of the entropy bonus: a number, or a schedule of points of progress and value."""
    normalise_advantages: bool = setting(True)
    """Give the advantages of a horizon mean 0 and standard deviation 1."""

    @property
    def clip_range(self) -> float | None:
        """Change of the probability ratio beyond which a sample counts as clipped; None: none does."""
        return None

    @abc.abstractmethod
    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """The policy's loss of each sample, from log-probabilities now and when the action was taken."""

    def value_loss(self, values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
        """(V - R)^2 / 2 of each sample; with ``value_clip`` no less than that of V within ``value_clip`` of its old."""
        loss = 0.5 * (values - returns).square()
        if self.value_clip is None:
            return loss
        held = old_values + (values - old_values).clamp(-self.value_clip, self.value_clip)
        return loss.maximum(0.5 * (held - returns).square())

    def loss(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, entropy_weight: Tensor | float) -> Tensor:
        """The whole loss of each sample."""
        return policy_loss + self.value_weight * value_loss - entropy_weight * entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm, abc.ABC):
    """Algorithms that learn from a replay buffer, for actions between -1 and 1.

    Shapes: B rows of a batch, C critics, W elements of an action.
    """

    actions: ClassVar[tuple[str, ...]] = ("box",)
    critics: ClassVar[int] = 2
    """Critics side by side."""
    stochastic: ClassVar[bool] = False
    """Whether the actor gives a mean and a log standard deviation of each element, otherwise the element alone."""

    buffer_size: int = setting(1024, least=2, most=MOST)
    """Steps of each replica that the replay buffer holds."""
    learning_starts: int = setting(32_768, least=0, most=MOST_STEPS)
    """Random steps before the first update, of all replicas of a GPU together."""
    batch_size: int = setting(4096, least=1, most=MOST)
    """Transitions in an update, on each GPU."""
    gradient_steps: int = setting(32, least=1, most=MOST)
    """Updates after each horizon."""
    n_step: int = setting(1, least=1, most=MOST)
    """Steps of rewards in a return, before the critics' estimate."""
    tau: float = setting(0.005, least=0.0, most=1.0, above=True)
    """Step of the target networks towards the learning networks, after each update."""
    exploration: str = setting("white", words=("white", "ou"))
    """Noise of sampled actions: white, new at each step; ou, an Ornstein-Uhlenbeck process."""

    @property
    def actor_interval(self) -> int:
        """Updates of the critics for each update of the actor."""
        return 1

    @abc.abstractmethod
    def explore(self, outputs: Tensor, normal: Tensor) -> Tensor:
        """Actions in training, ``[B, W]``, from the actor's outputs and standard normal numbers ``[B, W]``."""

    @abc.abstractmethod
    def policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Actions that the actor learns from, ``[B, W]``, and of a stochastic actor their log-probabilities ``[B]``."""

    def target_policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same for the next observations, from the target actor's outputs; of a stochastic one from its own."""
        return self.policy(outputs, normal)

    def td_target(self, returns: Tensor, discounts: Tensor, next_q: Tensor, bonus: Tensor | float) -> Tensor:
        """The target of every critic, ``[B]``: y = R + gamma^n (min_i Q_i'(s', a') + bonus).

        ``discounts`` is gamma^n, and zero after a termination; ``next_q`` is ``[C, B]``.
        """
        return returns + discounts * (next_q.amin(0) + bonus)

    def critic_loss(self, q_values: Tensor, target: Tensor) -> Tensor:
        """The loss of each critic and row, ``[C, B]``: (Q_i(s, a) - y)^2 / 2."""
        return 0.5 * (q_values - target).square()

    @abc.abstractmethod
    def actor_loss(self, q_values: Tensor, bonus: Tensor | float) -> Tensor:
        """The loss of the actor for each row, ``[B]``, from the critics' values of its actions, ``[C, B]``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deterministic(OffPolicy, abc.ABC):
    """TD3 and DDPG: the actor's tanh is the action, to which training adds noise."""

    noise: float = setting(0.1, least=0.0, most=10.0)
    """Standard deviation of the noise on actions in training, where the action bounds are -1 and 1."""

    def explore(self, outputs: Tensor, normal: Tensor) -> Tensor:
        """tanh(outputs) + noise, within the bounds."""
        return (outputs.tanh() + self.noise * normal).clamp(-1.0, 1.0)

    def policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        del normal
        return outputs.tanh(), None

    def actor_loss(self, q_values: Tensor, bonus: Tensor | float) -> Tensor:
        """-Q_1(s, a)."""
        del bonus
        return -q_values[0]
