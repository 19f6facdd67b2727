"""What a run asks of a policy that learns, and learning from the horizon just played by several minibatches."""

import dataclasses
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import PQN, Algorithm, OnPolicy
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.engines.base import TOTALS, ActRequest, Minibatch, Networks, PolicyNetworks, ValueRequest
from gpu_envs.training.engines.ops import Samples
from gpu_envs.training.engines.optimiser import Adam, Step
from gpu_envs.training.heads import Head
from gpu_envs.training.horizon import FIGURES, MOMENTS, OF_DISTRIBUTIONS, Advantages, Measure, Permutation, Target
from gpu_envs.training.networks import Case
from gpu_envs.training.observations import RewardScale, Rows, Scale, largest_of, raise_to_largest
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import PolicyRows

_KL_MARGIN = 1.5
"""An update stops where the divergence exceeds the target by this factor."""

_REWARD_SUMS = ("total", "squares", "count")
"""What ``RewardScale`` learns from, for each row, as ``Advantages.discounted`` writes it."""


@final
@dataclasses.dataclass(frozen=True)
class LearnerParts:
    """What a learner is made of."""

    policy_rows: PolicyRows
    """The agents it acts for."""
    module: nn.Module
    """Its weights."""
    networks: Any
    """What runs them: ``PolicyNetworks`` of on-policy algorithms, ``ActorCriticNetworks`` of off-policy ones."""
    scale: Scale
    """The running scale of observations; None: they are taken as they are."""
    case: Case
    """Its algorithm, and where it runs."""
    horizon: int
    """Steps between two updates."""
    seed: int
    """The run's."""
    limit: int | None
    """The step at which episodes are truncated; None: never."""
    group: Group
    """The processes that train together."""


class Learner(ABC):
    """One policy's storage, random numbers and update; everything on the device, nothing read back.

    Attributes:
        policy_rows: As of ``LearnerParts``, and so ``module``, ``networks``, ``scale`` and ``horizon``.
        algorithm: With the settings that are the policy's own.
        engine: Name of the engine that computes the networks.
        fallback_reason: Why no faster engine does.
        figures: What the last iteration was like.
        names: Of the figures; None: of this algorithm it means nothing.
        schedules: The schedules of what changes as training goes on, each with where its value is to stand.
        streams: The states of its random numbers, by what they are for.
        waits: So many iterations it collects before it learns again, and does not run in graphs.
    """

    networks: Networks
    algorithm: Algorithm
    figures: Tensor
    names: tuple[str | None, ...]
    schedules: list[Target]
    waits: int = 0

    def __init__(self, parts: LearnerParts, turns: Mapping[str, int]) -> None:
        """Takes what all algorithms have; ``turns``: how often in an iteration it draws random numbers for what."""
        self.policy_rows, self.module, self.networks = parts.policy_rows, parts.module, parts.networks
        self.scale, self.horizon, self._limit, self._group = parts.scale, parts.horizon, parts.limit, parts.group
        self.engine = self.fallback_reason = ""
        keys = [[derived_seed(parts.seed, purpose, self.policy_rows.name), 0] for purpose in turns]
        streams = torch.tensor(keys, device=parts.case.device)
        self.streams = dict(zip(turns, streams, strict=True))
        self._counters, self._turns = streams[:, 1], torch.tensor([*turns.values()], device=parts.case.device)

    def describe(self) -> dict[str, Any]:
        """The shapes of its weights, in which a checkpoint must agree."""
        return {name: list(tensor.shape) for name, tensor in self.module.state_dict().items()}

    @abstractmethod
    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        """Chooses actions in the horizon's step ``t``; returns the environment's, ``[rows, width]``."""

    @abstractmethod
    def conclude(self, storage: Mapping[str, RoleStorage]) -> None:
        """Takes in a horizon that is complete."""

    @abstractmethod
    def update(self) -> None:
        """Learns from what was taken in."""

    def count(self) -> None:
        """Takes note that an iteration is done."""
        self.waits = max(0, self.waits - 1)

    @property
    @abstractmethod
    def optimisers(self) -> Sequence[Adam]:
        """Its optimisers."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What may show where a NaN came from, in the order in which it would spread."""

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """Copies of everything that the next iterations depend on.

        Args:
            whole: With a copy of the replay buffer, instead of the buffer itself.
        """
        del whole
        return {
            "module": {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()},
            "streams": {name: stream.clone() for name, stream in self.streams.items()},
            "observations": None if self.scale is None else self.scale.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        self.module.load_state_dict(state["module"])  # into an optimiser's flat buffer, of which they are views
        for name, stream in self.streams.items():
            stream.copy_(state["streams"][name])
        if self.scale is not None:
            self.scale.load(state["observations"])

    def _taken(self, storage: Mapping[str, RoleStorage], name: str) -> Tensor:
        """The rows of what a horizon left, ``[steps, rows, ...]``."""
        return self.policy_rows.take({role: getattr(s, name) for role, s in storage.items()}, 1)

    def _alive(self, storage: Mapping[str, RoleStorage]) -> Tensor | None:
        """Which agents are active before each step and after the last; None: all."""
        leaves = storage[self.policy_rows.parts[0].role.name].alive is not None
        return self._taken(storage, "alive") if leaves else None

    def _observed(self, storage: Mapping[str, RoleStorage]) -> Rows:
        """What is seen before each step and after the last, ``[horizon + 1, rows, features]``."""
        return self.policy_rows.observed({name: s.rows() for name, s in storage.items()}, 1)

    def _seen_last(self, storage: Mapping[str, RoleStorage]) -> Rows:
        """What is seen at ends of episodes, ``[horizon, rows, features]``."""
        return self.policy_rows.observed({name: s.last_rows for name, s in storage.items()}, 1)

    def _end(self, observations: Rows, alive: Tensor | None) -> None:
        """Ends an iteration: other random numbers, and what follows running statistics of flat observations."""
        self._counters.add_(self._turns)
        if self.scale is not None:
            self.scale.learn(observations, alive)
        for buffer in self.module.buffers():  # which a module may change as it goes, by what it has seen
            self._group.take_first(buffer)


def sample_arrays(algorithm: OnPolicy, horizon: int, rows: int, head: Head, device: str) -> dict[str, Tensor]:
    """The arrays of a learner that grow with the horizon or the replicas; on torch's device ``meta`` their sizes alone.

    Those of the samples; ``moments`` of each row's advantages and returns; ``places`` of each row's last observation,
    if its episode was truncated, and ``last_values``, what those are worth; for a box ``acted``, the environment's
    actions; where rewards are normalised what the scale learns from; and ``indices``, the random order of the samples,
    unless they are taken as they come.
    """
    zeros, box = functools.partial(torch.zeros, device=device), head.kind == "box"
    epochs, minibatches = algorithm.passes
    arrays = {
        "actions": zeros(horizon, rows, head.width, dtype=torch.float32 if box else torch.int32),
        "log_probs": zeros(horizon, rows),
        "values": zeros(horizon + 1, rows),
        "advantages": zeros(horizon, rows),
        "returns": zeros(horizon, rows),
        "moments": zeros(MOMENTS, rows),
        "places": zeros(rows, dtype=torch.int64),
        "last_values": zeros(rows),
    }
    if box:
        arrays["acted"] = zeros(rows, head.width)
    if algorithm.normalise_rewards:
        arrays |= {name: zeros(rows) for name in _REWARD_SUMS}
    if epochs * minibatches > 1:
        arrays["indices"] = zeros(horizon * rows, dtype=torch.int32)
    return arrays


@final
class OnPolicyLearner(Learner):
    """A policy that learns from each horizon once, by ``FIGURES`` as its figures.

    Attributes:
        actions: Of the horizon, ``[horizon, rows, width]``; likewise ``log_probs``, ``advantages`` and ``returns``.
        values: Of all observations, ``[horizon + 1, rows]``.
        samples: What the update learns from: observations, and all else, a row for each step of an agent.
        indices: The samples in the order of the epoch; None: in the order of the horizon.
        cuts: Where minibatches begin and end among them.
        scalars: The mean and the inverse standard deviation of advantages, the entropy's weight and the clip range.
        reward_scale: The running scale of rewards; None: they are taken as they are.
    """

    networks: PolicyNetworks

    def __init__(self, parts: LearnerParts) -> None:
        """Allocates; the group's samples count as one batch."""
        case, policy_rows, networks, horizon = parts.case, parts.policy_rows, parts.networks, parts.horizon
        algorithm, device = case.algorithm, case.device
        assert isinstance(algorithm, OnPolicy)
        self.algorithm: OnPolicy = algorithm
        super().__init__(parts, {"actions": horizon, "minibatches": algorithm.passes[0]})
        assert networks.optimiser is not None
        self.optimiser: Adam = networks.optimiser
        arrays = sample_arrays(algorithm, horizon, policy_rows.rows, policy_rows.head, device)
        self.actions, self.log_probs, self.values = arrays["actions"], arrays["log_probs"], arrays["values"]
        self.advantages, self.returns, self.acted = arrays["advantages"], arrays["returns"], arrays.get("acted")
        self._places, self._last_values, self.indices = arrays["places"], arrays["last_values"], arrays.get("indices")
        self._advantage = Advantages(device, case.threads)
        self._measure = Measure(arrays["moments"], device, case.threads, parts.group)
        self.reward_scale: RewardScale | None = None
        if algorithm.normalise_rewards:
            self.reward_scale = RewardScale(policy_rows.rows, device, parts.group)
            self._reward_sums = {name: arrays[name] for name in _REWARD_SUMS}
        each, minibatches = policy_rows.each, algorithm.passes[1]  # agents that share observations stay together
        samples = horizon * policy_rows.rows // each
        if minibatches > samples:
            of_each = f" of {each} agents each" if each > 1 else ""
            raise ValueError(
                f"minibatches is {minibatches}; a horizon of the policy {policy_rows.name!r} has {samples} "
                f"samples{of_each}"
            )
        shuffled = self.indices is not None
        self.permutation = Permutation(samples, device, case.threads, each=each) if shuffled else None
        # their sizes differ by one at most
        self.cuts = [number * samples // minibatches * each for number in range(minibatches + 1)]
        gradient = algorithm if isinstance(algorithm, PolicyGradient) else None
        clip = 0.0 if gradient is None else gradient.clip_range or 0.0
        self.scalars = torch.tensor([0.0, 1.0, 0.0, clip], device=device)
        self._normaliser = self.scalars[:2] if gradient is not None and gradient.normalise_advantages else None
        kl_limit = algorithm.kl_limit
        stop = None if kl_limit is None else torch.zeros(1, dtype=torch.int32, device=device)
        self.figures = torch.zeros(len(FIGURES), device=device)
        by_name = dict(zip(FIGURES, torch.split(self.figures, 1), strict=True))
        norm, self.rate = by_name["gradient_norm"], by_name["learning_rate"]
        self.schedules: list[Target] = [(algorithm.learning_rate, self.rate)]
        if gradient is not None:
            self.schedules.append((gradient.entropy_weight, self.scalars[2:3]))
        if networks.epsilon is not None and isinstance(algorithm, PQN):
            self.schedules.append((algorithm.epsilon, networks.epsilon))
        self.names = tuple(None if gradient is None and name in OF_DISTRIBUTIONS else name for name in FIGURES)
        self.samples: tuple[Rows, Samples] | None = None
        most_kl = math.inf if kl_limit is None else _KL_MARGIN * kl_limit
        self._step = Step(self.rate, algorithm.max_grad_norm, norm, stop, most_kl, self.figures[:TOTALS])

    @property
    def optimisers(self) -> Sequence[Adam]:
        return (self.optimiser,)

    # --- the horizon ---

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        observations = self.policy_rows.observed({name: s.rows(t) for name, s in storage.items()}, 0)
        masks = {name: s.action_mask[t] for name, s in storage.items() if s.action_mask is not None}
        networks, notes = self.networks, self.networks.notes_largest
        alive = {name: s.alive[t] for name, s in storage.items() if s.alive is not None and notes}
        request = ActRequest(
            observations,
            self.actions[t],
            self.log_probs[t],
            self.streams["actions"],
            t,
            values=self.values[t] if networks.acts_with_value else None,
            acted=self.acted,
            action_mask=self.policy_rows.take(masks, 0) if self.policy_rows.masked else None,
            largest=self._measure.largest if notes else None,
            alive=self.policy_rows.take(alive, 0) if alive else None,
        )
        self.policy_rows.act(networks, request)
        return self.actions[t] if self.acted is None else self.acted

    def conclude(self, storage: Mapping[str, RoleStorage]) -> None:
        horizon, algorithm, scale = self.horizon, self.algorithm, self.reward_scale
        observations, alive_rows = self._observed(storage), self._alive(storage)
        alive = None if alive_rows is None else alive_rows[:horizon]
        masks = self._taken(storage, "action_mask") if self.policy_rows.masked else None
        taken = {name: self._taken(storage, name) for name in ("rewards", "terminations", "truncations")}
        self._value(observations, alive_rows, masks)
        bootstrap = self._bootstrap(storage, taken["terminations"], taken["truncations"])
        if scale is not None:
            sums = {"running": scale.running, **self._reward_sums}
            self._advantage.discounted(**taken, alive=alive, gamma=algorithm.gamma, **sums)
            scale.learn(**self._reward_sums)
        self._advantage.compute(
            **taken,
            values=self.values,
            alive=alive,
            bootstrap=bootstrap,
            gamma=algorithm.gamma,
            lam=algorithm.gae_lambda,
            advantages=self.advantages,
            returns=self.returns,
            reward_scale=None if scale is None else scale.inverse,
            moments=self._measure.moments,
        )
        self._measure.write(self.figures, self._normaliser)
        flat = Samples(
            actions=self.actions.flatten(0, 1),
            log_probs=self.log_probs.view(-1),
            advantages=self.advantages.view(-1),
            returns=self.returns.view(-1),
            values=self.values[:horizon].view(-1),
            alive=None if alive is None else alive.reshape(-1),
            action_mask=None if masks is None else masks[:horizon].flatten(0, 1),
        )
        self.samples = observations[:horizon].flatten(0, 1), flat

    def _value(self, observations: Rows, alive: Tensor | None, masks: Tensor | None) -> None:
        """Values of all observations, and the largest of them that was seen."""
        largest, acts_with_value = self._measure.largest, self.networks.acts_with_value
        first = self.horizon if acts_with_value else 0  # acting has valued all others
        active, mask = (None if array is None else array[first:].flatten(0, 1) for array in (alive, masks))
        request = ValueRequest(observations[first:].flatten(0, 1), self.values[first:].view(-1), action_mask=mask)
        if self.networks.notes_largest or not acts_with_value:
            request.largest, request.alive = largest, active
        else:
            raise_to_largest(largest, observations, alive)
        self.networks.values(request)

    def _bootstrap(self, storage: Mapping[str, RoleStorage], terminations: Tensor, truncations: Tensor) -> Tensor:
        """Values of the last observations of truncated episodes.

        Within a horizon no longer than the limit an agent's episode is truncated once at most, so that one row each is
        enough; otherwise every row of every step is valued.
        """
        if self._limit is None:
            return self.values[-1]
        final = self._seen_last(storage).flatten(0, 1)
        if self.horizon > self._limit:
            every = torch.empty_like(self.log_probs)
            self.networks.values(ValueRequest(final, every.view(-1)))
            return every
        self._advantage.places(terminations, truncations, self._places, each=self.policy_rows.each)
        self.networks.values(ValueRequest(final, self._last_values, self._places))
        return self._last_values

    # --- the update ---

    def update(self) -> None:
        assert self.samples is not None
        observations, batch = self.samples
        epochs, _ = self.algorithm.passes
        indices = [None if self.indices is None else self.indices[a:b] for a, b in itertools.pairwise(self.cuts)]
        minibatches = [Minibatch(observations, batch, each, self.algorithm, self.scalars) for each in indices]
        if self._step.stop is not None:
            self._step.stop.zero_()
        for epoch in range(epochs):
            if self.indices is not None and self.permutation is not None:
                self.permutation.write(self.indices, self.streams["minibatches"], epoch)
            for minibatch in minibatches:
                self.step(minibatch)
        self._end(observations, batch.alive)

    def step(self, minibatch: Minibatch) -> None:
        """Takes a gradient step."""
        self.networks.learn(minibatch, self._step)

    # --- what is kept ---

    def tensors(self) -> dict[str, Tensor]:
        assert self.samples is not None
        return {
            "observations": largest_of(self.samples[0]),
            "values": self.values,
            "log-probabilities": self.log_probs,
            "advantages": self.advantages,
            "the gradient": self.optimiser.gradient,
            "the parameters": self.optimiser.flat,
        }

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        epsilon = self.networks.epsilon
        return super().state(whole=whole) | {
            "optimiser": self.optimiser.state(),
            "norm": self._step.norm.clone(),
            "rewards": None if self.reward_scale is None else self.reward_scale.state(),
            **({} if epsilon is None else {"epsilon": epsilon.clone()}),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.optimiser.load(state["optimiser"])
        self._step.norm.copy_(state["norm"])
        if self.networks.epsilon is not None:
            self.networks.epsilon.copy_(state["epsilon"])
        if self.reward_scale is not None:
            self.reward_scale.load(state["rewards"])
