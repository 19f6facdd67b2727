"""The interface of a learning policy, and the on-policy learner."""

import dataclasses
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
from gpu_envs.training.horizon import METRICS, MOMENTS, POLICY_METRICS, Advantages, AdvantageStats, Permutation, Target
from gpu_envs.training.networks import Case
from gpu_envs.training.observations import RewardScale, Rows, Scale, ValueScale, max_magnitude, update_max_magnitude
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.central import CentralCritic
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import PolicyRows
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.sequences import Sequences, sequence_length

_KL_MARGIN = 1.5
"""Factor of ``target_kl`` above which an update stops."""

_REWARD_SUMS = ("total", "squares", "count")
"""Sums per row that ``Advantages.discounted`` writes and ``RewardScale`` reads."""


@final
@dataclasses.dataclass(frozen=True)
class LearnerArgs:
    """Constructor arguments of a learner."""

    policy_rows: PolicyRows
    """Rows of the agents that it acts for."""
    module: nn.Module
    """The policy's module, with its weights."""
    networks: Any
    """The module's engine: ``PolicyNetworks`` for on-policy algorithms, ``ActorCriticNetworks`` for off-policy ones."""
    scale: Scale
    """Normalisation of observations; None: no normalisation."""
    case: Case
    """Settings, spaces and device of the policy."""
    horizon: int
    """Steps between two updates."""
    seed: int
    """Seed of the run."""
    limit: int | None
    """Number of steps after which episodes are truncated; None: never."""
    group: Group
    """The processes that train together."""


class Learner(ABC):
    """A learning policy: rollout storage, random numbers and updates, all on the device without host synchronisation.

    Attributes:
        policy_rows: As in ``LearnerArgs``, and also ``module``, ``networks``, ``scale`` and ``horizon``.
        algorithm: Settings of the policy's algorithm.
        engine: Name of the engine that computes the networks.
        fallback_reason: Reason why no faster engine is used; empty if the fastest is.
        metrics: Metrics of the last iteration.
        metric_names: Names of the metrics; None for metrics that do not apply to the algorithm.
        schedules: Schedules by the name of the setting, each with the tensor that receives its current value.
        streams: Keys and counters of the random numbers, by purpose.
        warmup_iterations: Number of iterations that it will collect without learning, outside of CUDA graphs.
        recurrent_state: State of each row of a policy with memory, ``[rows, state_size]``; None: it has no memory.
    """

    networks: Networks
    algorithm: Algorithm
    metrics: Tensor
    metric_names: tuple[str | None, ...]
    schedules: dict[str, Target]
    warmup_iterations: int = 0
    recurrent_state: Tensor | None = None

    def __init__(self, args: LearnerArgs, draws: Mapping[str, int]) -> None:
        """Initialise the common attributes; ``draws``: by how much an iteration advances each random counter."""
        self.policy_rows, self.module, self.networks = args.policy_rows, args.module, args.networks
        self.scale, self.horizon, self._limit, self._group = args.scale, args.horizon, args.limit, args.group
        self.engine = self.fallback_reason = ""
        self._keys = torch.tensor(self._keys_of(args.seed, draws), device=args.case.device)
        self.streams = dict(zip(draws, self._keys, strict=True))
        self._counters, self._draws = self._keys[:, 1], torch.tensor([*draws.values()], device=args.case.device)

    def _keys_of(self, seed: int, purposes: Iterable[str]) -> list[list[int]]:
        return [[derived_seed(seed, purpose, self.policy_rows.name), 0] for purpose in purposes]

    def restart(self, algorithm: Algorithm, seed: int) -> None:
        """Start again, before the first iteration, with another seed, and with numbers that the device holds."""
        self._keys.copy_(torch.tensor(self._keys_of(seed, self.streams)))
        self.schedules = {name: (getattr(algorithm, name), target) for name, (_, target) in self.schedules.items()}

    def describe(self) -> dict[str, Any]:
        """Return the shapes of the weights, and of the state of memory, which must agree with a checkpoint's."""
        shapes = {name: list(tensor.shape) for name, tensor in self.module.state_dict().items()}
        return shapes | ({"state of memory": [self.networks.state_size]} if self.networks.state_size else {})

    @abstractmethod
    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        """Choose the actions of step ``t`` of the horizon; return environment actions ``[rows, width]``."""

    @abstractmethod
    def finish_rollout(self, storage: Mapping[str, RoleStorage]) -> None:
        """Process a complete horizon: bootstrap values and advantages, or insertion into the replay buffer."""

    @abstractmethod
    def update(self) -> None:
        """Update the weights from the last horizon or the replay buffer."""

    def end_iteration(self) -> None:
        """Count down ``warmup_iterations``, on the host."""
        self.warmup_iterations = max(0, self.warmup_iterations - 1)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that an iteration runs: the policy's, and its targets."""
        return [self.module]

    @property
    @abstractmethod
    def optimisers(self) -> Sequence[Adam]:
        """The policy's optimisers."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return tensors to search for the origin of a NaN, in the order of its propagation."""

    def state(self, *, copy_buffers: bool = True) -> dict[str, Any]:
        """Return copies of all that later iterations depend on; ``copy_buffers=False``: not of the replay buffer."""
        del copy_buffers
        return {
            "module": {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()},
            "streams": {name: stream.clone() for name, stream in self.streams.items()},
            "observations": None if self.scale is None else self.scale.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state``."""
        self.module.load_state_dict(state["module"])  # in place: the weights are views of the optimiser's flat buffer
        for name, stream in self.streams.items():
            stream.copy_(state["streams"][name])
        if self.scale is not None:
            self.scale.load(state["observations"])

    def _gather(self, storage: Mapping[str, RoleStorage], name: str) -> Tensor:
        """Return this policy's rows of a storage array, ``[steps, rows, ...]``."""
        return self.policy_rows.take({role: getattr(s, name) for role, s in storage.items()}, 1)

    def _alive(self, storage: Mapping[str, RoleStorage]) -> Tensor | None:
        """Return whether agents are active before each step and after the last, ``[horizon + 1, rows]``; None: all."""
        recorded = storage[self.policy_rows.parts[0].role.name].alive is not None
        return self._gather(storage, "alive") if recorded else None

    def _flags(self, storage: Mapping[str, RoleStorage], name: str, steps: slice) -> Tensor:
        """Return some steps of a storage array for this policy's rows, ``[steps * rows]``."""
        return self.policy_rows.take({role: getattr(s, name)[steps] for role, s in storage.items()}, 1).flatten()

    def _observations(self, storage: Mapping[str, RoleStorage]) -> Rows:
        """Return the observations before each step and after the last, ``[horizon + 1, rows, features]``."""
        return self.policy_rows.observed({name: s.rows() for name, s in storage.items()}, 1)

    def _final_observations(self, storage: Mapping[str, RoleStorage], steps: slice = slice(None)) -> Rows:
        """Return the final observations of episodes in some steps, by default all, ``[steps, rows, features]``."""
        return self.policy_rows.observed({name: s.final_rows[steps] for name, s in storage.items()}, 1)

    def _end_update(self, observations: Rows, alive: Tensor | None) -> None:
        """Advance the random numbers, learn observation statistics (flat rows), and broadcast the module's buffers."""
        self._counters.add_(self._draws)
        if self.scale is not None:
            self.scale.learn(observations, alive)
        for buffer in self.module.buffers():  # such as batch normalisation's statistics, which differ between processes
            self._group.broadcast_first(buffer)


def sample_arrays(
    algorithm: OnPolicy, horizon: int, rows: int, head: Head, device: str, state_size: int = 0
) -> dict[str, Tensor]:
    """Allocate the arrays of an on-policy learner that grow with the horizon or the replicas.

    On the device ``meta`` the result has sizes but no data, for estimates of memory. Besides the samples:
    ``moments`` of each row's advantages and returns; ``places``, the index of each row's final observation if its
    episode was truncated, and ``last_values``, the values of these observations; ``acted``, the environment's actions
    (Box only); the sums of discounted returns (with reward normalisation only); ``indices``, the permutation of the
    samples (with minibatches only), or of the sequences of a policy with memory. With memory also the states now, at
    the start of each sequence, and after the last truncated episode of each row.
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
    steps = horizon
    if state_size:
        steps //= sequence_length(algorithm, horizon)
        arrays["recurrent_state"], arrays["final_states"] = (zeros(rows, state_size) for _ in range(2))
        arrays["sequence_states"] = zeros(steps, rows, state_size)
    if epochs * minibatches > 1 or state_size:
        arrays["indices"] = zeros(steps * rows, dtype=torch.int32)
    return arrays


@final
class OnPolicyLearner(Learner):
    """The learner of all on-policy algorithms: each horizon is used in one update (epochs and minibatches).

    The loss and the gradient are means over the samples of all processes of the group.

    Attributes:
        actions: Actions of the horizon, ``[horizon, rows, width]``. ``log_probs``, ``advantages`` and ``returns`` are
            ``[horizon, rows]``; the returns are normalised by ``value_scale``, if there is one.
        values: The critic's outputs before each step and after the last, ``[horizon + 1, rows]``.
        samples: Flat training data of the update: observations, and ``Samples``, one row per agent and step.
        indices: The permutation of the samples in the current epoch, or of the sequences; None: the order of the
            horizon.
        minibatch_bounds: Indices at which minibatches start and end.
        scalars: Mean and inverse standard deviation of advantages, entropy weight and clip range, on the device.
        reward_scale: Normalisation of rewards; None: no normalisation.
        value_scale: Normalisation of returns for the critic; None: no normalisation.
        sequences: Sequences and states of a policy with memory; None: it has no memory.
        central: What the critic sees in place of the actor's observations; None: it sees these.
    """

    networks: PolicyNetworks

    def __init__(self, args: LearnerArgs) -> None:
        case, policy_rows, networks, horizon = args.case, args.policy_rows, args.networks, args.horizon
        algorithm, device = case.algorithm, case.device
        assert isinstance(algorithm, OnPolicy)
        self.algorithm: OnPolicy = algorithm
        super().__init__(args, {"actions": horizon, "minibatches": algorithm.passes[0]})
        assert networks.optimiser is not None
        self.optimiser: Adam = networks.optimiser
        arrays = sample_arrays(algorithm, horizon, policy_rows.rows, policy_rows.head, device, networks.state_size)
        self.actions, self.log_probs, self.values = arrays["actions"], arrays["log_probs"], arrays["values"]
        self.sequences = Sequences(arrays, sequence_length(algorithm, horizon)) if networks.state_size else None
        self.central = None if case.central is None else CentralCritic(case, policy_rows, horizon, args.group)
        networks.critic_scale = self.central and self.central.scale
        self._group_size = policy_rows.group_size if case.central is None else case.central.agents
        several_truncations = self.sequences is not None and args.limit is not None and horizon > args.limit
        self._final_values = torch.empty_like(self.log_probs) if several_truncations else None
        self.recurrent_state = arrays.get("recurrent_state")
        self.advantages, self.returns, self.acted = arrays["advantages"], arrays["returns"], arrays.get("acted")
        self._places, self._last_values, self.indices = arrays["places"], arrays["last_values"], arrays.get("indices")
        self._advantage = Advantages(device, case.threads)
        self._stats = AdvantageStats(arrays["moments"], device, case.threads, args.group)
        self.reward_scale: RewardScale | None = None
        if algorithm.normalise_rewards:
            self.reward_scale = RewardScale(policy_rows.rows, device, args.group)
            self._reward_sums = {name: arrays[name] for name in _REWARD_SUMS}
        size, minibatches = self._group_size, algorithm.passes[1]  # a minibatch has full groups of agents
        samples = (horizon * policy_rows.rows if self.sequences is None else self.sequences.count) // size
        if minibatches > samples:
            unit = "samples" if self.sequences is None else f"sequences of {self.sequences.length} steps"
            of_agents = f" of {size} agents each" if size > 1 else ""
            raise ValueError(
                f"minibatches is {minibatches}, but a horizon of the policy {policy_rows.name!r} has {samples} "
                f"{unit}{of_agents}: give {samples} or fewer"
                + (", or more replicas or a shorter sequence_length" if self.sequences is not None else "")
            )
        shuffled = math.prod(algorithm.passes) > 1
        self.permutation = Permutation(samples, device, case.threads, group_size=size) if shuffled else None
        if self.indices is not None and not shuffled:
            self.indices.copy_(torch.arange(len(self.indices)))
        # the sizes of minibatches differ by at most one group
        self.minibatch_bounds = [number * samples // minibatches * size for number in range(minibatches + 1)]
        gradient = algorithm if isinstance(algorithm, PolicyGradient) else None
        normalises = gradient is not None and gradient.normalise_values
        self.value_scale = ValueScale(device, args.group) if normalises else None
        scales = ("values", self.value_scale), ("critic_observations", networks.critic_scale)
        self._critic_scales = [(name, scale) for name, scale in scales if scale is not None]
        clip = 0.0 if gradient is None else gradient.clip_range or 0.0
        self.scalars = torch.tensor([0.0, 1.0, 0.0, clip], device=device)
        self._normaliser = self.scalars[:2] if gradient is not None and gradient.normalise_advantages else None
        kl_limit = algorithm.kl_limit
        stop = None if kl_limit is None else torch.zeros(1, dtype=torch.int32, device=device)
        self.metrics = torch.zeros(len(METRICS), device=device)
        by_name = dict(zip(METRICS, torch.split(self.metrics, 1), strict=True))
        norm, self.rate = by_name["gradient_norm"], by_name["learning_rate"]
        self.schedules: dict[str, Target] = {"learning_rate": (algorithm.learning_rate, self.rate)}
        if gradient is not None:
            self.schedules["entropy_weight"] = (gradient.entropy_weight, self.scalars[2:3])
        if networks.epsilon is not None and isinstance(algorithm, PQN):
            self.schedules["epsilon"] = (algorithm.epsilon, networks.epsilon)
        self.metric_names = tuple(None if gradient is None and name in POLICY_METRICS else name for name in METRICS)
        self.samples: tuple[Rows, Samples] | None = None
        max_kl = math.inf if kl_limit is None else _KL_MARGIN * kl_limit
        self._step = Step(self.rate, algorithm.max_grad_norm, norm, stop, max_kl, self.metrics[:TOTALS])

    def restart(self, algorithm: Algorithm, seed: int) -> None:
        super().restart(algorithm, seed)
        if isinstance(algorithm, PolicyGradient):
            self.scalars[3] = algorithm.clip_range or 0.0
        if self.networks.epsilon is not None and isinstance(algorithm, PQN):
            self.networks.epsilon.fill_(Schedule.of(algorithm.epsilon).at(0.0))  # as in assembly.py

    @property
    def optimisers(self) -> Sequence[Adam]:
        return (self.optimiser,)

    # --- the horizon ---

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        observations = self.policy_rows.observed({name: s.rows(t) for name, s in storage.items()}, 0)
        masks = {name: s.action_mask[t] for name, s in storage.items() if s.action_mask is not None}
        networks, tracks_largest = self.networks, self.networks.notes_largest
        alive = {name: s.alive[t] for name, s in storage.items() if s.alive is not None and tracks_largest}
        request = ActRequest(
            observations,
            self.actions[t],
            self.log_probs[t],
            self.streams["actions"],
            t,
            values=self.values[t] if networks.acts_with_value else None,
            acted=self.acted,
            action_mask=self.policy_rows.take(masks, 0) if self.policy_rows.masked else None,
            largest=self._stats.largest if tracks_largest else None,
            alive=self.policy_rows.take(alive, 0) if alive else None,
        )
        if self.sequences is not None:
            if t > 0:
                self._store_final_states(t - 1, storage)
            request.recurrence = self.sequences.start_step(t, self._flags(storage, "starts", slice(t, t + 1)))
        self.policy_rows.act(networks, request)
        return self.actions[t] if self.acted is None else self.acted

    def finish_rollout(self, storage: Mapping[str, RoleStorage]) -> None:
        horizon, algorithm, scale = self.horizon, self.algorithm, self.reward_scale
        observations, alive_rows = self._observations(storage), self._alive(storage)
        alive = None if alive_rows is None else alive_rows[:horizon]
        masks = self._gather(storage, "action_mask") if self.policy_rows.masked else None
        results = {name: self._gather(storage, name) for name in ("rewards", "terminations", "truncations")}
        if self.sequences is not None:
            self.sequences.starts = self._flags(storage, "starts", slice(None))
        seen = observations if self.central is None else self.central.observe(storage)
        self._compute_values(seen, alive_rows, masks)
        bootstrap, values = self._bootstrap(storage, results["terminations"], results["truncations"]), self.values
        if self.value_scale is not None:
            bootstrap, values = map(self.value_scale.values, (bootstrap, values))
        if scale is not None:
            sums = {"running": scale.running, **self._reward_sums}
            self._advantage.discounted(**results, alive=alive, gamma=algorithm.gamma, **sums)
            scale.learn(**self._reward_sums)
        self._advantage.compute(
            **results,
            values=values,
            alive=alive,
            bootstrap=bootstrap,
            gamma=algorithm.gamma,
            lam=algorithm.gae_lambda,
            advantages=self.advantages,
            returns=self.returns,
            reward_scale=None if scale is None else scale.inverse,
            moments=self._stats.moments,
        )
        self._stats.write(self.metrics, self._normaliser)
        if self.value_scale is not None:
            self.value_scale.learn(self.returns, alive)
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

    def _store_final_states(self, t: int, storage: Mapping[str, RoleStorage]) -> None:
        """Store the states of a policy with memory after step ``t``, or the values with them, for ``_bootstrap``."""
        if self.sequences is None or self._limit is None:
            return
        step = slice(t, t + 1)
        states = self.sequences.store_final_states(self._flags(storage, "truncations", step))
        if self._final_values is not None:  # a state for each step would need more memory than a value
            final = self._final_observations(storage, step).flatten(0, 1)
            self.networks.values(ValueRequest(final, self._final_values[t], recurrence=states))

    def _compute_values(self, observations: Rows, alive: Tensor | None, masks: Tensor | None) -> None:
        """Write the values that ``act`` has not computed, and raise ``largest`` to the largest absolute observation."""
        largest, acts_with_value = self._stats.largest, self.networks.acts_with_value
        first = self.horizon if acts_with_value else 0  # ``act`` has computed the values before each step
        active, mask = (None if array is None else array[first:].flatten(0, 1) for array in (alive, masks))
        request = ValueRequest(observations[first:].flatten(0, 1), self.values[first:].view(-1), action_mask=mask)
        if self.networks.notes_largest or not acts_with_value:
            request.largest, request.alive = largest, active
        else:
            update_max_magnitude(largest, observations, alive)
        if self.sequences is not None:
            request.recurrence = self.sequences.after_rollout
        self.networks.values(request)

    def _bootstrap(self, storage: Mapping[str, RoleStorage], terminations: Tensor, truncations: Tensor) -> Tensor:
        """Return the values of the final observations of truncated episodes.

        If the horizon is no longer than the episode limit, at most one episode per row is truncated, and one value per
        row is computed, ``[rows]``; otherwise the values of all steps, ``[horizon, rows]``.
        """
        if self._limit is None:
            return self.values[-1]
        self._store_final_states(self.horizon - 1, storage)
        if self._final_values is not None:
            return self._final_values
        final = (self.central.final_rows if self.central else self._final_observations)(storage).flatten(0, 1)
        if self.horizon > self._limit:
            values = torch.empty_like(self.log_probs)
            self.networks.values(ValueRequest(final, values.view(-1)))
            return values
        self._advantage.find_final(terminations, truncations, self._places, group_size=self._group_size)
        states = None if self.sequences is None else self.sequences.final
        self.networks.values(ValueRequest(final, self._last_values, self._places, recurrence=states))
        return self._last_values

    # --- the update ---

    def update(self) -> None:
        assert self.samples is not None
        observations, batch = self.samples
        epochs, _ = self.algorithm.passes
        bounds = itertools.pairwise(self.minibatch_bounds)
        indices = [None if self.indices is None else self.indices[start:end] for start, end in bounds]
        if self._step.stop is not None:
            self._step.stop.zero_()
        for epoch in range(epochs):
            if self.indices is not None and self.permutation is not None:
                self.permutation.write(self.indices, self.streams["minibatches"], epoch)
            for index in indices:
                minibatch = Minibatch(observations, batch, index, self.algorithm, self.scalars)
                minibatch.critic_observations = self.central and self.central.samples
                if self.sequences is not None and index is not None:
                    minibatch.indices, minibatch.recurrence = self.sequences.minibatch(index)
                self.step(minibatch)
        self._end_update(observations, batch.alive)
        if self.central is not None:
            self.central.learn()

    def step(self, minibatch: Minibatch) -> None:
        """Take a gradient step with the samples of a minibatch."""
        self.networks.learn(minibatch, self._step)

    # --- the state ---

    def tensors(self) -> dict[str, Tensor]:
        assert self.samples is not None
        return {
            "observations": max_magnitude(self.samples[0]),
            "values": self.values,
            "log-probabilities": self.log_probs,
            "advantages": self.advantages,
            "the gradient": self.optimiser.gradient,
            "the parameters": self.optimiser.flat,
        }

    def state(self, *, copy_buffers: bool = True) -> dict[str, Any]:
        epsilon = self.networks.epsilon
        return super().state(copy_buffers=copy_buffers) | {
            "optimiser": self.optimiser.state(),
            "norm": self._step.norm.clone(),
            "rewards": None if self.reward_scale is None else self.reward_scale.state(),
            **({} if epsilon is None else {"epsilon": epsilon.clone()}),
            **{name: scale.state() for name, scale in self._critic_scales},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.optimiser.load(state["optimiser"])
        self._step.norm.copy_(state["norm"])
        if self.networks.epsilon is not None:
            self.networks.epsilon.copy_(state["epsilon"])
        if self.reward_scale is not None:
            self.reward_scale.load(state["rewards"])
        for name, scale in self._critic_scales:
            scale.load(state[name])
