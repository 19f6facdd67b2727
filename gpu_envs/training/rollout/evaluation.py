"""Acting without learning: trained policies in environments of users, and evaluation over full episodes.

Every replica contributes the same number of episodes, so that short episodes are not overrepresented.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch

from gpu_envs.documented import documented
from gpu_envs.progress import Progress
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.base import Spec
from gpu_envs.tables import html_table
from gpu_envs.training.assembly import Player
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.observations import Rows
from gpu_envs.training.process.device import (
    RandomState,
    autocast_disabled,
    exclusive,
    explain_out_of_memory,
    torch_threads,
)
from gpu_envs.training.record.summary import evaluation_rows
from gpu_envs.training.rollout.horizon_env import HorizonEnv, RoleTensors, make_env
from gpu_envs.training.rollout.plan import Plan, PolicyRole, PolicyRows, RoleMembers, with_replicas
from gpu_envs.training.run import Run

MAX_REPLICAS = 4096
"""Default limit of replicas in an evaluation."""

_CHECK_INTERVAL = 32
"""Steps between two checks whether all episodes have ended; each check waits for the device."""

MAX_EPISODE_STEPS = 1_000_000
"""Limit of steps of an episode, for environments without a limit."""


@final
@dataclasses.dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation of a quantity over episodes."""

    mean: float
    std: float
    """Standard deviation over episodes."""
    interval: float
    """Half the width of the mean's 95 % confidence interval."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of one role's episodes; of several agents, each episode counts once, with their mean."""

    mean: float
    """Mean return."""
    std: float
    """Standard deviation of the returns."""
    interval: float
    """Half the width of the mean return's 95 % confidence interval."""
    length: float
    """Mean length; for an agent that becomes inactive early, the steps until then."""
    length_interval: float
    """Half the width of the mean length's 95 % confidence interval."""
    episodes: int
    """Number of episodes."""
    metrics: Mapping[str, Estimate] = dataclasses.field(default_factory=dict)
    """The environment's metrics, the same for all roles."""


@final
class Evaluations(dict[str, Evaluation]):
    """Evaluations by role. Notebooks show a table."""

    def _repr_html_(self) -> str:
        return html_table(evaluation_rows(self), heading=True)


@final
@documented
@dataclasses.dataclass(frozen=True)
class TrainedPolicies:
    """The policies of a run's last checkpoint, ready to act."""

    config: Run
    """Settings of the run, with the policies, parameters and device that replace the run's."""
    device: str
    """``cpu`` or ``cuda:N``."""
    parts: Mapping[str, tuple[RoleMembers, ...]]
    """For each policy, the agents it acts for."""
    networks: Mapping[str, Networks | None]
    """Networks of each policy; None: random actions."""
    seed: int
    """Default seed of environments and actions, derived from the run's seed."""
    steps: int
    """Environment steps that the run had trained for, summed over all replicas."""
    returns: Mapping[str, float]
    """Mean return of each role's last 100 episodes at that time; NaN if no episode had ended."""

    def make(self, num_envs: int = 1, *, autoreset_mode: str = "NextStep", **options: Any) -> Any:
        """Make the environment of the run, with its parameters and torch tensors, on the policies' device.

        Args:
            num_envs: Number of replicas. Values of a parameter with one value per replica are repeated as necessary.
            autoreset_mode: As in ``gpu_envs.make``.
            **options: Other options of ``gpu_envs.make``.
        """
        run = with_replicas(self.config, num_envs)
        return make_env(run.env, run, num_envs, self.device, autoreset_mode, **options)

    def acting_in(self, env: Any, *, greedy: bool = True, seed: int | None = None) -> "Acting":
        """Return an ``Acting`` that chooses actions in an environment, such as a result of ``make``.

        Args:
            env: An environment with torch tensors, on the policies' device.
            greedy: Take the most likely actions instead of sampling.
            seed: Seed of the actions; None: ``seed`` of the policies.

        Raises:
            ValueError: The policies cannot act for the environment's agents.
        """
        return Acting(self, env, greedy=greedy, seed=self.seed if seed is None else seed)


@final
class Acting:
    """A callable that maps an environment's observations to the actions of all its agents."""

    def __init__(self, policies: TrainedPolicies, env: Any, *, greedy: bool, seed: int) -> None:
        """Assign policies to agents, arguments as in ``TrainedPolicies.acting_in``; ValueError if they do not fit."""
        output = getattr(env, "output", "another library")  # Gymnasium's environments have no such attribute
        if output != "torch":
            raise ValueError(
                f"the environment returns arrays of {output}, but policies need torch tensors; make it with "
                "output='torch', or by make() of the policies"
            )
        if str(env.device) != policies.device:
            raise ValueError(
                f"the environment is on {env.device}, but the policies are on {policies.device}; load them with "
                f"device={str(env.device)!r}"
            )
        self._device, self._threads = policies.device, policies.config.cpu_threads
        self._seed, self._greedy, self._turn = seed, greedy, 0
        self._tensors = RoleTensors(env)
        expected = dict.fromkeys(_description(part.role) for parts in policies.parts.values() for part in parts)
        actual = list(map(_description, self._tensors.roles))
        if sorted(expected) != sorted(actual):
            raise ValueError(
                f"the policies act for {'; '.join(expected)}, but the environment has {'; '.join(actual)}: make it "
                "with the run's parameters, as make() does"
            )
        self._players = Players(policies, env.num_envs, seed)

    def __call__(self, observations: Any) -> Any:
        """Return the actions of all agents in the environment's format; the next call overwrites them.

        Args:
            observations: The last observations of ``reset`` or ``step``. Action masks are read from the environment.
        """
        tensors = self._tensors
        rows, masks = tensors.observations(observations), tensors.action_masks()
        actions = self._players.act(self._turn, rows, masks, greedy=self._greedy)
        self._turn += 1
        return tensors.env_actions(actions)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Context that sets torch's threads and random state for an evaluation, and restores the process's."""
        random = RandomState(self._seed, self._device)
        with exclusive(), torch_threads(self._device, self._threads), random:
            yield


def _description(role: PolicyRole) -> str:
    return f"{role.agents} {role.name} with {role.features} features and actions {role.head}"


def play(
    policies: TrainedPolicies,
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    num_envs: int | None,
    progress: bool | None = False,
    spec: Spec | None = None,
) -> Evaluations:
    """Play full episodes, and return evaluations by role; each replica contributes its first episodes, however long.

    ``spec`` is the spec of an existing environment whose rules are used; None: the spec of the policies' run.
    """
    config, device = policies.config, policies.device
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; give an integer from 1 up")
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; give an integer from 1 up, or None")
    count = min(num_envs or MAX_REPLICAS, episodes)
    random = RandomState(seed, device)  # modules may draw random numbers, which must not come from a training's state
    per_replica = -(-episodes // count)
    bar = Progress(per_replica * count, None if progress is None else not progress, unit="episodes")
    start = time.perf_counter()
    evaluated = dataclasses.replace(config, num_envs=count, horizon=1)
    with explain_out_of_memory(evaluated, device), random, contextlib.closing(bar):
        horizon_env = HorizonEnv(Plan(with_replicas(config, count), device, count, spec), 1)
        horizon_env.reset(derived_seed(seed, "evaluation"))
        players = Players(policies, count, seed)
        names = tuple(horizon_env.storage)
        tally = EpisodeTally(per_replica, count, 2 * len(names) + len(horizon_env.metrics), device)
        for turn in range(MAX_EPISODE_STEPS * per_replica):
            horizon_env.carry_over()
            observations, masks = horizon_env.observations(0), horizon_env.action_masks(0)
            horizon_env.step(0, players.act(turn, observations, masks, greedy=greedy))
            values: list[torch.Tensor] = []
            for storage in horizon_env.storage.values():
                values += [storage.episode_return[0].double().mean(1), storage.episode_length[0].double().mean(1)]
            if horizon_env.episode_metrics is not None:
                values += horizon_env.episode_metrics[0].T
            tally.add(horizon_env.ended[0], values)
            if turn % _CHECK_INTERVAL == _CHECK_INTERVAL - 1:
                done = tally.ended()
                returns = dict(zip(names, tally.means()[::2], strict=False))
                bar.update(done, done / (time.perf_counter() - start), returns)
                if done == per_replica * count:
                    return tally.evaluations(names, horizon_env.metrics)
        steps = f"{MAX_EPISODE_STEPS * per_replica:,} steps for {per_replica} episode{'s' * (per_replica > 1)}"
        raise RuntimeError(f"a replica of {config.env} needs over {steps}: limit them by max_episode_steps in params")


@final
class Players:
    """The players of all agents of an environment."""

    def __init__(self, policies: TrainedPolicies, num_envs: int, seed: int) -> None:
        """Make players for ``num_envs`` replicas, with a seed for sampled actions."""
        self._device, threads = policies.device, policies.config.cpu_threads
        self._players = [
            Player(PolicyRows(name, parts, num_envs, self._device), policies.networks[name], threads, seed)
            for name, parts in policies.parts.items()
        ]
        self._actions = shared_actions(policies.parts.values(), num_envs, self._device)

    def act(
        self, turn: int, observations: Mapping[str, Rows], masks: Mapping[str, torch.Tensor], *, greedy: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the actions of all agents by role, ``[num_envs, agents, width]``, which the next call overwrites."""
        with autocast_disabled(self._device):
            for player in self._players:
                player.policy_rows.put_actions(player.act(turn, observations, masks, greedy=greedy), self._actions)
        return self._actions


def shared_actions(policies: Iterable[tuple[RoleMembers, ...]], num_envs: int, device: str) -> dict[str, torch.Tensor]:
    """Return zeros by role ``[num_envs, agents, width]``, for actions of roles whose agents have several policies."""
    roles = {part.role.name: part.role for parts in policies for part in parts if not part.all_members}
    dtypes = {"box": torch.float32, "discrete": torch.int32}
    return {
        name: torch.zeros((num_envs, role.agents, role.head.width), dtype=dtypes[role.head.kind], device=device)
        for name, role in roles.items()
    }


@final
class EpisodeTally:
    """Records quantities (returns and lengths of roles, metrics) of each replica's first episodes."""

    def __init__(self, per_replica: int, num_envs: int, quantities: int, device: str) -> None:
        self._done = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._values = torch.zeros((quantities, per_replica + 1, num_envs), dtype=torch.float64, device=device)
        self._per_replica = per_replica

    def add(self, ended: torch.Tensor, quantities: Sequence[torch.Tensor]) -> None:
        """Record a step: whether each replica's episode ended, ``[num_envs]``, and the quantities of ended episodes."""
        # steps without an end and surplus episodes are written to an additional slot, which is never read
        slot = torch.where(ended, self._done.clamp(max=self._per_replica), self._per_replica)
        values = torch.stack([quantity.double() for quantity in quantities]).unsqueeze(1)
        self._values.scatter_(1, slot.expand_as(values), values)
        self._done.add_(ended)

    def ended(self) -> int:
        """Return the number of recorded episodes."""
        return int(self._done.clamp(max=self._per_replica).sum().item())

    def means(self) -> list[float]:
        """Return the mean of each quantity over the recorded episodes; NaN without any."""
        return [(values[:-1].sum() / self._done.clamp(max=self._per_replica).sum()).item() for values in self._values]

    def evaluations(self, roles: Sequence[str], metrics: Sequence[str]) -> Evaluations:
        """Return the evaluation of each role, once all replicas have played their episodes."""
        estimates = []
        for values in self._values[:, :-1].flatten(1):
            std = values.std().item() if values.numel() > 1 else 0.0
            estimates.append(Estimate(values.mean().item(), std, 1.96 * std / math.sqrt(values.numel())))
        by_metric = dict(zip(metrics, estimates[2 * len(roles) :], strict=True))
        evaluations = Evaluations()
        for role, returns, lengths in zip(roles, estimates[::2], estimates[1::2], strict=False):
            values = (returns.mean, returns.std, returns.interval, lengths.mean, lengths.interval)
            evaluations[role] = Evaluation(*values, self.ended(), by_metric)
        return evaluations
