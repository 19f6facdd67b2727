"""Learning from a replay buffer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from gpu_envs.training.algorithms import SAC, OffPolicy
from gpu_envs.training.engines.off_policy import ActorCriticNetworks, Transitions
from gpu_envs.training.engines.ops import SUMS, Ops
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.learner import Learner, LearnerParts
from gpu_envs.training.observations import Rows, largest_of, raise_to_largest, whole
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import PolicyRows
from gpu_envs.training.rollout.replay import Replay

_FIGURES = (
    *("policy_loss", "value_loss", "entropy", "temperature", "gradient_norm", "transitions"),
    *("learning_rate", "largest_observation"),
)
"""What it reports of each iteration; the first three are means over the transitions of its updates."""

_ALIVE = SUMS.index("alive")

_RETURN = 0.15
"""The share by which a process of Ornstein and Uhlenbeck goes back with each step."""


@final
class Exploration:
    """Standard normal numbers by which each row's actions are varied, ``white`` or ``ou``.

    The latter depend on earlier ones (``follows``), and restart with an episode.
    """

    def __init__(self, kind: str, policy_rows: PolicyRows, ops: Ops, device: str) -> None:
        self._policy_rows, self._ops, self.follows = policy_rows, ops, kind == "ou"
        self._numbers = torch.zeros((policy_rows.rows, policy_rows.head.width), device=device)
        self._state: dict[str, Tensor] = {}
        if self.follows:
            new = torch.ones(policy_rows.rows, dtype=torch.bool, device=device)
            self._state = {"kept": torch.zeros_like(self._numbers), "new": new}

    def next(self, stream: Tensor, turn: int) -> Tensor:
        """The numbers of a step, ``[rows, width]``; those of the next step overwrite them."""
        for rows, first in self._policy_rows.spans:
            self._ops.normal(self._numbers[rows], stream=stream, turn=turn, first_row=first)
        if self.follows:
            kept, new = self._state["kept"], self._state["new"]
            previous = torch.where(new.unsqueeze(1), 0.0, kept)
            stays = 1.0 - _RETURN
            torch.add(stays * previous, self._numbers, alpha=math.sqrt(1.0 - stays * stays), out=kept)
            self._numbers.copy_(kept)
            new.zero_()
        return self._numbers

    def begin_anew(self, rows: Tensor) -> None:
        """Says whose episodes have ended, bool ``[rows]``."""
        if self.follows:
            self._state["new"].logical_or_(rows)

    def state(self) -> dict[str, Tensor]:
        """Copies of what the next numbers depend on."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load(self, state: Mapping[str, Tensor] | None) -> None:
        """Takes over what ``state`` gave; None: all begin anew."""
        for name, tensor in self._state.items():
            if state is not None:
                tensor.copy_(state[name])
            elif name == "new":
                tensor.fill_(True)


@final
class OffPolicyLearner(Learner):
    """A policy that puts each horizon into a buffer, and learns from batches that are drawn from there.

    It waits for as long as it warms up: before it has ever learnt it takes random actions then.

    Attributes:
        replay: The buffer.
        exploration: The noise on its actions.
        actions: Of the horizon, ``[horizon, rows, width]``, from -1 to 1.
        batch: The transitions that an update last drew, and ``normals``, the random numbers it used.
        rate: The learning rate.
    """

    networks: ActorCriticNetworks

    def __init__(self, parts: LearnerParts) -> None:
        """Allocates; every process has a buffer and batches of its own, and gradients are means over all batches."""
        case, policy_rows, networks, device = parts.case, parts.policy_rows, parts.networks, parts.case.device
        assert isinstance(case.algorithm, OffPolicy)
        self.algorithm: OffPolicy = case.algorithm
        algorithm, steps = self.algorithm, self.algorithm.gradient_steps
        super().__init__(parts, {"actions": parts.horizon, "replay": steps, "noise": steps})
        rows, head, features = policy_rows.rows, policy_rows.head, policy_rows.features
        stochastic, zeros = isinstance(algorithm, SAC), self.networks.rate.new_zeros
        self.actions = zeros(parts.horizon, rows, head.width)
        self._acted = zeros(rows, head.width)
        self.replay = Replay(rows, algorithm.buffer_size, features, head.width, device, case.threads, parts.limit)
        self.batch = Transitions.zeros(algorithm.batch_size, features, head.width, device)
        self._first = parts.group.rank * algorithm.batch_size  # of the samples of all processes
        self._ops = Ops(head, device, case.threads)
        self.exploration = Exploration(algorithm.exploration, policy_rows, self._ops, device)
        self.figures, self.rate = zeros(len(_FIGURES)), networks.rate
        self._largest = self.figures[_FIGURES.index("largest_observation") :]
        self.normals = zeros((1 + stochastic) * algorithm.batch_size, head.width)
        self._beside_normal = self._ops.beside_normal(len(self.normals))
        self.schedules = [(algorithm.learning_rate, self.rate)]
        of_entropy = () if stochastic else ("entropy", "temperature")
        self.names = tuple(None if name in of_entropy else name for name in _FIGURES)
        self.samples: tuple[Rows, Tensor | None] | None = None
        self._begun = False
        self._wait()

    @property
    def optimisers(self) -> Sequence[Adam]:
        """Of the critics, the actor and the temperature."""
        return self.networks.optimisers

    def _wait(self) -> None:
        """Sets how many iterations are left of the warm-up."""
        num_envs = self.policy_rows.num_envs
        missing = self.algorithm.learning_starts - int(self.replay.position.item()) * num_envs
        self.waits = max(0, -(-missing // (self.horizon * num_envs)))

    def count(self) -> None:
        self._begun = self._begun or self.waits == 0
        super().count()

    # --- the horizon ---

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        stream, actions, exploration = self.streams["actions"], self.actions[t], self.exploration
        if exploration.follows and t > 0:
            exploration.begin_anew(self._ended(t - 1, storage))
        if self.waits and not self._begun:  # evenly: a normal number's place in its distribution is
            torch.erf(exploration.next(stream, t) / 2**0.5, out=actions)
            self.networks.unscale(actions, self._acted)
        else:
            observations = self.policy_rows.observed({name: s.rows(t) for name, s in storage.items()}, 0)
            outputs = self.networks.outputs(observations)
            self.networks.choose(outputs, exploration.next(stream, t), actions, self._acted)
        return self._acted

    def _ended(self, t: int, storage: Mapping[str, RoleStorage]) -> Tensor:
        """Whose episode ended with step ``t``, or who is out of the game after it."""
        terminated, truncated = (
            self.policy_rows.take({role: getattr(s, name)[t] for role, s in storage.items()}, 0)
            for name in ("terminations", "truncations")
        )
        ended = terminated | truncated
        alive = {role: s.alive[t + 1] for role, s in storage.items() if s.alive is not None}
        return ended | ~self.policy_rows.take(alive, 0) if alive else ended

    def conclude(self, storage: Mapping[str, RoleStorage]) -> None:
        horizon = self.horizon
        observations, alive = self._observed(storage), self._alive(storage)
        raise_to_largest(self._largest.zero_(), observations, alive)
        active = None if alive is None else alive[:horizon]
        self.replay.insert(
            horizon,
            observations=whole(observations),
            actions=self.actions,
            **{name: self._taken(storage, name) for name in ("rewards", "terminations", "truncations")},
            alive=active,
            final_obs=None if self._limit is None else whole(self._seen_last(storage)),
        )
        if self.exploration.follows:
            self.exploration.begin_anew(self._ended(horizon - 1, storage))
        self.samples = observations[:horizon].flatten(0, 1), None if active is None else active.reshape(-1)

    # --- the update ---

    def update(self) -> None:
        assert self.samples is not None
        algorithm, networks, batch = self.algorithm, self.networks, self.batch
        draws, noise, interval = self.streams["replay"], self.streams["noise"], algorithm.actor_interval
        first_row = self._group.rank * len(self.normals)
        networks.sums.zero_()
        for number in range(0 if self.waits else algorithm.gradient_steps):
            self.replay.draw(batch, draws, number, n_step=algorithm.n_step, gamma=algorithm.gamma, first=self._first)
            self._ops.normal(self.normals, stream=noise, turn=number, first_row=first_row, beside=self._beside_normal)
            networks.learn(batch, self.normals, actor=number % interval == interval - 1)
        critics, actor = networks.sums / networks.sums[:, _ALIVE:].clamp(min=1.0)
        policy_loss, value_loss, entropy = (SUMS.index(name) for name in _FIGURES[:3])
        sums = actor[policy_loss], critics[value_loss], actor[entropy]
        temperature, transitions = networks.log_temperature.detach().exp()[0], networks.sums[0, _ALIVE]
        torch.stack([*sums, temperature, networks.norm[0], transitions, networks.rate[0]], out=self.figures[:-1])
        self._end(*self.samples)

    # --- what is kept ---

    def tensors(self) -> dict[str, Tensor]:
        assert self.samples is not None
        critics, actor, *_ = self.optimisers
        return {
            "observations": largest_of(self.samples[0]),
            "returns": self.batch.returns,
            "the critics' gradient": critics.gradient,
            "the critics' parameters": critics.flat,
            "the actor's gradient": actor.gradient,
            "the actor's parameters": actor.flat,
        }

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        own = {"replay": self.replay.state(whole=whole), "exploration": self.exploration.state()}
        return super().state(whole=whole) | self.networks.state() | {"begun": self._begun, "own": own}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.networks.load(state)
        self._begun, own = state["begun"], state["own"]
        self.replay.load(None if own is None else own["replay"])
        self.exploration.load(None if own is None else own["exploration"])
        self._wait()
