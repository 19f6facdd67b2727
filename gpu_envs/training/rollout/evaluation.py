"""How well policies do: full episodes, counted so that short ones are no more likely to be among them."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from gpu_envs.backend.arrays import dimensions, to_numpy
from gpu_envs.documented import documented
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.base import Spec
from gpu_envs.specs.params import ARGUMENTS
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.observations import Rows
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.process.memory import explain_shortage
from gpu_envs.training.process.settings import RandomState, own_precision
from gpu_envs.training.record.summary import Progress, evaluation_rows, table
from gpu_envs.training.rollout.horizon_env import HorizonEnv, RoleInfo, simulated
from gpu_envs.training.rollout.players import Player
from gpu_envs.training.rollout.policy_rows import PolicyRows, RoleMembers
from gpu_envs.training.run import Run

MOST_REPLICAS = 4096
"""As many episodes are played side by side, if there are so many."""

_LOOK_EVERY = 32
"""Steps between two looks at whether all episodes are over."""

MOST_STEPS = 1_000_000
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


def play(
    config: Run,
    parts: Mapping[str, tuple[RoleMembers, ...]],
    networks: Mapping[str, Networks | None],
    device: str,
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    num_envs: int | None,
    progress: bool | None = False,
    spec: Spec | None = None,
) -> Evaluations:
    """Plays full episodes, as ``runs.evaluate``. Every replica contributes its first ones, however long they take.

    ``parts`` and ``networks`` are by policy, without networks random actions. ``spec`` is that of an environment that
    was made before, under whose rules they play; None: that of ``config``.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; give a whole number from 1 up")
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; give a whole number from 1 up, or None")
    count = min(num_envs or MOST_REPLICAS, episodes)
    numbers = RandomState(seed, device)  # a module may draw some: not those of a training
    each = -(-episodes // count)
    bar = Progress(each * count, None if progress is None else not progress, unit="episodes")
    start = time.perf_counter()
    with (
        explain_shortage(dataclasses.replace(config, num_envs=count, horizon=1), device),
        numbers,
        contextlib.closing(bar),
    ):
        own = replicated(config, count)
        horizon_env = HorizonEnv(own, simulated(own, count, device, spec), device, 1)
        horizon_env.reset(derived_seed(seed, "evaluation"))
        policies = ActingPolicies(config, parts, networks, horizon_env.roles, count, device, seed)
        names = tuple(horizon_env.storage)
        tally = Tally(each, count, 2 * len(names) + len(horizon_env.metrics), device)
        for turn in range(MOST_STEPS * each):
            horizon_env.carry_over()
            observations, masks = horizon_env.observations(0), horizon_env.action_masks(0)
            horizon_env.step(0, policies.act(turn, observations, masks, greedy=greedy))
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
        raise RuntimeError(f"an episode of {config.env} did not end within {MOST_STEPS:,} steps; give it a limit")


def replicated(config: Run, count: int) -> Run:
    """The configuration for so many replicas: of a parameter with a value for each, those values take turns."""

    def taken(value: Any) -> Any:
        if isinstance(value, str) or dimensions(value) != 1 or len(value) == 0:
            return value
        return np.resize(to_numpy(value), count)

    params = {name: value if name in ARGUMENTS else taken(value) for name, value in config.params.items()}
    return dataclasses.replace(config, params=params)


@final
class ActingPolicies:
    """The policies of all agents, which act together and do not learn."""

    def __init__(
        self,
        config: Run,
        parts: Mapping[str, tuple[RoleMembers, ...]],
        networks: Mapping[str, Networks | None],
        roles: tuple[RoleInfo, ...],
        num_envs: int,
        device: str,
        seed: int,
    ) -> None:
        """Says which policy acts for which agents, by ``parts`` and ``networks``; without networks at random."""
        self._players, self._device = [], device
        for name, own in parts.items():
            ops = Ops(own[0].role.head, device, config.cpu_threads)
            self._players.append(Player(PolicyRows(name, own, num_envs, device), networks[name], ops, seed, device))
        self._actions = acting_buffers(roles, num_envs, device, [player.policy_rows for player in self._players])

    def act(
        self,
        turn: int,
        observations: Mapping[str, Rows],
        action_masks: Mapping[str, torch.Tensor] | None = None,
        *,
        greedy: bool = False,
    ) -> Mapping[str, torch.Tensor]:
        """Everybody's actions by role, ``[num_envs, agents, width]``, overwritten by the next; as ``Player.act``."""
        with own_precision(self._device):
            for player in self._players:
                player.policy_rows.give(player.act(turn, observations, action_masks, greedy=greedy), self._actions)
        return self._actions


def acting_buffers(
    roles: tuple[RoleInfo, ...], num_envs: int, device: str, policy_rows: list[PolicyRows]
) -> dict[str, torch.Tensor]:
    """Where the actions of each role are gathered from several policies."""
    buffers = {}
    for role in roles:
        if any(rows.shares(role.name) for rows in policy_rows):
            dtype = torch.float32 if role.head.kind == "box" else torch.int32
            shape = (num_envs, role.agents, role.head.width)
            buffers[role.name] = torch.zeros(shape, dtype=dtype, device=device)
    return buffers


@final
class Tally:
    """Each replica's first episodes: numbers of each, which are roles' returns and lengths, and metrics."""

    def __init__(self, each: int, num_envs: int, numbers: int, device: str) -> None:
        self._done = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._values = torch.zeros((numbers, each + 1, num_envs), dtype=torch.float64, device=device)
        self._each = each

    def add(self, ended: torch.Tensor, numbers: Sequence[torch.Tensor]) -> None:
        """Takes in the step's episodes, ``[num_envs]``: where any ended, and numbers of those that did."""
        # those past the number wanted go into one place more, which is not read
        place = torch.where(ended, self._done.clamp(max=self._each), self._each).unsqueeze(0)
        for values, number in zip(self._values, numbers, strict=True):
            values.scatter_(0, place, number.double().unsqueeze(0))
        self._done.add_(ended.to(torch.int64))

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
