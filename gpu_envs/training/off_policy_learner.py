"""The off-policy learner, which learns from a replay buffer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from gpu_envs.training.algorithms import SAC, OffPolicy
from gpu_envs.training.engines.off_policy import ActorCriticNetworks, Transitions
from gpu_envs.training.engines.ops import SUMS, Ops
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.learner import Learner, LearnerArgs
from gpu_envs.training.observations import Rows, join_rows, max_magnitude, update_max_magnitude
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import PolicyRows
from gpu_envs.training.rollout.replay import Replay

_METRICS = (
    *("policy_loss", "value_loss", "entropy", "temperature", "gradient_norm", "transitions"),
    *("learning_rate", "largest_observation"),
)
"""Metrics of an off-policy learner in each iteration; the first three are means over the transitions of its updates."""

_ALIVE = SUMS.index("alive")

_OU_RATE = 0.15
"""Mean reversion of the Ornstein-Uhlenbeck process: fraction of the distance to 0 per step."""


@final
class Exploration:
    """Standard normal exploration noise for each row: ``white``, or ``ou``, an Ornstein-Uhlenbeck process.

    ``ou`` noise correlates between the steps of an episode, and restarts with the next episode.
    """

    def __init__(self, kind: str, policy_rows: PolicyRows, ops: Ops, device: str) -> None:
        self._policy_rows, self._ops, self.correlated = policy_rows, ops, kind == "ou"
        self._noise = torch.zeros((policy_rows.rows, policy_rows.head.width), device=device)
        self._state: dict[str, Tensor] = {}
        if self.correlated:
            new = torch.ones(policy_rows.rows, dtype=torch.bool, device=device)
            self._state = {"kept": torch.zeros_like(self._noise), "new": new}

    def next(self, stream: Tensor, turn: int) -> Tensor:
        """Draw the noise of step ``turn``, ``[rows, width]``, from ``stream``; the next call overwrites it."""
        for rows, first in self._policy_rows.spans:
            self._ops.normal(self._noise[rows], stream=stream, turn=turn, first_row=first)
        if self.correlated:
            process, new = self._state["kept"], self._state["new"]
            previous = torch.where(new.unsqueeze(1), 0.0, process)
            decay = 1.0 - _OU_RATE
            torch.add(decay * previous, self._noise, alpha=math.sqrt(1.0 - decay * decay), out=process)
            self._noise.copy_(process)
            new.zero_()
        return self._noise

    def restart(self, rows: Tensor) -> None:
        """Restart the noise of the rows that are true in ``rows``, bool ``[rows]``, at the next call of ``next``."""
        if self.correlated:
            self._state["new"].logical_or_(rows)

    def state(self) -> dict[str, Tensor]:
        """Return copies of the tensors on which later noise depends."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load(self, state: Mapping[str, Tensor] | None) -> None:
        """Restore a result of ``state``; None restarts all rows."""
        for name, tensor in self._state.items():
            if state is not None:
                tensor.copy_(state[name])
            elif name == "new":
                tensor.fill_(True)


@final
class OffPolicyLearner(Learner):
    """A policy that inserts each horizon into a replay buffer and learns from batches drawn from the buffer.

    Actions are random during the warm-up, unless the policy has learnt before (a run resumed without its buffer). Each
    process has a buffer and draws a batch; gradients are means over the batches of all processes.

    Attributes:
        replay: The replay buffer.
        exploration: The exploration noise.
        actions: Actions of the horizon, ``[horizon, rows, width]``, from -1 to 1.
        batch: Transitions of the last gradient step.
        normals: Standard normal samples of the last gradient step.
        rate: The learning rate, on the device.
    """

    networks: ActorCriticNetworks

    def __init__(self, args: LearnerArgs) -> None:
        case, policy_rows, networks, device = args.case, args.policy_rows, args.networks, args.case.device
        assert isinstance(case.algorithm, OffPolicy)
        self.algorithm: OffPolicy = case.algorithm
        algorithm, steps = self.algorithm, self.algorithm.gradient_steps
        super().__init__(args, {"actions": args.horizon, "replay": steps, "noise": steps})
        rows, head, features = policy_rows.rows, policy_rows.head, policy_rows.features
        stochastic, zeros = isinstance(algorithm, SAC), self.networks.rate.new_zeros
        self.actions = zeros(args.horizon, rows, head.width)
        self._acted = zeros(rows, head.width)
        self.replay = Replay(rows, algorithm.buffer_size, features, head.width, device, case.threads, args.limit)
        self.batch = Transitions.zeros(algorithm.batch_size, features, head.width, device)
        self._first = args.group.rank * algorithm.batch_size  # index of the first sample among all processes
        self._ops = Ops(head, device, case.threads)
        self.exploration = Exploration(algorithm.exploration, policy_rows, self._ops, device)
        self.metrics, self.rate = zeros(len(_METRICS)), networks.rate
        self._largest = self.metrics[_METRICS.index("largest_observation") :]
        self.normals = zeros((1 + stochastic) * algorithm.batch_size, head.width)
        self._normal_buffers = self._ops.normal_buffers(len(self.normals))
        self.schedules = {"learning_rate": (algorithm.learning_rate, self.rate)}
        unused = () if stochastic else ("entropy", "temperature")
        self.metric_names = tuple(None if name in unused else name for name in _METRICS)
        self.samples: tuple[Rows, Tensor | None] | None = None
        self._has_learnt = False
        self._set_warmup()

    @property
    def optimisers(self) -> Sequence[Adam]:
        """The optimisers of critics, actor and temperature."""
        return self.networks.optimisers

    @property
    def modules(self) -> list[nn.Module]:
        return [self.module, self.networks.targets]

    def _set_warmup(self) -> None:
        """Set how many iterations still only fill the replay buffer, until it has ``learning_starts`` steps."""
        num_envs = self.policy_rows.num_envs
        missing = self.algorithm.learning_starts - int(self.replay.position.item()) * num_envs
        self.warmup_iterations = max(0, -(-missing // (self.horizon * num_envs)))

    def end_iteration(self) -> None:
        self._has_learnt = self._has_learnt or self.warmup_iterations == 0
        super().end_iteration()

    # --- the horizon ---

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        stream, actions, exploration = self.streams["actions"], self.actions[t], self.exploration
        if exploration.correlated and t > 0:
            exploration.restart(self._ended(t - 1, storage))
        if self.warmup_iterations and not self._has_learnt:  # erf(x / sqrt(2)) is uniform in -1 to 1 for a normal x
            torch.erf(exploration.next(stream, t) / 2**0.5, out=actions)
            self.networks.unscale(actions, self._acted)
        else:
            observations = self.policy_rows.observed({name: s.rows(t) for name, s in storage.items()}, 0)
            outputs = self.networks.outputs(observations)
            self.networks.choose(outputs, exploration.next(stream, t), actions, self._acted)
        return self._acted

    def _ended(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        """Return the rows whose episode ended in step ``t``, or whose agent is inactive after it; bool ``[rows]``."""
        ended = self.policy_rows.take({role: s.terminations[t] | s.truncations[t] for role, s in storage.items()}, 0)
        alive = {role: s.alive[t + 1] for role, s in storage.items() if s.alive is not None}
        return ended | ~self.policy_rows.take(alive, 0) if alive else ended

    def finish_rollout(self, storage: Mapping[str, RoleStorage]) -> None:
        horizon = self.horizon
        observations, alive = self._observations(storage), self._alive(storage)
        update_max_magnitude(self._largest.zero_(), observations, alive)
        active = None if alive is None else alive[:horizon]
        self.replay.insert(
            horizon,
            observations=join_rows(observations),
            actions=self.actions,
            **{name: self._gather(storage, name) for name in ("rewards", "terminations", "truncations")},
            alive=active,
            final_obs=None if self._limit is None else join_rows(self._final_observations(storage)),
        )
        if self.exploration.correlated:
            self.exploration.restart(self._ended(horizon - 1, storage))
        self.samples = observations[:horizon].flatten(0, 1), None if active is None else active.reshape(-1)

    # --- the update ---

    def update(self) -> None:
        assert self.samples is not None
        algorithm, networks, batch = self.algorithm, self.networks, self.batch
        draws, noise, interval = self.streams["replay"], self.streams["noise"], algorithm.actor_interval
        first_row = self._group.rank * len(self.normals)
        networks.sums.zero_()
        for step in range(0 if self.warmup_iterations else algorithm.gradient_steps):
            self.replay.draw(batch, draws, step, n_step=algorithm.n_step, gamma=algorithm.gamma, first=self._first)
            self._ops.normal(self.normals, stream=noise, turn=step, first_row=first_row, buffers=self._normal_buffers)
            networks.learn(batch, self.normals, actor=step % interval == interval - 1)
        critics, actor = networks.sums / networks.sums[:, _ALIVE:].clamp(min=1.0)
        policy_loss, value_loss, entropy = (SUMS.index(name) for name in _METRICS[:3])
        sums = actor[policy_loss], critics[value_loss], actor[entropy]
        temperature, transitions = networks.log_temperature.detach().exp()[0], networks.sums[0, _ALIVE]
        torch.stack([*sums, temperature, networks.norm[0], transitions, networks.rate[0]], out=self.metrics[:-1])
        self._end_update(*self.samples)

    # --- the state ---

    def tensors(self) -> dict[str, Tensor]:
        assert self.samples is not None
        critics, actor, *_ = self.optimisers
        return {
            "observations": max_magnitude(self.samples[0]),
            "returns": self.batch.returns,
            "the critics' gradient": critics.gradient,
            "the critics' parameters": critics.flat,
            "the actor's gradient": actor.gradient,
            "the actor's parameters": actor.flat,
        }

    def state(self, *, copy_buffers: bool = True) -> dict[str, Any]:
        local = {"replay": self.replay.state(copy_buffers=copy_buffers), "exploration": self.exploration.state()}
        state = super().state(copy_buffers=copy_buffers) | self.networks.state()
        return state | {"begun": self._has_learnt, "own": local}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.networks.load(state)
        self._has_learnt, local = state["begun"], state["own"]
        self.replay.load(None if local is None else local["replay"])
        self.exploration.load(None if local is None else local["exploration"])
        self._set_warmup()
