"""Policies that act and do not learn: in an environment of the user's, or for full episodes, to see how well they do.

Episodes are counted so that short ones are no more likely to be among them.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch

from gpu_envs.documented import documented
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.base import Spec
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
from gpu_envs.training.record.summary import Progress, evaluation_rows, table
from gpu_envs.training.rollout.horizon_env import HorizonEnv, RoleTensors, make_env
from gpu_envs.training.rollout.plan import Plan, PolicyRows, RoleInfo, RoleMembers, with_replicas
from gpu_envs.training.run import Run

MAX_REPLICAS = 4096
"""As many episodes are played side by side, if there are so many."""

_LOOK_EVERY = 32
"""Steps between two looks at whether all episodes are over."""

MAX_EPISODE_STEPS = 1_000_000
"""Of one episode, where the environment knows no limit."""


@final
@dataclasses.dataclass(frozen=True)
class Estimate:
    """What some episodes have of a number."""

    mean: float
    std: float
    """The deviation between episodes."""
    interval: float
    """Half the width of the mean's 95 % interval."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the episodes of one role were like; with several agents, the mean of each episode's agents counts once."""

    mean: float
    """The mean return."""
    std: float
    """The deviation of the returns."""
    interval: float
    """Half the width of the mean's 95 % interval."""
    length: float
    """The mean length: of an agent that leaves early, its own."""
    length_interval: float
    """Half the width of that mean's 95 % interval."""
    episodes: int
    """How many episodes were counted."""
    metrics: Mapping[str, Estimate] = dataclasses.field(default_factory=dict)
    """The environment's metrics, which are those of all roles."""


@final
class Evaluations(dict[str, Evaluation]):
    """By role, what episodes were like. A notebook shows a table."""

    def _repr_html_(self) -> str:
        return table(evaluation_rows(self), heading=True)


@final
@documented
@dataclasses.dataclass(frozen=True)
class TrainedPolicies:
    """The policies of a run's last checkpoint, ready to act."""

    config: Run
    """The run, with what was asked for in place of its own."""
    device: str
    """``cpu`` or ``cuda:N``."""
    parts: Mapping[str, tuple[RoleMembers, ...]]
    """By policy, the agents it acts for."""
    networks: Mapping[str, Networks | None]
    """By policy; None: random actions."""
    seed: int
    """Of environments and actions, where none is given: it follows from the run's."""
    steps: int
    """Of the environment, all replicas together, that the run had trained for."""
    returns: Mapping[str, float]
    """The mean return of each role's last 100 episodes by then; NaN where none had ended."""

    def make(self, num_envs: int = 1, *, autoreset_mode: str = "NextStep", **options: Any) -> Any:
        """The environment that the policies know, with its parameters, on their device, and with torch's tensors.

        Args:
            num_envs: Replicas. Of a parameter with a value for each replica, those values take turns.
            autoreset_mode: As of ``gpu_envs.make``.
            **options: Others of ``gpu_envs.make``.
        """
        run = with_replicas(self.config, num_envs)
        return make_env(run.env, run, num_envs, self.device, autoreset_mode, **options)

    def acting_in(self, env: Any, *, greedy: bool = True, seed: int | None = None) -> "Acting":
        """Lets them act in an environment, such as one of ``make``.

        Args:
            env: It gives torch's tensors, on their device.
            greedy: Take the likeliest actions, where otherwise they are sampled.
            seed: Of the actions; None: the one of these policies.

        Raises:
            ValueError: The environment's agents are others than the policies can act for.
        """
        return Acting(self, env, greedy=greedy, seed=self.seed if seed is None else seed)


@final
class Acting:
    """Policies at work in one environment: called with its observations, they give the actions of its next step."""

    def __init__(self, policies: TrainedPolicies, env: Any, *, greedy: bool, seed: int) -> None:
        """Says which policy acts for which agents; arguments as of ``TrainedPolicies.acting_in``."""
        output = getattr(env, "output", "another library")  # of Gymnasium's own, say
        if output != "torch":
            raise ValueError(
                f"the environment gives arrays of {output}, and policies act on torch's tensors; make it with "
                "output='torch', or by make() of the policies"
            )
        if str(env.device) != policies.device:
            raise ValueError(
                f"the environment is on {env.device}, and the policies are on {policies.device}; load them with "
                f"device={str(env.device)!r}"
            )
        self._device, self._threads = policies.device, policies.config.cpu_threads
        self._seed, self._greedy, self._turn = seed, greedy, 0
        self._tensors = RoleTensors(env)
        known = dict.fromkeys(_described(part.role) for parts in policies.parts.values() for part in parts)
        there = list(map(_described, self._tensors.roles))
        if sorted(known) != sorted(there):
            raise ValueError(
                f"the policies act for {'; '.join(known)}, and the environment has {'; '.join(there)}: make it with "
                "the run's parameters, as make() does"
            )
        self._players = Players(policies, env.num_envs, seed)

    def __call__(self, observations: Any) -> Any:
        """Everybody's actions, as the environment takes them; the next call overwrites them.

        Args:
            observations: What ``reset`` or ``step`` has just given. Action masks are asked of the environment.
        """
        tensors = self._tensors
        rows, masks = tensors.observations(observations), tensors.action_masks()
        actions = self._players.act(self._turn, rows, masks, greedy=self._greedy)
        self._turn += 1
        return tensors.taken(actions)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Sets torch up as an evaluation does, threads and its random numbers, and puts it back."""
        numbers = RandomState(self._seed, self._device)
        with exclusive(), torch_threads(self._device, self._threads), numbers:
            yield


def _described(role: RoleInfo) -> str:
    return f"{role.agents} {role.name} of {role.features} features and actions {role.head}"


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
    """Plays full episodes, as ``runs.evaluate``. Every replica contributes its first ones, however long they take.

    ``spec`` is that of an environment that was made before, under whose rules they play; None: that of their run.
    """
    config, device = policies.config, policies.device
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; give a whole number from 1 up")
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; give a whole number from 1 up, or None")
    count = min(num_envs or MAX_REPLICAS, episodes)
    numbers = RandomState(seed, device)  # a module may draw some: not those of a training
    each = -(-episodes // count)
    bar = Progress(each * count, None if progress is None else not progress, unit="episodes")
    start = time.perf_counter()
    own = dataclasses.replace(config, num_envs=count, horizon=1)
    with explain_out_of_memory(own, device), numbers, contextlib.closing(bar):
        horizon_env = HorizonEnv(Plan(with_replicas(config, count), device, count, spec), 1)
        horizon_env.reset(derived_seed(seed, "evaluation"))
        players = Players(policies, count, seed)
        names = tuple(horizon_env.storage)
        tally = EpisodeTally(each, count, 2 * len(names) + len(horizon_env.metrics), device)
        for turn in range(MAX_EPISODE_STEPS * each):
            horizon_env.carry_over()
            observations, masks = horizon_env.observations(0), horizon_env.action_masks(0)
            horizon_env.step(0, players.act(turn, observations, masks, greedy=greedy))
            values: list[torch.Tensor] = []
            for storage in horizon_env.storage.values():
                values += [storage.episode_return[0].double().mean(1), storage.episode_length[0].double().mean(1)]
            if horizon_env.episode_metrics is not None:
                values += horizon_env.episode_metrics[0].T
            tally.add(horizon_env.ended[0], values)
            if turn % _LOOK_EVERY == _LOOK_EVERY - 1:
                done = tally.ended()
                returns = dict(zip(names, tally.means()[::2], strict=False))
                bar.update(done, done / (time.perf_counter() - start), returns)
                if done == each * count:
                    return tally.evaluations(names, horizon_env.metrics)
        raise RuntimeError(
            f"an episode of {config.env} did not end within {MAX_EPISODE_STEPS:,} steps; give it a limit"
        )


@final
class Players:
    """The policies of all agents, which act together and do not learn."""

    def __init__(self, policies: TrainedPolicies, num_envs: int, seed: int) -> None:
        """Lets them act in so many replicas, with actions of this seed."""
        self._device, threads = policies.device, policies.config.cpu_threads
        self._players = [
            Player(PolicyRows(name, parts, num_envs, self._device), policies.networks[name], threads, seed)
            for name, parts in policies.parts.items()
        ]
        self._actions = shared_actions(policies.parts.values(), num_envs, self._device)

    def act(
        self, turn: int, observations: Mapping[str, Rows], masks: Mapping[str, torch.Tensor], *, greedy: bool
    ) -> Mapping[str, torch.Tensor]:
        """Everybody's actions by role, ``[num_envs, agents, width]``, overwritten by the next; as ``Player.act``."""
        with autocast_disabled(self._device):
            for player in self._players:
                player.policy_rows.put_actions(player.act(turn, observations, masks, greedy=greedy), self._actions)
        return self._actions


def shared_actions(policies: Iterable[tuple[RoleMembers, ...]], num_envs: int, device: str) -> dict[str, torch.Tensor]:
    """By role, where actions are gathered of agents that several policies act for."""
    roles = {part.role.name: part.role for parts in policies for part in parts if not part.all_members}
    dtypes = {"box": torch.float32, "discrete": torch.int32}
    return {
        name: torch.zeros((num_envs, role.agents, role.head.width), dtype=dtypes[role.head.kind], device=device)
        for name, role in roles.items()
    }


@final
class EpisodeTally:
    """Each replica's first episodes: numbers of each, which are roles' returns and lengths, and metrics."""

    def __init__(self, each: int, num_envs: int, numbers: int, device: str) -> None:
        self._done = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._values = torch.zeros((numbers, each + 1, num_envs), dtype=torch.float64, device=device)
        self._each = each

    def add(self, ended: torch.Tensor, numbers: Sequence[torch.Tensor]) -> None:
        """Takes in the step's episodes, ``[num_envs]``: where any ended, and numbers of those that did."""
        # those past the number wanted go into one place more, which is not read
        place = torch.where(ended, self._done.clamp(max=self._each), self._each)
        given = torch.stack([number.double() for number in numbers]).unsqueeze(1)
        self._values.scatter_(1, place.expand_as(given), given)
        self._done.add_(ended)

    def ended(self) -> int:
        """Returns how many of the wanted episodes have ended."""
        return int(self._done.clamp(max=self._each).sum().item())

    def means(self) -> list[float]:
        """Returns the mean of each number over the wanted episodes that have ended; NaN without one."""
        return [(values[:-1].sum() / self._done.clamp(max=self._each).sum()).item() for values in self._values]

    def evaluations(self, roles: Sequence[str], metrics: Sequence[str]) -> Evaluations:
        """How roles and metrics did."""
        estimates = []
        for values in self._values[:, :-1].flatten(1):
            std = values.std().item() if values.numel() > 1 else 0.0
            estimates.append(Estimate(values.mean().item(), std, 1.96 * std / math.sqrt(values.numel())))
        of_metrics = dict(zip(metrics, estimates[2 * len(roles) :], strict=True))
        evaluations = Evaluations()
        for role, returns, lengths in zip(roles, estimates[::2], estimates[1::2], strict=False):
            numbers = (returns.mean, returns.std, returns.interval, lengths.mean, lengths.interval)
            evaluations[role] = Evaluation(*numbers, self.ended(), of_metrics)
        return evaluations
