"""One replica of a Multi Particle Environment, with the arguments, infos and state of ``mpe2``."""

from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from pettingzoo.utils.wrappers import BaseParallelWrapper

from gpu_envs.adapters.mpe.benchmark_data import BENCHMARKS
from gpu_envs.adapters.pettingzoo.agents import Infos
from gpu_envs.adapters.pettingzoo.one_replica import TeamEnv
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.seeds import Seed

ByAgent = dict[str, Any]

NEIGHBOURS = ("num_agent_neighbors", "num_landmark_neighbors")


@final
class ParticleEnv(BaseParallelWrapper):
    """A PettingZoo ``ParallelEnv``; ``unwrapped`` is the ``TeamEnv`` that it is."""

    env: TeamEnv

    def __init__(
        self,
        env_id: str,
        *,
        benchmark_data: bool = False,
        curriculum: bool = False,
        precision: str = "float64",
        **kwargs: Any,
    ) -> None:
        """Makes the replica.

        Args:
            env_id: The environment, such as ``SimpleTag-v3``.
            benchmark_data: After each step infos have ``benchmark_data``, as those of mpe2.
            curriculum: Must be False: give parameters such as ``agent_max_speed`` in its place.
            precision: Of state and reward; mpe2's is float64.
            **kwargs: What ``TeamEnv`` takes. None neighbours are all of them.
        """
        if curriculum:
            raise ValueError(
                f"{env_id} has no curriculum; make an environment for each stage, with parameters such as "
                "agent_max_speed and agent_drive"
            )
        for name in NEIGHBOURS:
            if name in kwargs:
                kwargs[name] = _neighbours(name, kwargs[name])
        super().__init__(TeamEnv(env_id, precision=precision, **kwargs))
        self._told = BENCHMARKS.get(env_id, _nothing) if benchmark_data else None
        self._rows: ByAgent = {}
        size = sum(gymnasium.spaces.flatdim(self.env.observation_space(agent)) for agent in self.env.possible_agents)
        self.state_space = Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, seed: Seed | None = None, options: Mapping[str, Any] | None = None) -> tuple[ByAgent, Infos]:
        """Begins a new episode, as ``TeamEnv.reset``."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._rows = dict(observations)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """Takes a step with all agents, as ``TeamEnv.step``."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        if observations:
            self._rows = dict(observations)
        if self._told is not None and rewards:
            state = {name: to_numpy(field)[0] for name, field in self.env.batch.state.items()}
            told = self._told(state, self.env.batch.params, rewards)
            for info, data in zip(infos.values(), told, strict=True):
                info["benchmark_data"] = data
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """The observations of all agents in one row."""
        if not self._rows:
            return self.env.state()  # which says that there was no reset
        return np.concatenate([*self._rows.values()])

    def check_action(self, agent: str, action: Any) -> None:
        """Raises an ActionError where a step would not take an agent's action."""
        self.env.check_action(agent, action)


def _neighbours(name: str, given: Any) -> int:
    """How many are seen, as the environment takes it: 0 for all."""
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise ValueError(f"{name} is {given!r}; give a whole number from 1 up, or None for all")
    return int(given)


def _nothing(state: Any, params: Any, rewards: Mapping[str, float]) -> list[Any]:
    """What mpe2 tells of environments that tell nothing."""
    del state, params
    return [{} for _ in rewards]
