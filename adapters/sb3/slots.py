"""The environments of the SB3 ``VecEnv``, called slots: replicas, or the agents of one role in each replica."""

from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.adapters.sb3.other_roles import OtherRoles
from gpu_envs.adapters.sb3.results import STEP_ARRAYS, ReadResult, dict_keys, make_results, result_or_dict, sync_streams
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface
from gpu_envs.specs.spaces import from_zero

SlotObservations: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations ``[slots, ...]``, as a dict for a Dict space."""

SelectedObservations: TypeAlias = np.ndarray | list[dict[str, np.ndarray]]
"""Observations of some slots: an array with a row per slot or, for a Dict space, a list of dicts."""

ALL_REPLICAS: Final = slice(None)


class StepResults(NamedTuple):
    """Results of a step for all slots."""

    observations: SlotObservations
    """Observations; after the end of an episode, the first of the next episode."""
    rewards: np.ndarray
    """``[slots]`` float32."""
    dones: np.ndarray
    """``[slots]`` bool."""
    ended: np.ndarray
    """Sorted indices of slots that are done; the fields below have a row for each."""
    final_obs: SelectedObservations
    """Final observations."""
    truncated: np.ndarray
    """Whether the episode was truncated and not terminated."""
    reported: np.ndarray
    """Whether the info reports return and length."""
    returns: np.ndarray
    """Episode returns."""
    lengths: np.ndarray
    """Episode lengths in steps."""
    metrics: dict[str, np.ndarray]
    """Metrics of the environment by name."""


class Slots(ABC):
    """Steps an environment whose slots are its replicas or the agents of a role; staggered episodes are not reported.

    Attributes:
        observation_space: Observation space of a slot.
        action_space: Action space of a slot; discrete actions start at 0, as Stable-Baselines3 requires.
        of_replica: Number of slots per replica; slot *i* belongs to replica ``i // of_replica``.
    """

    def __init__(self, by_role: RoleInterface, role: str) -> None:
        self._env, self._by_role, self._role = by_role.env, by_role, role
        self._results = make_results(self._env, None if by_role.single_agent else role)
        self._midway = np.zeros(self._env.num_envs, bool)
        role_view = by_role.roles[role]
        self.observation_space = role_view.observation
        self.action_space, self._first_action = from_zero(role_view.action)
        self.of_replica = len(role_view.agents)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._by_role = RoleInterface(self._env)

    def start_episodes(
        self,
        observations: Any,
        infos: dict[str, Any],
        seed: int | None,
        *,
        staggered: bool = False,
        replicas: slice | np.ndarray = ALL_REPLICAS,
    ) -> SlotObservations:
        """Process a reset's results; return the observations of all slots (replicas, or agents of the trained role).

        Args:
            observations: Observations of the reset.
            infos: Infos of the reset.
            seed: Seed of random policies of other roles; None: they continue their random sequence.
            staggered: Whether the episodes are staggered.
            replicas: The replicas that were reset.
        """
        self._midway[replicas] = staggered
        return self._start(observations, infos, seed)

    @abstractmethod
    def _start(self, observations: Any, infos: dict[str, Any], seed: int | None) -> SlotObservations:
        """Store what steps need from a reset, and return copies of the observations of all slots."""

    @abstractmethod
    def step(self, actions: Any) -> StepResults:
        """Step all replicas with one action per slot."""

    def masks(self) -> np.ndarray:
        """Return a copy of the action masks, bool ``[slots, choices]``."""
        masks = np.array(to_numpy(self._by_role.action_masks[self._role]), bool)
        return masks.reshape(-1, masks.shape[-1])

    def _env_actions(self, actions: Any) -> Any:
        return actions if self._first_action is None else actions + self._first_action

    def _reader(self, results: tuple[Any, ...]) -> ReadResult:
        """Return a function that reads a result of a step by name, ``name.key`` for a Dict space."""
        infos, named = results[4], dict(zip(STEP_ARRAYS, results[:4], strict=False))
        has_final_obs = "_final_obs" in infos  # NumPy output has this key only if an episode ended
        named["final_obs"] = infos["final_obs"] if has_final_obs else named["observations"]
        alone, role = self._by_role.single_agent, self._role

        def read_result(label: str) -> Any:
            """Return the environment's array of a result, without copying it."""
            name, _, key = label.partition(".")
            if name == "episode_metrics":
                return self._env.episode_metrics[key]
            if name == "finished":
                return infos["_final_obs"] if has_final_obs else np.zeros(self._env.num_envs, bool)
            value = named[name] if name in named else infos[name] if name == "alive" else getattr(self._env, name)
            role_value = value if alone else value[role]
            return role_value[key] if key else role_value

        return read_result

    def _statistics(
        self, fetched: dict[str, np.ndarray], ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Return returns, lengths and metrics of the episodes that ended, a row for each slot in ``ended``."""
        replicas = ended // self.of_replica
        metrics = {name: fetched[f"episode_metrics.{name}"][replicas] for name in self._env.env_spec.metrics}
        return fetched["episode_return"].reshape(-1)[ended], fetched["episode_length"].reshape(-1)[ended], metrics


@final
class Replicas(Slots):
    """One slot per replica."""

    def __init__(self, by_role: RoleInterface) -> None:
        super().__init__(by_role, SINGLE_ROLE)
        self._keys = dict_keys(self.observation_space)

    def _start(self, observations: Any, infos: dict[str, Any], seed: int | None) -> SlotObservations:
        del infos, seed
        if self._keys:
            return {key: np.array(to_numpy(observations[key])) for key in self._keys}
        return np.array(to_numpy(observations))

    def step(self, actions: Any) -> StepResults:
        results = self._env.step(self._env_actions(actions), out=self._results.out())
        sync_streams(self._env)
        fetched = self._results.fetch(self._reader(results))
        terminated, truncated = fetched["terminations"], fetched["truncations"]
        dones = terminated | truncated
        ended = np.flatnonzero(dones)
        reported = ~self._midway.take(ended)
        self._midway[ended] = False
        return StepResults(
            result_or_dict(fetched, "observations", self._keys),
            fetched["rewards"].astype(np.float32, copy=False),
            dones,
            ended,
            select_rows(result_or_dict(fetched, "final_obs", self._keys), ended),
            truncated.take(ended) & ~terminated.take(ended),
            reported,
            *self._statistics(fetched, ended),
        )


@final
class RoleAgents(Slots):
    """One slot per agent of the trained role, ordered by replica and then by agent.

    A slot is done when its agent becomes inactive. It then observes zeros and gets no reward until the replica's
    episode ends, when it is done again, without truncation. The agent's return and length are reported only then, as
    for all agents of the replica: otherwise short episodes would be counted more often.

    Actions of other roles are drawn once per step, and reused if the step fails with an ActionError and is repeated.

    Attributes:
        alive: Whether each slot's agent is active, bool ``[slots]``.
    """

    def __init__(self, by_role: RoleInterface, role: str, others: OtherRoles) -> None:
        super().__init__(by_role, role)
        self._others = others
        self._observations: dict[str, Any] = {}
        self._other_actions: dict[str, Any] | None = None
        self._rows = by_role.batch_shape(role)
        self.alive = np.ones(by_role.env.num_envs * self.of_replica, bool)

    def _start(self, observations: Any, infos: dict[str, Any], seed: int | None) -> SlotObservations:
        self._observations, self._other_actions = observations, None
        if seed is not None:
            self._others.seed(seed)
        self.alive = np.array(to_numpy(infos["alive"][self._role])).reshape(-1)
        return self._flat(np.array(to_numpy(observations[self._role])))

    def step(self, actions: Any) -> StepResults:
        """Step all replicas; policies choose the actions of the other roles."""
        role_actions = np.reshape(self._env_actions(actions), (*self._rows, *(self.action_space.shape or ())))
        if self._other_actions is None:
            self._other_actions = self._others.act(self._observations)
        sync_streams(self._env)
        results = self._env.step(self._other_actions | {self._role: role_actions}, out=self._results.out())
        sync_streams(self._env)
        self._observations, self._other_actions = results[0], None
        fetched = self._results.fetch(self._reader(results))
        observations = self._flat(fetched["observations"])
        episode_over = np.repeat(fetched["finished"], self.of_replica)
        alive = fetched["alive"].reshape(-1)
        deactivated = self.alive & ~alive & ~episode_over
        dones = deactivated | episode_over
        ended = np.flatnonzero(dones)
        finished = episode_over[ended]
        last = self._flat(fetched["final_obs"])[ended]
        last[~finished] = observations[ended[~finished]]
        observations[deactivated] = 0
        truncated = (fetched["truncations"] & ~fetched["terminations"]).reshape(-1)[ended]
        reported = finished & ~np.repeat(self._midway, self.of_replica)[ended]
        self._midway[fetched["finished"]] = False
        self.alive = alive
        rewards = fetched["rewards"].reshape(-1).astype(np.float32, copy=False)
        statistics = self._statistics(fetched, ended)
        return StepResults(observations, rewards, dones, ended, last, truncated, reported, *statistics)

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, *array.shape[2:])


def select_rows(observations: SlotObservations, slots: np.ndarray) -> SelectedObservations:
    """Return copies of the observations of some slots: an array, or a list of dicts for a Dict space."""
    if not isinstance(observations, dict):
        return np.asarray(observations[slots])
    copies = {key: array[slots] for key, array in observations.items()}
    return [{key: array[i] for key, array in copies.items()} for i in range(len(slots))]
