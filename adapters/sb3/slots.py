"""What Stable-Baselines3 takes for environments: replicas, or the agents of one role in each of them."""

from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from gpu_envs.adapters.sb3.others import Others
from gpu_envs.adapters.sb3.results import WRITTEN, Live, joined, keys_of, results_for, settle
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ALONE, ByRole
from gpu_envs.specs.spaces import from_zero

SlotObservations: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations ``[slots, ...]``; of a Dict space by key."""

Last: TypeAlias = np.ndarray | list[dict[str, np.ndarray]]
"""Observations of some slots, one after another."""

EVERY: Final = slice(None)
"""All replicas."""


class Stepped(NamedTuple):
    """What a step leaves of all slots."""

    observations: SlotObservations
    """Those of a new episode where one ended."""
    rewards: np.ndarray
    """``[slots]`` float32."""
    dones: np.ndarray
    """``[slots]`` bool."""
    ended: np.ndarray
    """The slots that are done, ascending; what follows has a row for each."""
    last: Last
    """The last observation of the episode."""
    truncated: np.ndarray
    """Whether the time limit alone ended it."""
    reported: np.ndarray
    """Whether its return and length are given."""
    returns: np.ndarray
    """The return."""
    lengths: np.ndarray
    """The length in steps."""
    metrics: dict[str, np.ndarray]
    """The environment's metrics by name."""


class Slots(ABC):
    """The slots of an environment. A staggered episode is never reported: it is not a whole one.

    Attributes:
        observation_space: Of one slot.
        action_space: Of one slot: whole numbers count from 0, as Stable-Baselines3's policies give them.
        of_replica: How many slots a replica has; slot *i* belongs to replica ``i // of_replica``.
    """

    def __init__(self, by_role: ByRole, role: str) -> None:
        """Prepares for the results.

        Args:
            by_role: The environment.
            role: Whose agents the slots are.
        """
        self._env, self._by_role, self._role = by_role.env, by_role, role
        self._results = results_for(self._env, None if by_role.alone else role)
        self._midway = np.zeros(self._env.num_envs, bool)
        own = by_role.roles[role]
        self.observation_space = own.observation
        self.action_space, self._first_action = from_zero(own.action)
        self.of_replica = len(own.agents)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._by_role = ByRole(self._env)

    @abstractmethod
    def begin(
        self,
        observations: Any,
        infos: dict[str, Any],
        seed: int | None,
        *,
        midway: bool = False,
        replicas: slice | np.ndarray = EVERY,
    ) -> SlotObservations:
        """Takes over what a reset gave, and returns the observations of the slots.

        Args:
            observations: The reset's.
            infos: The reset's.
            seed: Of the random numbers of those who act beside the slots; None: they go on.
            midway: The episodes are staggered.
            replicas: Those whose episodes are new.
        """

    @abstractmethod
    def step(self, actions: Any) -> Stepped:
        """Steps every replica once, with an action for each slot."""

    def masks(self) -> np.ndarray:
        """Which actions each slot may choose now, bool ``[slots, choices]``: a copy."""
        masks = np.array(to_numpy(self._by_role.action_masks[self._role]), bool)
        return masks.reshape(-1, masks.shape[-1])

    def _taken(self, actions: Any) -> Any:
        """Actions as the environment takes them."""
        return actions if self._first_action is None else actions + self._first_action

    def _live(self, results: tuple[Any, ...]) -> Live:
        """A step's results by name; of a Dict space by ``name.key``."""
        infos, named = results[4], dict(zip(WRITTEN, results[:4], strict=False))
        over = "_final_obs" in infos  # NumPy output has it only where an episode ended
        named["final_obs"] = infos["final_obs"] if over else named["observations"]
        alone, role = self._by_role.alone, self._role

        def read(label: str) -> Any:
            name, _, key = label.partition(".")
            if name == "episode_metrics":
                return self._env.episode_metrics[key]
            if name == "finished":
                return infos["_final_obs"] if over else np.zeros(self._env.num_envs, bool)
            given = named[name] if name in named else infos[name] if name == "alive" else getattr(self._env, name)
            own = given if alone else given[role]
            return own[key] if key else own

        return read

    def _metrics(self, got: dict[str, np.ndarray], ended: np.ndarray) -> dict[str, np.ndarray]:
        """The metrics of the episodes of some slots."""
        return {name: got[f"episode_metrics.{name}"][ended // self.of_replica] for name in self._env.env_spec.metrics}


@final
class Replicas(Slots):
    """A slot for each replica."""

    def __init__(self, by_role: ByRole) -> None:
        super().__init__(by_role, ALONE)
        self._keys = keys_of(self.observation_space)

    def begin(
        self,
        observations: Any,
        infos: dict[str, Any],
        seed: int | None,
        *,
        midway: bool = False,
        replicas: slice | np.ndarray = EVERY,
    ) -> SlotObservations:
        del infos, seed
        self._midway[replicas] = midway
        if self._keys:
            return {key: np.array(to_numpy(observations[key])) for key in self._keys}
        return np.array(to_numpy(observations))

    def step(self, actions: Any) -> Stepped:
        results = self._env.step(self._taken(actions), out=self._results.prepare())
        settle(self._env)
        got = self._results.fetch(self._live(results))
        terminated, truncated = got["terminations"], got["truncations"]
        dones = terminated | truncated
        ended = np.flatnonzero(dones)
        reported = ~self._midway.take(ended)
        self._midway[ended] = False
        return Stepped(
            joined(got, "observations", self._keys),
            got["rewards"].astype(np.float32, copy=False),
            dones,
            ended,
            rows(joined(got, "final_obs", self._keys), ended),
            truncated.take(ended) & ~terminated.take(ended),
            reported,
            got["episode_return"][ended],
            got["episode_length"][ended],
            self._metrics(got, ended),
        )


@final
class Agents(Slots):
    """A slot for each agent of one role in each replica, agent after agent.

    A slot is done when its agent goes out. It then waits: it observes zeros and gets no reward, until the replica's
    episode ends and it is done once more, never by the time limit. Return and length of the agent are reported then:
    together with those of the replica's other agents, so that short lives are not counted more often.

    The others choose once for each step: one that is refused, and taken again with other actions, finds them as they
    were.

    Attributes:
        alive: Whether each slot's agent is in the game.
    """

    def __init__(self, by_role: ByRole, role: str, others: Others) -> None:
        super().__init__(by_role, role)
        self._others = others
        self._seen: dict[str, Any] = {}
        self._chosen: dict[str, Any] | None = None
        self._rows = by_role.rows(role)
        self.alive = np.ones(by_role.env.num_envs * self.of_replica, bool)

    def begin(
        self,
        observations: Any,
        infos: dict[str, Any],
        seed: int | None,
        *,
        midway: bool = False,
        replicas: slice | np.ndarray = EVERY,
    ) -> SlotObservations:
        self._midway[replicas] = midway
        self._seen, self._chosen = observations, None
        if seed is not None:
            self._others.seed(seed)
        self.alive = np.array(to_numpy(infos["alive"][self._role])).reshape(-1)
        return self._flat(np.array(to_numpy(observations[self._role])))

    def step(self, actions: Any) -> Stepped:
        given = np.reshape(self._taken(actions), (*self._rows, *(self.action_space.shape or ())))
        if self._chosen is None:
            self._chosen = self._others.act(self._seen)
        settle(self._env)
        results = self._env.step(self._chosen | {self._role: given}, out=self._results.prepare())
        settle(self._env)
        self._seen, self._chosen = results[0], None
        got = self._results.fetch(self._live(results))
        observations = self._flat(got["observations"])
        over = np.repeat(got["finished"], self.of_replica)
        alive = got["alive"].reshape(-1)
        out = self.alive & ~alive & ~over
        dones = out | over
        ended = np.flatnonzero(dones)
        finished = over[ended]
        last = self._flat(got["final_obs"])[ended]
        last[~finished] = observations[ended[~finished]]
        observations[out] = 0
        truncated = (got["truncations"] & ~got["terminations"]).reshape(-1)[ended]
        reported = finished & ~np.repeat(self._midway, self.of_replica)[ended]
        self._midway[got["finished"]] = False
        self.alive = alive
        return Stepped(
            observations,
            got["rewards"].reshape(-1).astype(np.float32, copy=False),
            dones,
            ended,
            last,
            truncated,
            reported,
            got["episode_return"].reshape(-1)[ended],
            got["episode_length"].reshape(-1)[ended],
            self._metrics(got, ended),
        )

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, *array.shape[2:])


def rows(seen: SlotObservations, chosen: np.ndarray) -> Last:
    """Copies of some slots' observations: an array, or a dict of arrays for each."""
    if not isinstance(seen, dict):
        return np.asarray(seen[chosen])
    copies = {key: array[chosen] for key, array in seen.items()}
    return [{key: array[i] for key, array in copies.items()} for i in range(len(chosen))]
