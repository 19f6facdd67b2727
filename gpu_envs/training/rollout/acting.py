"""The policies of a run, acting in an environment of the user's."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, final

from gpu_envs.documented import documented
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.process.settings import RandomState, alone, torch_threads
from gpu_envs.training.rollout.evaluation import ActingPolicies, replicated
from gpu_envs.training.rollout.horizon_env import RoleInfo, RoleTensors, make_env
from gpu_envs.training.rollout.policy_rows import RoleMembers
from gpu_envs.training.run import Run


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
        return make_env(
            self.config.env, replicated(self.config, num_envs), num_envs, self.device, autoreset_mode, **options
        )

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
        known = {part.role.name: part.role for parts in policies.parts.values() for part in parts}
        there = {role.name: role for role in self._tensors.roles}
        if {name: _told(role) for name, role in known.items()} != {name: _told(role) for name, role in there.items()}:
            raise ValueError(
                f"the policies act for {'; '.join(map(_told, known.values()))}, and the environment has "
                f"{'; '.join(map(_told, there.values()))}: make it with the run's parameters, as make() does"
            )
        self._policies = ActingPolicies(
            policies.config, policies.parts, policies.networks, self._tensors.roles, env.num_envs, self._device, seed
        )

    def __call__(self, observations: Any) -> Any:
        """Everybody's actions, as the environment takes them; the next call overwrites them.

        Args:
            observations: What ``reset`` or ``step`` has just given. Action masks are asked of the environment.
        """
        tensors = self._tensors
        seen, masks = tensors.observations(observations), tensors.action_masks()
        actions = self._policies.act(self._turn, seen, masks, greedy=self._greedy)
        self._turn += 1
        return tensors.taken(actions)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Sets torch up as an evaluation does, threads and its random numbers, and puts it back."""
        numbers = RandomState(self._seed, self._device)
        with alone(), torch_threads(self._device, self._threads), numbers:
            yield


def _told(role: RoleInfo) -> str:
    return f"{role.agents} {role.name} of {role.features} features and actions {role.head}"
