"""Learning from a replay buffer."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from gpu_envs.training.algorithms.base import OffPolicy, Stochastic
from gpu_envs.training.engines.off_policy import ActorCriticNetworks
from gpu_envs.training.learner import Learner, LearnerParts
from gpu_envs.training.observations import Rows, largest_of, raise_to_largest, whole
from gpu_envs.training.operations.ops import SUMS, Ops
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.operations.replay import Replay, Transitions
from gpu_envs.training.rollout.exploration import Exploration
from gpu_envs.training.rollout.horizon_env import RoleStorage

_FIGURES = (
    *("policy_loss", "value_loss", "entropy", "temperature", "gradient_norm", "transitions"),
    *("learning_rate", "largest_observation"),
)
"""What it reports of each iteration; the first three are means over the transitions of its updates."""

_ALIVE = SUMS.index("alive")


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

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=device)

        self.actions = zeros(parts.horizon, rows, head.width)
        self._acted = zeros(rows, head.width)
        self.replay = Replay(rows, algorithm.buffer_size, features, head.width, device, case.threads, parts.limit)
        self.batch = Transitions.made(algorithm.batch_size, features, head.width, device)
        self._first = parts.group.rank * algorithm.batch_size  # of the samples of all processes
        self._ops = Ops(head, device, case.threads)
        self.exploration = Exploration(algorithm.exploration, policy_rows, self._ops, device)
        self.figures, self.rate = zeros(len(_FIGURES)), networks.rate
        self._largest = self.figures[_FIGURES.index("largest_observation") :]
        self.normals = zeros(networks.normals * algorithm.batch_size, head.width)
        self._beside_normal = self._ops.beside_normal(len(self.normals))
        self.schedules = [(algorithm.learning_rate, self.rate)]
        stochastic, of_entropy = isinstance(algorithm, Stochastic), ("entropy", "temperature")
        self.names = tuple(name if stochastic or name not in of_entropy else None for name in _FIGURES)
        self.samples: tuple[Rows, torch.Tensor | None] | None = None
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

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> torch.Tensor:
        stream, actions, exploration = self.streams["actions"], self.actions[t], self.exploration
        if exploration.follows and t > 0:
            exploration.begin_anew(self._ended(t - 1, storage))
        if self.waits and not self._begun:  # evenly: a normal number's place in its distribution is
            torch.erf(exploration.next(stream, t) / 2**0.5, out=actions)
            self.networks.unscale(actions, self._acted)
            return self._acted
        observations = self.policy_rows.observed({name: s.rows_at(t) for name, s in storage.items()}, 0)
        outputs = self.networks.outputs(observations)
        self.networks.choose(outputs, exploration.next(stream, t), actions, self._acted)
        return self._acted

    def _ended(self, t: int, storage: Mapping[str, RoleStorage]) -> torch.Tensor:
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
        rewards, terminations, truncations = (
            self._taken(storage, name) for name in ("rewards", "terminations", "truncations")
        )
        self.replay.insert(
            whole(observations),
            self.actions,
            rewards,
            terminations,
            truncations,
            None if alive is None else alive[:horizon],
            None if self._limit is None else whole(self._seen_last(storage)),
        )
        if self.exploration.follows:
            self.exploration.begin_anew(self._ended(horizon - 1, storage))
        active = None if alive is None else alive[:horizon].reshape(-1)
        self.samples = observations[:horizon].flatten(0, 1), active

    # --- the update ---

    def update(self) -> None:
        assert self.samples is not None
        algorithm, networks, batch = self.algorithm, self.networks, self.batch
        interval = algorithm.actor_interval
        networks.sums.zero_()
        for number in range(0 if self.waits else algorithm.gradient_steps):
            self.replay.draw(
                batch,
                self.streams["replay"],
                number,
                n_step=algorithm.n_step,
                gamma=algorithm.gamma,
                first=self._first,
            )
            self._ops.normal(
                self.normals,
                stream=self.streams["noise"],
                turn=number,
                first_row=self._group.rank * len(self.normals),
                beside=self._beside_normal,
            )
            networks.learn(batch, self.normals, actor=number % interval == interval - 1)
        means = networks.sums / networks.sums[:, _ALIVE : _ALIVE + 1].clamp(min=1.0)
        figures = {name: means[int(name != "value_loss"), SUMS.index(name)] for name in _FIGURES[:3]}
        figures |= {"temperature": networks.log_temperature.detach().exp()[0], "gradient_norm": networks.norm[0]}
        figures |= {"transitions": networks.sums[0, _ALIVE], "learning_rate": networks.rate[0]}
        torch.stack([figures[name] for name in _FIGURES[: len(figures)]], out=self.figures[: len(figures)])
        self._end(*self.samples)

    # --- what is kept ---

    def tensors(self) -> dict[str, torch.Tensor]:
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
