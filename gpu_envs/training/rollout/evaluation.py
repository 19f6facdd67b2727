"""Acting without learning: trained policies in environments of users, and evaluation over full episodes."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch

from gpu_envs.documented import documented
from gpu_envs.evaluating import MAX_REPLICAS, Evaluations, Results, play_episodes
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
from gpu_envs.training.rollout.horizon_env import HorizonEnv, RoleTensors, make_env
from gpu_envs.training.rollout.plan import Plan, PolicyRole, PolicyRows, RoleMembers, with_replicas
from gpu_envs.training.run import Run


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
        self._device, self._threads = policies.device, policies.config.torch_threads
        self._seed, self._greedy, self._turn = seed, greedy, 0
        self._tensors = RoleTensors(env, frames=policies.config.frame_stack)
        expected = dict.fromkeys(_description(part.role) for parts in policies.parts.values() for part in parts)
        actual = list(map(_description, self._tensors.roles))
        if sorted(expected) != sorted(actual):
            raise ValueError(
                f"the policies act for {'; '.join(expected)}, but the environment has {'; '.join(actual)}: make it "
                "with the run's parameters, as make() does"
            )
        self._players = Players(policies, env.num_envs, seed)

    def __call__(self, observations: Any, masks: Any = None) -> Any:
        """Return the actions of all agents in the environment's format; the next call overwrites them.

        Args:
            observations: The last observations of ``reset`` or ``step``.
            masks: Not necessary: action masks are read from the environment. ``gpu_envs.evaluate`` passes them.
        """
        del masks
        tensors = self._tensors
        with torch_threads(self._device, self._threads):
            rows, masks = tensors.observations(observations), tensors.action_masks()
            starts = tensors.starts() if self._players.have_memory else {}
            actions = self._players.act(self._turn, rows, masks, starts, greedy=self._greedy)
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
    evaluated = dataclasses.replace(config, num_envs=count, horizon=1)
    with explain_out_of_memory(evaluated, device), random:
        horizon_env = HorizonEnv(Plan(with_replicas(config, count), device, count, spec), 1)
        players = Players(policies, count, seed)
        if players.have_memory:
            horizon_env.track_starts()
        horizon_env.reset(derived_seed(seed, "evaluation"))

        def step(turn: int) -> tuple[torch.Tensor, Results]:
            horizon_env.carry_over()
            inputs = horizon_env.observations(0), horizon_env.action_masks(0), horizon_env.starts(0)
            horizon_env.step(0, players.act(turn, *inputs, greedy=greedy))
            metrics = () if horizon_env.episode_metrics is None else horizon_env.episode_metrics[0].T
            return horizon_env.ended[0], Results(
                {name: storage.row("episode_return", 0) for name, storage in horizon_env.storage.items()},
                {name: storage.row("episode_length", 0) for name, storage in horizon_env.storage.items()},
                dict(zip(horizon_env.metrics, metrics, strict=True)),
            )

        return play_episodes(horizon_env.env, episodes, step, progress)


@final
class Players:
    """The players of all agents of an environment.

    Attributes:
        have_memory: Whether some of them have memory, so that they need ``starts``.
    """

    def __init__(self, policies: TrainedPolicies, num_envs: int, seed: int) -> None:
        """Make players for ``num_envs`` replicas, with a seed for sampled actions."""
        self._device, threads = policies.device, policies.config.threads
        self._players = [
            Player(PolicyRows(name, parts, num_envs, self._device), policies.networks[name], threads, seed)
            for name, parts in policies.parts.items()
        ]
        self._actions = shared_actions(policies.parts.values(), num_envs, self._device)
        self.have_memory = any(player.recurrent_state is not None for player in self._players)

    def act(
        self,
        turn: int,
        observations: Mapping[str, Rows],
        masks: Mapping[str, torch.Tensor],
        starts: Mapping[str, torch.Tensor],
        *,
        greedy: bool,
    ) -> Mapping[str, torch.Tensor]:
        """Return the actions of all agents by role, ``[num_envs, agents, width]``, which the next call overwrites."""
        with autocast_disabled(self._device):
            for player in self._players:
                actions = player.act(turn, observations, masks, starts, greedy=greedy)
                player.policy_rows.put_actions(actions, self._actions)
        return self._actions


def shared_actions(policies: Iterable[tuple[RoleMembers, ...]], num_envs: int, device: str) -> dict[str, torch.Tensor]:
    """Return zeros by role ``[num_envs, agents, width]``, for actions of roles whose agents have several policies."""
    roles = {part.role.name: part.role for parts in policies for part in parts if not part.all_members}
    dtypes = {"box": torch.float32, "discrete": torch.int32}
    return {
        name: torch.zeros((num_envs, role.agents, role.head.width), dtype=dtypes[role.head.kind], device=device)
        for name, role in roles.items()
    }
