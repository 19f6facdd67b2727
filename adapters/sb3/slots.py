"""What Stable-Baselines3 takes for environments: replicas, or the agents of one role in each of them."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs import MultiAgentEnv, VectorEnv
from gpu_envs.adapters.sb3.others import Others
from gpu_envs.adapters.sb3.results import WRITTEN, Live, joined, keys_of, results_for, settle
from gpu_envs.arrays import to_numpy

Seen: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""Observations ``[slots, ...]``; of a Dict space by key."""

Last: TypeAlias = np.ndarray | list[dict[str, np.ndarray]]
"""Observations of some slots, one after another."""


class Stepped(NamedTuple):
    """What a step leaves of all slots."""

    observations: Seen
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


class Slots(ABC):
    """The slots of an environment. An episode that began midway is never reported: it is not a whole one."""

    observation_space: gymnasium.Space[Any]
    """Of one slot."""
    action_space: gymnasium.Space[Any]
    """Of one slot."""
    of_replica: int
    """How many a replica has; slot *i* belongs to replica ``i // of_replica``."""

    @abstractmethod
    def begin(self, observations: Any, infos: dict[str, Any], seed: int | None, *, midway: bool) -> Seen:
        """Takes over what a reset gave, and returns the observations of the slots.

        Args:
            observations: The reset's.
            infos: The reset's.
            seed: Of the random numbers of those who act beside the slots; None: they go on.
            midway: The episodes have been moved to random steps of the time limit.
        """

    @abstractmethod
    def step(self, actions: Any) -> Stepped:
        """Steps every replica once, with an action for each slot."""

    @abstractmethod
    def masks(self) -> np.ndarray:
        """Which actions each slot may choose now, bool ``[slots, choices]``: a copy."""


@final
class Replicas(Slots):
    """A slot for each replica."""

    def __init__(self, env: VectorEnv) -> None:
        """Prepares for the results."""
        self._env = env
        self._results = results_for(env, None)
        self._midway = np.zeros(env.num_envs, bool)
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._keys = keys_of(self.observation_space)
        self.of_replica = 1

    def begin(self, observations: Any, infos: dict[str, Any], seed: int | None, *, midway: bool) -> Seen:
        """A copy."""
        del infos, seed
        self._midway[:] = midway
        if self._keys:
            return {key: np.array(to_numpy(observations[key])) for key in self._keys}
        return np.array(to_numpy(observations))

    def step(self, actions: Any) -> Stepped:
        """Steps every replica once."""
        results = self._env.step(actions, out=self._results.prepare())
        settle(self._env)
        got = self._results.fetch(_live(self._env, results))
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
            _rows(joined(got, "final_obs", self._keys), ended),
            truncated.take(ended) & ~terminated.take(ended),
            reported,
            got["episode_return"][ended],
            got["episode_length"][ended],
        )

    def masks(self) -> np.ndarray:
        """Those of the replicas."""
        return np.array(to_numpy(self._env.action_mask), bool)


@final
class Agents(Slots):
    """A slot for each agent of one role in each replica, agent after agent.

    A slot is done when its agent goes out. It then waits: it observes zeros and gets no reward, until the replica's
    episode ends and it is done once more, never by the time limit. Return and length of the agent are reported then:
    together with those of the replica's other agents, so that short lives are not counted more often.

    Attributes:
        alive: Whether each slot's agent is in the game.
    """

    def __init__(self, env: MultiAgentEnv, role: str, others: Others) -> None:
        """Prepares for the results.

        Args:
            env: The environment.
            role: Whose agents the slots are.
            others: Who acts for the other roles.
        """
        self._env, self._role, self._others = env, role, others
        self._results = results_for(env, role)
        self._midway = np.zeros(env.num_envs, bool)
        self._seen: dict[str, Any] = {}
        self.of_replica = env.counts[role]
        self.observation_space = env.single_observation_spaces[role]
        self.action_space = env.single_action_spaces[role]
        self._rows = (env.num_envs, self.of_replica)
        self.alive = np.ones(env.num_envs * self.of_replica, bool)

    def begin(self, observations: Any, infos: dict[str, Any], seed: int | None, *, midway: bool) -> Seen:
        """A copy of the role's."""
        self._midway[:] = midway
        self._seen = observations
        if seed is not None:
            self._others.seed(seed)
        self.alive = np.array(to_numpy(infos["alive"][self._role])).reshape(-1)
        return self._flat(np.array(to_numpy(observations[self._role])))

    def step(self, actions: Any) -> Stepped:
        """Steps every replica once; the others act on what they saw last."""
        given = np.reshape(actions, (*self._rows, *(self.action_space.shape or ())))
        everybody = self._others.act(self._seen) | {self._role: given}
        settle(self._env)
        results = self._env.step(everybody, out=self._results.prepare())
        settle(self._env)
        self._seen = results[0]
        got = self._results.fetch(_live_of_role(self._env, results, self._role))
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
        )

    def masks(self) -> np.ndarray:
        """Those of the role's agents; of one that is out: everything."""
        masks = self._env.action_mask
        assert masks is not None, "asked of environments that have masks"
        return self._flat(np.array(to_numpy(masks[self._role]), bool))

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, *array.shape[2:])


def _rows(seen: Seen, chosen: np.ndarray) -> Last:
    """Copies of some slots' observations: an array, or a dict of arrays for each."""
    if not isinstance(seen, dict):
        return np.asarray(seen[chosen])
    copies = {key: array[chosen] for key, array in seen.items()}
    return [{key: array[i] for key, array in copies.items()} for i in range(len(chosen))]


def _live(env: VectorEnv, results: tuple[Any, ...]) -> Live:
    """A step's results by name; of a Dict space by ``name.key``."""
    named, infos = dict(zip(WRITTEN, results[:4], strict=False)), results[4]

    def read(label: str) -> Any:
        name, _, key = label.partition(".")
        if name == "final_obs":
            found = infos.get(name, named["observations"])  # NumPy output has none where no episode ended
        else:
            found = named[name] if name in named else getattr(env, name)
        return found[key] if key else found

    return read


def _live_of_role(env: MultiAgentEnv, results: tuple[Any, ...], role: str) -> Live:
    """A step's results of one role, by name."""
    named, infos = dict(zip(WRITTEN, results[:4], strict=False)), results[4]
    over = "_final_obs" in infos  # NumPy output has it only where an episode ended

    def read(name: str) -> Any:
        if name == "finished":
            return infos["_final_obs"] if over else np.zeros(env.num_envs, bool)
        if name == "alive":
            return infos["alive"][role]
        if name == "final_obs":
            return infos["final_obs"][role] if over else named["observations"][role]
        return (named[name] if name in named else getattr(env, name))[role]

    return read
